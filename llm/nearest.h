// nearest: which of some names a mistyped word was probably meant to be, for "did you mean …?" in messages.
#ifndef LLM_NEAREST_H
#define LLM_NEAREST_H

#include <stddef.h>

// Insertions, deletions, replacements and swaps of neighbours that turn one word into the other (optimal string
// alignment). Words longer than NEAREST_MAX characters are compared by their first NEAREST_MAX.
enum { NEAREST_MAX = 63 };
int edit_distance(const char *a, size_t a_len, const char *b, size_t b_len);

// The best candidate so far for `word`. Begin with {word}; `name` stays NULL while nothing is near enough:
// a third of the word's letters wrong, or at least two; a word that begins the name ("--micro") counts as near.
typedef struct Nearest {
    const char *word;
    const char *name;  // candidate, not terminated when name_len is shorter
    size_t name_len;
    int distance;
} Nearest;

void nearest_try(Nearest *nearest, const char *name, size_t name_len);

// ` (did you mean "<prefix><name>"?)`, or "" when nothing is near. Returns text.
const char *nearest_text(const Nearest *nearest, const char *prefix, char *text, size_t text_bytes);

#endif
