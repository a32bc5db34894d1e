// h5: what the readers of shards and vocabularies need from HDF5. The library's own error output is switched off;
// instead h5_reason gives the innermost line of its error stack, to be put into a message. Everything read is checked
// before use.
#ifndef DATA_H5_H
#define DATA_H5_H

#include <hdf5.h>
#include <stdint.h>

#include "llm/status.h"

// Silence the library's printing of errors in this thread.
void h5_quiet(void);

// Why the last HDF5 call of this thread failed: the innermost message, or "no reason given". Valid until the next call.
const char *h5_reason(void);

// Open a file for reading. Fails for: not there, not HDF5, truncated or damaged.
Status h5_open(const char *path, hid_t *file);

// Open dataset `name` of a file ("/tokens", "/vocab/bytes"). Fails for a link to another file: offsets would mislead.
Status h5_open_dataset(hid_t file, const char *path, const char *name, hid_t *dataset);

// Does a link of this name exist, its parents included?
bool h5_has(hid_t file, const char *name);

// Attributes of `object` ("/" or a group); absent ones leave the value as it was. Integers of any width; strings of
// fixed or variable length, cut to text_bytes.
Status h5_read_int(hid_t file, const char *path, const char *object, const char *name, int64_t *value);
Status h5_read_text(hid_t file, const char *path, const char *object, const char *name, char *text, size_t text_bytes);

#endif
