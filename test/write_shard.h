// write_shard: HDF5 shards for tests and benchmarks, good and bad ones.
#ifndef TEST_WRITE_SHARD_H
#define TEST_WRITE_SHARD_H

#include <hdf5.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct ShardSpec {
    const char *path;
    hid_t file_type;     // type on disk; 0: uint16 little endian
    hid_t memory_type;   // type of `data`; 0: the file's
    hsize_t n;           // tokens; 0: no /tokens at all
    const void *data;    // NULL: space is reserved and nothing written (a hole in the file)
    hsize_t chunk;       // 0: contiguous
    int deflate;         // compression level, for chunked ones
    int64_t vocab_size;  // attribute; 0: none
    hsize_t user_block;  // bytes before the HDF5 part (0, 512, 1024, …)
} ShardSpec;

static inline void write_shard(ShardSpec spec) {
    hid_t type = spec.file_type ? spec.file_type : H5T_STD_U16LE;
    hid_t creation = H5Pcreate(H5P_FILE_CREATE);
    H5Pset_userblock(creation, spec.user_block);
    hid_t file = H5Fcreate(spec.path, H5F_ACC_TRUNC, creation, H5P_DEFAULT);
    if (file < 0)
        abort();
    if (spec.n > 0) {
        hid_t space = H5Screate_simple(1, &spec.n, NULL), layout = H5Pcreate(H5P_DATASET_CREATE);
        H5Pset_alloc_time(layout, spec.chunk ? H5D_ALLOC_TIME_DEFAULT : H5D_ALLOC_TIME_EARLY);
        H5Pset_fill_time(layout, H5D_FILL_TIME_NEVER);
        if (spec.chunk)
            H5Pset_chunk(layout, 1, &spec.chunk);
        if (spec.deflate)
            H5Pset_deflate(layout, (unsigned)spec.deflate);
        hid_t dataset = H5Dcreate2(file, "tokens", type, space, H5P_DEFAULT, layout, H5P_DEFAULT);
        if (dataset < 0 || (spec.data && H5Dwrite(dataset, spec.memory_type ? spec.memory_type : type, H5S_ALL, H5S_ALL,
                                                  H5P_DEFAULT, spec.data) < 0))
            abort();
        H5Dclose(dataset);
        H5Pclose(layout);
        H5Sclose(space);
    }
    if (spec.vocab_size) {
        hid_t space = H5Screate(H5S_SCALAR);
        hid_t attribute = H5Acreate2(file, "vocab_size", H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT);
        H5Awrite(attribute, H5T_NATIVE_INT64, &spec.vocab_size);
        H5Aclose(attribute);
        H5Sclose(space);
    }
    H5Fclose(file);
    H5Pclose(creation);
}

#endif
