#include "zero/durable.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

Status durable_join(char path[PATH_BYTES], const char *directory, const char *name) {
    int n = snprintf(path, PATH_BYTES, "%s/%s", directory, name);
    if (n < 0 || n >= PATH_BYTES)
        return fail("the path %.100s…/%s is longer than %d bytes", directory, name, PATH_BYTES - 1);
    return OK;
}

Status durable_write_at(int fd, const char *path, const void *data, size_t bytes, int64_t offset) {
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pwrite(fd, (const char *)data + done, bytes - done, offset + (int64_t)done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return fail("cannot write %s at byte %lld: %s", path, (long long)(offset + (int64_t)done),
                        n < 0 ? strerror(errno) : "nothing was written");
        done += (size_t)n;
    }
    return OK;
}

int durable_open_direct(const char *path) {
    return open(path, O_WRONLY | O_DIRECT | O_CLOEXEC);
}

Status durable_write_direct(int direct, int fd, const char *path, const void *data, size_t bytes, int64_t offset) {
    bool aligned = offset % DIRECT_BYTES == 0 && (uintptr_t)data % DIRECT_BYTES == 0;
    size_t most = direct >= 0 && aligned ? bytes / DIRECT_BYTES * DIRECT_BYTES : 0;
    ssize_t n = most > 0 ? pwrite(direct, data, most, offset) : 0;
    // What has not gone this way goes the usual one: the rest of a page, and whatever failed, which if it fails again is an
    // error. The two never meet within a page.
    size_t done = n > 0 ? (size_t)n / DIRECT_BYTES * DIRECT_BYTES : 0;
    if (done == bytes)
        return OK;
    return durable_write_at(fd, path, (const char *)data + done, bytes - done, offset + (int64_t)done);
}

Status durable_read_at(int fd, const char *path, void *data, size_t bytes, int64_t offset) {
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pread(fd, (char *)data + done, bytes - done, offset + (int64_t)done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail("cannot read %s at byte %lld: %s", path, (long long)(offset + (int64_t)done), strerror(errno));
        if (n == 0)
            return fail("%s ends at byte %lld, in the middle of what should be read", path,
                        (long long)(offset + (int64_t)done));
        done += (size_t)n;
    }
    return OK;
}

Status durable_open(const char *path, int *fd, int64_t *bytes) {
    struct stat info;
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    if (*fd < 0)
        return fail("cannot open %s: %s", path, strerror(errno));
    if (fstat(*fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        close(*fd);
        return fail("%s is not a regular file", path);
    }
    *bytes = info.st_size;
    return OK;
}

Status durable_read_file(const char *path, int64_t max_bytes, char **text, size_t *bytes) {
    int fd;
    int64_t size;
    TRY(durable_open(path, &fd, &size));
    Status status = OK;
    *text = NULL;
    if (size > max_bytes)
        status =
            fail("%s has %lld bytes, more than the %lld it could need", path, (long long)size, (long long)max_bytes);
    else if (!(*text = malloc((size_t)size + 1)))
        status = fail("no memory for the %lld bytes of %s", (long long)size, path);
    else
        status = durable_read_at(fd, path, *text, (size_t)size, 0);
    close(fd);
    if (status != OK) {
        free(*text);
        return status;
    }
    (*text)[size] = '\0';
    *bytes = (size_t)size;
    return OK;
}

Status durable_write_file(const char *path, const void *data, size_t bytes) {
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return fail("cannot create %s: %s", path, strerror(errno));
    Status status = durable_write_at(fd, path, data, bytes, 0);
    if (status == OK && fsync(fd) != 0)
        status = fail("cannot sync %s: %s", path, strerror(errno));
    if (close(fd) != 0 && status == OK)
        status = fail("cannot close %s: %s", path, strerror(errno));
    return status;
}

Status durable_make_dir(const char *path) {
    if (mkdir(path, 0777) != 0)
        return fail("cannot make the directory %s: %s", path, strerror(errno));
    return OK;
}

Status durable_make_parents(const char *path) {
    char part[PATH_BYTES];
    if (snprintf(part, sizeof part, "%s", path) >= (int)sizeof part)
        return fail("the path %.100s… is too long", path);
    for (char *slash = part; *part && (slash = strchr(slash + 1, '/')); *slash = '/') {
        *slash = '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            return fail("cannot create the directory %s: %s", part, strerror(errno));
    }
    return OK;
}

Status durable_sync(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return fail("cannot open %s to sync it: %s", path, strerror(errno));
    Status status = OK;
    if (fsync(fd) != 0)
        status = fail("cannot sync %s: %s", path, strerror(errno));
    close(fd);
    return status;
}

// Where names cannot be exchanged (some network file systems): step aside under a name that readers ignore, then
// rename.
static Status replace_by_two_renames(const char *from, const char *to) {
    char aside[PATH_BYTES];
    int n = snprintf(aside, sizeof aside, "%s.old.tmp", to);
    if (n < 0 || n >= PATH_BYTES)
        return fail("the path %.100s… is longer than %d bytes", to, PATH_BYTES - 1);
    TRY(durable_remove_tree(aside));
    if (rename(to, aside) != 0 || rename(from, to) != 0)
        return fail("cannot rename %s to %s: %s", from, to, strerror(errno));
    return durable_remove_tree(aside);
}

Status durable_publish(const char *from, const char *to) {
    char copy[PATH_BYTES];
    snprintf(copy, sizeof copy, "%s", to);
    struct stat info;
    if (lstat(to, &info) != 0) {
        if (rename(from, to) != 0)
            return fail("cannot rename %s to %s: %s", from, to, strerror(errno));
        return durable_sync(dirname(copy));
    }
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0) {
        TRY(durable_sync(dirname(copy)));
        return durable_remove_tree(from);
    }
    if (errno != EINVAL && errno != ENOSYS)
        return fail("cannot exchange %s and %s: %s", from, to, strerror(errno));
    TRY(replace_by_two_renames(from, to));
    return durable_sync(dirname(copy));
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *place) {
    (void)info, (void)type, (void)place;
    return remove(path);
}

Status durable_remove_tree(const char *path) {
    if (nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT)
        return fail("cannot delete %s: %s", path, strerror(errno));
    return OK;
}
