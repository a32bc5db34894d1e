#include "llm/sampler.h"

#include <math.h>
#include <stdlib.h>

typedef struct Candidate {
    double weight;  // unnormalised probability
    int64_t token;
} Candidate;

_Static_assert(sizeof(Candidate) == 16, "the header promises 16 bytes of scratch a token");

// The finaliser of splitmix64 (Steele et al. 2014): a bijection of 64 bits that changes half of them for any changed
// bit.
static uint64_t mix(uint64_t x) {
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

// A uniform number in [0, 1) that depends on (seed, index) alone.
static double uniform(uint64_t seed, uint64_t index) {
    const uint64_t golden = 0x9e3779b97f4a7c15u;
    uint64_t key = mix(seed + golden);
    return (double)(mix(key ^ mix((index + 1) * golden)) >> 11) * 0x1p-53;
}

static int by_weight(const void *a, const void *b) {
    const Candidate *x = a, *y = b;
    if (x->weight != y->weight)
        return x->weight > y->weight ? -1 : 1;
    return (x->token > y->token) - (x->token < y->token);  // equal weights: the lower token first
}

int32_t sampler_pick(const SamplerOptions *options, uint64_t index, const float *logits, int64_t vocab, void *scratch) {
    int64_t best = 0;
    for (int64_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best] || isnan(logits[best]))
            best = i;
    if (options->temperature <= 0)
        return (int32_t)best;

    Candidate *candidates = scratch;
    double total = 0;
    for (int64_t i = 0; i < vocab; i++) {
        // The best logit weighs 1 by definition (inf - inf would be NaN); a NaN weighs nothing.
        double weight =
            logits[i] == logits[best] ? 1.0 : exp(((double)logits[i] - logits[best]) / options->temperature);
        candidates[i] = (Candidate){isnan(weight) ? 0.0 : weight, i};
        total += candidates[i].weight;
    }

    int64_t kept = vocab;
    if ((options->top_k > 0 && options->top_k < vocab) || options->top_p < 1.0) {
        qsort(candidates, (size_t)vocab, sizeof *candidates, by_weight);
        if (options->top_k > 0 && options->top_k < vocab) {
            kept = options->top_k;
            total = 0;
            for (int64_t i = 0; i < kept; i++)
                total += candidates[i].weight;
        }
        // The smallest head of the list that holds top_p of the probability, and at least one token.
        double head = candidates[0].weight;
        int64_t n = 1;
        while (n < kept && head < options->top_p * total)
            head += candidates[n++].weight;
        kept = n;
        total = head;
    }

    double left = uniform(options->seed, index) * total;
    int64_t pick = best;  // a token with weight > 0 even if rounding walks past the end
    for (int64_t i = 0; i < kept; i++) {
        if (candidates[i].weight > 0) {
            pick = candidates[i].token;
            if (left < candidates[i].weight)
                break;
            left -= candidates[i].weight;
        }
    }
    return (int32_t)pick;
}
