// vocab_tables: what vocab.c reads from a shard and encode.c encodes with. Internal to data/.
#ifndef DATA_VOCAB_TABLES_H
#define DATA_VOCAB_TABLES_H

#include <stdbool.h>

#include "data/vocab.h"

// Types of tokens, numbered as sentencepiece does (sentencepiece_model.proto).
enum { PIECE_NORMAL = 1, PIECE_UNKNOWN, PIECE_CONTROL, PIECE_USER_DEFINED, PIECE_UNUSED, PIECE_BYTE };

struct Vocab {
    int64_t size;             // tokens; 0: the shard has no vocabulary
    int64_t eot;              // -1: none
    char tokenizer[64];       // attribute of the root
    char pre_tokenizer[32];   // attribute of /vocab: how text is cut into words before merging ("gpt2")
    char normalizer[32];      // … sentencepiece's name of its normalisation
    int64_t dummy_prefix;     // … a space is put before the text
    int64_t collapse_spaces;  // … spaces at the ends go, runs of spaces become one
    uint8_t *bytes;           // of all tokens
    uint64_t *offsets;        // size + 1: where each token's begin
    uint8_t *types;           // size
    float *scores;            // size, or NULL
    uint32_t *merges;         // n_merges × (left, right, result), or NULL
    int64_t n_merges;
    int32_t *by_bytes;  // hash table: bytes -> token that text may become (normal, user-defined), or -1
    int32_t *by_pair;   // hash table: (left, right) -> row of merges, or -1
    size_t by_bytes_mask, by_pair_mask;
    size_t longest;  // bytes of the longest token in by_bytes
    bool has_user_defined;
    int32_t byte_token[256];  // sentencepiece's tokens for single bytes, or -1
    int32_t unknown;          // sentencepiece's token for what has none, or -1
};

// The token whose text is exactly these bytes, or -1.
int32_t vocab_find(const Vocab *vocab, const char *text, size_t n_bytes);
// The row of merges that joins two tokens, or -1.
int32_t vocab_find_merge(const Vocab *vocab, int32_t left, int32_t right);

#endif
