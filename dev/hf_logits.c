// hf_logits DIR OUT TOKEN…: what this program computes from a Hugging Face model, for dev/verify_hf.py. Writes the fp32
// logits after each token, (tokens, vocabulary), to OUT.
#include <stdio.h>

#include "dev/hf_run.h"

static Status write_logits(HfRun *run, FILE *out, char **tokens, int n) {
    for (int i = 0; i < n; i++) {
        long token = strtol(tokens[i], NULL, 10);
        if (token < 0 || token >= run->config.vocab_size)
            return fail("token %s is outside of the vocabulary of %lld", tokens[i], (long long)run->config.vocab_size);
        TRY(hf_run_token(run, (int32_t)token));
        size_t len = (size_t)run->config.vocab_size;
        if (fwrite(run->logits, sizeof *run->logits, len, out) != len)
            return fail("cannot write the logits");
    }
    return OK;
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: hf_logits DIR OUT TOKEN…\n");
        return BAD_USAGE;
    }
    HfRun run;
    FILE *out = fopen(argv[2], "wb");
    Status status = out ? hf_run_open(argv[1], argc - 3, &run) : fail("cannot create %s", argv[2]);
    if (status == OK)
        status = write_logits(&run, out, argv + 3, argc - 3);
    if (status != OK)
        fprintf(stderr, "hf_logits: %s\n", status_message());
    if (out) {
        hf_run_close(&run);
        if (fclose(out) != 0)
            status = FAILED;
    }
    return status;
}
