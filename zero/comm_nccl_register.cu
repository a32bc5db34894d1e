// User buffer registration: NCCL maps memory once and then moves it without copies through buffers of its own, over
// NVLink (since 2.23) and InfiniBand. What takes part in one collective must be registered on all ranks or on none, so a
// failure ends the run rather than leave one rank different.
#include "zero/comm_nccl.cuh"

// All communicators; NULL where there is none, or it is there already under another name.
static ncclComm_t communicator(const CommNccl *c, int i) {
    const ncclComm_t all[] = {c->world, c->gather, c->inside == c->world ? nullptr : c->inside, c->across};
    return all[i];
}

Status nccl_register(Comm *comm, void *memory, size_t bytes) {
    CommNccl *c = comm_nccl(comm);
    if (c->n_registered == MAX_REGISTERED)
        return fail("more than %d buffers for collectives: this is a bug in zero.c", MAX_REGISTERED);
    NcclRegistered *r = &c->registered[c->n_registered++];
    *r = NcclRegistered{memory, {}};
    for (int i = 0; i < 4; i++) {
        if (!communicator(c, i))
            continue;
        ncclResult_t result = nccl.ncclCommRegister(communicator(c, i), memory, bytes, &r->handles[i]);
        if (result != ncclSuccess)
            return fail_context(nccl_fail("registering memory", result), "NCCL_LOCAL_REGISTER=0 does without");
    }
    return OK;
}

void nccl_unregister(Comm *comm, const void *memory) {
    CommNccl *c = comm_nccl(comm);
    for (int k = 0; k < c->n_registered; k++) {
        NcclRegistered *r = &c->registered[k];
        if (r->memory != memory)
            continue;
        for (int i = 0; i < 4; i++)
            if (r->handles[i])
                nccl.ncclCommDeregister(communicator(c, i), r->handles[i]);
        *r = c->registered[--c->n_registered];
        return;
    }
}
