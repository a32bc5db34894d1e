#include "data/h5.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void h5_quiet(void) {
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
}

static herr_t take_description(unsigned depth, const H5E_error2_t *error, void *text) {
    (void)depth;
    if (error->desc && error->desc[0])
        snprintf(text, 256, "%s", error->desc);  // walked from the outermost call inwards: the last one stays
    return 0;
}

const char *h5_reason(void) {
    static _Thread_local char text[256];
    text[0] = '\0';
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_DOWNWARD, take_description, text);
    return text[0] ? text : "no reason given";
}

Status h5_open(const char *path, hid_t *file) {
    h5_quiet();
    // HDF5's own reason for a file that is not there is long and vague.
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return fail("cannot open shard %s: %s", path, strerror(errno));
    struct stat info;
    bool is_file = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
    close(fd);
    if (!is_file)
        return fail("cannot open shard %s: it is not a regular file", path);
    if (info.st_size == 0)
        return fail("shard %s is an empty file (0 bytes): make it again with data/prepare.py", path);

    htri_t is_hdf5 = H5Fis_hdf5(path);
    if (is_hdf5 == 0)
        return fail("shard %s is not an HDF5 file: make shards from text or .bin files with data/prepare.py", path);
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    if (access >= 0)
        H5Pset_file_locking(access, true, true);  // locks are used where the file system has them
    *file = H5Fopen(path, H5F_ACC_RDONLY, access >= 0 ? access : H5P_DEFAULT);
    Status status = OK;
    if (*file < 0)
        status = fail(
            "cannot read shard %s (%lld bytes): it is an HDF5 file, but truncated, damaged or being written (%s); "
            "copy or make it again",
            path, (long long)info.st_size, h5_reason());
    if (access >= 0)
        H5Pclose(access);
    return status;
}

bool h5_has(hid_t file, const char *name) {
    char path[128];
    for (const char *end = strchr(name + 1, '/');;
         end = strchr(end + 1, '/')) {  // H5Lexists wants the parents to exist
        size_t n = end ? (size_t)(end - name) : strlen(name);
        if (n >= sizeof path)
            return false;
        memcpy(path, name, n);
        path[n] = '\0';
        if (H5Lexists(file, path, H5P_DEFAULT) <= 0)
            return false;
        if (!end)
            return true;
    }
}

Status h5_open_dataset(hid_t file, const char *path, const char *name, hid_t *dataset) {
    if (!h5_has(file, name))
        return fail("shard %s has no dataset %s: it must hold the token ids (see the format in data/shards.h)", path,
                    name);
    H5L_info_t link;
    if (H5Lget_info(file, name, &link, H5P_DEFAULT) < 0 || link.type != H5L_TYPE_HARD)
        return fail("shard %s: %s is a link to another place; give the file that holds the data itself", path, name);
    H5O_info_t info;
    if (H5Oget_info_by_name2(file, name, &info, H5O_INFO_BASIC, H5P_DEFAULT) < 0)
        return fail("shard %s: cannot read %s (%s)", path, name, h5_reason());
    if (info.type != H5O_TYPE_DATASET)
        return fail("shard %s: %s is not a dataset", path, name);
    *dataset = H5Dopen2(file, name, H5P_DEFAULT);
    if (*dataset < 0)
        return fail("shard %s: cannot open %s (%s)", path, name, h5_reason());
    return OK;
}

// Open attribute `name` of `object` if it is there and a single value; -1 otherwise.
static hid_t open_attribute(hid_t file, const char *object, const char *name) {
    if (strcmp(object, "/") != 0 && !h5_has(file, object))
        return -1;
    if (H5Aexists_by_name(file, object, name, H5P_DEFAULT) <= 0)
        return -1;
    return H5Aopen_by_name(file, object, name, H5P_DEFAULT, H5P_DEFAULT);
}

static bool is_single(hid_t attribute) {
    hid_t space = H5Aget_space(attribute);
    bool single = space >= 0 && H5Sget_simple_extent_npoints(space) == 1;
    if (space >= 0)
        H5Sclose(space);
    return single;
}

Status h5_read_int(hid_t file, const char *path, const char *object, const char *name, int64_t *value) {
    hid_t attribute = open_attribute(file, object, name);
    if (attribute < 0)
        return OK;
    hid_t type = H5Aget_type(attribute);
    bool good = is_single(attribute) && type >= 0 && H5Tget_class(type) == H5T_INTEGER &&
                H5Aread(attribute, H5T_NATIVE_INT64, value) >= 0;
    if (type >= 0)
        H5Tclose(type);
    H5Aclose(attribute);
    return good ? OK : fail("shard %s: attribute %s of %s is not one integer", path, name, object);
}

Status h5_read_text(hid_t file, const char *path, const char *object, const char *name, char *text, size_t text_bytes) {
    hid_t attribute = open_attribute(file, object, name);
    if (attribute < 0)
        return OK;
    hid_t type = H5Aget_type(attribute);
    bool good = is_single(attribute) && type >= 0 && H5Tget_class(type) == H5T_STRING;
    if (good && H5Tis_variable_str(type) > 0) {
        char *string = NULL;
        hid_t memory = H5Tcopy(type);  // keeps the file's character set
        good = memory >= 0 && H5Aread(attribute, memory, &string) >= 0;
        if (good)
            snprintf(text, text_bytes, "%s", string ? string : "");
        if (good)
            H5free_memory(string);
        if (memory >= 0)
            H5Tclose(memory);
    } else if (good) {
        size_t n = H5Tget_size(type);
        char *string = n < (1u << 20) ? calloc(n + 1, 1) : NULL;
        good = string && H5Aread(attribute, type, string) >= 0;
        if (good)
            snprintf(text, text_bytes, "%s", string);
        free(string);
    }
    if (type >= 0)
        H5Tclose(type);
    H5Aclose(attribute);
    return good ? OK : fail("shard %s: attribute %s of %s is not a text", path, name, object);
}
