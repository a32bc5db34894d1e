#include "zero/rank_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "zero/durable.h"
#include "zero/h5.h"

// ---- layout of the file, by HDF5 ----

static Status create_dataset(hid_t file, hid_t dcpl, hid_t lcpl, StateDataset *dataset) {
    char name[FILE_NAME_BYTES];
    state_dataset_name(dataset->unit, dataset->kind, name);
    hsize_t len = (hsize_t)dataset->len;
    hid_t space = H5Screate_simple(1, &len, NULL);
    hid_t id = H5Dcreate2(file, name, H5T_IEEE_F32LE, space, lcpl, dcpl, H5P_DEFAULT);
    haddr_t offset = id >= 0 ? H5Dget_offset(id) : HADDR_UNDEF;
    herr_t closed = id >= 0 ? H5Dclose(id) : -1;
    H5Sclose(space);
    if (closed < 0 || offset == HADDR_UNDEF)
        return fail("HDF5 cannot place dataset %s of %lld elements", name, (long long)dataset->len);
    dataset->offset = (int64_t)offset;
    return OK;
}

// The file without its data, in memory.
static Status lay_out(Manifest *manifest, int shard, int *image) {
    H5Image h5;
    TRY(h5_create(&h5, 4096));  // what O_DIRECT and page-sized reads like
    hid_t lcpl = H5Pcreate(H5P_LINK_CREATE), dcpl = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_create_intermediate_group(lcpl, 1);
    H5Pset_layout(dcpl, H5D_CONTIGUOUS);
    H5Pset_alloc_time(dcpl, H5D_ALLOC_TIME_EARLY);
    H5Pset_fill_time(dcpl, H5D_FILL_TIME_NEVER);
    Status status = h5_attribute_text(h5.file, "checkpoint", manifest->uuid);
    if (status == OK)
        status = h5_attribute_int(h5.file, "shard", shard);
    for (int d = 0; d < manifest->n_datasets && status == OK; d++)
        status = create_dataset(h5.file, dcpl, lcpl, &manifest->datasets[d]);
    H5Pclose(dcpl);
    H5Pclose(lcpl);
    *image = h5.image;
    return h5_close(&h5, status);
}

static int by_offset(const void *a, const void *b) {
    int64_t x = ((const StateDataset *)a)->offset, y = ((const StateDataset *)b)->offset;
    return (x > y) - (x < y);
}

// ---- pieces ----

int64_t rank_file_piece_len(const StateDataset *dataset, int64_t piece) {
    int64_t left = dataset->len - piece * STATE_PIECE_LEN;
    return left < STATE_PIECE_LEN ? left : STATE_PIECE_LEN;
}

static int64_t piece_offset(const StateDataset *dataset, int64_t piece) {
    return dataset->offset + piece * STATE_PIECE_BYTES;
}

static Status write_pieces(int fd, int direct, const char *path, const StateDataset *dataset, const StateView *view,
                           uint64_t *hashes) {
    for (int64_t p = 0; p < dataset->n_pieces; p++) {
        int64_t begin = p * STATE_PIECE_LEN, len = rank_file_piece_len(dataset, p);
        size_t bytes = (size_t)len * sizeof(float);
        const float *values = view->staging;
        if (view->look)
            values = view->look(view->context, dataset->kind, dataset->unit, begin);
        else
            TRY(view->fetch(view->context, dataset->kind, dataset->unit, begin, len, view->staging));
        hashes[dataset->first_piece + p] = hash_bytes(values, bytes, 0);
        TRY(durable_write_direct(direct, fd, path, values, bytes, piece_offset(dataset, p)));
    }
    return OK;
}

// ---- hash of the whole file ----

static uint64_t chain(uint64_t hash, uint64_t next) {
    return hash_bytes(&next, sizeof next, hash);
}

// Chain the bytes [*position, end), which belong to no dataset, and write them to `copy` unless that is -1.
static Status chain_gap(int fd, int copy, const char *path, int64_t *position, int64_t end, void *buffer,
                        uint64_t *hash) {
    while (*position < end) {
        size_t bytes = (size_t)(end - *position < STATE_PIECE_BYTES ? end - *position : STATE_PIECE_BYTES);
        TRY(durable_read_at(fd, path, buffer, bytes, *position));
        if (copy >= 0)
            TRY(durable_write_at(copy, path, buffer, bytes, *position));
        *hash = chain(*hash, hash_bytes(buffer, bytes, 0));
        *position += (int64_t)bytes;
    }
    return OK;
}

static Status file_hash(int fd, int copy, const char *path, const Manifest *manifest, const RankFile *file,
                        void *buffer, uint64_t *hash) {
    int64_t position = 0;
    *hash = 0;
    for (int d = 0; d < manifest->n_datasets; d++) {
        const StateDataset *dataset = &manifest->datasets[d];
        TRY(chain_gap(fd, copy, path, &position, dataset->offset, buffer, hash));
        for (int64_t p = 0; p < dataset->n_pieces; p++)
            *hash = chain(*hash, file->pieces[dataset->first_piece + p]);
        position += dataset->len * (int64_t)sizeof(float);
    }
    return chain_gap(fd, copy, path, &position, file->bytes, buffer, hash);
}

// ---- public ----

static Status rank_file_path(char path[PATH_BYTES], const char *directory, const Manifest *manifest, int file) {
    char name[FILE_NAME_BYTES];
    manifest_file_name(manifest, file, name);
    return durable_join(path, directory, name);
}

static Status fill(int fd, int direct, int image, const char *path, Manifest *manifest, RankFile *file, const StateView *view) {
    struct stat info;
    if (fstat(image, &info) != 0)
        return fail("cannot see the size of %s: %s", path, strerror(errno));
    file->bytes = info.st_size;
    for (int d = 0; d < manifest->n_datasets; d++)
        TRY(write_pieces(fd, direct, path, &manifest->datasets[d], view, file->pieces));
    TRY(file_hash(image, fd, path, manifest, file, view->staging, &file->hash));
    if (fsync(fd) != 0)
        return fail("cannot sync %s: %s", path, strerror(errno));
    return OK;
}

Status rank_file_write(const char *directory, Manifest *manifest, const Layout *layout, const StateView *view) {
    char path[PATH_BYTES];
    int image;
    TRY(rank_file_path(path, directory, manifest, layout->shard));
    TRY(lay_out(manifest, layout->shard, &image));
    qsort(manifest->datasets, (size_t)manifest->n_datasets, sizeof *manifest->datasets, by_offset);
    manifest_number_pieces(manifest);
    Status status = OK;
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        status = fail("cannot create %s: %s", path, strerror(errno));
    int direct = fd >= 0 ? durable_open_direct(path) : -1;
    if (fd >= 0)
        status = fill(fd, direct, image, path, manifest, &manifest->files[layout->shard], view);
    if (direct >= 0)
        close(direct);
    if (fd >= 0 && close(fd) != 0 && status == OK)
        status = fail("cannot close %s: %s", path, strerror(errno));
    close(image);
    return status;
}

Status rank_file_open(const char *directory, const Manifest *manifest, int file, int *fd) {
    char path[PATH_BYTES];
    int64_t bytes;
    TRY(rank_file_path(path, directory, manifest, file));
    TRY(durable_open(path, fd, &bytes));
    if (bytes == manifest->files[file].bytes)
        return OK;
    close(*fd);
    return fail("%s has %lld bytes, its manifest says %lld", path, (long long)bytes,
                (long long)manifest->files[file].bytes);
}

Status rank_file_read(int fd, const char *directory, const Manifest *manifest, int file, int dataset, int64_t piece,
                      float *values) {
    const StateDataset *d = &manifest->datasets[dataset];
    char path[PATH_BYTES], name[FILE_NAME_BYTES];
    TRY(rank_file_path(path, directory, manifest, file));
    size_t bytes = (size_t)rank_file_piece_len(d, piece) * sizeof(float);
    int64_t offset = piece_offset(d, piece);
    TRY(durable_read_at(fd, path, values, bytes, offset));
    uint64_t found = hash_bytes(values, bytes, 0), expected = manifest->files[file].pieces[d->first_piece + piece];
    if (found == expected)
        return OK;
    state_dataset_name(d->unit, d->kind, name);
    return fail(
        "%s is damaged: dataset %s, bytes %lld to %lld of the file have hash %016llx, its manifest says %016llx", path,
        name, (long long)offset, (long long)offset + (long long)bytes - 1, (unsigned long long)found,
        (unsigned long long)expected);
}

Status rank_file_verify(const char *directory, const Manifest *manifest, int file, float *buffer) {
    char path[PATH_BYTES];
    int fd;
    uint64_t hash = 0;
    TRY(rank_file_path(path, directory, manifest, file));
    TRY(rank_file_open(directory, manifest, file, &fd));
    Status status = OK;
    for (int d = 0; d < manifest->n_datasets && status == OK; d++)
        for (int64_t p = 0; p < manifest->datasets[d].n_pieces && status == OK; p++)
            status = rank_file_read(fd, directory, manifest, file, d, p, buffer);
    if (status == OK)
        status = file_hash(fd, -1, path, manifest, &manifest->files[file], buffer, &hash);
    close(fd);
    if (status == OK && hash != manifest->files[file].hash)
        status = fail(
            "%s is damaged outside its datasets (in what HDF5 wrote): the file has hash %016llx, its manifest says "
            "%016llx; training state is not affected, h5py may be",
            path, (unsigned long long)hash, (unsigned long long)manifest->files[file].hash);
    return status;
}
