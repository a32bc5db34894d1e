// Reads and checks a shard's vocabulary, and decodes. Encoding is in encode.c.
#include "data/vocab.h"

#include <stdlib.h>
#include <string.h>

#include "data/h5.h"
#include "data/vocab_tables.h"
#include "llm/utf8.h"

enum { MAX_TOKENS = 1 << 24, MAX_BYTES = 1 << 28 };  // far above any tokenizer; more is damage

// Dataset `name` as a new array of n = rows × columns elements of `memory_type` (columns 0: 1-D). The extent is checked
// before anything is allocated.
static Status read_array(hid_t file, const char *path, const char *name, hid_t memory_type, hsize_t columns,
                         int64_t max_rows, void *array, int64_t *rows) {
    hid_t dataset = -1, space = -1, type = -1;
    void *data = NULL;
    Status status = OK;
    TRY_GOTO(h5_open_dataset(file, path, name, &dataset), done);
    space = H5Dget_space(dataset);
    type = H5Dget_type(dataset);
    int rank = space >= 0 ? H5Sget_simple_extent_ndims(space) : -1;
    hsize_t dims[2] = {0, 0};
    if (rank == (columns ? 2 : 1))
        H5Sget_simple_extent_dims(space, dims, NULL);
    if (type < 0 || rank != (columns ? 2 : 1) || dims[1] != columns || dims[0] > (hsize_t)max_rows ||
        H5Tget_class(type) != H5Tget_class(memory_type))
        TRY_GOTO(
            fail("shard %s: %s has the wrong shape or type, or is larger than any vocabulary; make the shard again",
                 path, name),
            done);
    size_t n_bytes = (size_t)dims[0] * (columns ? columns : 1) * H5Tget_size(memory_type);
    data = malloc(n_bytes + 1);
    if (!data)
        TRY_GOTO(fail("out of memory while reading %s of shard %s (%zu bytes)", name, path, n_bytes), done);
    if (dims[0] > 0 && H5Dread(dataset, memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0)
        TRY_GOTO(fail("shard %s: cannot read %s (%s)", path, name, h5_reason()), done);
    *(void **)array = data;
    *rows = (int64_t)dims[0];
    data = NULL;
done:
    free(data);
    if (type >= 0)
        H5Tclose(type);
    if (space >= 0)
        H5Sclose(space);
    if (dataset >= 0)
        H5Dclose(dataset);
    return status;
}

static Status fail_tables(const char *path, const char *what) {
    return fail("shard %s: its vocabulary is damaged: %s; make the shard again", path, what);
}

static Status read_tokens(Vocab *vocab, hid_t file, const char *path) {
    int64_t n_bytes, n_offsets, n;
    TRY(read_array(file, path, "/vocab/bytes", H5T_NATIVE_UINT8, 0, MAX_BYTES, &vocab->bytes, &n_bytes));
    TRY(read_array(file, path, "/vocab/offsets", H5T_NATIVE_UINT64, 0, MAX_TOKENS + 1, &vocab->offsets, &n_offsets));
    if (n_offsets < 2)
        return fail_tables(path, "/vocab/offsets is empty");
    vocab->size = n_offsets - 1;
    if (vocab->offsets[0] != 0 || vocab->offsets[vocab->size] != (uint64_t)n_bytes)
        return fail_tables(path, "/vocab/offsets does not span /vocab/bytes");
    for (int64_t i = 0; i < vocab->size; i++)
        if (vocab->offsets[i] > vocab->offsets[i + 1])
            return fail_tables(path, "/vocab/offsets is not in order");
    if (h5_has(file, "/vocab/types")) {
        TRY(read_array(file, path, "/vocab/types", H5T_NATIVE_UINT8, 0, MAX_TOKENS, &vocab->types, &n));
        return n == vocab->size ? OK : fail_tables(path, "/vocab/types is not of the vocabulary's length");
    }
    vocab->types = malloc((size_t)vocab->size);
    if (!vocab->types)
        return fail("out of memory while reading the vocabulary of shard %s", path);
    memset(vocab->types, PIECE_NORMAL, (size_t)vocab->size);
    return OK;
}

static Status read_scores_and_merges(Vocab *vocab, hid_t file, const char *path) {
    int64_t n;
    if (h5_has(file, "/vocab/scores")) {
        TRY(read_array(file, path, "/vocab/scores", H5T_NATIVE_FLOAT, 0, MAX_TOKENS, &vocab->scores, &n));
        if (n != vocab->size)
            return fail_tables(path, "/vocab/scores is not of the vocabulary's length");
        for (int64_t i = 0; i < n; i++)
            if (!(vocab->scores[i] > -1e30f && vocab->scores[i] < 1e30f))
                return fail_tables(path, "/vocab/scores holds a value that is no score");
    }
    if (h5_has(file, "/vocab/merges")) {
        TRY(read_array(file, path, "/vocab/merges", H5T_NATIVE_UINT32, 3, MAX_TOKENS, &vocab->merges,
                       &vocab->n_merges));
        for (int64_t i = 0; i < 3 * vocab->n_merges; i++)
            if (vocab->merges[i] >= vocab->size)
                return fail_tables(path, "/vocab/merges names a token that is not in the vocabulary");
    }
    return OK;
}

static Status read_all(Vocab *vocab, hid_t file, const char *path) {
    int64_t vocab_size = 0;
    TRY(h5_read_int(file, path, "/", "vocab_size", &vocab_size));
    TRY(h5_read_int(file, path, "/", "eot_token", &vocab->eot));
    TRY(h5_read_text(file, path, "/", "tokenizer", vocab->tokenizer, sizeof vocab->tokenizer));
    if (h5_has(file, "/vocab/bytes") && h5_has(file, "/vocab/offsets")) {
        TRY(read_tokens(vocab, file, path));
        if (vocab_size != 0 && vocab_size != vocab->size)
            return fail("shard %s: vocab_size is %lld, but /vocab has %lld tokens; make the shard again", path,
                        (long long)vocab_size, (long long)vocab->size);
        TRY(read_scores_and_merges(vocab, file, path));
        TRY(h5_read_text(file, path, "/vocab", "pre_tokenizer", vocab->pre_tokenizer, sizeof vocab->pre_tokenizer));
        TRY(h5_read_text(file, path, "/vocab", "normalizer", vocab->normalizer, sizeof vocab->normalizer));
        TRY(h5_read_int(file, path, "/vocab", "add_dummy_prefix", &vocab->dummy_prefix));
        TRY(h5_read_int(file, path, "/vocab", "remove_extra_whitespaces", &vocab->collapse_spaces));
    }
    int64_t limit = vocab->size ? vocab->size : vocab_size ? vocab_size : INT32_MAX;
    if (vocab->eot < -1 || vocab->eot >= limit)
        return fail("shard %s: eot_token is %lld, outside of its vocabulary of %lld", path, (long long)vocab->eot,
                    (long long)limit);
    return OK;
}

// ---- look-up ----

static uint64_t hash_bytes(const void *data,
                           size_t n_bytes) {  // FNV-1a, mixed once more as the low bits choose the slot
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n_bytes; i++)
        hash = (hash ^ ((const uint8_t *)data)[i]) * 0x100000001b3u;
    return hash ^ hash >> 29;
}

static uint64_t hash_pair(uint32_t left, uint32_t right) {
    uint64_t hash = ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 32;
}

// An empty table with room for n entries, at most half full.
static int32_t *new_table(int64_t n, size_t *mask) {
    size_t slots = 16;
    while (slots < 2 * (size_t)n)
        slots *= 2;
    *mask = slots - 1;
    int32_t *table = malloc(slots * sizeof *table);
    if (table)
        memset(table, -1, slots * sizeof *table);
    return table;
}

static size_t n_bytes_of(const Vocab *vocab, int64_t token) {
    return (size_t)(vocab->offsets[token + 1] - vocab->offsets[token]);
}

int32_t vocab_find(const Vocab *vocab, const char *text, size_t n_bytes) {
    for (size_t slot = hash_bytes(text, n_bytes);; slot++) {
        int32_t token = vocab->by_bytes[slot & vocab->by_bytes_mask];
        if (token < 0 ||
            (n_bytes_of(vocab, token) == n_bytes && memcmp(vocab->bytes + vocab->offsets[token], text, n_bytes) == 0))
            return token;
    }
}

int32_t vocab_find_merge(const Vocab *vocab, int32_t left, int32_t right) {
    for (size_t slot = hash_pair((uint32_t)left, (uint32_t)right);; slot++) {
        int32_t row = vocab->by_pair[slot & vocab->by_pair_mask];
        if (row < 0 || (vocab->merges[3 * row] == (uint32_t)left && vocab->merges[3 * row + 1] == (uint32_t)right))
            return row;
    }
}

static Status index_tokens(Vocab *vocab, const char *path) {
    memset(vocab->byte_token, -1, sizeof vocab->byte_token);
    vocab->unknown = -1;
    vocab->by_bytes = new_table(vocab->size, &vocab->by_bytes_mask);
    vocab->by_pair = new_table(vocab->n_merges, &vocab->by_pair_mask);
    if (!vocab->by_bytes || !vocab->by_pair)
        return fail("out of memory while reading the vocabulary of shard %s", path);
    for (int32_t token = 0; token < vocab->size; token++) {
        const char *text = (const char *)vocab->bytes + vocab->offsets[token];
        size_t n = n_bytes_of(vocab, token);
        int type = vocab->types[token];
        if (type == PIECE_BYTE && n == 1)
            vocab->byte_token[(uint8_t)text[0]] = token;
        if (type == PIECE_UNKNOWN)
            vocab->unknown = token;
        if (n == 0 || (type != PIECE_NORMAL && type != PIECE_USER_DEFINED) || vocab_find(vocab, text, n) >= 0)
            continue;
        size_t slot = hash_bytes(text, n);
        while (vocab->by_bytes[slot & vocab->by_bytes_mask] >= 0)
            slot++;
        vocab->by_bytes[slot & vocab->by_bytes_mask] = token;
        vocab->longest = n > vocab->longest ? n : vocab->longest;
        vocab->has_user_defined |= type == PIECE_USER_DEFINED;
    }
    for (int32_t row = 0; row < vocab->n_merges; row++) {
        const uint32_t *merge = vocab->merges + 3 * row;
        if (vocab_find_merge(vocab, (int32_t)merge[0], (int32_t)merge[1]) >= 0)
            continue;  // the first, of the lowest rank, counts
        size_t slot = hash_pair(merge[0], merge[1]);
        while (vocab->by_pair[slot & vocab->by_pair_mask] >= 0)
            slot++;
        vocab->by_pair[slot & vocab->by_pair_mask] = row;
    }
    return OK;
}

// ---- the interface ----

Status vocab_open(const char *shard_path, Vocab **out) {
    *out = NULL;
    hid_t file = -1;
    Status status = OK;
    Vocab *vocab = calloc(1, sizeof *vocab);
    if (!vocab)
        return fail("out of memory while reading the vocabulary of shard %s", shard_path);
    vocab->eot = -1;
    TRY_GOTO(h5_open(shard_path, &file), done);
    TRY_GOTO(read_all(vocab, file, shard_path), done);
    TRY_GOTO(index_tokens(vocab, shard_path), done);
done:
    if (file >= 0)
        H5Fclose(file);
    if (status == OK)
        *out = vocab;
    else
        vocab_close(vocab);
    return status;
}

void vocab_close(Vocab *vocab) {
    if (!vocab)
        return;
    free(vocab->by_pair);
    free(vocab->by_bytes);
    free(vocab->merges);
    free(vocab->scores);
    free(vocab->types);
    free(vocab->offsets);
    free(vocab->bytes);
    free(vocab);
}

int64_t vocab_size(const Vocab *vocab) {
    return vocab->size;
}

int64_t vocab_eot(const Vocab *vocab) {
    return vocab->eot;
}

const char *vocab_token(const Vocab *vocab, int64_t token, size_t *bytes) {
    if (token >= 0 && token < vocab->size && n_bytes_of(vocab, token) > 0) {
        *bytes = n_bytes_of(vocab, token);
        return (const char *)vocab->bytes + vocab->offsets[token];
    }
    static _Thread_local char text[32];
    *bytes = (size_t)snprintf(text, sizeof text, "<%lld>", (long long)token);
    return text;
}

// Append a character to text, if it fits with the terminator.
static bool put(char *text, size_t text_bytes, size_t *used, const char *from, size_t n) {
    if (*used + n >= text_bytes)
        return false;
    memcpy(text + *used, from, n);
    *used += n;
    return true;
}

void vocab_decode(const Vocab *vocab, const int32_t *tokens, int n_tokens, char *text, size_t text_bytes) {
    // A character may be spread over tokens, so bytes are joined first: up to the longest text that can come out
    char *joined = malloc(text_bytes);
    size_t n_joined = 0, used = 0;
    for (int i = 0; joined && i < n_tokens; i++) {
        size_t bytes;
        const char *piece = vocab_token(vocab, tokens[i], &bytes);
        if (vocab_size(vocab) == 0 && i > 0 && !put(joined, text_bytes, &n_joined, " ", 1))
            break;
        if (!put(joined, text_bytes, &n_joined, piece, bytes))
            break;
    }
    for (size_t i = 0; i < n_joined;) {
        uint32_t code;
        size_t n = utf8_next(joined + i, n_joined - i, &code);
        bool valid = code != 0xfffd && code != 0;
        if (!put(text, text_bytes, &used, valid ? joined + i : "\xef\xbf\xbd", valid ? n : 3))
            break;
        i += n;
    }
    text[used] = '\0';
    free(joined);
}
