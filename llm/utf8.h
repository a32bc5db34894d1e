// utf8: characters of text from outside, which may hold any bytes.
#ifndef LLM_UTF8_H
#define LLM_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Bytes of the character at text (n_bytes left, at least 1) and its code; a byte that is not UTF-8 counts as one
// character, 0xfffd.
size_t utf8_next(const char *text, size_t n_bytes, uint32_t *code);

bool utf8_valid(const char *text);

#endif
