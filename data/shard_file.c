#include "data/shard_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/h5.h"

enum { PIECE_BYTES = 8 << 20 };         // the most that one H5Dread moves
enum { CHUNK_CACHE_BYTES = 16 << 20 };  // a chunk up to this size is kept decoded for the next window

static Status fail_type(const ShardFile *shard, hid_t type) {
    static const char *classes[] = {"integer",  "float",     "time", "string",          "bitfield", "opaque",
                                    "compound", "reference", "enum", "variable-length", "array"};
    H5T_class_t class = H5Tget_class(type);
    int bits = (int)(8 * H5Tget_size(type));
    const char *advice =
        "tokens must be uint16 or uint32, little endian; in Python: "
        "f.create_dataset('tokens', data=tokens.astype('<u2'))";
    if (class == H5T_INTEGER)
        return fail("shard %s: /tokens is %sint%d, %s endian; %s", shard->path,
                    H5Tget_sign(type) == H5T_SGN_NONE ? "u" : "", bits,
                    H5Tget_order(type) == H5T_ORDER_BE ? "big" : "little", advice);
    return fail("shard %s: /tokens is of type %s (%d bits); %s", shard->path,
                class >= 0 && class < 11 ? classes[class] : "unknown", bits, advice);
}

static Status check_shape(ShardFile *shard, hid_t space) {
    int rank = H5Sget_simple_extent_ndims(space);
    if (H5Sget_simple_extent_type(space) == H5S_NULL)
        return fail("shard %s: /tokens is empty", shard->path);
    if (rank != 1)
        return fail("shard %s: /tokens has %d dimensions; it must be 1-D, one long list of tokens (flatten it)",
                    shard->path, rank);
    hsize_t n = 0;
    H5Sget_simple_extent_dims(space, &n, NULL);
    if (n == 0)
        return fail("shard %s: /tokens is empty (0 tokens)", shard->path);
    if (n > INT64_MAX / 8)
        return fail("shard %s: /tokens claims %llu tokens, more than a file can hold: it is damaged", shard->path,
                    (unsigned long long)n);
    shard->n_tokens = (int64_t)n;
    return OK;
}

// How /tokens is stored: sets offset (contiguous) or chunk_tokens.
static Status check_layout(ShardFile *shard, hid_t dataset, hid_t creation) {
    if (H5Pget_external_count(creation) > 0)
        return fail("shard %s: /tokens is stored in other, external files; copy it into one file (h5repack)",
                    shard->path);
    switch (H5Pget_layout(creation)) {
        case H5D_VIRTUAL:  // a missing source would read as zeros, without an error
            return fail("shard %s: /tokens is a virtual dataset; give the files that it is made of", shard->path);
        case H5D_CHUNKED: {
            hsize_t chunk = 0;
            if (H5Pget_chunk(creation, 1, &chunk) != 1 || chunk == 0)
                return fail("shard %s: cannot read the chunk size of /tokens (%s)", shard->path, h5_reason());
            shard->chunk_tokens = (int64_t)chunk;
            break;
        }
        case H5D_CONTIGUOUS: {
            haddr_t offset = H5Dget_offset(dataset);
            if (offset == HADDR_UNDEF)
                return fail("shard %s: /tokens was created with %lld tokens, but none was ever written", shard->path,
                            (long long)shard->n_tokens);
            struct stat info;
            if (stat(shard->path, &info) != 0)
                return fail("cannot read the size of shard %s: %s", shard->path, strerror(errno));
            int64_t bytes = shard->n_tokens * shard->token_bytes;
            if (offset > INT64_MAX / 8 || (int64_t)offset + bytes > info.st_size)
                return fail("shard %s is truncated: /tokens ends at byte %lld, the file at %lld; copy or make it again",
                            shard->path, (long long)((int64_t)offset + bytes), (long long)info.st_size);
            shard->offset = (int64_t)offset;
            return OK;
        }
        default: break;  // compact: small, inside of the header; read through HDF5
    }
    hbool_t thread_safe = false;
    if (H5is_library_threadsafe(&thread_safe) < 0 || !thread_safe)
        return fail(
            "shard %s: /tokens is not contiguous, and this HDF5 library is not thread-safe, so the reader thread "
            "cannot use it; rewrite the shard: h5repack -l tokens:CONTI -f tokens:NONE",
            shard->path);
    return OK;
}

static Status check_dataset(ShardFile *shard, hid_t dataset) {
    Status status = OK;
    hid_t type = H5Dget_type(dataset), space = H5Dget_space(dataset), creation = H5Dget_create_plist(dataset);
    if (type < 0 || space < 0 || creation < 0)
        TRY_GOTO(fail("shard %s: cannot read the header of /tokens (%s)", shard->path, h5_reason()), done);
    if (H5Tequal(type, H5T_STD_U16LE) > 0)
        shard->token_bytes = 2;
    else if (H5Tequal(type, H5T_STD_U32LE) > 0)
        shard->token_bytes = 4;
    else
        TRY_GOTO(fail_type(shard, type), done);
    TRY_GOTO(check_shape(shard, space), done);
    TRY_GOTO(check_layout(shard, dataset, creation), done);
done:
    if (creation >= 0)
        H5Pclose(creation);
    if (space >= 0)
        H5Sclose(space);
    if (type >= 0)
        H5Tclose(type);
    return status;
}

static Status check_vocab_size(ShardFile *shard, hid_t file) {
    TRY(h5_read_int(file, shard->path, "/", "vocab_size", &shard->vocab_size));
    if (shard->vocab_size < 0 || shard->vocab_size > INT32_MAX)
        return fail("shard %s: attribute vocab_size is %lld; it must be below 2^31", shard->path,
                    (long long)shard->vocab_size);
    if (shard->token_bytes == 2 && shard->vocab_size > 65536)
        return fail(
            "shard %s: /tokens is uint16, but vocab_size is %lld: ids above 65535 were cut when it was written; "
            "write it as uint32",
            shard->path, (long long)shard->vocab_size);
    return OK;
}

Status shard_file_open(const char *path, ShardFile *shard) {
    *shard = (ShardFile){.path = strdup(path), .offset = -1, .fd = -1, .file = -1, .dataset = -1};
    if (!shard->path)
        return fail("out of memory while opening shard %s", path);
    Status status = OK;
    hid_t file = -1, dataset = -1;
    TRY_GOTO(h5_open(path, &file), done);
    TRY_GOTO(h5_open_dataset(file, path, "/tokens", &dataset), done);
    TRY_GOTO(check_dataset(shard, dataset), done);
    TRY_GOTO(check_vocab_size(shard, file), done);
    if (stat(path, &shard->seen) != 0)
        status = fail("cannot look at shard %s: %s", path, strerror(errno));
done:
    if (dataset >= 0)
        H5Dclose(dataset);
    if (file >= 0)
        H5Fclose(file);
    if (status != OK)
        shard_file_close(shard);
    return status;
}

void shard_file_close(ShardFile *shard) {
    shard_file_detach(shard);
    free(shard->path);
    shard->path = NULL;
}

// Another file under the old name, or one that was written to, need not have its tokens where the old one had them.
static Status check_unchanged(const ShardFile *shard) {
    struct stat now;
    const struct stat *seen = &shard->seen;
    if (stat(shard->path, &now) != 0)
        return fail("cannot open shard %s again: %s", shard->path, strerror(errno));
    bool same = now.st_dev == seen->st_dev && now.st_ino == seen->st_ino && now.st_size == seen->st_size &&
                now.st_mtim.tv_sec == seen->st_mtim.tv_sec && now.st_mtim.tv_nsec == seen->st_mtim.tv_nsec;
    return same ? OK : fail("shard %s was replaced or written to since the run began. Run again to go on from the newest checkpoint, "
                            "with what is there now",
                            shard->path);
}

Status shard_file_attach(ShardFile *shard) {
    TRY(check_unchanged(shard));
    if (shard->offset >= 0) {
        shard->fd = open(shard->path, O_RDONLY | O_CLOEXEC);
        return shard->fd >= 0 ? OK : fail("cannot open shard %s again: %s", shard->path, strerror(errno));
    }
    TRY(h5_open(shard->path, &shard->file));
    // One decoded chunk is kept, so that reading windows in order decodes each chunk once.
    hid_t access = H5Pcreate(H5P_DATASET_ACCESS);
    if (access >= 0)
        H5Pset_chunk_cache(access, 1, CHUNK_CACHE_BYTES, 1.0);
    shard->dataset = access >= 0 ? H5Dopen2(shard->file, "/tokens", access) : -1;
    Status status =
        shard->dataset >= 0 ? OK : fail("shard %s: cannot open /tokens again (%s)", shard->path, h5_reason());
    if (access >= 0)
        H5Pclose(access);
    if (status != OK)
        shard_file_detach(shard);
    return status;
}

void shard_file_detach(ShardFile *shard) {
    if (shard->fd >= 0)
        close(shard->fd);
    if (shard->dataset >= 0)
        H5Dclose(shard->dataset);
    if (shard->file >= 0)
        H5Fclose(shard->file);
    shard->fd = -1;
    shard->file = shard->dataset = -1;
}

static Status read_contiguous(const ShardFile *shard, int64_t first, int64_t n, char *raw) {
    int64_t at = shard->offset + first * shard->token_bytes, left = n * shard->token_bytes;
    while (left > 0) {
        ssize_t got = pread(shard->fd, raw, (size_t)left, at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fail("cannot read shard %s at byte %lld: %s", shard->path, (long long)at, strerror(errno));
        if (got == 0)
            return fail("shard %s ends at byte %lld: it became shorter since it was opened", shard->path,
                        (long long)at);
        raw += got, at += got, left -= got;
    }
    return OK;
}

static Status read_piece(const ShardFile *shard, int64_t first, int64_t n, void *raw) {
    hsize_t start = (hsize_t)first, count = (hsize_t)n;
    hid_t file_space = H5Dget_space(shard->dataset), memory_space = H5Screate_simple(1, &count, NULL);
    bool good = file_space >= 0 && memory_space >= 0 &&
                H5Sselect_hyperslab(file_space, H5S_SELECT_SET, &start, NULL, &count, NULL) >= 0 &&
                H5Dread(shard->dataset, shard->token_bytes == 2 ? H5T_STD_U16LE : H5T_STD_U32LE, memory_space,
                        file_space, H5P_DEFAULT, raw) >= 0;
    Status status =
        good ? OK
             : fail("cannot read tokens %lld…%lld of shard %s: %s (a filter that is not installed, or damage)",
                    (long long)first, (long long)(first + n - 1), shard->path, h5_reason());
    if (memory_space >= 0)
        H5Sclose(memory_space);
    if (file_space >= 0)
        H5Sclose(file_space);
    return status;
}

Status shard_file_read(const ShardFile *shard, int64_t first, int64_t n, void *raw) {
    if (shard->offset >= 0)
        return read_contiguous(shard, first, n, raw);
    h5_quiet();
    int64_t most = PIECE_BYTES / shard->token_bytes;
    for (int64_t done = 0; done < n; done += most)
        TRY(read_piece(shard, first + done, n - done < most ? n - done : most,
                       (char *)raw + done * shard->token_bytes));
    return OK;
}
