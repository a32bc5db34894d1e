// unicode: the classes of characters that GPT-2's way of cutting words asks for.
#ifndef DATA_UNICODE_H
#define DATA_UNICODE_H

#include <stdint.h>

typedef enum CharClass { CHAR_OTHER, CHAR_LETTER, CHAR_NUMBER, CHAR_SPACE } CharClass;

// Unicode 14: \p{L}, \p{N} and \s; the rest is CHAR_OTHER.
CharClass unicode_class(uint32_t code);

#endif
