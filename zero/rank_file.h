// rank_file: one rank's shards in an HDF5 file, and the file's bytes as the manifest describes them.
//
// HDF5 lays the file out and describes it, so that h5py opens it; it moves no data. Datasets are contiguous, allocated
// early and never filled, so their places are known when the file is made (H5Dget_offset). It is made in memory
// (zero/h5.h), where the datasets are holes; then pwrite puts the data and what HDF5 wrote around it on the disk, and
// pread reads it back. So writing holds no global lock, a full disk is an ordinary error that says where it happened,
// and reading checks every byte against a hash, which a contiguous dataset of HDF5 has none of.
//
// The hash of a whole file chains, in the order of the file: the hash of each piece (4 MiB) of a dataset, and the
// hashes of the bytes between datasets in stretches of at most 4 MiB. The writer has them all by the time the file is
// written.
#ifndef ZERO_RANK_FILE_H
#define ZERO_RANK_FILE_H

#include "zero/manifest.h"

// Write and sync the file of layout->shard in `directory`. Fills in the manifest: places of datasets (the same on every
// rank), and size and hashes of this file.
Status rank_file_write(const char *directory, Manifest *manifest, const Layout *layout, const StateView *view);

// Open file `file`; fails when it is missing or its size is not the manifest's.
Status rank_file_open(const char *directory, const Manifest *manifest, int file, int *fd);
// Read piece `piece` of a dataset (at most STATE_PIECE_LEN elements) and check its hash.
Status rank_file_read(int fd, const char *directory, const Manifest *manifest, int file, int dataset, int64_t piece,
                      float *values);
int64_t rank_file_piece_len(const StateDataset *dataset, int64_t piece);

// Check every byte: all pieces, then the whole file. `buffer` holds a piece.
Status rank_file_verify(const char *directory, const Manifest *manifest, int file, float *buffer);

#endif
