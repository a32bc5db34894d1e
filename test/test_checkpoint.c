// Checkpoints: what goes in comes out at any number of ranks; damage is found and named; retention. Saves that fail:
// test_save_faults.c.
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "test/ranks.h"
#include "zero/rank_file.h"

// Nothing to wait for: only a machine that fails loses what was written, and none does here.
int fsync(int fd) {
    (void)fd;
    return 0;
}

// ---- basics ----

static char *out;
static Config config;

static int setup(void **state) {
    (void)state;
    out = check_make_dir();
    config_defaults(&config);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    check_remove_dir(out);
    return 0;
}

static CheckpointRun this_run(void) {
    return (CheckpointRun){&config, "3 files, 1000 tokens, T=16", "AMD EPYC, 2 threads", 1};
}

static Status save(Rank *ranks, int n, int64_t step) {
    ranks_fill(ranks, n, step);
    return ranks_run(ranks, n, &(Job){.what = JOB_SAVE, .path = out, .run = this_run()});
}

static Status load_path(Rank *ranks, int n, const char *path) {
    return ranks_run(ranks, n, &(Job){.what = JOB_LOAD, .path = path, .run = this_run()});
}

static Status load_newest(Rank *ranks, int n) {
    char path[PATH_BYTES];
    TRY(checkpoint_newest(out, path, sizeof path));
    return load_path(ranks, n, path);
}

static void save_one(int64_t step) {
    Rank rank;
    ranks_open(&rank, 1, 0, 1);
    assert_ok(save(&rank, 1, step));
    ranks_close(&rank, 1);
}

static void newest_is(int64_t step) {
    char expected[PATH_BYTES], found[PATH_BYTES];
    assert_ok(checkpoint_path(expected, out, step));
    assert_ok(checkpoint_newest(out, found, sizeof found));
    assert_string_equal(found, expected);
}

static bool exists(const char *directory, const char *name) {
    char path[PATH_BYTES];
    struct stat info;
    assert_ok(durable_join(path, directory, name));
    return lstat(path, &info) == 0;
}

static void join(char path[PATH_BYTES], const char *name) {
    assert_ok(durable_join(path, out, name));
}

// The rank file of a checkpoint in `out`.
static void rank_path(char path[PATH_BYTES], const char *step, int file) {
    Manifest manifest;
    char directory[PATH_BYTES], name[FILE_NAME_BYTES];
    join(directory, step);
    assert_ok(manifest_read(&manifest, directory));
    manifest_file_name(&manifest, file, name);
    assert_ok(durable_join(path, directory, name));
    manifest_free(&manifest);
}

static void flip(const char *path, int64_t offset, unsigned char bits) {
    unsigned char byte = 0;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0 && pread(fd, &byte, 1, offset) == 1);
    byte ^= bits;
    assert_int_equal(pwrite(fd, &byte, 1, offset), 1);
    close(fd);
}

static int64_t size_of(const char *path) {
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    return info.st_size;
}

static Status verify(const char *path) {
    FILE *nowhere = fopen("/dev/null", "w");
    Status status = checkpoint_verify(path, nowhere);
    fclose(nowhere);
    return status;
}

// ---- round trips ----

static void any_number_of_ranks(void **state) {
    (void)state;
    char hashes[2][HASH_TEXT_BYTES] = {"", ""};
    for (int n = 1; n <= 4; n++) {
        Rank from[4], to[4];
        ranks_open(from, n, 0, 7);
        assert_ok(save(from, n, n));
        assert_ok(load_newest(from, n));
        ranks_expect(from, n, n);
        ranks_fill(from, n, 99);  // the same state whatever n
        assert_ok(ranks_run(from, n, &(Job){.what = JOB_HASH}));
        if (n == 1) {
            strcpy(hashes[0], from[0].weights);
            strcpy(hashes[1], from[0].moments);
        }
        assert_string_equal(from[n - 1].weights, hashes[0]);
        assert_string_equal(from[n - 1].moments, hashes[1]);
        for (int m = 1; m <= 4; m++) {
            ranks_open(to, m, 0, 7);
            assert_ok(load_newest(to, m));
            ranks_expect(to, m, n);
            assert_int_equal(strstr(to[0].notes, "ranks: saved") != NULL, n != m);
            ranks_close(to, m);
        }
        ranks_close(from, n);
    }
    assert_string_not_equal(hashes[0], hashes[1]);
}

static void shards_of_several_pieces(void **state) {
    (void)state;
    Rank one, three[3];  // unit 0 has 1.2 M elements: two pieces on one rank, one on each of three
    ranks_open(&one, 1, 0, 3000);
    ranks_open(three, 3, 0, 3000);
    assert_ok(save(&one, 1, 1));
    assert_ok(load_newest(three, 3));
    ranks_expect(three, 3, 1);
    assert_ok(save(three, 3, 2));
    assert_ok(load_newest(&one, 1));
    ranks_expect(&one, 1, 2);
    ranks_close(&one, 1);
    ranks_close(three, 3);
}

static void more_ranks_than_elements(void **state) {
    (void)state;
    Rank from[MAX_RANKS], to[3];  // the last unit is one element: seven ranks hold padding alone
    ranks_open(from, 8, 0, 1);
    ranks_open(to, 3, 0, 1);
    assert_ok(save(from, 8, 5));
    assert_ok(load_newest(to, 3));
    ranks_expect(to, 3, 5);
    ranks_fill(to, 3, 6);
    assert_ok(save(to, 3, 6));
    assert_ok(load_newest(from, 8));
    ranks_expect(from, 8, 6);
    ranks_close(from, 8);
    ranks_close(to, 3);
}

static void first_group_writes(void **state) {
    (void)state;
    Rank from[4], to[1];
    ranks_open(from, 4, 2, 1);
    ranks_open(to, 1, 0, 1);
    assert_ok(save(from, 4, 3));
    assert_ok(load_newest(to, 1));
    ranks_expect(to, 1, 3);
    assert_ok(load_newest(from, 4));
    ranks_expect(from, 4, 3);
    Manifest manifest;
    char path[PATH_BYTES];
    join(path, "step_00000003");
    assert_ok(manifest_read(&manifest, path));
    assert_int_equal(manifest.layout.group, 2);
    assert_int_equal(manifest.layout.n_ranks, 4);
    assert_int_equal(manifest.files[0].bytes, manifest.files[1].bytes);
    manifest_free(&manifest);
    assert_ok(verify(path));
    assert_ok(ranks_run(from, 4, &(Job){.what = JOB_HASH}));  // copies do not count twice
    assert_ok(ranks_run(to, 1, &(Job){.what = JOB_HASH}));
    assert_string_equal(from[3].weights, to[0].weights);
    assert_string_equal(from[3].moments, to[0].moments);
    ranks_close(from, 4);
    ranks_close(to, 1);
}

static void hash_tool_prints_what_the_run_prints(void **state) {
    (void)state;
    Rank ranks[3];
    ranks_open(ranks, 3, 0, 1);
    assert_ok(save(ranks, 3, 12));
    assert_ok(ranks_run(ranks, 3, &(Job){.what = JOB_HASH}));
    char path[PATH_BYTES], *text = NULL, expected[200];
    size_t bytes = 0;
    join(path, "step_00000012");
    FILE *file = open_memstream(&text, &bytes);
    assert_ok(checkpoint_hash(path, file));
    fclose(file);
    snprintf(expected, sizeof expected, "weights_hash %s\nstate_hash   %s\n", ranks[0].weights, ranks[0].moments);
    assert_memory_equal(text, expected, strlen(expected));
    int lines = 0;
    for (char *p = text; (p = strchr(p, '\n')); p++)
        lines++;
    assert_int_equal(lines, 2 + 2 + 3 + 3 + 1);
    assert_non_null(strstr(text, "\nh.1.attn.qkv.weight "));
    free(text);
    ranks_close(ranks, 3);
}

static void same_step_is_replaced(void **state) {
    (void)state;
    Rank rank;
    save_one(4);
    ranks_open(&rank, 1, 0, 1);
    ranks_fill(&rank, 1, 9);
    rank.run.step = 4;
    rank.run.updates = 3;
    rank.run.skipped = 1;
    assert_ok(ranks_run(&rank, 1, &(Job){.what = JOB_SAVE, .path = out, .run = this_run()}));
    assert_ok(load_newest(&rank, 1));
    assert_int_equal(rank.run.updates, 3);
    assert_false(exists(out, "step_00000004.tmp"));
    ranks_close(&rank, 1);
}

static void h5py_reads_the_index(void **state) {
    (void)state;
    if (system("/usr/bin/python3 -c 'import h5py' 2>/dev/null") != 0) {
        print_message("skipped: /usr/bin/python3 has no h5py\n");
        skip();
    }
    Rank ranks[3];
    ranks_open(ranks, 3, 0, 1);
    assert_ok(save(ranks, 3, 7));
    ranks_close(ranks, 3);
    char command[2 * PATH_BYTES];
    // Moved, and read from another directory; then without a source file.
    snprintf(command, sizeof command,
             "cd / && mv %s/step_00000007 %s/moved && /usr/bin/python3 - %s/moved <<'END'\n"
             "import sys, os, glob, h5py, numpy as np\n"
             "path = sys.argv[1] + '/index.h5'\n"
             "def expected(unit, kind, n):\n"
             "    i = np.arange(n, dtype=np.int64)\n"
             "    x = (i * 2654435761 + unit * 97 + kind * 31 + 7) %% 100003\n"
             "    return x.astype(np.float32) * np.float32(0.01) - np.float32(500)\n"
             "with h5py.File(path, 'r') as f:\n"
             "    assert 'verify' in f.attrs['README'] and f.attrs['step'] == 7\n"
             "    assert sorted(f) == ['unit_%%04d' %% u for u in range(4)], list(f)\n"
             "    for u in range(4):\n"
             "        for k, kind in enumerate(['master', 'm', 'v']):\n"
             "            data = f['unit_%%04d/%%s' %% (u, kind)][:]\n"
             "            want = expected(u, k, len(data))\n"
             "            inside = np.zeros(len(data), bool)\n"
             "            for name, dtype, offset, rows, columns in f['unit_%%04d' %% u].attrs['tensors']:\n"
             "                assert dtype == b'float32'\n"
             "                inside[offset:offset + rows * max(columns, 1)] = True\n"
             "            assert data.dtype == np.float32 and np.array_equal(data[inside], want[inside])\n"
             "            assert not data[~inside].any()\n"
             "    names = [row[0].decode() for row in f['unit_0001'].attrs['tensors']]\n"
             "    assert names == ['h.0.ln_1.weight', 'h.0.attn.qkv.weight', 'h.0.attn.qkv.bias'], names\n"
             "for name in glob.glob(sys.argv[1] + '/shards-*/rank_*.h5'):\n"
             "    with h5py.File(name, 'r') as f:\n"
             "        d = f['unit_0000/master']\n"
             "        assert d.chunks is None and (d.nbytes < 4096 or d.id.get_offset() %% 4096 == 0)\n"
             "os.remove(sorted(glob.glob(sys.argv[1] + '/shards-*/rank_*.h5'))[0])\n"
             "with h5py.File(path, 'r') as f:\n"
             "    assert np.isnan(f['unit_0000/master'][0])\n"
             "END",
             out, out, out);
    assert_int_equal(system(command), 0);
}

// ---- comparison with the run that resumes ----

static void other_model_or_run(void **state) {
    (void)state;
    Rank rank, other;
    save_one(3);
    ranks_open(&rank, 1, 0, 1);
    ranks_open(&other, 1, 0, 2);
    assert_fails(load_newest(&other, 1), "another model: tensor 0 of unit 0 is wte (37, 11)");
    ranks_close(&other, 1);

    rank.layout.tied = false;
    assert_fails(load_newest(&rank, 1), "the head is tied there");
    rank.layout.tied = true;
    rank.layout.n_units--;
    assert_fails(load_newest(&rank, 1), "2 layers there, 1 in this run");
    rank.layout.n_units++;
    strcpy(rank.layout.units[1].spec.tensors[2].name, "h.0.other");
    assert_fails(load_newest(&rank, 1), "tensor 2 of unit 1 is h.0.attn.qkv.bias (64)");
    ranks_close(&rank, 1);

    ranks_open(&rank, 1, 0, 1);
    rank.view.has[STATE_V] = false;
    assert_fails(load_newest(&rank, 1), "state \"v\" is present there");
    rank.view.has[STATE_V] = true;

    char path[PATH_BYTES];
    join(path, "step_00000003");
    Job job = {.what = JOB_LOAD, .path = path, .run = this_run()};
    job.run.data = "other";
    assert_fails(ranks_run(&rank, 1, &job), "data: saved 3 files, 1000 tokens, T=16, now other");
    Config changed = config;
    changed.lr = 0.125;
    job.run.config = &changed;
    assert_fails(ranks_run(&rank, 1, &job), "lr: saved");
    assert_fails(ranks_run(&rank, 1, &job), "--resume-changed");
    changed.resume_changed = true;
    job.run.environment = "other CPU";
    assert_ok(ranks_run(&rank, 1, &job));
    assert_null(strstr(rank.notes, "ranks: saved"));
    assert_non_null(strstr(rank.notes, "lr: saved"));
    assert_non_null(strstr(rank.notes, "data: saved"));
    assert_non_null(strstr(rank.notes, "environment: saved AMD EPYC, 2 threads, now other CPU: bits may differ"));
    ranks_expect(&rank, 1, 3);
    ranks_close(&rank, 1);
}

static void sgd_has_no_v(void **state) {
    (void)state;
    Rank rank;
    ranks_open(&rank, 1, 0, 1);
    rank.view.has[STATE_V] = false;
    assert_ok(save(&rank, 1, 2));
    memset(rank.state[STATE_M][1], 0, 64);
    assert_ok(load_newest(&rank, 1));
    ranks_expect(&rank, 1, 2);
    rank.view.has[STATE_V] = true;
    assert_fails(load_newest(&rank, 1), "state \"v\" is absent there");
    ranks_close(&rank, 1);
}

// ---- damage ----

static void every_byte_of_the_manifest(void **state) {
    (void)state;
    save_one(1);
    char path[PATH_BYTES], file[PATH_BYTES];
    join(path, "step_00000001");
    assert_ok(durable_join(file, path, "manifest.json"));
    int64_t bytes = size_of(file);
    for (int64_t i = 0; i < bytes; i++) {
        Manifest manifest;
        unsigned char bits = (unsigned char)(1 << i % 8);
        flip(file, i, bits);
        assert_fails(manifest_read(&manifest, path), "step_00000001/manifest.json: damaged");
        flip(file, i, bits);
    }
    for (int64_t size = bytes - 1; size >= 0; size -= size > 100 ? 97 : 1) {
        Manifest manifest;
        assert_int_equal(truncate(file, size), 0);
        assert_fails(manifest_read(&manifest, path), "manifest.json");
    }
    unlink(file);
    assert_fails(verify(path), "cannot open");
}

static void bytes_of_the_other_files(void **state) {
    (void)state;
    Rank ranks[2];
    ranks_open(ranks, 2, 0, 1);
    assert_ok(save(ranks, 2, 1));
    assert_ok(save(ranks, 2, 2));
    char path[PATH_BYTES], file[PATH_BYTES], name[FILE_NAME_BYTES];
    join(path, "step_00000002");
    Manifest manifest;
    assert_ok(manifest_read(&manifest, path));
    assert_ok(verify(path));
    rank_path(file, "step_00000002", 1);
    int64_t bytes = size_of(file);
    assert_int_equal(bytes, manifest.files[1].bytes);
    for (int64_t i = 0; i < bytes; i += 61) {
        flip(file, i, 0x10);
        assert_fails(verify(path), "rank_00001.h5 is damaged");
        flip(file, i, 0x10);
    }
    for (int d = 0; d < manifest.n_datasets; d++) {  // one byte of each dataset, found at load, with advice
        if (manifest.datasets[d].unit == TOY_UNITS - 1)
            continue;  // a single element, which is the other rank's
        flip(file, manifest.datasets[d].offset + 4 * manifest.datasets[d].len - 1, 1);
        state_dataset_name(manifest.datasets[d].unit, manifest.datasets[d].kind, name);
        assert_fails(load_newest(ranks, 2), name);
        assert_fails(load_newest(ranks, 2), "rank_00001.h5 is damaged");
        assert_fails(load_newest(ranks, 2), "move this one away and run again");
        assert_fails(load_newest(ranks, 2), "step_00000001 (check");
        flip(file, manifest.datasets[d].offset + 4 * manifest.datasets[d].len - 1, 1);
    }
    assert_ok(load_newest(ranks, 2));
    ranks_expect(ranks, 2, 2);

    char index[PATH_BYTES];
    assert_ok(durable_join(index, path, "index.h5"));
    for (int64_t i = 0; i < size_of(index); i += 211) {
        flip(index, i, 4);
        assert_fails(verify(path), "index.h5 is damaged");
        assert_ok(load_newest(ranks, 2));  // which does not need it
        flip(index, i, 4);
    }

    assert_int_equal(truncate(file, bytes - 1), 0);
    assert_fails(load_newest(ranks, 2), "its manifest says");
    assert_fails(verify(path), "its manifest says");
    unlink(file);
    assert_fails(load_newest(ranks, 2), "rank_00001.h5: No such file");
    assert_fails(verify(path), "rank_00001.h5: No such file");
    mkdir(file, 0777);
    assert_fails(load_newest(ranks, 2), "not a regular file");

    assert_int_equal(truncate(index, size_of(index) - 1), 0);
    assert_fails(verify(path), "index.h5 is damaged");
    unlink(index);
    assert_fails(verify(path), "index.h5: No such file");
    manifest_free(&manifest);
    ranks_close(ranks, 2);
}

static void manifest_of_another_save(void **state) {
    (void)state;
    save_one(1);
    save_one(2);
    char command[3 * PATH_BYTES];
    snprintf(command, sizeof command, "cp %s/step_00000001/manifest.json %s/step_00000002/", out, out);
    assert_int_equal(system(command), 0);
    Rank rank;
    ranks_open(&rank, 1, 0, 1);
    assert_fails(load_newest(&rank, 1), "cannot open");
    // Not even with the rank file of the other under the expected name.
    snprintf(command, sizeof command,
             "cd %s && mv step_00000002/shards-* x && cp -r step_00000001/shards-* step_00000002/ && cp x/* "
             "step_00000002/shards-*/",
             out);
    assert_int_equal(system(command), 0);
    assert_fails(load_newest(&rank, 1), "is damaged");
    ranks_close(&rank, 1);
}

// ---- hostile manifests, with a good seal ----

// Replace the first `from` of the manifest and seal it again.
static void forge(const char *path, const char *text, const char *from, const char *to) {
    const char *place = strstr(text, from);
    assert_non_null(place);
    size_t bytes = strlen(text) - MANIFEST_SEAL_BYTES - strlen(from) + strlen(to);
    char *forged = malloc(bytes + MANIFEST_SEAL_BYTES + 1);
    memcpy(forged, text, (size_t)(place - text));
    strcpy(forged + (place - text), to);
    strncat(forged, place + strlen(from), bytes - strlen(forged));
    manifest_seal(forged, bytes, forged + bytes);
    FILE *file = fopen(path, "w");
    assert_int_equal(fwrite(forged, 1, bytes + MANIFEST_SEAL_BYTES, file), bytes + MANIFEST_SEAL_BYTES);
    fclose(file);
    free(forged);
}

static void hostile_manifests(void **state) {
    (void)state;
    save_one(1);
    char path[PATH_BYTES], file[PATH_BYTES], *text;
    size_t bytes;
    join(path, "step_00000001");
    assert_ok(durable_join(file, path, "manifest.json"));
    assert_ok(durable_read_file(file, 1 << 24, &text, &bytes));
    static const char *const cases[][3] = {
        {"\"zero.c checkpoint\"", "\"a checkpoint\"", "\"format\" is \"a checkpoint\""},
        {"\n\t\"version\":\t2", "\n\t\"version\":\t1", "format version 1; this program reads version 2"},
        {"\n\t\"version\":\t2", "\n\t\"version\":\t1.5", "\"version\" is not a whole number"},
        {"\n\t\"uuid\":\t\"", "\n\t\"uuid\":\t\"../../", "\"uuid\" is not 32 hexadecimal digits"},
        {"\"name\":\t\"shards-", "\"name\":\t\"../shards-", "\"name\" is \"../shards-"},
        {"\"name\":\t\"index.h5\"", "\"name\":\t\"/etc/passwd\"", "\"name\" is \"/etc/passwd\""},
        {"\n\t\"ranks\":\t1", "\n\t\"ranks\":\t0", "\"ranks\" is not a whole number"},
        {"\n\t\"ranks\":\t1", "\n\t\"ranks\":\t3000000000", "\"ranks\" is not a whole number"},
        {"\n\t\"shard_group\":\t1", "\n\t\"shard_group\":\t2", "\"shard_group\" is not a whole number between 1 and 1"},
        {"\n\t\"zero_stage\":\t", "\n\t\"zero_stage\":\t4", "\"zero_stage\""},
        {"\n\t\"dtype\":\t\"", "\n\t\"dtype\":\t\"x", "\"dtype\" is \"x"},
        {"\n\t\"tied\":\ttrue", "\n\t\"tied\":\t1", "\"tied\" is missing or is not true or false"},
        {"\"step\":\t1", "\"step\":\t-1", "\"step\""},
        {"\"step\":\t1", "\"step\":\t1e300", "\"step\""},
        {"\"updates\":\t1", "\"updates\":\t2", "\"updates\""},
        {"\"scale\":\t", "\"scale\":\t-", "\"scale\" is not positive"},
        {"\n\t\"kinds\":\t[\"master\"", "\n\t\"kinds\":\t[\"slave\"", "\"slave\" is not a kind"},
        {"\n\t\"kinds\":\t[\"master\"", "\n\t\"kinds\":\t[\"m\"", "\"datasets\" has 12 entries"},
        {"\"name\":\t\"wte\"", "\"name\":\t\"\"", "is empty or too long"},
        {"\"name\":\t\"wte\"", "\"name\":\t\"wtewtewtewtewtewtewtewtewtewtewtewtewtewte\"", "is empty or too long"},
        {"\"shape\":\t[37, 11]", "\"shape\":\t[281474976710656, 281474976710656]", "shape of tensor wte is too large"},
        {"\"shape\":\t[37, 11]", "\"shape\":\t[281474976710656, 1]", "\"offset\""},
        {"\"shape\":\t[37, 11]", "\"shape\":\t[37, 11, 2]", "\"shape\" has 3 entries"},
        {"\"shape\":\t[37, 11]", "\"shape\":\t[-37, -11]", "\"shape\" is not a whole number"},
        {"\"shape\":\t[37, 11]", "\"shape\":\t[370, 11]", "\"offset\""},
        {"\"files\":\t[{", "\"files\":\t[{}, {", "\"files\" has 2 entries"},
        {"\"pieces\":\t[[\"", "\"pieces\":\t[[\"0000000000000000\", \"", "hashes for dataset 0"},
        {"\"pieces\":\t[[\"", "\"pieces\":\t[[\"g", "not 16 hexadecimal digits"},
        {"\"pieces\":\t[[\"", "\"pieces\":\t[[5, \"", "\"pieces\""},
        {"\"loss_scale\":\t{", "\"loss_scale\":\t[{", "not JSON"},
        {"\"norms\":\t[", "\"norms\":\t[1e999, ", "\"norms\" holds what is not a finite number"},
        {"\"norms\":\t[", "\"norms\":\t[\"x\", ", "\"norms\" holds what is not a finite number"},
        {"\"losses\":\t[", "\"losses\":\t[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,"
         "0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0, ",
         "\"losses\" has 130 entries, expected 0 to 128"},
        {"\"loss_scale\":\t{", "\"loss\":\t{", "\"loss_scale\" is missing"},
        {"{", "[{", "not JSON"},
        {"\"kind\":\t\"master\"", "\"kind\":\t\"m\"", "there twice"},
        {"\n\t\"config\":\t{", "\n\t\"config\":\t5, \"c\":\t{", "\"config\" is missing or is not an object"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Manifest manifest;
        forge(file, text, cases[i][0], cases[i][1]);
        assert_fails(manifest_read(&manifest, path), cases[i][2]);
    }
    // A larger unit than its rank file holds: sizes are compared before anything is read.
    Manifest manifest;
    forge(file, text, "\"len\":\t512", "\"len\":\t1048576");
    assert_fails(manifest_read(&manifest, path), "manifest.json");
    free(text);
}

// Random changes under a good seal: refused or harmless, never a crash (the sanitizers watch).
static void random_manifests(void **state) {
    (void)state;
    save_one(1);
    char path[PATH_BYTES], file[PATH_BYTES], *text;
    size_t bytes;
    join(path, "step_00000001");
    assert_ok(durable_join(file, path, "manifest.json"));
    assert_ok(durable_read_file(file, 1 << 24, &text, &bytes));
    Rank rank;
    ranks_open(&rank, 1, 0, 1);
    uint32_t random = 1;
    int refused = 0;
    for (int round = 0; round < 2000; round++) {
        random = random * 1664525 + 1013904223;
        size_t at = (random >> 8) % (bytes - MANIFEST_SEAL_BYTES);
        random = random * 1664525 + 1013904223;
        static const char characters[] = "0123456789-.e\"[]{},:tfn\\ x";
        char saved = text[at];
        text[at] = characters[(random >> 8) % (sizeof characters - 1)];
        forge(file, text, "\"", "\"");  // nothing but the seal
        Manifest manifest;
        if (manifest_read(&manifest, path) == OK)
            load_path(&rank, 1, path);
        else
            refused++;
        manifest_free(&manifest);
        status_clear();
        text[at] = saved;
    }
    assert_true(refused > 1000);
    ranks_close(&rank, 1);
    free(text);
}

static void unwritable_output(void **state) {
    (void)state;
    Rank rank;
    ranks_open(&rank, 1, 0, 1);
    ranks_fill(&rank, 1, 1);
    char path[PATH_BYTES];
    join(path, "missing/directory");
    assert_fails(ranks_run(&rank, 1, &(Job){.what = JOB_SAVE, .path = path, .run = this_run()}), "cannot make the directory");
    ranks_close(&rank, 1);
}

// ---- names, retention ----

static void newest_by_name(void **state) {
    (void)state;
    char path[PATH_BYTES], found[PATH_BYTES];
    join(path, "absent");
    assert_ok(checkpoint_newest(path, found, sizeof found));
    assert_string_equal(found, "");
    assert_ok(checkpoint_newest(out, found, sizeof found));
    assert_string_equal(found, "");
    static const char *const names[] = {"step_00000100", "step_00000020.tmp", "step_99999999.tmp",
                                        "step_200",      "step_0000000900",   "step_00000300x",
                                        "step_-0000400", "steps_00000500",    "step_00000600.old.tmp"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        join(path, names[i]);
        assert_ok(durable_make_dir(path));
    }
    newest_is(100);
    join(path, "step_123456789");  // nine digits follow eight
    assert_ok(durable_make_dir(path));
    newest_is(123456789);
}

static void damaged_newest_is_an_error(void **state) {
    (void)state;
    save_one(1);
    save_one(2);
    char path[PATH_BYTES];
    join(path, "step_00000002/manifest.json");
    unlink(path);
    newest_is(2);
    Rank rank;
    ranks_open(&rank, 1, 0, 1);
    assert_fails(load_newest(&rank, 1), "step_00000001 (check it first with --verify)");
    join(path, "step_00000001");
    assert_ok(load_path(&rank, 1, path));
    ranks_expect(&rank, 1, 1);
    flip(strcat(path, "/manifest.json"), 100, 1);
    join(path, "step_00000001");
    assert_fails(load_path(&rank, 1, path), "there is none before it");
    ranks_close(&rank, 1);
}

static void prune(void **state) {
    (void)state;
    for (int64_t step = 1; step <= 6; step++)
        save_one(step);
    char path[PATH_BYTES];
    join(path, "step_00000009.tmp");
    assert_ok(durable_make_dir(path));
    join(path, "notes.tmp");
    assert_ok(durable_make_dir(path));
    assert_ok(checkpoint_prune(out, 0, 0));  // keep all
    assert_false(exists(out, "step_00000009.tmp"));
    assert_true(exists(out, "notes.tmp"));
    assert_true(exists(out, "step_00000001"));
    assert_ok(checkpoint_prune(out, 4, 0));
    assert_false(exists(out, "step_00000002"));
    assert_true(exists(out, "step_00000003"));

    // Multiples of --keep-every stay.
    for (int64_t step = 7; step <= 8; step++)
        save_one(step);
    assert_ok(checkpoint_prune(out, 2, 4));
    assert_false(exists(out, "step_00000005"));
    assert_true(exists(out, "step_00000004") && exists(out, "step_00000007") && exists(out, "step_00000008"));
    assert_ok(checkpoint_prune(out, 1, 8));
    assert_false(exists(out, "step_00000004") || exists(out, "step_00000007"));
    assert_true(exists(out, "step_00000008"));
    join(path, "step_00000008");
    assert_ok(durable_remove_tree(path));
    for (int64_t step = 3; step <= 6; step++)
        save_one(step);

    // Damaged ones do not count: with 6 and 5 damaged the newest complete one is 4.
    join(path, "step_00000006/manifest.json");
    flip(path, 50, 1);
    rank_path(path, "step_00000005", 0);
    assert_int_equal(truncate(path, 100), 0);
    assert_ok(checkpoint_prune(out, 1, 0));
    assert_true(exists(out, "step_00000006"));
    assert_true(exists(out, "step_00000005"));
    assert_true(exists(out, "step_00000004"));
    assert_false(exists(out, "step_00000003"));
    assert_ok(checkpoint_prune(out, 1, 0));
    assert_true(exists(out, "step_00000004"));
    join(path, "absent");
    assert_ok(checkpoint_prune(path, 1, 0));
}

// A symbolic link inside a checkpoint is deleted, not what it points to.
static void prune_does_not_follow_links(void **state) {
    (void)state;
    char path[PATH_BYTES], target[PATH_BYTES];
    save_one(1);
    save_one(2);
    join(target, "precious");
    assert_ok(durable_make_dir(target));
    assert_ok(durable_join(path, target, "file"));
    assert_ok(durable_write_file(path, "x", 1));
    join(path, "step_00000001/link");
    assert_int_equal(symlink(target, path), 0);
    assert_ok(checkpoint_prune(out, 1, 0));
    assert_false(exists(out, "step_00000001"));
    assert_true(exists(target, "file"));
}

#define CHECKPOINT_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        CHECKPOINT_TEST(any_number_of_ranks),
        CHECKPOINT_TEST(shards_of_several_pieces),
        CHECKPOINT_TEST(more_ranks_than_elements),
        CHECKPOINT_TEST(first_group_writes),
        CHECKPOINT_TEST(hash_tool_prints_what_the_run_prints),
        CHECKPOINT_TEST(same_step_is_replaced),
        CHECKPOINT_TEST(h5py_reads_the_index),
        CHECKPOINT_TEST(other_model_or_run),
        CHECKPOINT_TEST(sgd_has_no_v),
        CHECKPOINT_TEST(every_byte_of_the_manifest),
        CHECKPOINT_TEST(bytes_of_the_other_files),
        CHECKPOINT_TEST(manifest_of_another_save),
        CHECKPOINT_TEST(hostile_manifests),
        CHECKPOINT_TEST(random_manifests),
        CHECKPOINT_TEST(unwritable_output),
        CHECKPOINT_TEST(newest_by_name),
        CHECKPOINT_TEST(damaged_newest_is_an_error),
        CHECKPOINT_TEST(prune),
        CHECKPOINT_TEST(prune_does_not_follow_links),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
