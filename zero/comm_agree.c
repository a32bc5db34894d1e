// Do all ranks have the same text? The first difference is shown as two lines, one of each rank.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zero/comm_backend.h"
#include "zero/hash.h"

enum { SHOWN = 120 };  // characters of a differing line that are shown

// The line of `text` around position `at`, or the part of it around `at` when it is long.
static void line_at(const char *text, size_t at, char line[SHOWN + 1]) {
    size_t begin = at, end = at;
    while (begin > 0 && text[begin - 1] != '\n' && at - begin < SHOWN / 2)
        begin--;
    while (text[end] && text[end] != '\n' && end - begin < SHOWN)
        end++;
    while (begin < end && text[begin] == ' ')
        begin++;
    snprintf(line, SHOWN + 1, "%.*s", (int)(end - begin), text + begin);
}

static size_t first_difference(const char *a, const char *b) {
    size_t i = 0;
    while (a[i] && a[i] == b[i])
        i++;
    return i;
}

// Rank 0's text is compared by every rank with its own; the first rank that differs tells all of them.
static Status compare(Comm *comm, const char *name, const char *mine, const char *first) {
    bool differs = strcmp(mine, first) != 0;
    double most = differs ? comm->size - comm->rank : 0;  // the largest is that of the first rank that differs
    TRY(comm_max(comm, name, &most, 1));
    if (most == 0)
        return OK;
    int other = comm->size - (int)most;
    char lines[2][SHOWN + 1] = {"", ""};
    if (comm->rank == other) {
        size_t at = first_difference(first, mine);
        line_at(first, at, lines[0]);
        line_at(mine, at, lines[1]);
    }
    TRY(comm_broadcast(comm, name, lines, sizeof lines, other));
    return fail_usage("the ranks do not have the same %s: rank 0 has \"%s\", rank %d has \"%s\"", name, lines[0], other,
                      lines[1]);
}

Status comm_agree(Comm *comm, const char *name, const char *text) {
    uint64_t bytes = strlen(text) + 1;
    TRY(comm_broadcast(comm, name, &bytes, sizeof bytes, 0));
    char *first = malloc(bytes);
    if (!first)
        return fail("out of host memory");
    if (comm->rank == 0)
        memcpy(first, text, bytes);
    Status status = comm_broadcast(comm, name, first, bytes, 0);
    if (status == OK)
        status = compare(comm, name, text, first);
    free(first);
    return status;
}

Status comm_agree_build(Comm *comm) {
    if (comm->size == 1)
        return OK;
    static const char path[] = "/proc/self/exe";
    FILE *file = fopen(path, "rb");
    if (!file)
        return fail("cannot open this program's own file, %s: %s", path, strerror(errno));
    char piece[65536], text[64];
    uint64_t hash = 0, bytes = 0;
    for (size_t n; (n = fread(piece, 1, sizeof piece, file)) > 0; bytes += n)
        hash = hash_bytes(piece, n, hash);
    fclose(file);
    snprintf(text, sizeof text, "%llu bytes with hash %016llx", (unsigned long long)bytes, (unsigned long long)hash);
    return comm_agree(comm, "program", text);
}

Status comm_check_order(Comm *comm) {
    char text[64];
    snprintf(text, sizeof text, "%lld collectives with hash %016llx", (long long)comm->n_issued,
             (unsigned long long)comm->order_hash);
    comm->n_issued = 0;
    comm->order_hash = 0;
    return comm_agree(comm, "order of collectives", text);
}
