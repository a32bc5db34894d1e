// safetensors: what is written is read back; every kind of damage is found and named; no damage at all crashes.
#include <math.h>

#include "test/check.h"
#include "zero/safetensors.h"

static char directory[256];

static int make_directory(void **state) {
    (void)state;
    snprintf(directory, sizeof directory, "%s", check_make_dir());
    return 0;
}

static int remove_directory(void **state) {
    (void)state;
    check_remove_dir(directory);
    return 0;
}

// ---- files made by hand ----

static const char *path_of(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

static void write_file(const char *name, const void *data, size_t bytes) {
    FILE *file = fopen(path_of(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    fclose(file);
}

// A safetensors file: this header and `data_bytes` of zeros. header_bytes -1: the header's own length.
static void write_tensors(const char *name, const char *header, int64_t header_bytes, size_t data_bytes) {
    static char file[1 << 16];
    uint64_t len = strlen(header), said = header_bytes < 0 ? len : (uint64_t)header_bytes;
    assert_true(8 + len + data_bytes <= sizeof file);
    memset(file, 0, sizeof file);
    memcpy(file, &said, 8);
    memcpy(file + 8, header, len);
    write_file(name, file, 8 + len + data_bytes);
}

#define TENSOR(name, dtype, shape, begin, end) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

static void test_bad_headers(void **state) {
    (void)state;
    static const struct {
        const char *header;
        int64_t header_bytes;
        size_t data_bytes;
        const char *message;
    } cases[] = {
        {"{}", 1000, 0, "its header would have 1000 bytes"},
        {"{}", (int64_t)1 << 62, 0, "its header would have 4611686018427387904 bytes"},
        {"", -1, 0, "not JSON"},
        {"[1]", -1, 0, "not JSON"},
        {"{\"a\":3}", -1, 0, "dtype is missing"},
        {"{" TENSOR("a", "F33", "[1]", 0, 4) "}", -1, 4, "dtype is F33"},
        {"{\"a\":{\"dtype\":\"F32\"}}", -1, 4, "no \"shape\""},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", -1, 4, "two numbers"},
        {"{" TENSOR("a", "F32", "[-1]", 0, 4) "}", -1, 4, "whole number"},
        {"{" TENSOR("a", "F32", "[1.5]", 0, 4) "}", -1, 4, "whole number"},
        {"{" TENSOR("a", "F32", "[\"1\"]", 0, 4) "}", -1, 4, "whole number"},
        {"{" TENSOR("a", "F32", "[1e300]", 0, 4) "}", -1, 4, "whole number"},
        {"{" TENSOR("a", "F32", "[1,1,1,1,1,1,1,1,1]", 0, 4) "}", -1, 4, "dimensions"},
        {"{" TENSOR("a", "F32", "[4294967296,4294967296]", 0, 4) "}", -1, 4, "too large"},
        {"{" TENSOR("a", "F32", "[4611686018427387904]", 0, 4) "}", -1, 4, "whole number"},
        {"{" TENSOR("a", "F32", "[4503599627370496,1024]", 0, 4) "}", -1, 4, "too large"},
        {"{" TENSOR("a", "F32", "[1]", 4, 0) "}", -1, 4, "would lie at bytes 4 to 0"},
        {"{" TENSOR("a", "F32", "[2]", 0, 8) "}", -1, 4, "would lie at bytes 0 to 8"},
        {"{" TENSOR("a", "F32", "[2]", 0, 4) "}", -1, 4, "has 4 bytes, but its shape and dtype make 8"},
        {"{" TENSOR("a", "F32", "[1]", 0, 4) "," TENSOR("b", "F32", "[1]", 0, 4) "}", -1, 4, "begins at byte"},
        {"{" TENSOR("a", "F32", "[1]", 0, 4) "," TENSOR("b", "F32", "[1]", 8, 12) "}", -1, 12, "begins at byte"},
        {"{" TENSOR("a", "F32", "[1]", 0, 4) "}", -1, 8, "its tensors end at byte"},
        {"{" TENSOR("a", "F32", "[1]", 0, 4) "," TENSOR("a", "F32", "[1]", 4, 8) "}", -1, 8, "\"a\" is there twice"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Safetensors model;
        write_tensors("model.safetensors", cases[i].header, cases[i].header_bytes, cases[i].data_bytes);
        assert_fails(safetensors_open(directory, &model), cases[i].message);
    }
    Safetensors model;
    write_file("model.safetensors", "1234567", 7);
    assert_fails(safetensors_open(directory, &model), "only 7 bytes");
    assert_int_equal(unlink(path_of("model.safetensors")), 0);
    assert_fails(safetensors_open(directory, &model), "has no model.safetensors");
}

static void write_index(const char *json) {
    write_file("model.safetensors.index.json", json, strlen(json));
}

static void test_bad_indices(void **state) {
    (void)state;
    static const struct {
        const char *json, *message;
    } cases[] = {
        {"nonsense", "not JSON"},
        {"{\"weight_map\":{}}", "no \"weight_map\""},
        {"{\"weight_map\":{\"a\":\"../one\"}}", "is not in a file of this directory: \"../one\""},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "is not in a file of this directory"},
        {"{\"weight_map\":{\"a\":\"..\"}}", "is not in a file of this directory"},
        {"{\"weight_map\":{\"a\":\"\"}}", "is not in a file of this directory"},
        {"{\"weight_map\":{\"a\":7}}", "not a name"},
        {"{\"weight_map\":{\"a\":\"absent\"}}", "absent"},
        {"{\"weight_map\":{\"a\":\"two\",\"b\":\"two\"}}", "\"a\" is not in two, where it should be"},
        {"{\"weight_map\":{\"a\":\"one\",\"c\":\"two\"}}", "\"c\" is not in two"},
        {"{\"weight_map\":{\"a\":\"one\",\"b\":\"again\"}}", "\"a\" is there twice"},
    };
    write_tensors("one", "{" TENSOR("a", "F32", "[1]", 0, 4) "}", -1, 4);
    write_tensors("again", "{" TENSOR("a", "F32", "[1]", 0, 4) "," TENSOR("b", "F32", "[1]", 4, 8) "}", -1, 8);
    write_tensors("two", "{" TENSOR("b", "F32", "[1]", 0, 4) "}", -1, 4);
    Safetensors model;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_index(cases[i].json);
        assert_fails(safetensors_open(directory, &model), cases[i].message);
    }
    write_index("{\"weight_map\":{\"a\":\"one\",\"b\":\"two\"}}");
    assert_ok(safetensors_open(directory, &model));
    assert_int_equal(model.n_files, 2);
    assert_non_null(safetensors_find(&model, "b"));
    assert_null(safetensors_find(&model, "c"));
    safetensors_close(&model);
}

static void test_dtypes(void **state) {
    (void)state;
    write_tensors("model.safetensors",
                  "{\"__metadata__\":{\"format\":\"pt\"}," TENSOR("none", "F32", "[0,3]", 0, 0) "," TENSOR(
                      "scalar", "F16", "[]", 0, 2) "," TENSOR("mask", "BOOL", "[1,1,2,3]", 2, 8) "}  ",
                  -1, 8);
    Safetensors model;
    float value;
    assert_ok(safetensors_open(directory, &model));
    assert_int_equal(model.n_tensors, 3);
    assert_ok(safetensors_read(&model, safetensors_find(&model, "scalar"), 0, 1, &value));
    assert_true(value == 0);
    assert_ok(safetensors_read(&model, safetensors_find(&model, "none"), 0, 0, &value));
    assert_fails(safetensors_read(&model, safetensors_find(&model, "mask"), 0, 1, &value), "mask is of dtype BOOL");
    assert_fails(safetensors_read(&model, safetensors_find(&model, "scalar"), 1, 1, &value), "do not exist");
    safetensors_close(&model);
}

// ---- written and read back ----

enum { N = 3, LONGEST = 200000 };  // longer than the writer's buffer
static const SafetensorsSpec specs[N] = {
    {"first", 2, {7, 5}}, {"a \"quoted\" name", 1, {LONGEST, 0}}, {"last", 2, {1, 3}}};

static float value_of(int t, int64_t i, Dtype dtype) {
    float x = (float)((i * 2654435761u + (unsigned)t * 97) % 4001) / 16 - 100;  // up to 12 bits
    return dtype == DTYPE_FP32   ? x / 3
           : dtype == DTYPE_BF16 ? bf16_to_fp32(fp32_to_bf16(x))
                                 : fp16_to_fp32(fp32_to_fp16(x));
}

static int64_t len_of(int t) {
    return specs[t].shape[0] * (specs[t].n_dims == 2 ? specs[t].shape[1] : 1);
}

static void write_and_read(Dtype dtype, int64_t max_file_bytes, int n_files) {
    static float values[LONGEST];
    SafetensorsWriter *writer;
    Safetensors model;
    assert_ok(safetensors_create(directory, dtype, specs, N, max_file_bytes, &writer));
    for (int t = N - 1; t >= 0; t--) {  // backwards, in two pieces, the second one first
        int64_t cut = len_of(t) / 3;
        for (int64_t i = 0; i < len_of(t); i++)
            values[i] = value_of(t, i, dtype);
        assert_ok(safetensors_write(writer, t, cut, len_of(t) - cut, values + cut));
        assert_ok(safetensors_write(writer, t, 0, cut, values));
    }
    assert_ok(safetensors_finish(writer));
    safetensors_writer_close(writer);

    assert_ok(safetensors_open(directory, &model));
    assert_int_equal(model.n_files, n_files);
    assert_int_equal(model.n_tensors, N);
    for (int t = 0; t < N; t++) {
        const SafetensorsTensor *tensor = safetensors_find(&model, specs[t].name);
        assert_non_null(tensor);
        assert_int_equal(tensor->offset % 2, 0);
        assert_int_equal(tensor->n_dims, specs[t].n_dims);
        for (int64_t begin = 0; begin <= 2 && begin < tensor->len; begin++) {
            assert_ok(safetensors_read(&model, tensor, begin, tensor->len - begin, values));
            for (int64_t i = begin; i < tensor->len; i++)
                assert_true(values[i - begin] == value_of(t, i, dtype));
        }
    }
    safetensors_close(&model);
    check_remove_dir(directory);
    make_directory(NULL);
}

static void test_round_trip(void **state) {
    (void)state;
    for (Dtype dtype = DTYPE_FP32; dtype <= DTYPE_FP16; dtype++) {
        write_and_read(dtype, (int64_t)1 << 40, 1);
        write_and_read(dtype, 100, 3);
        write_and_read(dtype, (int64_t)dtype_bytes(dtype) * (LONGEST + 3), 2);
    }
}

static void test_range(void **state) {
    (void)state;
    const float values[3] = {1, 70000, 0}, special[3] = {INFINITY, -INFINITY, NAN};
    SafetensorsWriter *writer;
    assert_ok(safetensors_create(directory, DTYPE_FP16, specs, N, 1 << 30, &writer));
    assert_ok(safetensors_write(writer, 2, 0, 3, special));  // not ours to judge
    assert_fails(safetensors_write(writer, 2, 0, 3, values), "last: 70000 is beyond the range of fp16");
    safetensors_writer_close(writer);
}

// ---- any damage ----

static uint64_t random_bits(void) {
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return state >> 33;
}

// Open and read everything: it works or it fails with a message; the sanitizers see to the rest.
static bool survives(void) {
    Safetensors model;
    status_clear();
    if (safetensors_open(directory, &model) != OK) {
        assert_true(strlen(status_message()) > 20);
        return false;
    }
    for (int i = 0; i < model.n_tensors; i++) {
        float value[4];
        int64_t len = model.tensors[i].len;
        (void)safetensors_read(&model, &model.tensors[i], len < 4 ? 0 : len - 4, len < 4 ? len : 4, value);
    }
    safetensors_close(&model);
    return true;
}

static void test_damage(void **state) {
    (void)state;
    static const char alphabet[] =
        "0123456789{}[],:\"-.eE \\u\0\xff"
        "FBU";
    char *files[2];
    size_t bytes[2];
    const char *names[2] = {"model.safetensors", "model.safetensors.index.json"};
    assert_ok(durable_read_file("test/fixtures/hf_gpt2/model.safetensors", 1 << 20, &files[0], &bytes[0]));
    assert_ok(durable_read_file("test/fixtures/hf_qwen2_tied_parts/model.safetensors.index.json", 1 << 20, &files[1],
                                &bytes[1]));
    for (int part = 1; part <= 2; part++) {
        char command[1024];
        snprintf(command, sizeof command, "cp test/fixtures/hf_qwen2_tied_parts/model-0000%d-of-00002.safetensors %s",
                 part, directory);
        assert_int_equal(system(command), 0);
    }
    int n_good = 0, n_bad = 0;
    for (int f = 0; f < 2; f++) {
        uint64_t range = bytes[f];
        if (f == 0) {  // the header, and the length before it
            memcpy(&range, files[0], 8);
            range += 8;
        }
        char *copy = malloc(bytes[f]);
        for (int round = 0; round < 1500; round++) {
            memcpy(copy, files[f], bytes[f]);
            for (uint64_t n = 1 + random_bits() % 3; n > 0; n--)
                copy[random_bits() % range] = alphabet[random_bits() % (sizeof alphabet - 1)];
            size_t end = round % 5 == 0 ? random_bits() % bytes[f] : bytes[f];
            write_file(names[f], copy, end);
            *(survives() ? &n_good : &n_bad) += 1;
        }
        free(copy);
        free(files[f]);
        unlink(path_of(names[f]));
    }
    print_message("    %d damaged models refused, %d still good (a changed name or dtype of the same size)\n", n_bad,
                  n_good);
    assert_true(n_bad > 1500);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_directory, remove_directory)
    const struct CMUnitTest tests[] = {TEST(test_bad_headers), TEST(test_bad_indices), TEST(test_dtypes),
                                       TEST(test_round_trip),  TEST(test_range),       TEST(test_damage)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
