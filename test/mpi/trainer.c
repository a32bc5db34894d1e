// A stand-in for train_gpt in the tests of the launchers: ranks that add numbers up over MPI, save when they are asked
// to stop, and go on from what they saved. It treats signals, exit statuses and names of checkpoints as train_gpt does.
//
//   trainer --out DIR --steps N [--pause-ms M a step] [--kill-at STEP: rank 1 kills itself there, once] [--threads T]
//
// Rank 0 appends one line an event to DIR/log; DIR/hosts lists the host of each rank.
#include <dirent.h>
#include <getopt.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SAVE_EVERY = 10, N = 1000 };

static volatile sig_atomic_t stop_signal;
static const char *out;

static void on_stop(int signal_number) {
    if (stop_signal)
        _exit(128 + signal_number);
    stop_signal = signal_number;
}

static FILE *open_or_abort(const char *name, const char *mode) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", out, name);
    FILE *file = fopen(path, mode);
    if (!file) {
        perror(path);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return file;
}

static void log_event(const char *event, int number) {
    FILE *file = open_or_abort("log", "a");
    fprintf(file, "%s %d\n", event, number);
    fclose(file);
}

// A checkpoint is an empty directory step_00000010.
static void save(int step) {
    char path[4096];
    snprintf(path, sizeof path, "%s/step_%08d", out, step);
    mkdir(path, 0777);
}

static int newest_step(void) {
    int newest = 0, step;
    DIR *directory = opendir(out);
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        if (sscanf(entry->d_name, "step_%d", &step) == 1 && step > newest)
            newest = step;
    }
    if (directory)
        closedir(directory);
    return newest;
}

static void kill_once(void) {
    char path[4096];
    snprintf(path, sizeof path, "%s/killed", out);
    if (mkdir(path, 0777) == 0)
        raise(SIGKILL);
}

static void write_hosts(int rank, int n_ranks) {
    char own[MPI_MAX_PROCESSOR_NAME] = "", *all = calloc((size_t)n_ranks, sizeof own);
    int length;
    MPI_Get_processor_name(own, &length);
    MPI_Gather(own, sizeof own, MPI_CHAR, all, sizeof own, MPI_CHAR, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        FILE *file = open_or_abort("hosts", "w");
        for (int r = 0; r < n_ranks; r++)
            fprintf(file, "%s\n", all + (size_t)r * sizeof own);
        fclose(file);
    }
    free(all);
}

static void add_up(int rank, int n_ranks) {
    double own[N], sum[N];
    for (int i = 0; i < N; i++)
        own[i] = rank + i;
    MPI_Allreduce(own, sum, N, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < N; i++) {
        if (sum[i] != n_ranks * (n_ranks - 1) / 2 + (double)n_ranks * i) {
            fprintf(stderr, "trainer: rank %d: wrong sum\n", rank);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
    }
}

int main(int argc, char **argv) {
    static const struct option options[] = {{"out", 1, 0, 'o'},     {"steps", 1, 0, 's'},   {"pause-ms", 1, 0, 'p'},
                                            {"kill-at", 1, 0, 'k'}, {"threads", 1, 0, 't'}, {0}};
    int steps = 0, pause_ms = 0, kill_at = -1;
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (option) {
            case 'o': out = optarg; break;
            case 's': steps = atoi(optarg); break;
            case 'p': pause_ms = atoi(optarg); break;
            case 'k': kill_at = atoi(optarg); break;
            case 't': break;
            default: return 2;
        }
    }
    if (!out)
        return 2;
    MPI_Init(&argc, &argv);
    struct sigaction action = {.sa_handler = on_stop, .sa_flags = SA_RESTART};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGUSR2, &action, NULL);
    int rank, n_ranks, stop = 0, step = newest_step();
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n_ranks);
    write_hosts(rank, n_ranks);
    if (rank == 0)
        log_event("start", step);
    while (step < steps) {
        int own = stop_signal;
        MPI_Allreduce(&own, &stop, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
        if (stop)
            break;
        if (rank == 1 && step == kill_at)
            kill_once();
        usleep((useconds_t)pause_ms * 1000);
        add_up(rank, n_ranks);
        step++;
        if (rank == 0 && step % SAVE_EVERY == 0)
            save(step);
    }
    if (rank == 0 && stop)
        save(step);
    if (rank == 0)
        log_event(stop ? "saved after signal" : "done", stop ? stop : step);
    MPI_Finalize();
    return stop ? 3 : 0;
}
