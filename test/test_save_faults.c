// A save is killed, or one of its system calls fails, at every call that it makes: whatever happens, the newest complete
// checkpoint is found and holds its bits, the failure is reported on every rank, and the next save succeeds.
//
// The calls are defined here and pass on to the kernel. A point is a call on a file, and its how-manieth: ("pwrite",
// "step_00000002.tmp/shards/rank_00002.h5", 7). Points are recorded in a save without faults and are the same in every
// save, although five writer threads make them in an order of their own.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/ranks.h"

// ---- points ----

enum { MAX_POINTS = 1000, KILLED = 77 };

typedef struct Point {
    const char *call;
    char file[128];  // below the output directory; the save's uuid left out
    int occurrence;  // from 0
} Point;

typedef enum Fault { NO_FAULT, KILL, IO_ERROR, DISK_FULL, SHORT_WRITE, STALL } Fault;

static char *out;
static char real_out[PATH_MAX];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Point calls[MAX_POINTS];  // that were made so far
static int n_calls;
static Fault fault;
static Point fault_point;
static bool happened;       // the fault has
static bool disk_is_full;   // from the fault on
static atomic_bool stalled, released;

static void inject(Fault what, const Point *point) {
    fault = what;
    fault_point = point ? *point : (Point){0};
    n_calls = 0;
    happened = disk_is_full = false;
    atomic_store(&stalled, false);
    atomic_store(&released, false);
}

// "/…/out/step_00000002.tmp/shards-0123…/rank_00001.h5" → "step_00000002.tmp/shards/rank_00001.h5"; false for other files.
static bool short_name(const char *path, char name[128]) {
    size_t len = strlen(real_out);
    if (strncmp(path, real_out, len) != 0)
        return false;
    snprintf(name, 128, "%s", path[len] == '/' ? path + len + 1 : ".");
    char *uuid = strstr(name, "shards-");
    if (uuid) {
        uuid += strlen("shards");
        memmove(uuid, uuid + UUID_BYTES, strlen(uuid + UUID_BYTES) + 1);
    }
    return true;
}

static bool name_of(int fd, char name[128]) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0)
        return false;
    path[n] = '\0';
    return short_name(path, name);
}

// Note the call, and the fault if it is to happen here.
static Fault note_call(const char *call, const char *name) {
    pthread_mutex_lock(&lock);
    int occurrence = 0;
    for (int i = 0; i < n_calls; i++)
        occurrence += calls[i].call == call && strcmp(calls[i].file, name) == 0;
    assert(n_calls < MAX_POINTS);
    calls[n_calls] = (Point){.call = call, .occurrence = occurrence};
    snprintf(calls[n_calls++].file, sizeof calls->file, "%s", name);
    bool here = fault != NO_FAULT && fault_point.call == call && fault_point.occurrence == occurrence &&
                strcmp(fault_point.file, name) == 0;
    happened |= here;
    disk_is_full |= here && fault == DISK_FULL;
    pthread_mutex_unlock(&lock);
    if (here && fault == KILL)
        _exit(KILLED);
    if (here && fault == STALL) {
        atomic_store(&stalled, true);
        while (!atomic_load(&released))
            usleep(1000);
    }
    return here ? fault : NO_FAULT;
}

// Whether a call that needs no room on the disk, or one that does, fails now, with which error.
static bool fails(Fault now, bool needs_room) {
    errno = now == IO_ERROR ? EIO : ENOSPC;
    return now == IO_ERROR || (needs_room && (now == DISK_FULL || disk_is_full));
}

// ---- the calls ----

static const char *const WRITES = "pwrite", *const DIRECT_WRITES = "pwrite past the cache", *const CREATES = "open",
                         *const SYNCS = "fsync", *const RENAMES = "rename", *const MAKES = "mkdir", *const DELETES = "unlink";

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset) {
    char name[128];
    if (name_of(fd, name)) {
        Fault now = note_call(fcntl(fd, F_GETFL) & O_DIRECT ? DIRECT_WRITES : WRITES, name);
        bool half = bytes > 1 && (now == SHORT_WRITE || now == DISK_FULL);  // the next write will find the disk full
        if (!half && fails(now, true))
            return -1;
        bytes = half ? bytes / 2 : bytes;
    }
    return syscall(SYS_pwrite64, fd, data, bytes, offset);
}

ssize_t pwrite64(int fd, const void *data, size_t bytes, off_t offset) {
    return pwrite(fd, data, bytes, offset);
}

int open(const char *path, int flags, ...) {
    mode_t mode = 0;
    char name[128];
    if (flags & O_CREAT) {
        va_list arguments;
        va_start(arguments, flags);
        mode = va_arg(arguments, mode_t);
        va_end(arguments);
        if (short_name(path, name) && fails(note_call(CREATES, name), true))
            return -1;
    }
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int fsync(int fd) {
    char name[128];
    if (name_of(fd, name) && fails(note_call(SYNCS, name), false))
        return -1;
    return 0;  // a killed process loses nothing that it wrote, only a machine does
}

static int rename_with(const char *from, const char *to, unsigned flags) {
    char name[128];
    if (short_name(from, name) && fails(note_call(RENAMES, name), false))
        return -1;
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, flags);
}

int rename(const char *from, const char *to) {
    return rename_with(from, to, 0);
}

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
    assert(from_dir == AT_FDCWD && to_dir == AT_FDCWD);
    return rename_with(from, to, flags);
}

int mkdir(const char *path, mode_t mode) {
    char name[128];
    if (short_name(path, name) && fails(note_call(MAKES, name), true))
        return -1;
    return (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

int remove(const char *path) {
    char name[128];
    struct stat info;
    if (short_name(path, name) && fails(note_call(DELETES, name), false))
        return -1;
    if (lstat(path, &info) != 0)
        return -1;
    return (int)syscall(SYS_unlinkat, AT_FDCWD, path, S_ISDIR(info.st_mode) ? AT_REMOVEDIR : 0);
}

// ---- what is saved ----

enum { MAX_N = 5 };
static int n_ranks;
static bool async;
static Rank ranks[MAX_N];
static Config config;

static int setup(void **state) {
    (void)state;
    out = check_make_dir();
    assert_non_null(realpath(out, real_out));
    config_defaults(&config);
    inject(NO_FAULT, NULL);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    inject(NO_FAULT, NULL);
    check_remove_dir(out);
    return 0;
}

static Job job_of(int what, const char *path) {
    return (Job){.what = what, .path = path, .run = {&config, "data", "environment", 1}, .async = async, .keep = 1};
}

// Save `step` with a saver that keeps one checkpoint. Whether that went well, as all ranks say.
static bool save(int64_t step) {
    Job start = job_of(JOB_START, out), finish = job_of(JOB_FINISH, out);
    ranks_fill(ranks, n_ranks, step);
    for (int r = 0; r < n_ranks; r++)
        ranks[r].n_reports = 0;
    assert_ok(ranks_run(ranks, n_ranks, &start));
    assert_ok(ranks_run(ranks, n_ranks, &finish));
    for (int r = 0; r < n_ranks; r++) {
        assert_int_equal(ranks[r].n_reports, 1);
        assert_int_equal(ranks[r].saved, ranks[0].saved);
        if (!ranks[r].saved) {
            assert_non_null(strstr(ranks[r].report, "earlier checkpoints are untouched"));
            assert_non_null(strstr(ranks[r].report, out));
        }
    }
    return ranks[0].saved;
}

// The step of the newest complete checkpoint, which loads and holds exactly what was saved.
static int64_t newest(void) {
    char path[PATH_BYTES];
    assert_ok(checkpoint_newest(out, path, sizeof path));
    assert_true(*path);
    ranks_fill(ranks, n_ranks, 99);
    Job load = job_of(JOB_LOAD, path);
    assert_ok(ranks_run(ranks, n_ranks, &load));
    int64_t step = ranks[0].run.step;
    ranks_expect(ranks, n_ranks, step);
    return step;
}

static void remove_step(const char *name) {
    char path[PATH_BYTES];
    assert_ok(durable_join(path, out, name));
    assert_ok(durable_remove_tree(path));
}

static int n_checkpoints(void) {
    int64_t *steps;
    int n;
    assert_ok(checkpoint_steps(out, &steps, &n));
    free(steps);
    return n;
}

static bool has_leftovers(void) {
    DIR *directory = opendir(out);
    bool found = false;
    for (struct dirent *entry; (entry = readdir(directory));)
        found |= strstr(entry->d_name, ".tmp") != NULL;
    closedir(directory);
    return found;
}

// Step 1 is there and complete, and nothing else but a log.
static void start_over(void) {
    char path[PATH_BYTES];
    inject(NO_FAULT, NULL);
    remove_step("step_00000001");
    remove_step("step_00000002");
    remove_step("step_00000003");
    assert_ok(durable_join(path, out, "log.jsonl"));
    unlink(path);
    assert_ok(durable_write_file(path, "{}\n", 3));
    assert_true(save(1));
    assert_int_equal(newest(), 1);
}

// ---- faults ----

// The calls of saving step 2 and deleting step 1.
static int record(Point points[MAX_POINTS]) {
    start_over();
    inject(NO_FAULT, NULL);
    assert_true(save(2));
    memcpy(points, calls, sizeof calls);
    int n = n_calls;
    assert_int_equal(newest(), 2);
    assert_int_equal(n_checkpoints(), 1);
    return n;
}

// In a process of its own, which the fault kills.
static void save_and_die(void) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0)
        _exit(save(2) ? 0 : 1);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == KILLED);
}

static bool writes(const Point *point) {
    return point->call == WRITES || point->call == DIRECT_WRITES;
}

static bool of_old_step(const Point *point) {
    return strncmp(point->file, "step_00000001", 13) == 0;
}

static bool after_the_rename(const Point *point) {
    return of_old_step(point) || strcmp(point->file, ".") == 0;
}

// One fault at one point, and what must hold afterwards.
static void strike(Fault what, const Point *point) {
    start_over();
    inject(what, point);
    if (what == KILL) {
        save_and_die();
        inject(NO_FAULT, NULL);
        assert_int_equal(newest(), after_the_rename(point) ? 2 : 1);
    } else {
        bool saved = save(2), hit = happened;
        inject(NO_FAULT, NULL);
        assert_true(hit);
        // A write that is cut short goes on, and one past the cache goes through it; an old checkpoint that cannot be
        // deleted stays, which is said.
        bool harmless = what == SHORT_WRITE || (what == IO_ERROR && point->call == DIRECT_WRITES);
        assert_int_equal(saved, harmless || of_old_step(point));
        assert_int_equal(ranks[0].report[0] != '\0', !harmless);
        // If the directory cannot be synced after the rename, the new one is there but may not outlive the machine.
        assert_int_equal(newest(), saved || after_the_rename(point) ? 2 : 1);
        assert_true(saved || n_checkpoints() >= 1);
    }
    // The run goes on: its next save succeeds and clears away what this one has left.
    assert_true(save(3));
    assert_int_equal(newest(), 3);
    assert_int_equal(n_checkpoints(), 1);
    assert_false(has_leftovers());
}

static bool needs_room(const Point *point) {
    return writes(point) || point->call == CREATES || point->call == MAKES;
}

static void strike_everywhere(int n, bool asynchronous, int64_t scale, int least) {
    static Point points[MAX_POINTS];
    int counts[STALL] = {0};
    n_ranks = n;
    async = asynchronous;
    ranks_open(ranks, n, 0, scale);
    int n_points = record(points);
    for (int i = 0; i < n_points; i++) {
        for (Fault what = KILL; what < STALL; what++) {
            if ((what == DISK_FULL && !needs_room(&points[i])) || (what == SHORT_WRITE && !writes(&points[i])))
                continue;
            strike(what, &points[i]);
            counts[what]++;
        }
    }
    int n_direct = 0;
    for (int i = 0; i < n_points; i++)
        n_direct += points[i].call == DIRECT_WRITES;
    print_message("%s save of %d rank(s): %d distinct points (call, file, occurrence), %d of them past the page cache: killed "
                  "at %d, I/O error at %d, disk full at %d, short write at %d\n",
                  asynchronous ? "asynchronous" : "streamed", n, n_points, n_direct, counts[KILL],
                  counts[IO_ERROR], counts[DISK_FULL], counts[SHORT_WRITE]);
    assert_true(n_points >= least);
    ranks_close(ranks, n);
}

static void asynchronous_save_of_five_ranks(void **state) {
    (void)state;
    strike_everywhere(5, true, 1, 100);
}

static void streamed_save_of_one_rank(void **state) {
    (void)state;
    strike_everywhere(1, false, 1, 30);
}

// Shards longer than a page go past the page cache, where memory and file system allow it.
static void asynchronous_save_past_the_page_cache(void **state) {
    (void)state;
    strike_everywhere(1, true, 20, 30);
}

static void killed_while_replacing_the_same_step(void **state) {
    (void)state;
    static Point points[MAX_POINTS];
    n_ranks = 1;
    async = false;
    ranks_open(ranks, 1, 0, 1);
    assert_true(save(2));
    inject(NO_FAULT, NULL);
    assert_true(save(2));
    memcpy(points, calls, sizeof calls);
    int n = n_calls;
    for (int i = 0; i < n; i++) {
        inject(KILL, &points[i]);
        save_and_die();
        inject(NO_FAULT, NULL);
        assert_int_equal(newest(), 2);
        assert_true(save(2));
    }
    ranks_close(ranks, 1);
}

// ---- training goes on meanwhile ----

static Job start_of(int64_t step) {
    ranks_fill(ranks, n_ranks, step);
    return job_of(JOB_START, out);
}

static void wait_for_stall(void) {
    while (!atomic_load(&stalled))
        usleep(1000);
}

static void *release_soon(void *unused) {
    (void)unused;
    usleep(100000);
    atomic_store(&released, true);
    return NULL;
}

static void the_state_may_change_while_it_is_written(void **state) {
    (void)state;
    Point point = {.call = WRITES, .file = "step_00000001.tmp/shards/rank_00001.h5"};
    Job finish = job_of(JOB_FINISH, out);
    n_ranks = 2;
    async = true;
    ranks_open(ranks, 2, 0, 1);
    inject(STALL, &point);
    Job start = start_of(1);
    assert_ok(ranks_run(ranks, 2, &start));  // returns although the writer of rank 1 stands still
    wait_for_stall();
    assert_true(saver_busy(ranks[1].saver));
    assert_int_equal(saver_under_way(ranks[0].saver), 1);
    assert_int_equal(ranks[0].n_reports, 0);
    assert_int_equal(n_checkpoints(), 0);
    start = start_of(2);  // other values; this save waits for the first
    pthread_t thread;
    pthread_create(&thread, NULL, release_soon, NULL);
    assert_ok(ranks_run(ranks, 2, &start));
    assert_true(atomic_load(&released));
    assert_int_equal(ranks[0].n_reports, 1);
    assert_int_equal(newest(), 1);  // with the values of its time
    ranks_fill(ranks, 2, 3);
    assert_ok(ranks_run(ranks, 2, &finish));
    pthread_join(thread, NULL);
    assert_int_equal(ranks[1].n_reports, 2);
    assert_int_equal(newest(), 2);
    ranks_close(ranks, 2);
}

static void copies_of_the_first_group_write_nothing(void **state) {
    (void)state;
    n_ranks = 4;
    async = true;
    ranks_open(ranks, 4, 2, 1);
    assert_true(save(1));
    assert_int_equal(newest(), 1);
    assert_int_equal(saver_snapshot_bytes(&ranks[1].layout, ranks[1].view.has) > 0, true);
    assert_int_equal(saver_snapshot_bytes(&ranks[2].layout, ranks[2].view.has), 0);
    ranks_close(ranks, 4);
}

#define SAVE_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        SAVE_TEST(asynchronous_save_of_five_ranks),
        SAVE_TEST(streamed_save_of_one_rank),
        SAVE_TEST(asynchronous_save_past_the_page_cache),
        SAVE_TEST(killed_while_replacing_the_same_step),
        SAVE_TEST(the_state_may_change_while_it_is_written),
        SAVE_TEST(copies_of_the_first_group_write_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
