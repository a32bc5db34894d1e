#include "llm/rope.h"

#include <math.h>

// LLaMA 3.1: long wavelengths are stretched by `factor`, short ones kept, those between blended.
static double scaled_frequency(const ModelConfig *m, double frequency) {
    if (!m->rope_llama3)
        return frequency;
    double wavelength = 2.0 * M_PI / frequency;
    double longest = m->rope_original_len / m->rope_low_freq, shortest = m->rope_original_len / m->rope_high_freq;
    if (wavelength > longest)
        return frequency / m->rope_factor;
    if (wavelength < shortest)
        return frequency;
    double blend = (m->rope_original_len / wavelength - m->rope_low_freq) / (m->rope_high_freq - m->rope_low_freq);
    return (1.0 - blend) * frequency / m->rope_factor + blend * frequency;
}

void rope_table(const ModelConfig *m, int positions, float *table) {
    int half = m->head_dim / 2;
    for (int i = 0; i < half; i++) {
        double frequency = scaled_frequency(m, pow(m->rope_theta, -2.0 * i / m->head_dim));
        for (int p = 0; p < positions; p++) {
            table[((int64_t)p * half + i) * 2] = (float)cos(p * frequency);
            table[((int64_t)p * half + i) * 2 + 1] = (float)sin(p * frequency);
        }
    }
}
