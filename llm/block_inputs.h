// block_inputs: the inputs of the blocks, x, from forward to backward. Where nothing else is kept (--recompute full), they
// are what makes activations grow with depth, and with --offload-activations they spend that time in host memory:
//
//     forward    the input of block l goes down while block l computes
//     backward   the input of block l-1 comes up while block l computes
//
// so that two buffers on the device are enough: block l's input is in buffer l % 2, its output in the other. Without offload
// each block has a buffer of its own; without training, where nobody looks back, there are two as well.
#ifndef LLM_BLOCK_INPUTS_H
#define LLM_BLOCK_INPUTS_H

#include "llm/device.h"

enum { INPUT_BUFFERS = 2 };  // of block inputs that do not stay on the device

typedef struct BlockInputs {
    Device *device;
    Stream *compute, *down, *up;
    int layers;
    size_t bytes;  // of one input
    bool offload;
    int64_t bytes_down, bytes_up;  // copied so far
    void **host;                   // offload: (layers - 1) the last two of layers + 1 stay on the device
    Event *made;                   // the block's input is complete (compute stream)
    Event *saved[INPUT_BUFFERS];   // what is in the buffer is in host memory as well (down stream)
    Event *here[INPUT_BUFFERS];    // it has come back (up stream)
} BlockInputs;

// The device's buffers belong to the model; `bytes` is the size of one. Streams may be the compute stream.
Status block_inputs_open(Device *device, Stream *compute, Stream *down, Stream *up, int layers, size_t bytes,
                         BlockInputs *inputs);
void block_inputs_close(BlockInputs *inputs);  // zeroed ones are fine
size_t block_inputs_host_bytes(int layers, size_t bytes);

// Without offload, all of these do nothing. `x`: the model's pointers (layers + 1).
void block_inputs_write(BlockInputs *inputs, int l);           // compute is about to write the input of block l
void block_inputs_made(BlockInputs *inputs, void **x, int l);  // it is complete
// Backward of block l is about to run: its input is there, and the one before is on its way.
void block_inputs_need(BlockInputs *inputs, void **x, int l);

#endif
