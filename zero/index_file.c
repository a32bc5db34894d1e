#include "zero/index_file.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "zero/durable.h"
#include "zero/h5.h"

static const char README[] =
    "Each unit of the model, whole, as virtual datasets over the rank files. Check with `train_gpt --verify DIR` "
    "first: what "
    "is missing reads as NaN. Elements [offset, offset + rows*columns) of a unit are a tensor, see attribute "
    "`tensors`.";

static const int64_t MAX_INDEX_BYTES = (int64_t)1 << 30;

typedef struct TensorRow {
    char name[sizeof((TensorSpec *)0)->name];
    char dtype[8];
    int64_t offset, rows, columns;
} TensorRow;

static hid_t text_type(size_t bytes) {
    hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, bytes);
    return type;
}

static Status describe_tensors(hid_t group, const UnitSpec *unit) {
    TensorRow rows[MAX_TENSORS] = {0};
    for (int t = 0; t < unit->n_tensors; t++) {
        const TensorSpec *tensor = &unit->tensors[t];
        rows[t] = (TensorRow){.dtype = "float32",
                              .offset = tensor->offset,
                              .rows = tensor->shape[0],
                              .columns = tensor->n_dims == 2 ? tensor->shape[1] : 0};
        memcpy(rows[t].name, tensor->name, sizeof rows[t].name);
    }
    hid_t name = text_type(sizeof rows->name), dtype = text_type(sizeof rows->dtype);
    hid_t row = H5Tcreate(H5T_COMPOUND, sizeof *rows);
    H5Tinsert(row, "name", offsetof(TensorRow, name), name);
    H5Tinsert(row, "dtype", offsetof(TensorRow, dtype), dtype);
    H5Tinsert(row, "offset", offsetof(TensorRow, offset), H5T_NATIVE_INT64);
    H5Tinsert(row, "rows", offsetof(TensorRow, rows), H5T_NATIVE_INT64);
    H5Tinsert(row, "columns", offsetof(TensorRow, columns), H5T_NATIVE_INT64);
    hsize_t len = (hsize_t)unit->n_tensors;
    hid_t space = H5Screate_simple(1, &len, NULL);
    hid_t id = H5Acreate2(group, "tensors", row, space, H5P_DEFAULT, H5P_DEFAULT);
    herr_t written = id >= 0 ? H5Awrite(id, row, rows) : -1;
    if (id >= 0)
        H5Aclose(id);
    H5Sclose(space);
    H5Tclose(row);
    H5Tclose(dtype);
    H5Tclose(name);
    return written < 0 ? fail("HDF5 cannot write attribute tensors") : OK;
}

// A unit's state of one kind: shard f covers elements [f·shard_len, (f+1)·shard_len), as far as the unit goes.
static Status create_view(hid_t file, const Manifest *manifest, const StateDataset *dataset) {
    char name[FILE_NAME_BYTES], source[FILE_NAME_BYTES];
    state_dataset_name(dataset->unit, dataset->kind, name);
    int64_t unit_len = manifest->layout.units[dataset->unit].spec.len;
    hsize_t whole = (hsize_t)unit_len, shard = (hsize_t)dataset->len;
    hid_t dcpl = H5Pcreate(H5P_DATASET_CREATE), space = H5Screate_simple(1, &whole, NULL);
    hid_t source_space = H5Screate_simple(1, &shard, NULL);
    float fill_value = NAN;
    herr_t error = H5Pset_fill_value(dcpl, H5T_NATIVE_FLOAT, &fill_value);
    for (int f = 0; f < manifest->layout.group && f * dataset->len < unit_len && error >= 0; f++) {
        hsize_t begin = (hsize_t)f * shard, none = 0;
        hsize_t count = begin + shard < whole ? shard : whole - begin;
        manifest_file_name(manifest, f, source);
        H5Sselect_hyperslab(space, H5S_SELECT_SET, &begin, NULL, &count, NULL);
        H5Sselect_hyperslab(source_space, H5S_SELECT_SET, &none, NULL, &count, NULL);
        error = H5Pset_virtual(dcpl, space, source, name, source_space);
    }
    H5Sselect_all(space);
    hid_t id = error >= 0 ? H5Dcreate2(file, name, H5T_IEEE_F32LE, space, H5P_DEFAULT, dcpl, H5P_DEFAULT) : -1;
    if (id >= 0)
        H5Dclose(id);
    H5Sclose(source_space);
    H5Sclose(space);
    H5Pclose(dcpl);
    return id < 0 ? fail("HDF5 cannot create the virtual dataset %s", name) : OK;
}

static Status create_groups(hid_t file, const Layout *layout) {
    for (int u = 0; u < layout->n_units; u++) {
        char name[FILE_NAME_BYTES];
        snprintf(name, sizeof name, "/unit_%04d", u);
        hid_t group = H5Gcreate2(file, name, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
        if (group < 0)
            return fail("HDF5 cannot create group %s", name);
        Status status = describe_tensors(group, &layout->units[u].spec);
        H5Gclose(group);
        TRY(status);
    }
    return OK;
}

static Status make_image(const Manifest *manifest, int *image) {
    H5Image h5;
    TRY(h5_create(&h5, 1));
    Status status = h5_attribute_text(h5.file, "README", README);
    if (status == OK)
        status = h5_attribute_text(h5.file, "checkpoint", manifest->uuid);
    if (status == OK)
        status = h5_attribute_int(h5.file, "step", manifest->run.step);
    if (status == OK)
        status = create_groups(h5.file, &manifest->layout);
    for (int d = 0; d < manifest->n_datasets && status == OK; d++)
        status = create_view(h5.file, manifest, &manifest->datasets[d]);
    *image = h5.image;
    return h5_close(&h5, status);
}

Status index_file_write(const char *directory, Manifest *manifest) {
    char path[PATH_BYTES];
    int image;
    struct stat info;
    TRY(durable_join(path, directory, "index.h5"));
    TRY(make_image(manifest, &image));
    size_t bytes = fstat(image, &info) == 0 ? (size_t)info.st_size : 0;
    void *data = malloc(bytes);
    Status status = data && bytes > 0 ? durable_read_at(image, path, data, bytes, 0) : fail("no memory for %s", path);
    close(image);
    if (status == OK)
        status = durable_write_file(path, data, bytes);
    if (status == OK) {
        manifest->index_bytes = (int64_t)bytes;
        manifest->index_hash = hash_bytes(data, bytes, 0);
    }
    free(data);
    return status;
}

Status index_file_verify(const char *directory, const Manifest *manifest) {
    char path[PATH_BYTES], *data;
    size_t bytes;
    TRY(durable_join(path, directory, "index.h5"));
    TRY(durable_read_file(path, MAX_INDEX_BYTES, &data, &bytes));
    uint64_t hash = hash_bytes(data, bytes, 0);
    free(data);
    if ((int64_t)bytes != manifest->index_bytes || hash != manifest->index_hash)
        return fail(
            "%s is damaged: %zu bytes with hash %016llx, its manifest says %lld bytes, %016llx; training state is not "
            "affected, h5py may be",
            path, bytes, (unsigned long long)hash, (long long)manifest->index_bytes,
            (unsigned long long)manifest->index_hash);
    return OK;
}
