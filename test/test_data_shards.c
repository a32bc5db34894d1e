// Shards: every layout gives the same windows, wrong files give one clear message, indices are 64 bits.
#include "test/check.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "data/shards.h"
#include "test/write_shard.h"

// HDF5 may ask for absurd sizes when a header is damaged: malloc should say no, as it does without the sanitizer.
const char *__asan_default_options(void) {
    return "allocator_may_return_null=1";
}

// HDF5 1.10 itself leaks when it gives up on some damaged headers.
const char *__lsan_default_suppressions(void) {
    return "leak:libhdf5";
}

static char *directory;

static const char *in_dir(const char *name) {
    static char path[16][512];
    static int turn;
    char *p = path[turn++ % 16];
    snprintf(p, sizeof path[0], "%s/%s", directory, name);
    return p;
}

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

// Token i of shard s in these tests.
static uint32_t token(int s, int64_t i) {
    return (uint32_t)((i * 7 + s * 1000 + i / 251) % 30000);
}

static void *tokens_of(int s, int64_t n, int bytes) {
    char *data = malloc((size_t)(n * bytes));
    for (int64_t i = 0; i < n; i++) {
        uint32_t t = token(s, i);
        memcpy(data + i * bytes, &t, (size_t)bytes);  // little endian machine
    }
    return data;
}

static void expect_window(Shards *shards, int64_t w, int s, int64_t first) {
    int T = shards_seq_len(shards);
    int32_t *window = malloc(((size_t)T + 1) * sizeof *window);
    assert_ok(shards_read_window(shards, w, window));
    for (int i = 0; i <= T; i++)
        assert_int_equal(window[i], token(s, first + i));
    free(window);
}

// uint16 and uint32; contiguous, chunked, compressed, after a user block: all windows, equal.
static void test_layouts(void **state) {
    (void)state;
    enum { N = 1000, T = 32 };
    void *narrow = tokens_of(1, N, 2), *wide = tokens_of(1, N, 4);
    const ShardSpec specs[] = {
        {.data = narrow},
        {.data = wide, .file_type = H5T_STD_U32LE},
        {.data = narrow, .user_block = 512},
        {.data = narrow, .chunk = 100},
        {.data = narrow, .chunk = 77, .deflate = 6},
        {.data = wide, .file_type = H5T_STD_U32LE, .chunk = 1000, .deflate = 1},
    };
    for (size_t k = 0; k < sizeof specs / sizeof *specs; k++) {
        ShardSpec spec = specs[k];
        spec.path = in_dir("one.h5");
        spec.n = N;
        write_shard(spec);
        Shards *shards;
        assert_ok(shards_open(spec.path, T, &shards));
        assert_int_equal(shards_n_tokens(shards), N);
        assert_int_equal(shards_n_windows(shards), (N - 1) / T);
        assert_int_equal(shards_vocab_size(shards), 0);
        for (int64_t w = 0; w < (N - 1) / T; w++)
            expect_window(shards, w, 1, w * T);
        shards_close(shards);
    }
    free(narrow);
    free(wide);
}

// Unequal lengths, among them shards that are too short for one window and one of exactly T+1; sorted by name.
static void test_unequal_shards(void **state) {
    (void)state;
    enum { T = 16 };
    const int lengths[] = {100, 5, 17, 16, 333, 1};
    char name[64];
    int64_t total = 0;
    for (int s = 5; s >= 0; s--) {
        snprintf(name, sizeof name, "part_%d.h5", s);
        void *data = tokens_of(s, lengths[s], s % 2 ? 2 : 4);
        write_shard((ShardSpec){.path = in_dir(name),
                                .n = (hsize_t)lengths[s],
                                .data = data,
                                .vocab_size = 30000 + s,
                                .file_type = s % 2 ? H5T_STD_U16LE : H5T_STD_U32LE});
        free(data);
        total += lengths[s];
    }
    close(open(in_dir("notes.txt"), O_CREAT | O_WRONLY, 0600));  // not a shard, and not looked at
    const char *ways[] = {in_dir("part_*.h5"), directory};
    for (int k = 0; k < 2; k++) {
        Shards *shards;
        assert_ok(shards_open(ways[k], T, &shards));
        assert_int_equal(shards_n_files(shards), 6);
        assert_int_equal(shards_n_tokens(shards), total);
        assert_int_equal(shards_vocab_size(shards), 30005);
        assert_non_null(strstr(shards_path(shards, 3), "part_3.h5"));
        int64_t w = 0;
        for (int s = 0; s < 6; s++)
            for (int64_t j = 0; j < (lengths[s] - 1) / T; j++)
                expect_window(shards, w++, s, j * T);
        assert_int_equal(shards_n_windows(shards), w);
        int32_t window[T + 1];
        assert_fails(shards_read_window(shards, w, window), "windows");
        assert_fails(shards_read_window(shards, -1, window), "windows");
        shards_close(shards);
    }
    Shards *a, *b;
    char text_a[128], text_b[128];
    assert_ok(shards_open(in_dir("part_[0-4].h5"), T, &a));
    assert_ok(shards_open(directory, T, &b));
    shards_fingerprint(a, text_a, sizeof text_a);
    shards_fingerprint(b, text_b, sizeof text_b);
    assert_string_not_equal(text_a, text_b);
    shards_close(a);
    shards_close(b);
}

// 1,000 shards with a limit of 40 open files.
static void test_many_shards(void **state) {
    (void)state;
    enum { FILES = 1000, T = 8, N = 3 * T + 1 };
    mkdir(in_dir("many"), 0700);
    char name[64];
    for (int s = 0; s < FILES; s++) {
        snprintf(name, sizeof name, "many/s_%04d.h5", s);
        void *data = tokens_of(s, N, 2);
        // Every tenth is read through HDF5.
        write_shard((ShardSpec){.path = in_dir(name), .n = N, .data = data, .chunk = s % 10 ? 0 : 10});
        free(data);
    }
    struct rlimit before, low;
    getrlimit(RLIMIT_NOFILE, &before);
    low = before;
    low.rlim_cur = 40;
    setrlimit(RLIMIT_NOFILE, &low);
    Shards *shards;
    assert_ok(shards_open(in_dir("many"), T, &shards));
    assert_int_equal(shards_n_windows(shards), 3 * FILES);
    for (int64_t i = 0; i < 3 * FILES; i++) {
        int64_t w = sample_window(1, 3 * FILES, i);
        expect_window(shards, w, (int)(w / 3), w % 3 * T);
    }
    shards_close(shards);
    setrlimit(RLIMIT_NOFILE, &before);
}

// A shard of 2^32 + 1,000,001 tokens: a sparse file with tokens written only where they are looked at.
static void test_replaced(void **state) {
    (void)state;
    const char *path = in_dir("now.h5"), *other = in_dir("other.h5");
    write_shard((ShardSpec){.path = path, .n = 1000});
    write_shard((ShardSpec){.path = other, .n = 1000});
    Shards *shards;
    int32_t window[101];
    assert_ok(shards_open(path, 100, &shards));
    assert_int_equal(rename(other, path), 0);
    assert_fails(shards_read_window(shards, 0, window), "was replaced or written to");
    shards_close(shards);
}

static void test_beyond_32_bits(void **state) {
    (void)state;
    enum { T = 1000 };
    const int64_t n = ((int64_t)1 << 32) + 1000001;
    const char *path = in_dir("huge.h5");
    write_shard((ShardSpec){.path = path, .n = (hsize_t)n});
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    if (info.st_blocks > 1 << 20)
        print_message("huge.h5 takes %lld MB: this file system keeps no holes\n", (long long)info.st_blocks / 2048);
    hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT), dataset = H5Dopen2(file, "tokens", H5P_DEFAULT);
    int64_t offset = (int64_t)H5Dget_offset(dataset);
    H5Dclose(dataset);
    H5Fclose(file);
    int fd = open(path, O_WRONLY);
    const int64_t windows[] = {((int64_t)1 << 31) / T, ((int64_t)1 << 32) / T, (n - 1) / T - 1};
    for (int k = 0; k < 3; k++) {
        int64_t first = windows[k] * T;
        uint16_t data[T + 1];
        for (int i = 0; i <= T; i++)
            data[i] = (uint16_t)token(0, first + i);
        assert_int_equal(pwrite(fd, data, sizeof data, offset + 2 * first), sizeof data);
    }
    Shards *shards;
    assert_ok(shards_open(path, T, &shards));
    assert_int_equal(shards_n_tokens(shards), n);
    assert_int_equal(shards_n_windows(shards), (n - 1) / T);
    for (int k = 0; k < 3; k++)
        expect_window(shards, windows[k], 0, windows[k] * T);
    shards_close(shards);

    uint16_t bad = 60000;
    assert_int_equal(pwrite(fd, &bad, 2, offset + 2 * (((int64_t)1 << 32) + 5)), 2);
    assert_ok(shards_open(path, T, &shards));
    shards_set_vocab(shards, 50257);
    int32_t window[T + 1];
    assert_fails(shards_read_window(shards, ((int64_t)1 << 32) / T, window), "token 60000 at index 4294967301");
    close(fd);
    shards_close(shards);
    unlink(path);
}

static void test_token_beyond_vocabulary(void **state) {
    (void)state;
    enum { T = 8 };
    for (int k = 0; k < 3; k++) {
        uint32_t data[100] = {0};
        data[77] = k == 2 ? 0x80000001u : 257;
        write_shard((ShardSpec){
            .path = in_dir("v.h5"), .n = 100, .data = data, .file_type = H5T_STD_U32LE, .chunk = k == 1 ? 32 : 0});
        Shards *shards;
        assert_ok(shards_open(in_dir("v.h5"), T, &shards));
        int32_t window[T + 1];
        if (k == 2) {  // no vocabulary yet, but no token fits int32
            assert_fails(shards_read_window(shards, 77 / T, window), "token 2147483649 at index 77");
        } else {
            assert_ok(shards_read_window(shards, 77 / T, window));
            shards_set_vocab(shards, 258);
            assert_ok(shards_read_window(shards, 77 / T, window));
        }
        shards_set_vocab(shards, 257);
        assert_ok(shards_read_window(shards, 0, window));
        assert_fails(shards_read_window(shards, 77 / T, window), k == 2 ? "token 2147483649" : "token 257 at index 77");
        shards_close(shards);
    }
}

static void expect_refusal(const char *path, const char *text) {
    Shards *shards = NULL;
    assert_fails(shards_open(path, 8, &shards), text);
    assert_null(shards);
}

static void test_wrong_files(void **state) {
    (void)state;
    const char *path = in_dir("wrong.h5");
    uint16_t data[1000] = {0};

    expect_refusal(in_dir("none*.h5"), "no shard matches");
    expect_refusal(in_dir("none.h5"), "no shard matches");
    mkdir(in_dir("empty"), 0700);
    expect_refusal(in_dir("empty"), "holds no *.h5");

    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    expect_refusal(path, "empty file");
    assert_int_equal(write(fd, "text, not HDF5", 14), 14);
    expect_refusal(path, "not an HDF5 file");
    close(fd);

    write_shard((ShardSpec){.path = path});
    expect_refusal(path, "no dataset /tokens");
    write_shard((ShardSpec){
        .path = path, .n = 1000, .data = data, .file_type = H5T_STD_I64LE, .memory_type = H5T_NATIVE_UINT8});
    expect_refusal(path, "int64");
    write_shard((ShardSpec){.path = path, .n = 1000, .data = data, .file_type = H5T_STD_I16LE});
    expect_refusal(path, "/tokens is int16");
    write_shard((ShardSpec){.path = path, .n = 1000, .data = data, .file_type = H5T_STD_U16BE});
    expect_refusal(path, "big endian");
    write_shard((ShardSpec){.path = path, .n = 250, .data = data, .file_type = H5T_IEEE_F32LE});
    expect_refusal(path, "float (32 bits)");
    write_shard((ShardSpec){.path = path, .n = 1000, .data = data, .vocab_size = 128256});
    expect_refusal(path, "uint16, but vocab_size is 128256");
    write_shard((ShardSpec){.path = path, .n = 1000, .data = data, .vocab_size = -5});
    expect_refusal(path, "vocab_size is -5");

    write_shard((ShardSpec){.path = path, .n = 1000, .data = data});
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(truncate(path, info.st_size - 1), 0);
    expect_refusal(path, "truncated");
    assert_int_equal(truncate(path, 600), 0);
    expect_refusal(path, "truncated");
}

// Datasets that write_shard cannot make.
static void test_wrong_datasets(void **state) {
    (void)state;
    const char *path = in_dir("wrong.h5");
    for (int k = 0; k < 6; k++) {
        hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), plist = H5Pcreate(H5P_DATASET_CREATE);
        hsize_t dims[2] = {k == 1 ? 0 : 20, 50};
        hid_t space = k == 2 ? H5Screate(H5S_SCALAR) : H5Screate_simple(k == 0 ? 2 : 1, dims, NULL);
        if (k == 3)
            H5Pset_external(plist, "/etc/passwd", 0, 40);
        if (k == 5) {
            H5Gclose(H5Gcreate2(file, "tokens", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
        } else if (k == 4) {
            H5Lcreate_external("other.h5", "/tokens", file, "tokens", H5P_DEFAULT, H5P_DEFAULT);
        } else {
            H5Dclose(H5Dcreate2(file, "tokens", H5T_STD_U16LE, space, H5P_DEFAULT, plist, H5P_DEFAULT));
        }
        H5Sclose(space);
        H5Pclose(plist);
        H5Fclose(file);
        static const char *texts[] = {"2 dimensions", "0 tokens", "0 dimensions", "external", "link", "not a dataset"};
        expect_refusal(path, texts[k]);
    }
    // Created, never written: no place in the file.
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    hsize_t n = 1000;
    hid_t space = H5Screate_simple(1, &n, NULL);
    H5Dclose(H5Dcreate2(file, "tokens", H5T_STD_U16LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    H5Sclose(space);
    H5Fclose(file);
    expect_refusal(path, "none was ever written");
}

// Damage anywhere in the file's header gives an error or the data, never a crash.
static void test_damaged_headers(void **state) {
    (void)state;
    const char *path = in_dir("damaged.h5");
    enum { N = 500 };
    void *data = tokens_of(0, N, 2);
    write_shard((ShardSpec){.path = path, .n = N, .data = data, .vocab_size = 30000});
    free(data);
    int fd = open(path, O_RDWR), refused = 0;
    struct stat info;
    assert_int_equal(fstat(fd, &info), 0);
    for (off_t at = 0; at < info.st_size - 2 * N; at += 3) {
        uint8_t byte, other;
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        other = (uint8_t)(byte ^ 0xff);
        assert_int_equal(pwrite(fd, &other, 1, at), 1);
        Shards *shards = NULL;
        int32_t window[9];
        status_clear();
        if (shards_open(path, 8, &shards) != OK)
            refused++;
        else if (shards_n_windows(shards) > 0)
            (void)!shards_read_window(shards, shards_n_windows(shards) - 1, window);
        shards_close(shards);
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    }
    status_clear();
    assert_true(refused > 10);
    close(fd);
}

// Written by h5py with nothing but tokens (dev/make_data_fixtures.py).
static void test_h5py(void **state) {
    (void)state;
    Shards *shards;
    assert_ok(shards_open("test/fixtures/h5py_tokens.h5", 99, &shards));
    assert_int_equal(shards_n_tokens(shards), 1000);
    assert_int_equal(shards_vocab_size(shards), 0);
    int32_t window[100];
    for (int64_t w = 0; w < 10; w++) {
        assert_ok(shards_read_window(shards, w, window));
        for (int i = 0; i < 100; i++)
            assert_int_equal(window[i], (w * 99 + i) * 7 % 500);
    }
    shards_close(shards);
}

static void test_literal_names(void **state) {
    (void)state;
    uint16_t data[100] = {0};
    write_shard((ShardSpec){.path = in_dir("a[1].h5"), .n = 100, .data = data});
    Shards *shards;
    assert_ok(shards_open(in_dir("a[1].h5"), 8, &shards));
    assert_int_equal(shards_n_files(shards), 1);
    shards_close(shards);
}

int main(void) {
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_layouts, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_unequal_shards, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_many_shards, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_replaced, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_beyond_32_bits, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_token_beyond_vocabulary, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_wrong_files, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_wrong_datasets, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_damaged_headers, make_dir, remove_dir),
        cmocka_unit_test(test_h5py),
        cmocka_unit_test_setup_teardown(test_literal_names, make_dir, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
