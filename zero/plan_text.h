// plan_text: tables of a label and one column a stage, and numbers as people read them.
#ifndef ZERO_PLAN_TEXT_H
#define ZERO_PLAN_TEXT_H

#include <stdint.h>
#include <stdio.h>

#include "zero/plan.h"

enum { TEXT_BYTES = 64, LABEL_WIDTH = 24, CELL_WIDTH = 18 };

// Each writes into `text` and returns it.
const char *decimal_bytes(double bytes, char text[TEXT_BYTES]);       // "26.25 GB", as --device-memory 80G counts
const char *short_seconds(double seconds, char text[TEXT_BYTES]);     // "1.23 s", "45.6 ms"
const char *grouped(uint64_t x, char text[TEXT_BYTES]);               // 1234567 as "1,234,567"

void print_cell(FILE *file, const char *text);                        // right-aligned; Ψ is two bytes and one column
void print_stages(FILE *file);                                        // the heading: --zero 0 … --zero 3
void print_bytes_row(FILE *file, const char *label, const double bytes[PLAN_STAGES]);

#endif
