// relaxed_json: JSON as people write it by hand: comments (# and // to the end of the line, /* … */) and a comma after the
// last element, which hjson allows too. Everything else is JSON, read by cJSON. An object with a key twice is refused: one
// of the two values would be ignored.
#ifndef LLM_RELAXED_JSON_H
#define LLM_RELAXED_JSON_H

#include <stddef.h>

#include "llm/status.h"

struct cJSON;

// Parse text[0 … bytes), which is changed; text[bytes] must be writable. Errors name `path` and the line.
Status relaxed_json_parse(char *text, size_t bytes, const char *path, struct cJSON **json);

#endif
