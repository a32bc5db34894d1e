// Vocabularies: prompts get the tokens that the Python libraries give (test/fixtures/vocab_*.h5, made by
// dev/make_data_fixtures.py), tokens print as their text, damaged tables are refused.
#include "test/check.h"

#include <hdf5.h>
#include <math.h>

#include "data/unicode.h"
#include "data/vocab.h"
#include "llm/utf8.h"
#include "test/write_shard.h"

static char *directory;

static int make_dir(void **state) {
    (void)state;
    directory = check_make_dir();
    return 0;
}

static int remove_dir(void **state) {
    (void)state;
    check_remove_dir(directory);
    return 0;
}

static void *read_all(hid_t file, const char *name, hid_t type, size_t *n) {
    hid_t dataset = H5Dopen2(file, name, H5P_DEFAULT), space = H5Dget_space(dataset);
    *n = (size_t)H5Sget_simple_extent_npoints(space);
    void *data = malloc((*n + 1) * H5Tget_size(type));
    assert_true(H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0);
    H5Sclose(space);
    H5Dclose(dataset);
    return data;
}

static void print_tokens(const char *label, const int32_t *tokens, int n) {
    print_error("%s:", label);
    for (int i = 0; i < n; i++)
        print_error(" %d", tokens[i]);
    print_error("\n");
}

static void check_fixture(const char *name, bool exact_text) {
    char path[256];
    snprintf(path, sizeof path, "test/fixtures/vocab_%s.h5", name);
    Vocab *vocab;
    assert_ok(vocab_open(path, &vocab));
    hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    size_t n, n_cases;
    char *text = read_all(file, "cases/text", H5T_NATIVE_UINT8, &n);
    int64_t *at = read_all(file, "cases/text_offsets", H5T_NATIVE_INT64, &n_cases);
    int32_t *expected = read_all(file, "cases/tokens", H5T_NATIVE_INT32, &n);
    int64_t *first = read_all(file, "cases/token_offsets", H5T_NATIVE_INT64, &n);
    H5Fclose(file);
    int wrong = 0;
    for (size_t k = 0; k + 1 < n_cases; k++) {
        int32_t tokens[4096];
        int n_tokens = 4096, want = (int)(first[k + 1] - first[k]);
        assert_ok(vocab_encode(vocab, text + at[k], tokens, &n_tokens));
        if (n_tokens != want || memcmp(tokens, expected + first[k], (size_t)want * sizeof *tokens) != 0) {
            print_error("%s: text %zu \"%s\"\n", name, k, text + at[k]);
            print_tokens("  ours", tokens, n_tokens);
            print_tokens("  library's", expected + first[k], want);
            wrong++;
        }
        // What was encoded prints as it was.
        char printed[8192];
        size_t length = 0, bytes;
        for (int i = 0; i < n_tokens; i++, length += bytes) {
            const char *piece = vocab_token(vocab, tokens[i], &bytes);
            memcpy(printed + length, piece, bytes);
        }
        printed[length] = '\0';
        if (exact_text)
            assert_string_equal(printed, text + at[k]);
    }
    assert_int_equal(wrong, 0);
    assert_true(n_cases > 100);
    free(first);
    free(expected);
    free(at);
    free(text);
    vocab_close(vocab);
}

static void test_byte_level_bpe(void **state) {
    (void)state;
    check_fixture("bpe", true);
}

static void test_sentencepiece_bpe(void **state) {
    (void)state;
    check_fixture("sp_bpe", true);
    check_fixture("sp_bpe_llama", false);
}

static void test_sentencepiece_unigram(void **state) {
    (void)state;
    check_fixture("sp_unigram", false);
    check_fixture("sp_unigram_bytes", true);
}

static void expect_token(const Vocab *vocab, int64_t token, const char *text) {
    size_t bytes;
    const char *piece = vocab_token(vocab, token, &bytes);
    assert_int_equal(bytes, strlen(text));
    assert_memory_equal(piece, text, bytes);
}

static void test_room(void **state) {
    (void)state;
    Vocab *vocab;
    assert_ok(vocab_open("test/fixtures/vocab_bpe.h5", &vocab));
    int32_t tokens[4];
    int n = 4;
    assert_fails(vocab_encode(vocab, "one two three four five", tokens, &n), "there is room for 4");
    char *text = malloc(70000);
    memset(text, 'a', 69999);
    text[69999] = '\0';
    assert_fails(vocab_encode(vocab, text, tokens, &n), "at most 65536");
    free(text);
    expect_token(vocab, -1, "<-1>");
    expect_token(vocab, 1000000, "<1000000>");
    expect_token(vocab, vocab_eot(vocab), "<|endoftext|>");
    assert_int_equal(vocab_eot(vocab), 0);
    vocab_close(vocab);
}

static void test_without_vocabulary(void **state) {
    (void)state;
    char path[300];
    uint16_t data[10] = {0};
    snprintf(path, sizeof path, "%s/plain.h5", directory);
    write_shard((ShardSpec){.path = path, .n = 10, .data = data});
    Vocab *vocab;
    assert_ok(vocab_open(path, &vocab));
    assert_int_equal(vocab_size(vocab), 0);
    assert_int_equal(vocab_eot(vocab), -1);
    expect_token(vocab, 17, "<17>");
    int32_t tokens[8];
    int n = 8;
    assert_ok(vocab_encode(vocab, " 12 7, 1999\n", tokens, &n));
    assert_int_equal(n, 3);
    assert_int_equal(tokens[2], 1999);
    n = 8;
    assert_fails(vocab_encode(vocab, "12 monkeys", tokens, &n), "give token ids");
    assert_fails(vocab_encode(vocab, "-3", tokens, &n), "give token ids");
    assert_fails(vocab_encode(vocab, "99999999999999999999", tokens, &n), "outside of the vocabulary");
    vocab_close(vocab);
    assert_fails(vocab_open("/nonexistent.h5", &vocab), "cannot open");
}

static void put(hid_t file, const char *name, hid_t type, hsize_t n, hsize_t columns, const void *data) {
    hsize_t dims[2] = {n, columns};
    hid_t space = H5Screate_simple(columns ? 2 : 1, dims, NULL);
    hid_t dataset = H5Dcreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    if (data)
        H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data);
    H5Dclose(dataset);
    H5Sclose(space);
}

// A vocabulary of three tokens ("a", "b", "ab"), with one thing wrong in turn.
static void test_damaged_tables(void **state) {
    (void)state;
    char path[300];
    snprintf(path, sizeof path, "%s/vocab.h5", directory);
    static const char *messages[] = {
        NULL,       "does not span",         "not in order", "vocab_size is 4", "not of the vocabulary's",
        "no score", "not in the vocabulary", "wrong shape",  "wrong shape",     "eot_token is 3"};
    for (int wrong = 0; wrong < 10; wrong++) {
        write_shard((ShardSpec){.path = path, .vocab_size = wrong == 3 ? 4 : 3});
        hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
        H5Gclose(H5Gcreate2(file, "vocab", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
        uint64_t offsets[] = {0, wrong == 2 ? 3 : 1, 2, wrong == 1 ? 1000000000000u : 4};
        uint8_t types[] = {1, 1, 1};
        float scores[] = {0, wrong == 5 ? NAN : -1, -2};
        uint32_t merges[] = {0, 1, wrong == 6 ? 3 : 2};
        put(file, "vocab/bytes", H5T_NATIVE_UINT8, 4, 0, "abab");
        if (wrong == 7)  // 2^40 offsets, none of them stored
            put(file, "vocab/offsets", H5T_NATIVE_UINT64, (hsize_t)1 << 40, 0, NULL);
        else
            put(file, "vocab/offsets", H5T_NATIVE_UINT64, 4, 0, offsets);
        put(file, "vocab/types", H5T_NATIVE_UINT8, wrong == 4 ? 2 : 3, 0, types);
        put(file, "vocab/scores", H5T_NATIVE_FLOAT, 3, 0, scores);
        put(file, "vocab/merges", H5T_NATIVE_UINT32, 1, wrong == 8 ? 2 : 3, merges);
        int64_t eot = wrong == 9 ? 3 : 1;
        hid_t space = H5Screate(H5S_SCALAR);
        hid_t attribute = H5Acreate2(file, "eot_token", H5T_NATIVE_INT64, space, H5P_DEFAULT, H5P_DEFAULT);
        H5Awrite(attribute, H5T_NATIVE_INT64, &eot);
        H5Aclose(attribute);
        H5Sclose(space);
        H5Fclose(file);
        Vocab *vocab = NULL;
        if (messages[wrong]) {
            assert_fails(vocab_open(path, &vocab), messages[wrong]);
            assert_null(vocab);
        } else {
            assert_ok(vocab_open(path, &vocab));
            expect_token(vocab, 2, "ab");
            char text[16];
            vocab_decode(vocab, (const int32_t[]){2, 2}, 2, text, sizeof text);
            assert_string_equal(text, "abab");
            vocab_decode(vocab, (const int32_t[]){2, 2}, 2, text, 4);  // what does not fit is left out whole
            assert_string_equal(text, "ab");
            vocab_close(vocab);
        }
    }
}

static void test_utf8(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t bytes;
        uint32_t code;
    } cases[] = {{"a", 1, 'a'},
                 {"é", 2, 0xe9},
                 {"€", 3, 0x20ac},
                 {"🙂", 4, 0x1f642},
                 {"\xc3", 1, 0xfffd},
                 {"\xc0\xaf", 1, 0xfffd},
                 {"\xed\xa0\x80", 1, 0xfffd},
                 {"\x80", 1, 0xfffd},
                 {"\xf4\x90\x80\x80", 1, 0xfffd},
                 {"\xff", 1, 0xfffd},
                 {"\xe2\x82", 1, 0xfffd}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        uint32_t code;
        assert_int_equal(utf8_next(cases[k].text, strlen(cases[k].text), &code), cases[k].bytes);
        assert_int_equal(code, cases[k].code);
    }
    assert_int_equal(unicode_class(0x416), CHAR_LETTER);
    assert_int_equal(unicode_class(0x6771), CHAR_LETTER);
    assert_int_equal(unicode_class(0xb2), CHAR_NUMBER);
    assert_int_equal(unicode_class(0x301), CHAR_OTHER);
    assert_int_equal(unicode_class(0x3000), CHAR_SPACE);
}

int main(void) {
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_byte_level_bpe),
        cmocka_unit_test(test_sentencepiece_bpe),
        cmocka_unit_test(test_sentencepiece_unigram),
        cmocka_unit_test(test_room),
        cmocka_unit_test_setup_teardown(test_without_vocabulary, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_damaged_tables, make_dir, remove_dir),
        cmocka_unit_test(test_utf8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
