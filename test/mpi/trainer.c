// A stand-in for train_gpt in the tests of the launchers: ranks that add numbers up over MPI, save when they are asked to
// stop, and go on from what they saved. It treats signals and exit statuses as train_gpt does (DESIGN: Errors).
//
//   trainer OUT STEPS [MILLISECONDS a step] [STEP at which rank 1 kills itself, once]
//
// Rank 0 appends one line an event to OUT/log and keeps the last finished step in OUT/step.
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static volatile sig_atomic_t stop_signal;

static void on_stop(int signal_number) {
    if (stop_signal)
        _exit(128 + signal_number);
    stop_signal = signal_number;
}

static FILE *open_or_abort(const char *out, const char *name, const char *mode) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", out, name);
    FILE *file = fopen(path, mode);
    if (!file) {
        perror(path);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return file;
}

static void log_event(const char *out, const char *event, int number) {
    FILE *file = open_or_abort(out, "log", "a");
    fprintf(file, "%s %d\n", event, number);
    fclose(file);
}

static int load(const char *out) {
    char path[4096];
    int step = 0;
    snprintf(path, sizeof path, "%s/step", out);
    FILE *file = fopen(path, "r");
    if (file) {
        if (fscanf(file, "%d", &step) != 1)
            step = 0;
        fclose(file);
    }
    return step;
}

static void save(const char *out, int step) {
    FILE *file = open_or_abort(out, "step", "w");
    fprintf(file, "%d\n", step);
    fclose(file);
}

// Every rank has to be on its own host, or the test of hosts would not test them: OUT/hosts lists who is where.
static void write_hosts(const char *out, int rank, int n_ranks) {
    char own[MPI_MAX_PROCESSOR_NAME] = "", *all = calloc((size_t)n_ranks, sizeof own);
    int length;
    MPI_Get_processor_name(own, &length);
    MPI_Gather(own, sizeof own, MPI_CHAR, all, sizeof own, MPI_CHAR, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        FILE *file = open_or_abort(out, "hosts", "w");
        for (int r = 0; r < n_ranks; r++)
            fprintf(file, "%s\n", all + (size_t)r * sizeof own);
        fclose(file);
    }
    free(all);
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    const char *out = argv[1];
    int steps = atoi(argv[2]), pause_ms = argc > 3 ? atoi(argv[3]) : 0, kill_step = argc > 4 ? atoi(argv[4]) : -1;
    MPI_Init(&argc, &argv);
    struct sigaction action = {.sa_handler = on_stop, .sa_flags = SA_RESTART};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGUSR2, &action, NULL);
    int rank, n_ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n_ranks);
    write_hosts(out, rank, n_ranks);

    int step = load(out), stop = 0;
    if (rank == 0)
        log_event(out, step == 0 ? "start" : "resume", step);
    while (step < steps) {
        int own = stop_signal;
        MPI_Allreduce(&own, &stop, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
        if (stop)
            break;
        usleep((useconds_t)pause_ms * 1000);
        if (rank == 1 && step == kill_step) {
            char path[4096];
            snprintf(path, sizeof path, "%s/killed", out);
            if (access(path, F_OK) != 0) {
                fclose(open_or_abort(out, "killed", "w"));
                raise(SIGKILL);
            }
        }
        double one[1000], sum[1000];
        for (int i = 0; i < 1000; i++)
            one[i] = rank + i;
        MPI_Allreduce(one, sum, 1000, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        for (int i = 0; i < 1000; i++) {
            if (sum[i] != n_ranks * (n_ranks - 1) / 2 + (double)n_ranks * i) {
                fprintf(stderr, "trainer: wrong sum on rank %d\n", rank);
                MPI_Abort(MPI_COMM_WORLD, 1);
            }
        }
        step++;
        if (rank == 0)
            save(out, step);
    }
    if (rank == 0)
        log_event(out, stop ? "stopped by signal" : "done", stop ? stop : step);
    MPI_Finalize();
    return stop ? 3 : 0;
}
