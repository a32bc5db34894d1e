// agree: one rank's failure becomes every rank's.
//
// Work on files fails on one rank alone (a full local disk, a damaged byte that only it reads). Before the next
// collective, every rank hands in how its part went; all get the same answer, and the ranks that did well get the
// message of the one that did not.
#ifndef ZERO_AGREE_H
#define ZERO_AGREE_H

#include "zero/comm.h"

// Collective. OK when `status` is OK on every rank; otherwise the lowest failing rank's status and message.
Status agree(Comm *comm, const char *what, Status status);

#endif
