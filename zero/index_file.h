// index_file: index.h5, which shows every unit whole, for people and h5py. The loader never opens it.
//
// /unit_0003/master is a virtual dataset over the rank files, without padding; attribute `tensors` of /unit_0003 is a
// table of (name, dtype, offset, rows, columns), columns 0 for vectors. File names are relative, so a checkpoint may be
// moved. HDF5 reads a source that is missing as fill values without a word: they are NaN here, and `train_gpt --verify`
// tells for sure.
#ifndef ZERO_INDEX_FILE_H
#define ZERO_INDEX_FILE_H

#include "zero/manifest.h"

enum { INDEX_MAX_FILES = 512 };  // above, opening it takes many seconds and more files than a process may open

// Make and sync directory/index.h5, and fill in its size and hash in the manifest.
Status index_file_write(const char *directory, Manifest *manifest);
Status index_file_verify(const char *directory, const Manifest *manifest);

#endif
