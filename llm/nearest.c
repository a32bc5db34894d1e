#include "llm/nearest.h"

#include <stdio.h>
#include <string.h>

static int least(int a, int b) {
    return a < b ? a : b;
}

int edit_distance(const char *a, size_t a_len, const char *b, size_t b_len) {
    // Three rows of the table d[i][j]: the distance between the first i letters of a and the first j of b.
    int rows[3][NEAREST_MAX + 1];
    int m = a_len < NEAREST_MAX ? (int)a_len : NEAREST_MAX, n = b_len < NEAREST_MAX ? (int)b_len : NEAREST_MAX;
    for (int j = 0; j <= n; j++)
        rows[0][j] = j;
    for (int i = 1; i <= m; i++) {
        int *now = rows[i % 3], *before = rows[(i + 2) % 3], *two_before = rows[(i + 1) % 3];
        now[0] = i;
        for (int j = 1; j <= n; j++) {
            now[j] = least(least(before[j], now[j - 1]) + 1, before[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                now[j] = least(now[j], two_before[j - 2] + 1);
        }
    }
    return rows[m % 3][n];
}

void nearest_try(Nearest *nearest, const char *name, size_t name_len) {
    size_t len = strlen(nearest->word);
    int distance = edit_distance(nearest->word, len, name, name_len);
    int allowed = len / 3 > 2 ? (int)(len / 3) : 2;
    if (len >= 3 && len < name_len && strncmp(nearest->word, name, len) == 0)
        distance = 1;
    if (distance > allowed || distance >= (int)len)
        return;
    if (!nearest->name || distance < nearest->distance) {
        nearest->name = name;
        nearest->name_len = name_len;
        nearest->distance = distance;
    }
}

const char *nearest_text(const Nearest *nearest, const char *prefix, char *text, size_t text_bytes) {
    if (nearest->name)
        snprintf(text, text_bytes, " (did you mean \"%s%.*s\"?)", prefix, (int)nearest->name_len, nearest->name);
    else
        text[0] = '\0';
    return text;
}
