// hf_map: which tensor of a Hugging Face model is which part of ours.
//
// Our matrices are (out, in), as torch.nn.Linear's; GPT-2 in transformers has Conv1D, which is (in, out). Ours fuse
// what is multiplied with the same input: q, k and v, and gate and up, lie one after another as rows of one matrix,
// where LLaMA has tensors of their own (GPT-2's c_attn is fused in the same order). RoPE turns the pairs (i, i +
// head_dim/2) in both, so no row moves. A tied head is no tensor, there as here.
#ifndef ZERO_HF_MAP_H
#define ZERO_HF_MAP_H

#include "llm/model.h"

enum { HF_NAME_BYTES = 80 };

// One tensor of theirs: `len` elements of our tensor from element `first` on.
typedef struct HfTensor {
    char name[HF_NAME_BYTES];  // "model.layers.3.self_attn.k_proj.weight"
    int unit, tensor;          // ours
    int64_t first, len;
    int64_t rows, columns;  // of this part of ours; a vector has one column
    int n_dims;
    bool transposed;  // theirs is (columns, rows)
} HfTensor;

typedef struct HfMap {
    int n;
    HfTensor *tensors;  // by unit, then in our order
    int n_units;
    int *first;  // (n_units + 1): tensors[first[u]] to tensors[first[u+1] - 1] make up unit u
} HfMap;

// prefix: names as the whole model has them ("transformer.wte.weight"), else as its body alone ("wte.weight").
Status hf_map_make(const ModelConfig *model, bool prefix, HfMap *map);
void hf_map_free(HfMap *map);  // a zeroed one is fine

// A tensor's shape as the file has it; returns the number of dimensions.
int hf_shape(const HfTensor *tensor, int64_t shape[2]);

// Whether a tensor that no part of ours comes from may be passed over: buffers that transformers works out anew, and a
// tied head that was stored all the same.
bool hf_is_surplus(const ModelConfig *model, const char *name);

#endif
