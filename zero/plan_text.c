#include "zero/plan_text.h"

const char *decimal_bytes(double bytes, char text[TEXT_BYTES]) {
    if (bytes >= 1e9)
        snprintf(text, TEXT_BYTES, "%.2f GB", bytes / 1e9);
    else if (bytes >= 1e6)
        snprintf(text, TEXT_BYTES, "%.2f MB", bytes / 1e6);
    else
        snprintf(text, TEXT_BYTES, "%.0f B", bytes);
    return text;
}

const char *short_seconds(double seconds, char text[TEXT_BYTES]) {
    if (seconds >= 100)
        snprintf(text, TEXT_BYTES, "%.0f s", seconds);
    else if (seconds >= 1)
        snprintf(text, TEXT_BYTES, "%.2f s", seconds);
    else
        snprintf(text, TEXT_BYTES, "%.1f ms", 1e3 * seconds);
    return text;
}

const char *grouped(uint64_t x, char text[TEXT_BYTES]) {
    char digits[32];
    int n = snprintf(digits, sizeof digits, "%llu", (unsigned long long)x), at = 0;
    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0)
            text[at++] = ',';
        text[at++] = digits[i];
    }
    text[at] = '\0';
    return text;
}

void print_cell(FILE *file, const char *text) {
    int columns = 0;
    for (const char *c = text; *c; c++)
        columns += (*c & 0xc0) != 0x80;
    fprintf(file, "%*s%s", columns < CELL_WIDTH ? CELL_WIDTH - columns : 1, "", text);
}

void print_stages(FILE *file) {
    char text[TEXT_BYTES];
    fprintf(file, "%-*s", LABEL_WIDTH, "");
    for (int stage = 0; stage < PLAN_STAGES; stage++) {
        snprintf(text, sizeof text, "--zero %d", stage);
        print_cell(file, text);
    }
    fputc('\n', file);
}

void print_bytes_row(FILE *file, const char *label, const double bytes[PLAN_STAGES]) {
    char text[TEXT_BYTES];
    fprintf(file, "%-*s", LABEL_WIDTH, label);
    for (int stage = 0; stage < PLAN_STAGES; stage++)
        print_cell(file, decimal_bytes(bytes[stage], text));
    fputc('\n', file);
}
