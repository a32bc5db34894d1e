// A shard's attributes and tables. The input says what an HDF5 file is made of, so that what is tested is our reading of
// it and not the library's of damaged files: which attributes and datasets there are, their types, shapes and contents.
#include <hdf5.h>
#include <string.h>

#include "data/shards.h"
#include "data/vocab.h"
#include "test/fuzz/fuzz.h"

typedef struct Input {
    const uint8_t *data;
    size_t bytes;
} Input;

static uint8_t take(Input *in) {
    return in->bytes > 0 ? (in->bytes--, *in->data++) : 0;
}

static uint64_t take_word(Input *in) {
    uint64_t word = 0;
    for (int n = take(in) % 9; n > 0; n--)
        word = word << 8 | take(in);
    return word;
}

static hid_t number_type(uint8_t which) {
    const hid_t types[] = {H5T_STD_U16LE, H5T_STD_U32LE, H5T_STD_U8LE,   H5T_STD_U64LE, H5T_STD_I32LE,
                           H5T_STD_I64LE, H5T_STD_U32BE, H5T_IEEE_F32LE, H5T_IEEE_F64LE};
    return types[which % (sizeof types / sizeof *types)];
}

static void add_attribute(Input *in, hid_t object, const char *name) {
    uint8_t kind = take(in);
    if (kind % 8 == 0)
        return;
    hsize_t n = kind % 8 == 1 ? kind / 8 % 4 : 1;
    hid_t space = kind % 8 == 1 ? H5Screate_simple(1, &n, NULL) : H5Screate(kind % 8 == 2 ? H5S_NULL : H5S_SCALAR);
    char text[64] = "";
    uint64_t words[4] = {0};
    const void *value = words;
    hid_t type = -1;
    if (kind % 8 >= 6) {  // a text, of fixed or of variable length
        static const char *const known[] = {"bytes", "bpe", "sentencepiece-unigram", "sentencepiece-bpe", "gpt2", "nmt_nfkc"};
        const char *string = known[kind / 8 % 6];
        if (kind >= 128) {
            for (int i = take(in) % 64; i > 0; i--)
                text[i - 1] = (char)take(in);
        } else {
            strcpy(text, string);
        }
        type = H5Tcopy(H5T_C_S1);
        H5Tset_size(type, kind % 8 == 6 ? H5T_VARIABLE : strlen(text) + 1);
        static const char *pointer;
        pointer = text;
        value = kind % 8 == 6 ? (const void *)&pointer : text;
    } else {
        type = H5Tcopy(number_type(take(in)));
        for (int i = 0; i < 4; i++)
            words[i] = i == 0 || kind % 8 == 1 ? take_word(in) : 0;
    }
    hid_t attribute = H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    if (attribute >= 0) {
        H5Awrite(attribute, type, value);
        H5Aclose(attribute);
    }
    H5Tclose(type);
    H5Sclose(space);
}

static void add_dataset(Input *in, hid_t file, const char *name, uint8_t usual_type, hsize_t usual_columns) {
    uint8_t kind = take(in);
    if (kind == 0)
        return;
    uint8_t odd = kind >= 224 ? take(in) : 0;
    hid_t type = number_type(odd & 1 ? take(in) : usual_type);
    hsize_t dims[2] = {kind % 64, odd & 2 ? take(in) % 5 : usual_columns};
    int rank = dims[1] ? 2 : 1;
    if (odd & 4)
        dims[0] = take_word(in) % 100000;
    hid_t space = H5Screate_simple(rank, dims, NULL), layout = H5Pcreate(H5P_DATASET_CREATE);
    hsize_t chunk[2] = {1 + odd / 32, dims[1] ? dims[1] : 1};
    if (odd & 8)
        H5Pset_chunk(layout, rank, chunk);
    if (odd & 16)
        H5Pset_layout(layout, H5D_COMPACT);
    hid_t dataset = H5Dcreate2(file, name, type, space, H5P_DEFAULT, layout, H5P_DEFAULT);
    size_t n = (size_t)dims[0] * (dims[1] ? dims[1] : 1), size = H5Tget_size(type);
    uint8_t *values = calloc(n + 1, size);
    for (size_t i = 0; i < n && in->bytes > 0; i++)
        values[i * size] = take(in);  // small numbers are what tables hold
    if (dataset >= 0) {
        if (n > 0)
            H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values);
        H5Dclose(dataset);
    }
    free(values);
    H5Pclose(layout);
    H5Sclose(space);
}

static void write_file(Input in, const char *path) {
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    add_attribute(&in, file, "vocab_size");
    add_attribute(&in, file, "eot_token");
    add_attribute(&in, file, "tokenizer");
    add_dataset(&in, file, "tokens", 0, 0);
    hid_t group = H5Gcreate2(file, "vocab", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    add_attribute(&in, group, "pre_tokenizer");
    add_attribute(&in, group, "normalizer");
    add_attribute(&in, group, "add_dummy_prefix");
    add_attribute(&in, group, "remove_extra_whitespaces");
    add_dataset(&in, group, "offsets", 3, 0);
    add_dataset(&in, group, "types", 2, 0);
    add_dataset(&in, group, "scores", 7, 0);
    add_dataset(&in, group, "merges", 1, 3);
    add_dataset(&in, group, "bytes", 2, 0);
    H5Gclose(group);
    H5Fclose(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    const char *path = fuzz_file("shard.h5", "", 0);
    write_file((Input){data, bytes}, path);
    Shards *shards = NULL;
    int32_t tokens[64];
    if (shards_open(path, 4, &shards) == OK) {
        shards_set_vocab(shards, shards_vocab_size(shards));
        for (int64_t w = 0; w < shards_n_windows(shards) && w < 4; w++)
            (void)shards_read_window(shards, w, tokens);
        shards_close(shards);
    }
    Vocab *vocab;
    if (vocab_open(path, &vocab) == OK) {
        char text[256];
        int n = 64;
        if (vocab_encode(vocab, "A b's  \xc3\xa9t\xe2\x96\x81 12 7\n", tokens, &n) == OK)
            vocab_decode(vocab, tokens, n, text, sizeof text);
        vocab_close(vocab);
    }
    status_clear();
    return 0;
}
