// unicode: the classes of characters that GPT-2's way of cutting words asks for, and UTF-8.
#ifndef DATA_UNICODE_H
#define DATA_UNICODE_H

#include <stddef.h>
#include <stdint.h>

typedef enum CharClass { CHAR_OTHER, CHAR_LETTER, CHAR_NUMBER, CHAR_SPACE } CharClass;

// Unicode 14: \p{L}, \p{N} and \s; the rest is CHAR_OTHER.
CharClass unicode_class(uint32_t code);

// Bytes of the character at text (n_bytes left, at least 1) and its code; a byte that is not UTF-8 counts as one
// character, 0xfffd.
size_t utf8_next(const char *text, size_t n_bytes, uint32_t *code);

#endif
