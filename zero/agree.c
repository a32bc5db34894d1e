#include "zero/agree.h"

#include <string.h>

typedef struct Outcome {
    Status status;
    char message[STATUS_MESSAGE_BYTES];
} Outcome;

Status agree(Comm *comm, const char *what, Status status) {
    int rank = comm_rank(comm), size = comm_size(comm);
    double first = status == OK ? 0.0 : (double)(size - rank);  // the largest belongs to the lowest failing rank
    TRY(comm_max(comm, what, &first, 1));
    if (first == 0.0)
        return OK;
    int root = size - (int)first;
    Outcome outcome = {status, ""};
    strcpy(outcome.message, status_message());
    TRY(comm_broadcast(comm, what, &outcome, sizeof outcome, root));
    if (status == OK)
        fail("rank %d: %s", root, outcome.message);
    return outcome.status;
}
