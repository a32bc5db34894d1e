#include "llm/utf8.h"

#include <string.h>

size_t utf8_next(const char *text, size_t n_bytes, uint32_t *code) {
    const uint8_t *s = (const uint8_t *)text;
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};  // shorter encodings exist below
    size_t n = s[0] < 0x80 ? 1 : s[0] >> 5 == 6 ? 2 : s[0] >> 4 == 14 ? 3 : s[0] >> 3 == 30 ? 4 : 0;
    if (n == 1) {
        *code = s[0];
        return 1;
    }
    *code = 0xfffd;
    if (n == 0 || n > n_bytes)
        return 1;
    uint32_t value = s[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if (s[i] >> 6 != 2)
            return 1;
        value = value << 6 | (s[i] & 63);
    }
    if (value < least[n] || value > 0x10ffff || (value >= 0xd800 && value < 0xe000))
        return 1;
    *code = value;
    return n;
}

bool utf8_valid(const char *text) {
    uint32_t code = 0;
    for (size_t n = strlen(text), bytes; n > 0; text += bytes, n -= bytes) {
        bytes = utf8_next(text, n, &code);
        if (code == 0xfffd && bytes == 1)
            return false;
    }
    return true;
}
