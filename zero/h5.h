// h5: the few HDF5 calls that rank files and the index share, with errors as Status instead of a printed stack.
#ifndef ZERO_H5_H
#define ZERO_H5_H

#include <hdf5.h>

#include "llm/status.h"

// A file being made, in memory. HDF5 1.10 cannot survive a full disk: when a write fails as a file is closed, the file
// stays open for ever and the library loops or crashes at exit. So it writes to memory (holes take none), and the
// caller copies what it wrote to the disk, where errors can be handled. `image` is the file's bytes, readable after
// h5_close.
typedef struct H5Image {
    hid_t file;
    int image;  // file descriptor, which the caller closes
} H5Image;

// alignment: of data of that size or more in the file. Default version bounds, so that older tools can read the file.
Status h5_create(H5Image *h5, hsize_t alignment);
// Close the HDF5 file whatever `status` says; returns the first failure. After a failure there is no image.
Status h5_close(H5Image *h5, Status status);

Status h5_attribute_text(hid_t object, const char *name, const char *text);
Status h5_attribute_int(hid_t object, const char *name, long long value);

// Whether several threads may use the library at a time (one global lock): the data reader's and that of a save.
bool h5_thread_safe(void);

#endif
