#include "zero/h5.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

Status h5_create(H5Image *h5, hsize_t alignment) {
    char path[64];
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);  // errors are reported by Status
    h5->image = memfd_create("checkpoint.h5", MFD_CLOEXEC);
    if (h5->image < 0)
        return fail("cannot make a file in memory: %s", strerror(errno));
    snprintf(path, sizeof path, "/proc/self/fd/%d", h5->image);
    hid_t fapl = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_fapl_stdio(fapl);  // the other drivers want a name that realpath() can resolve
    H5Pset_fclose_degree(fapl, H5F_CLOSE_STRONG);
    H5Pset_alignment(fapl, alignment, alignment);
    h5->file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, fapl);
    H5Pclose(fapl);
    if (h5->file >= 0)
        return OK;
    close(h5->image);
    return fail("HDF5 cannot create a file in memory through %s", path);
}

Status h5_close(H5Image *h5, Status status) {
    if (H5Fclose(h5->file) < 0 && status == OK)
        status = fail("HDF5 cannot finish a file in memory");
    if (status != OK)
        close(h5->image);
    return status;
}

static Status attribute(hid_t object, const char *name, hid_t type, const void *value) {
    hid_t space = H5Screate(H5S_SCALAR);
    hid_t id = H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    herr_t written = id >= 0 ? H5Awrite(id, type, value) : -1;
    if (id >= 0)
        H5Aclose(id);
    H5Sclose(space);
    return written < 0 ? fail("HDF5 cannot write attribute %s", name) : OK;
}

Status h5_attribute_text(hid_t object, const char *name, const char *text) {
    hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, H5T_VARIABLE);  // h5py reads it as str
    H5Tset_cset(type, H5T_CSET_UTF8);
    Status status = attribute(object, name, type, &text);
    H5Tclose(type);
    return status;
}

Status h5_attribute_int(hid_t object, const char *name, long long value) {
    return attribute(object, name, H5T_NATIVE_LLONG, &value);
}

bool h5_thread_safe(void) {
    hbool_t safe = false;
    return H5is_library_threadsafe(&safe) >= 0 && safe;
}
