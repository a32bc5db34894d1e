// vocab: the tokenizer that a shard carries, enough to print text and to encode a prompt.
//
//   /vocab/bytes (uint8), /vocab/offsets (uint64, vocab_size+1)   token i is bytes[offsets[i] … offsets[i+1])
//   /vocab/merges (uint32, n×3: left, right, result)                BPE merges in order of rank (HF byte-level BPE), or
//   /vocab/scores (float32, vocab_size)                             sentencepiece pieces' scores
//   /vocab/types (uint8, vocab_size)                                sentencepiece's numbers: 1 normal, 2 unknown, 3 control,
//                                                                   4 user-defined (found in a prompt as it is), 5 unused, 6 byte
//   attributes of /vocab: pre_tokenizer ("gpt2": how BPE cuts words), add_dummy_prefix, remove_extra_whitespaces, normalizer
//   attribute `tokenizer` on the root: "bytes", "bpe" (byte-level), "sentencepiece-unigram", "sentencepiece-bpe" (all of
//   which encode), others (which only decode); `eot_token`
// Without a vocabulary, a prompt is token ids ("12 7 1999") and samples print as ids.
#ifndef DATA_VOCAB_H
#define DATA_VOCAB_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "llm/status.h"

typedef struct Vocab Vocab;

// Read the vocabulary of a shard. A shard without one gives a Vocab that decodes to ids. Hostile sizes are refused.
Status vocab_open(const char *shard_path, Vocab **vocab);
void vocab_close(Vocab *vocab);  // NULL is fine

int64_t vocab_size(const Vocab *vocab);   // 0 without a vocabulary
int64_t vocab_eot(const Vocab *vocab);    // -1 if the shard names none
// The bytes of one token (not terminated); "<id>" for tokens without text, valid until this thread's next call.
const char *vocab_token(const Vocab *vocab, int64_t token, size_t *bytes);
// The text of tokens as valid UTF-8 (what is not becomes U+FFFD), cut to text_bytes and terminated.
void vocab_decode(const Vocab *vocab, const int32_t *tokens, int n_tokens, char *text, size_t text_bytes);
// Encode text; *n_tokens in: room, out: used. Fails when the shard's tokenizer cannot encode and text is not a list of ids.
Status vocab_encode(const Vocab *vocab, const char *text, int32_t *tokens, int *n_tokens);

#endif
