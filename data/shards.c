// The set of shards of a run as one long list of windows. See shards.h; one file is data/shard_file.h.
#include "data/shards.h"

#include <dirent.h>
#include <endian.h>
#include <errno.h>
#include <glob.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "data/shard_file.h"

enum { WASTE_FACTOR = 16 };  // warn when HDF5 decodes this many times what a window uses

// The shards of one kind that are attached now; the least recently used one makes room.
typedef struct Attached {
    int limit;   // most that are attached at once
    int n;       // attached now
    int *index;  // which shards (limit entries)
} Attached;

struct Shards {
    int seq_len;         // T
    int64_t vocab_size;  // tokens must be below it; 0: not known yet
    int n_files;
    ShardFile *files;       // sorted by path
    int64_t *first_window;  // n_files + 1: number of windows before file i
    uint64_t *last_use;     // n_files: the clock's value when the file was last read
    uint64_t clock;         // counts reads
    Attached plain, hdf5;   // read with pread; read through HDF5
    void *raw;              // one window as it is on disk
    bool warned;            // of wasteful chunks, once
    pthread_mutex_t lock;   // over everything that a read changes
};

static int compare_paths(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

typedef struct Paths {
    size_t n;
    char **path;  // owned
} Paths;

static void free_paths(Paths *paths) {
    for (size_t i = 0; i < paths->n; i++)
        free(paths->path[i]);
    free(paths->path);
}

static Status add_path(Paths *paths, const char *directory, const char *name) {
    char **grown = realloc(paths->path, (paths->n + 1) * sizeof *grown);
    if (grown)
        paths->path = grown;
    if (!grown || asprintf(&grown[paths->n], "%s%s%s", directory, *directory ? "/" : "", name) < 0)
        return fail("out of memory while listing %zu shards", paths->n + 1);
    paths->n++;
    return OK;
}

static Status list_directory(const char *path, Paths *paths) {
    DIR *directory = opendir(path);
    if (!directory)
        return fail("cannot list shards in directory %s: %s", path, strerror(errno));
    Status status = OK;
    for (struct dirent *entry; status == OK && (entry = readdir(directory));) {
        size_t n = strlen(entry->d_name);
        if (entry->d_name[0] != '.' && n > 3 && strcmp(entry->d_name + n - 3, ".h5") == 0)
            status = add_path(paths, path, entry->d_name);
    }
    closedir(directory);
    if (status == OK && paths->n == 0)
        status = fail("directory %s holds no *.h5 file: make shards with data/prepare.py", path);
    return status;
}

static Status list_glob(const char *pattern, Paths *paths) {
    glob_t found;
    int rc = glob(pattern, 0, NULL, &found);
    if (rc == GLOB_NOMATCH)
        return fail("no shard matches %s: check the path, or make shards with data/prepare.py", pattern);
    if (rc != 0)
        return fail("cannot look for shards %s: %s", pattern, rc == GLOB_NOSPACE ? "out of memory" : strerror(errno));
    Status status = OK;
    for (size_t i = 0; status == OK && i < found.gl_pathc; i++)
        status = add_path(paths, "", found.gl_pathv[i]);
    globfree(&found);
    return status;
}

// The files that `pattern` means, sorted by the bytes of their names, whatever the locale.
static Status find_files(const char *pattern, Paths *paths) {
    struct stat info;
    if (stat(pattern, &info) != 0)
        TRY(list_glob(pattern, paths));
    else if (S_ISDIR(info.st_mode))
        TRY(list_directory(pattern, paths));
    else
        TRY(add_path(paths, "", pattern));  // a name that exists is meant literally, brackets and stars included
    qsort(paths->path, paths->n, sizeof *paths->path, compare_paths);
    return OK;
}

// A quarter of the descriptors that the process may have, and few HDF5 handles: each may hold a decoded chunk.
static Status limit_attached(Shards *shards) {
    struct rlimit limit;
    int64_t most = 64;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
        most = limit.rlim_cur / 4 < 512 ? (int64_t)limit.rlim_cur / 4 : 512;
    shards->plain.limit = most > 4 ? (int)most : 4;
    shards->hdf5.limit = 4;
    shards->plain.index = malloc((size_t)shards->plain.limit * sizeof(int));
    shards->hdf5.index = malloc((size_t)shards->hdf5.limit * sizeof(int));
    return shards->plain.index && shards->hdf5.index ? OK : fail("out of memory while opening shards");
}

static Status open_all(Shards *shards, const Paths *paths) {
    size_t n = paths->n;
    if (n > 1 << 24)
        return fail("%zu shards match: more than 2^24", n);
    shards->files = calloc(n, sizeof *shards->files);
    shards->first_window = calloc(n + 1, sizeof *shards->first_window);
    shards->last_use = calloc(n, sizeof *shards->last_use);
    shards->raw = malloc(((size_t)shards->seq_len + 1) * sizeof(uint32_t));
    if (!shards->files || !shards->first_window || !shards->last_use || !shards->raw)
        return fail("out of memory while opening %zu shards", n);
    TRY(limit_attached(shards));
    for (size_t i = 0; i < n; i++) {
        TRY(shard_file_open(paths->path[i], &shards->files[i]));
        shards->n_files++;
        shards->first_window[i + 1] = shards->first_window[i] + (shards->files[i].n_tokens - 1) / shards->seq_len;
    }
    return OK;
}

Status shards_open(const char *pattern, int seq_len, Shards **out) {
    *out = NULL;
    if (seq_len < 1)
        return fail("cannot read shards %s in windows of %d tokens: the sequence length must be at least 1", pattern,
                    seq_len);
    Paths paths = {0};
    Shards *shards = NULL;
    Status status = OK;
    TRY_GOTO(find_files(pattern, &paths), done);
    shards = calloc(1, sizeof *shards);
    if (!shards)
        TRY_GOTO(fail("out of memory while opening shards %s", pattern), done);
    shards->seq_len = seq_len;
    pthread_mutex_init(&shards->lock, NULL);
    TRY_GOTO(open_all(shards, &paths), done);
done:
    free_paths(&paths);
    if (status == OK)
        *out = shards;
    else
        shards_close(shards);
    return status;
}

void shards_close(Shards *shards) {
    if (!shards)
        return;
    for (int i = 0; i < shards->n_files; i++)
        shard_file_close(&shards->files[i]);
    pthread_mutex_destroy(&shards->lock);
    free(shards->hdf5.index);
    free(shards->plain.index);
    free(shards->raw);
    free(shards->last_use);
    free(shards->first_window);
    free(shards->files);
    free(shards);
}

int64_t shards_n_tokens(const Shards *shards) {
    int64_t n = 0;
    for (int i = 0; i < shards->n_files; i++)
        n += shards->files[i].n_tokens;
    return n;
}

int64_t shards_n_windows(const Shards *shards) {
    return shards->first_window[shards->n_files];
}

int shards_n_files(const Shards *shards) {
    return shards->n_files;
}

int shards_seq_len(const Shards *shards) {
    return shards->seq_len;
}

int64_t shards_vocab_size(const Shards *shards) {
    int64_t size = 0;
    for (int i = 0; i < shards->n_files; i++)
        if (shards->files[i].vocab_size > size)
            size = shards->files[i].vocab_size;
    return size;
}

const char *shards_path(const Shards *shards, int i) {
    return shards->files[i].path;
}

void shards_set_vocab(Shards *shards, int64_t vocab_size) {
    shards->vocab_size = vocab_size;
}

void shards_fingerprint(const Shards *shards, char *text, size_t text_bytes) {
    uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a over the lengths, in order
    for (int i = 0; i < shards->n_files; i++)
        for (int byte = 0; byte < 8; byte++)
            hash = (hash ^ (((uint64_t)shards->files[i].n_tokens >> (8 * byte)) & 255)) * 0x100000001b3u;
    snprintf(text, text_bytes, "%d shards, %lld tokens, T=%d, lengths %016llx", shards->n_files,
             (long long)shards_n_tokens(shards), shards->seq_len, (unsigned long long)hash);
}

// Make sure that file i is attached.
static Status attach(Shards *shards, int i) {
    shards->last_use[i] = ++shards->clock;
    ShardFile *file = &shards->files[i];
    if (shard_file_attached(file))
        return OK;
    Attached *attached = file->offset >= 0 ? &shards->plain : &shards->hdf5;
    int slot = attached->n;
    if (slot == attached->limit) {
        slot = 0;
        for (int k = 1; k < attached->n; k++)
            if (shards->last_use[attached->index[k]] < shards->last_use[attached->index[slot]])
                slot = k;
        shard_file_detach(&shards->files[attached->index[slot]]);
        attached->index[slot] = attached->index[--attached->n];
        slot = attached->n;
    }
    TRY(shard_file_attach(file));
    attached->index[slot] = i;
    attached->n++;
    return OK;
}

// Said when it happens, not at the start: a run may never touch such a shard.
static void warn_of_waste(Shards *shards, const ShardFile *file) {
    if (shards->warned || file->chunk_tokens < (int64_t)WASTE_FACTOR * (shards->seq_len + 1))
        return;
    shards->warned = true;
    fprintf(
        stderr,
        "warning: shard %s is stored in chunks of %lld tokens, each decoded whole for a window of %d: reading will be "
        "slow. Rewrite it: h5repack -l tokens:CONTI -f tokens:NONE\n",
        file->path, (long long)file->chunk_tokens, shards->seq_len + 1);
}

// Tokens from disk to int32. Returns whether all are below `limit`; without a branch, so that it vectorises.
static bool widen(const void *raw, int token_bytes, int n, uint32_t limit, int32_t *tokens) {
    uint32_t bad = 0;
    if (token_bytes == 2) {
        const uint16_t *from = raw;
        for (int i = 0; i < n; i++) {
            uint32_t token = le16toh(from[i]);
            bad |= token >= limit;
            tokens[i] = (int32_t)token;
        }
    } else {
        const uint32_t *from = raw;
        for (int i = 0; i < n; i++) {
            uint32_t token = le32toh(from[i]);
            bad |= token >= limit;
            tokens[i] = (int32_t)token;
        }
    }
    return !bad;
}

static Status fail_token(const Shards *shards, const ShardFile *file, int64_t first, const int32_t *tokens,
                         uint32_t limit) {
    int i = 0;
    while ((uint32_t)tokens[i] < limit)
        i++;
    if (shards->vocab_size == 0)
        return fail("shard %s: token %u at index %lld of /tokens is not below 2^31", file->path, (unsigned)tokens[i],
                    (long long)(first + i));
    return fail(
        "shard %s: token %u at index %lld of /tokens is outside of the model's vocabulary (0…%lld): give the "
        "vocabulary that the shard was made with, or make the shard again",
        file->path, (unsigned)tokens[i], (long long)(first + i), (long long)shards->vocab_size - 1);
}

static Status read_window(Shards *shards, int64_t w, int32_t *tokens) {
    int low = 0, high = shards->n_files;  // the last file with first_window <= w
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (shards->first_window[middle] <= w)
            low = middle;
        else
            high = middle;
    }
    const ShardFile *file = &shards->files[low];
    int n = shards->seq_len + 1;
    int64_t first = (w - shards->first_window[low]) * shards->seq_len;
    TRY(attach(shards, low));
    warn_of_waste(shards, file);
    TRY(shard_file_read(file, first, n, shards->raw));
    uint32_t limit = (uint32_t)1 << 31;
    if (shards->vocab_size > 0 && shards->vocab_size < limit)
        limit = (uint32_t)shards->vocab_size;
    return widen(shards->raw, file->token_bytes, n, limit, tokens) ? OK
                                                                   : fail_token(shards, file, first, tokens, limit);
}

Status shards_read_window(Shards *shards, int64_t w, int32_t *tokens) {
    if (w < 0 || w >= shards_n_windows(shards))
        return fail("window %lld was asked for, but the shards have %lld windows", (long long)w,
                    (long long)shards_n_windows(shards));
    pthread_mutex_lock(&shards->lock);
    Status status = read_window(shards, w, tokens);
    pthread_mutex_unlock(&shards->lock);
    return status;
}
