// Text to tokens, as the tokenizer that made the shard does it. For prompts: simple methods, quadratic in the length of
// a word (byte-level BPE) or of the text (sentencepiece), so texts are limited to 64 KiB.
//
// Byte-level BPE: Sennrich, Haddow, Birch 2016 (section 3.2), on bytes and within words as GPT-2 (Radford et al. 2019).
// Sentencepiece: Kudo and Richardson 2018; unigram: Kudo 2018 (section 3.2), the most likely segmentation by Viterbi.
// Unicode normalisation of a sentencepiece model (NFKC) is not done: a prompt of characters that it would change, such
// as full-width letters, gets other tokens than in training.
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "data/unicode.h"
#include "data/vocab.h"
#include "data/vocab_tables.h"
#include "llm/utf8.h"
#include "llm/utf8.h"

enum { MAX_TEXT_BYTES = 64 << 10 };
static const float unknown_penalty = 10.0f;  // sentencepiece's kUnkPenalty

typedef struct Output {
    int32_t *tokens;
    int room, n;  // n counts on when the room is used up
} Output;

static void put(Output *out, int32_t token) {
    if (out->n < out->room)
        out->tokens[out->n] = token;
    out->n++;
}

// ---- GPT-2's words ----

static CharClass class_at(const char *text, size_t n, size_t at, size_t *bytes) {
    uint32_t code;
    *bytes = utf8_next(text + at, n - at, &code);
    return unicode_class(code);
}

// Length of the run of characters of one class that begins at `at`.
static size_t run_of(const char *text, size_t n, size_t at, CharClass class, size_t *last) {
    size_t start = at, bytes;
    while (at < n && class_at(text, n, at, &bytes) == class) {
        *last = at;
        at += bytes;
    }
    return at - start;
}

// Bytes of the first word:  's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
static size_t next_word(const char *text, size_t n) {
    if (text[0] == '\'') {
        static const char *endings[] = {"s", "t", "re", "ve", "m", "ll", "d"};
        for (int i = 0; i < 7; i++)
            if (n > strlen(endings[i]) && memcmp(text + 1, endings[i], strlen(endings[i])) == 0)
                return 1 + strlen(endings[i]);
    }
    size_t space = text[0] == ' ' && n > 1, bytes, last = 0;
    CharClass class = class_at(text, n, space, &bytes);
    if (class != CHAR_SPACE)
        return space + run_of(text, n, space, class, &last);
    // White space: all of it at the end of the text; else the last character is left to the next word, if one remains.
    size_t run = run_of(text, n, 0, CHAR_SPACE, &last);
    return run == n || last == 0 ? run : last;
}

// ---- merging neighbours ----

typedef struct Symbol {
    size_t start, bytes;  // of the text
    int32_t token;        // -1: none (sentencepiece: a character outside of the vocabulary)
    int next;             // index of the symbol to the right; -1: the last
    int32_t joined;       // what it and its right neighbour become; -1: nothing
    double priority;      // of joining: higher goes first
} Symbol;

static void look_right(const Vocab *vocab, const char *text, Symbol *symbols, int i) {
    Symbol *left = &symbols[i];
    left->joined = -1;
    if (left->next < 0)
        return;
    const Symbol *right = &symbols[left->next];
    if (vocab->merges) {
        int32_t row = vocab_find_merge(vocab, left->token, right->token);
        if (row >= 0) {
            left->joined = (int32_t)vocab->merges[3 * row + 2];
            left->priority = -(double)row;
        }
    } else {
        left->joined = vocab_find(vocab, text + left->start, left->bytes + right->bytes);
        if (left->joined >= 0)
            left->priority = (double)vocab->scores[left->joined];
    }
}

// Join the best pair of neighbours (the leftmost of equals) until none can be joined.
static void merge_symbols(const Vocab *vocab, const char *text, Symbol *symbols, int n) {
    for (int i = 0; i < n; i++)
        symbols[i].next = i + 1 < n ? i + 1 : -1;
    for (int i = 0; i < n; i++)
        look_right(vocab, text, symbols, i);
    while (n > 0) {
        int best = -1, before_best = -1, before = -1;
        for (int i = 0; i >= 0; before = i, i = symbols[i].next)
            if (symbols[i].joined >= 0 && (best < 0 || symbols[i].priority > symbols[best].priority)) {
                best = i;
                before_best = before;
            }
        if (best < 0)
            return;
        Symbol *left = &symbols[best];
        left->token = left->joined;
        left->bytes += symbols[left->next].bytes;
        left->next = symbols[left->next].next;
        look_right(vocab, text, symbols, best);
        if (before_best >= 0)
            look_right(vocab, text, symbols, before_best);
    }
}

static void encode_bpe(const Vocab *vocab, const char *text, size_t n, Symbol *symbols, Output *out) {
    for (size_t at = 0; at < n;) {
        size_t word = next_word(text + at, n - at);
        for (size_t i = 0; i < word; i++)
            symbols[i] = (Symbol){.start = at + i, .bytes = 1, .token = vocab_find(vocab, text + at + i, 1)};
        merge_symbols(vocab, text, symbols, (int)word);
        for (int i = 0; i >= 0; i = symbols[i].next)
            put(out, symbols[i].token);
        at += word;
    }
}

// ---- sentencepiece ----

// A character without a token: its bytes' tokens, or the unknown token once for a run of such characters.
static void put_unknown(const Vocab *vocab, const char *text, size_t n_bytes, bool after_unknown, Output *out) {
    bool has_bytes = true;
    for (size_t i = 0; i < n_bytes; i++)
        has_bytes &= vocab->byte_token[(uint8_t)text[i]] >= 0;
    if (!has_bytes && !after_unknown)
        put(out, vocab->unknown);
    for (size_t i = 0; has_bytes && i < n_bytes; i++)
        put(out, vocab->byte_token[(uint8_t)text[i]]);
}

static void encode_sentencepiece_bpe(const Vocab *vocab, const char *text, size_t n, Symbol *symbols, Output *out) {
    int n_symbols = 0;
    for (size_t at = 0; at < n;) {
        uint32_t code;
        size_t bytes = utf8_next(text + at, n - at, &code);
        symbols[n_symbols++] = (Symbol){.start = at, .bytes = bytes, .token = vocab_find(vocab, text + at, bytes)};
        at += bytes;
    }
    merge_symbols(vocab, text, symbols, n_symbols);
    bool unknown = false;
    for (int i = n > 0 ? 0 : -1; i >= 0; i = symbols[i].next) {
        if (symbols[i].token >= 0)
            put(out, symbols[i].token);
        else
            put_unknown(vocab, text + symbols[i].start, symbols[i].bytes, unknown, out);
        unknown = symbols[i].token < 0;
    }
}

// The best way to every place of the text, from left to right; then back along the best. symbols[at] is the token that
// ends at `at` (its start, its token) and, in `priority`, the score of the best way there (n + 1 of them).
static void encode_unigram(const Vocab *vocab, const char *text, size_t n, Symbol *symbols, Output *out) {
    float lowest = 0;
    for (int64_t i = 0; i < vocab->size; i++)
        if (vocab->types[i] == PIECE_NORMAL && (lowest == 0 || vocab->scores[i] < lowest))
            lowest = vocab->scores[i];
    for (size_t at = 0; at <= n; at++)
        symbols[at] = (Symbol){.token = -2};  // -2: no way here yet; -1: over a character without a token
    for (size_t at = 0; at < n;) {
        uint32_t code;
        size_t character = utf8_next(text + at, n - at, &code),
               most = n - at < vocab->longest ? n - at : vocab->longest;
        most = most > character ? most : character;
        bool found = false;
        for (size_t bytes = 1; bytes <= most; bytes++) {
            int32_t token = vocab_find(vocab, text + at, bytes);
            found |= token >= 0 && bytes == character;
            if (token < 0 && (bytes != character || found))
                continue;
            float score = token >= 0 ? vocab->scores[token] : lowest - unknown_penalty;
            double total = (double)(float)symbols[at].priority + (double)score;
            Symbol *end = &symbols[at + bytes];
            if (end->token == -2 || total > end->priority)
                *end = (Symbol){.start = at, .bytes = bytes, .token = token, .priority = (double)(float)total};
        }
        at += character;
    }
    for (size_t at = n; at > 0; at = symbols[at].start)  // chain the best way forwards
        symbols[symbols[at].start].next = (int)at;
    bool unknown = false;
    for (size_t at = 0; at < n; at = (size_t)symbols[at].next) {
        const Symbol *piece = &symbols[symbols[at].next];
        if (piece->token >= 0)
            put(out, piece->token);
        else
            put_unknown(vocab, text + at, piece->bytes, unknown, out);
        unknown = piece->token < 0;
    }
}

// ---- all of a text ----

// The text as the tokenizer's normaliser leaves it: n + 1 bytes at most.
static size_t normalize(const Vocab *vocab, const char *text, char *normal) {
    size_t n = 0, spaces = 0;
    if (text[0] == '\0')
        return 0;
    if (vocab->dummy_prefix && (!vocab->merges || text[0] != ' '))
        normal[n++] = ' ';
    bool control_is_space = strncmp(vocab->normalizer, "nmt", 3) == 0, any = false;
    for (; *text; text++) {
        char c = control_is_space && (*text == '\t' || *text == '\n' || *text == '\r') ? ' ' : *text;
        if (vocab->collapse_spaces && c == ' ') {
            spaces++;
            continue;
        }
        if (spaces > 0 && any)
            normal[n++] = ' ';
        spaces = 0;
        any = true;
        normal[n++] = c;
    }
    return any ? n : 0;
}

// The longest user-defined token at the start of the text, or -1.
static int32_t find_user_defined(const Vocab *vocab, const char *text, size_t n, size_t *bytes) {
    for (size_t k = n < vocab->longest ? n : vocab->longest; k > 0; k--) {
        int32_t token = vocab_find(vocab, text, k);
        if (token >= 0 && vocab->types[token] == PIECE_USER_DEFINED) {
            *bytes = k;
            return token;
        }
    }
    return -1;
}

typedef void Encoder(const Vocab *vocab, const char *text, size_t n, Symbol *symbols, Output *out);

static Encoder *find_encoder(const Vocab *vocab) {
    bool every_byte = true;
    for (int b = 0; b < 256 && vocab->merges; b++)
        every_byte &= vocab_find(vocab, &(char){(char)b}, 1) >= 0;
    if (vocab->merges && every_byte && strcmp(vocab->pre_tokenizer, "gpt2") == 0)
        return encode_bpe;
    if (vocab->scores && vocab->unknown >= 0 && strcmp(vocab->tokenizer, "sentencepiece-bpe") == 0)
        return encode_sentencepiece_bpe;
    if (vocab->scores && vocab->unknown >= 0 && strcmp(vocab->tokenizer, "sentencepiece-unigram") == 0)
        return encode_unigram;
    return NULL;
}

static Status encode_text(const Vocab *vocab, Encoder *encode, const char *text, Output *out) {
    size_t length = strlen(text);
    char *normal = malloc(length + 2);
    Symbol *symbols = malloc((length + 2) * sizeof *symbols);
    if (!normal || !symbols) {
        free(symbols);
        free(normal);
        return fail("out of memory while encoding a prompt of %zu bytes", length);
    }
    size_t n = normalize(vocab, text, normal), from = 0;
    for (size_t at = 0; vocab->has_user_defined && at < n;) {
        size_t bytes = 0;
        int32_t token = find_user_defined(vocab, normal + at, n - at, &bytes);
        if (token < 0) {
            at++;
            continue;
        }
        encode(vocab, normal + from, at - from, symbols, out);
        put(out, token);
        at += bytes;
        from = at;
    }
    encode(vocab, normal + from, n - from, symbols, out);
    free(symbols);
    free(normal);
    return OK;
}

static Status encode_ids(const Vocab *vocab, const char *text, Output *out) {
    int64_t limit = vocab->size ? vocab->size : INT32_MAX;
    for (const char *at = text; *at;) {
        if (isspace((unsigned char)*at) || *at == ',') {
            at++;
            continue;
        }
        char *end;
        long long id = strtoll(at, &end, 10);
        if (end == at || !isdigit((unsigned char)*at))
            return fail(
                "cannot encode the prompt: the shards' tokenizer (%s) is not one that this program can encode with; "
                "give token ids, such as \"12 7 1999\"",
                vocab->tokenizer[0] ? vocab->tokenizer : "not named");
        if (id >= limit)
            return fail("the prompt's token %.*s is outside of the vocabulary of %lld", (int)(end - at), at,
                        (long long)limit);
        put(out, (int32_t)id);
        at = end;
    }
    return OK;
}

Status vocab_encode(const Vocab *vocab, const char *text, int32_t *tokens, int *n_tokens) {
    Output out = {.tokens = tokens, .room = *n_tokens};
    size_t length = strlen(text);
    if (length > MAX_TEXT_BYTES)
        return fail("the prompt has %zu bytes; at most %d can be encoded", length, MAX_TEXT_BYTES);
    Encoder *encode = find_encoder(vocab);
    if (strcmp(vocab->tokenizer, "bytes") == 0) {
        for (size_t i = 0; i < length; i++)
            put(&out, (uint8_t)text[i]);
    } else if (encode) {
        TRY(encode_text(vocab, encode, text, &out));
    } else {
        TRY(encode_ids(vocab, text, &out));
    }
    if (out.n > out.room)
        return fail("the prompt makes %d tokens; there is room for %d", out.n, out.room);
    *n_tokens = out.n;
    return OK;
}
