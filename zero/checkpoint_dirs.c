// checkpoint: which ones there are, and which may go.
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "zero/agree.h"
#include "zero/checkpoint.h"
#include "zero/rank_file.h"

Status checkpoint_path(char path[PATH_BYTES], const char *out, int64_t step) {
    char name[32];
    snprintf(name, sizeof name, "step_%08lld", (long long)step);
    return durable_join(path, out, name);
}

// The step of a name that checkpoint_path gives, else -1.
static int64_t step_of_name(const char *name) {
    char canonical[32];
    if (strncmp(name, "step_", 5) != 0)
        return -1;
    int64_t step = strtoll(name + 5, NULL, 10);
    snprintf(canonical, sizeof canonical, "step_%08lld", (long long)step);
    return step >= 0 && strcmp(name, canonical) == 0 ? step : -1;
}

static bool is_leftover(const char *name) {
    size_t len = strlen(name);
    return strncmp(name, "step_", 5) == 0 && len > 9 && strcmp(name + len - 4, ".tmp") == 0;
}

static int compare_steps(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

Status checkpoint_steps(const char *out, int64_t **steps, int *n_steps) {
    *steps = NULL;
    *n_steps = 0;
    DIR *directory = opendir(out);
    if (!directory)
        return errno == ENOENT ? OK : fail("cannot list %s: %s", out, strerror(errno));
    int room = 0;
    for (struct dirent *entry; (entry = readdir(directory));) {
        int64_t step = step_of_name(entry->d_name);
        if (step < 0)
            continue;
        if (*n_steps == room) {
            room = 2 * room + 16;
            int64_t *more = realloc(*steps, (size_t)room * sizeof **steps);
            if (!more) {
                closedir(directory);
                free(*steps);
                return fail("no memory for the list of checkpoints in %s", out);
            }
            *steps = more;
        }
        (*steps)[(*n_steps)++] = step;
    }
    closedir(directory);
    if (*n_steps > 0)
        qsort(*steps, (size_t)*n_steps, sizeof **steps, compare_steps);
    return OK;
}

Status checkpoint_newest(const char *out, char *path, size_t path_bytes) {
    int64_t *steps;
    int n;
    char newest[PATH_BYTES] = "";
    TRY(checkpoint_steps(out, &steps, &n));
    Status status = n > 0 ? checkpoint_path(newest, out, steps[n - 1]) : OK;
    free(steps);
    if (status == OK && (size_t)snprintf(path, path_bytes, "%s", newest) >= path_bytes)
        status = fail("the path %s is longer than %zu bytes", newest, path_bytes - 1);
    return status;
}

Status checkpoint_find(const char *given, char path[PATH_BYTES]) {
    char manifest[PATH_BYTES];
    struct stat unused;
    TRY(durable_join(manifest, given, "manifest.json"));
    if (stat(given, &unused) == 0 && !S_ISDIR(unused.st_mode))
        return fail("%s is a file: what is needed is the directory of a checkpoint or of a run", given);
    if (stat(manifest, &unused) != 0) {
        TRY(checkpoint_newest(given, path, PATH_BYTES));
        if (!*path)
            return fail("%s has no manifest.json and holds no checkpoint: it is neither one nor the directory of a run that saved one", given);
        return OK;
    }
    if (snprintf(path, PATH_BYTES, "%s", given) >= PATH_BYTES)
        return fail("the path %s is too long", given);
    return OK;
}

double checkpoint_patience(const Layout *layout, const bool has[STATE_KINDS]) {
    int64_t len = 0;
    for (int u = 0; u < layout->n_units; u++)
        for (StateKind kind = 0; kind < STATE_KINDS; kind++)
            len += has[kind] ? layout->units[u].shard_len : 0;
    return (double)len * sizeof(float) / 10e6;
}

bool checkpoint_is_same(const char *a, const char *b) {
    struct stat x, y;
    return *a && *b && stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

enum { SIGHT_POLLS = 50, SIGHT_POLL_US = 100000 };

// Rank 0 makes a file of a name that nobody can have asked for before; all look for it.
Status checkpoint_out_is_shared(const char *out, Comm *comm) {
    char name[FILE_NAME_BYTES] = "", path[PATH_BYTES];
    uint64_t number = 0;
    Status status = OK;
    if (comm_size(comm) == 1)
        return OK;
    if (comm_rank(comm) == 0 && getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number)
        status = fail("no random bytes from the system: %s", strerror(errno));
    TRY(comm_broadcast(comm, "a file in --out", &number, sizeof number, 0));
    snprintf(name, sizeof name, ".seen-%016llx", (unsigned long long)number);
    if (status == OK)
        status = durable_join(path, out, name);
    if (status == OK && comm_rank(comm) == 0)
        status = durable_write_file(path, "", 0);
    TRY(agree(comm, "a file in --out", status));
    for (int i = 0; access(path, F_OK) != 0 && i < SIGHT_POLLS; i++)  // a network file system may be slow
        usleep(SIGHT_POLL_US);
    if (access(path, F_OK) != 0)
        status = fail("--out %s is not the directory that rank 0 sees under that name: all ranks must share it", out);
    status = agree(comm, "the sight of --out", status);
    if (comm_rank(comm) == 0)
        unlink(path);
    return status;
}

bool checkpoint_is_in(const char *out, const char *path) {
    char parent[PATH_BYTES];
    struct stat a, b;
    int n = snprintf(parent, sizeof parent, "%s/..", path);
    return out && *path && n < PATH_BYTES && stat(parent, &a) == 0 && stat(out, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

// Whether manifest and rank files are there with the right sizes: what a look without reading gigabytes can tell.
static bool looks_complete(const char *path) {
    Manifest manifest;
    bool complete = manifest_read(&manifest, path) == OK;
    for (int f = 0; complete && f < manifest.layout.group; f++) {
        int fd;
        complete = rank_file_open(path, &manifest, f, &fd) == OK;
        if (complete)
            close(fd);
    }
    manifest_free(&manifest);
    status_clear();
    return complete;
}

static Status remove_leftovers(const char *out) {
    DIR *directory = opendir(out);
    if (!directory)
        return errno == ENOENT ? OK : fail("cannot list %s: %s", out, strerror(errno));
    Status status = OK;
    for (struct dirent *entry; status == OK && (entry = readdir(directory));) {
        char path[PATH_BYTES];
        if (!is_leftover(entry->d_name))
            continue;
        status = durable_join(path, out, entry->d_name);
        if (status == OK)
            status = durable_remove_tree(path);
    }
    closedir(directory);
    return status;
}

Status checkpoint_prune(const char *out, int64_t keep, int64_t keep_every) {
    int64_t *steps;
    int n;
    TRY(checkpoint_steps(out, &steps, &n));
    Status status = OK;
    int64_t complete = 0;
    for (int i = n - 1; i >= 0 && keep > 0 && status == OK; i--) {
        char path[PATH_BYTES], leftover[PATH_BYTES + 8];
        TRY_GOTO(checkpoint_path(path, out, steps[i]), done);
        if (complete < keep) {
            complete += looks_complete(path);
            continue;
        }
        if (keep_every > 0 && steps[i] % keep_every == 0)
            continue;
        // Half of a deleted checkpoint must not have a final name: it is renamed to a leftover first.
        snprintf(leftover, sizeof leftover, "%s.tmp", path);
        TRY_GOTO(durable_remove_tree(leftover), done);
        if (rename(path, leftover) != 0)
            status = fail("cannot rename %s to delete it: %s", path, strerror(errno));
    }
    if (status == OK)
        status = remove_leftovers(out);
done:
    free(steps);
    return status;
}
