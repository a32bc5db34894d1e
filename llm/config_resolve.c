// From what the user gave to what the run does: shapes, the batch equation, rates that follow from others.

#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "llm/config.h"

// ---- model ----

// Options that change a model's shape, and so cannot go with weights that exist already.
static const char *const shape_flags[] = {"layers", "heads", "kv-heads", "channels", "ffn", "vocab-size", "tie"};

static bool looks_like_path(const char *name) {
    size_t len = strlen(name);
    return strchr(name, '/') || (len > 5 && strcmp(name + len - 5, ".json") == 0) || access(name, F_OK) == 0;
}

static Status find_model(Config *config, ModelConfig *model) {
    if (!config->init_from) {
        Status status = model_config_preset(model, config->model_name);
        if (status == OK || !looks_like_path(config->model_name))
            return status;
        status_clear();
        return model_config_read_hf(model, config->model_name);
    }
    if (config_given(config, "model"))
        return fail_usage("--init-from %s brings its own model: leave out --model %s", config->init_from,
                          config->model_name);
    for (size_t i = 0; i < sizeof shape_flags / sizeof *shape_flags; i++)
        if (config_given(config, shape_flags[i]))
            return fail_usage("--%s cannot change the shape of the weights in --init-from %s: leave it out",
                              shape_flags[i], config->init_from);
    config->model_name = config->init_from;
    return model_config_read_hf(model, config->init_from);
}

// LLaMA's feed-forward part has three matrices where GPT-2's has two; 8C/3 gives it as many parameters as 4C.
static int derived_ffn(const ModelConfig *m) {
    return m->arch == ARCH_GPT2 ? 4 * m->channels : (int)(((8 * (int64_t)m->channels + 1) / 3 + 63) / 64 * 64);
}

static Status apply_shape_flags(const Config *config, ModelConfig *m) {
    const ModelConfig *given = &config->model;
    int queries_per_kv = m->heads / m->kv_heads;
    if (config_given(config, "layers"))
        m->layers = given->layers;
    if (config_given(config, "heads"))
        m->heads = given->heads;
    if (config_given(config, "channels"))
        m->channels = given->channels;
    if (config_given(config, "tie"))
        m->tied = given->tied;

    if (config_given(config, "heads") || config_given(config, "channels")) {
        if (m->channels % m->heads != 0)
            return fail_usage("model: %d heads do not divide %d channels; change --heads or --channels", m->heads,
                              m->channels);
        m->head_dim = m->channels / m->heads;
    }
    if (config_given(config, "kv-heads"))
        m->kv_heads = given->kv_heads;
    else if (m->heads % queries_per_kv == 0)
        m->kv_heads = m->heads / queries_per_kv;
    else
        return fail_usage(
            "model: %s has %d query heads for each key/value head, which does not divide --heads %d; give --kv-heads",
            config->model_name, queries_per_kv, m->heads);
    if (config_given(config, "ffn"))
        m->ffn = given->ffn;
    else if (config_given(config, "channels"))
        m->ffn = derived_ffn(m);
    return OK;
}

static Status resolve_vocabulary(const Config *config, ModelConfig *m, int64_t data_vocab) {
    bool fixed = config->init_from || config_given(config, "vocab-size");
    if (config_given(config, "vocab-size"))
        m->vocab_size = config->model.vocab_size;
    if (fixed && data_vocab > m->vocab_size)
        return fail_usage("the shards' vocabulary has %lld tokens, more than the model's %lld (%s)",
                          (long long)data_vocab, (long long)m->vocab_size,
                          config->init_from ? config->init_from : "--vocab-size");
    if (!fixed && data_vocab > 0)
        m->vocab_size = data_vocab;
    return OK;
}

static Status resolve_sequence(Config *config, ModelConfig *m) {
    if (!config_given(config, "seq-len"))
        config->seq_len = m->max_seq_len < 1024 ? m->max_seq_len : 1024;
    if (config->seq_len <= m->max_seq_len)
        return OK;
    if (config->init_from && m->arch == ARCH_GPT2)
        return fail_usage("--seq-len %d is longer than the position table of %s (%d rows), which cannot grow",
                          config->seq_len, config->init_from, m->max_seq_len);
    m->max_seq_len = config->seq_len;
    return OK;
}

static Status resolve_model(Config *config, int64_t data_vocab) {
    ModelConfig model;
    TRY(find_model(config, &model));
    TRY(model_config_check(&model));
    TRY(apply_shape_flags(config, &model));
    TRY(resolve_vocabulary(config, &model, data_vocab));
    TRY(resolve_sequence(config, &model));
    TRY(model_config_check(&model));
    config->model = model;
    config->data_vocab = data_vocab;
    return OK;
}

// ---- batch: global = micro · accum · ranks ----

enum { TERM_BYTES = 512 };

// "4 (--micro-batch)", or "? (not given)".
static void batch_term(const Config *config, const char *flag, int value, char text[TERM_BYTES]) {
    char source[TERM_BYTES - 64];
    if (config_given(config, flag))
        snprintf(text, TERM_BYTES, "%s %d (%s)", flag, value, config_source(config, flag, source, sizeof source));
    else
        snprintf(text, TERM_BYTES, "%s ? (not given)", flag);
}

static Status batch_error(const Config *config, int ranks) {
    char global[TERM_BYTES], micro[TERM_BYTES], accum[TERM_BYTES];
    batch_term(config, "global-batch", config->global_batch, global);
    batch_term(config, "micro-batch", config->micro_batch, micro);
    batch_term(config, "grad-accum", config->grad_accum, accum);
    // The product of what is known on the right-hand side.
    int64_t product = ranks;
    product *= config_given(config, "micro-batch") ? config->micro_batch : 1;
    product *= config_given(config, "grad-accum") ? config->grad_accum : 1;
    bool all = config_given(config, "micro-batch") && config_given(config, "grad-accum");
    return fail_usage(
        "the batch equation does not hold: %s = %s * %s * ranks %d (%s), but %lld %s %d; change one of them%s", global,
        micro, accum, ranks,
        !config->plan                   ? "this run"
        : config_given(config, "ranks") ? "--ranks"
                                        : "default of --ranks",
        (long long)product, all ? "is not" : "does not divide", config->global_batch,
        all ? ", or leave one of the three out" : "");
}

enum { MOST_ACCUM = 1 << 20 };  // as of --grad-accum

static Status resolve_batch(Config *config, int ranks) {
    const int default_micro = 4;
    bool micro = config_given(config, "micro-batch"), accum = config_given(config, "grad-accum");
    if (config_given(config, "global-batch")) {
        if (config->global_batch % ranks != 0)
            return batch_error(config, ranks);
        int share = config->global_batch / ranks;  // sequences of a step on each rank
        if (!micro && !accum) {
            config->micro_batch = default_micro;
            while (share % config->micro_batch != 0)
                config->micro_batch--;
        }
        if (!accum)
            config->grad_accum = share / config->micro_batch;
        else if (!micro)
            config->micro_batch = share / config->grad_accum;
        if ((int64_t)config->micro_batch * config->grad_accum != share)
            return batch_error(config, ranks);
        if (config->grad_accum > MOST_ACCUM)
            return fail_usage("--global-batch %d makes %d micro-batches of a step; the most are %d: raise --micro-batch",
                              config->global_batch, config->grad_accum, MOST_ACCUM);
    } else {
        if (!micro)
            config->micro_batch = default_micro;
        if (!accum)
            config->grad_accum = 1;
        int64_t per_rank = (int64_t)config->micro_batch * config->grad_accum;  // both at most 2^20
        if (per_rank > INT_MAX / ranks)
            return fail_usage("the global batch, micro-batch %d * grad-accum %d * ranks %d, is beyond %d sequences",
                              config->micro_batch, config->grad_accum, ranks, INT_MAX);
        config->global_batch = (int)(per_rank * ranks);
    }
    if ((int64_t)config->micro_batch * config->seq_len > INT_MAX)
        return fail_usage("micro-batch %d * seq-len %d is beyond %d tokens; make either smaller and raise --grad-accum",
                          config->micro_batch, config->seq_len, INT_MAX);
    return OK;
}

// ---- the rest ----

static Status resolve_schedule(Config *config) {
    char source[512];
    if (!config_given(config, "warmup"))
        config->warmup = config->steps / 20 < 2000 ? config->steps / 20 : 2000;
    if (!config_given(config, "min-lr"))
        config->min_lr = config->lr / 10;
    if (config->warmup > config->steps && config->schedule != SCHEDULE_WARMUP_LR)  // which may end before its warm-up
        return fail_usage("%s %lld is longer than the run of %lld steps (--steps)",
                          config_source(config, "warmup", source, sizeof source), (long long)config->warmup,
                          (long long)config->steps);
    if (config->stop_at > config->steps)
        return fail_usage("--stop-at %lld is beyond the last of %lld steps (--steps)", (long long)config->stop_at,
                          (long long)config->steps);
    if (config->loss_scale_init < config->loss_scale_min)
        return fail_usage("--loss-scale-init %g is below --loss-scale-min %g", config->loss_scale_init,
                          config->loss_scale_min);
    if (config->min_lr > config->lr)
        return fail_usage("--min-lr %g is above --lr %g", config->min_lr, config->lr);
    return OK;
}

// An option that this run would ignore is a mistake worth a message.
static Status check_ignored(const Config *c) {
    bool adam = c->optimizer != OPTIMIZER_SGD, fp16 = c->dtype == DTYPE_FP16 && c->loss_scale == 0;
    bool deepspeed = c->schedule >= SCHEDULE_WARMUP_LR;
    bool decays = c->schedule != SCHEDULE_CONSTANT && (!deepspeed || c->schedule == SCHEDULE_WARMUP_COSINE_LR);
    bool nvme = c->plan || c->offload_optimizer == OFFLOAD_NVME || c->offload_params == OFFLOAD_NVME;
    const struct {
        const char *flag;
        bool used;
        const char *needs;
    } rules[] = {
        {"beta1", adam, "--optimizer adamw or adam"},
        {"beta2", adam, "--optimizer adamw or adam"},
        {"eps", adam, "--optimizer adamw or adam"},
        {"momentum", !adam, "--optimizer sgd"},
        {"min-lr", decays, "a --schedule that decays to it"},
        {"warmup-min-lr", deepspeed, "--schedule WarmupLR, WarmupDecayLR or WarmupCosineLR"},
        {"warmup-type", deepspeed, "--schedule WarmupLR, WarmupDecayLR or WarmupCosineLR"},
        {"tf32", c->dtype == DTYPE_FP32 && c->device != CHOOSE_CPU, "--dtype fp32 on a GPU"},
        {"loss-scale-init", fp16, "--dtype fp16 without --loss-scale"},
        {"loss-scale-window", fp16, "--dtype fp16 without --loss-scale"},
        {"loss-scale-hysteresis", fp16, "--dtype fp16 without --loss-scale"},
        {"loss-scale-consecutive", fp16, "--dtype fp16 without --loss-scale"},
        {"loss-scale-min", fp16, "--dtype fp16 without --loss-scale"},
        {"wsd-decay", c->schedule == SCHEDULE_WSD, "--schedule wsd"},
        {"checkpoint-every", c->out != NULL, "--out"},
        {"checkpoint-async", c->plan || (c->out && c->checkpoint_every > 0), "--out and --checkpoint-every"},
        {"keep", c->out != NULL, "--out"},
        {"keep-every", c->out && c->keep > 0, "--out and a --keep above 0"},
        {"eval-every", c->val != NULL, "--val"},
        {"eval-batches", c->val != NULL, "--val"},
        {"prompt", c->sample_every > 0, "--sample-every"},
        {"sample-tokens", c->sample_every > 0, "--sample-every"},
        {"temperature", c->sample_every > 0, "--sample-every"},
        {"top-k", c->sample_every > 0, "--sample-every"},
        {"top-p", c->sample_every > 0, "--sample-every"},
        {"nvme-path", nvme, "--offload-optimizer or --offload-params nvme"},
        {"nvme-buffer", nvme, "--offload-optimizer or --offload-params nvme"},
        {"ranks", c->plan, "--plan"},
        {"params", c->plan, "--plan"},
        {"flops", c->plan && c->plan_params == 0, "--plan of a --model"},
        {"bandwidth", c->plan && c->plan_params == 0, "--plan of a --model"},
        {"measure", c->plan && c->plan_params == 0, "--plan of a --model"},
        {"model", c->plan_params == 0, "a plan without --params"},
        {"init-from", c->plan_params == 0, "a plan without --params"},
    };
    char source[512];
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (config_given(c, rules[i].flag) && !rules[i].used)
            return fail_usage("%s has no effect here: it goes with %s",
                              config_source(c, rules[i].flag, source, sizeof source), rules[i].needs);
    return OK;
}

static Status check_offload(const Config *c, int ranks) {
    if (c->offload_params != OFFLOAD_NONE && c->offload_optimizer == OFFLOAD_NONE)
        return fail_usage("--offload-params needs --offload-optimizer cpu or nvme: the optimizer's state is larger, is used "
                          "once a step, and so leaves the device first");
    if (c->offload_params != OFFLOAD_NONE && c->zero_stage != 3 && !c->plan)
        return fail_usage("--offload-params needs --zero 3: below, each rank keeps all parameters on its device");
    if (c->offload_optimizer != OFFLOAD_NONE && c->zero_stage == 0 && ranks > 1 && !c->plan)
        return fail_usage("--offload-optimizer with --zero 0 on %d ranks would keep and update %d copies of the same state: "
                          "choose --zero 1, 2 or 3", ranks, ranks);
    if (c->offload_activations && c->recompute != RECOMPUTE_FULL)
        return fail_usage("--offload-activations needs --recompute full: whatever else is kept would stay on the device");
    bool nvme = c->offload_optimizer == OFFLOAD_NVME || c->offload_params == OFFLOAD_NVME;
    if (nvme && !c->nvme_path && !c->plan)
        return fail_usage("offload to nvme needs --nvme-path, a directory on a local fast disk");
    return OK;
}

Status config_resolve(Config *config, int ranks, int64_t data_vocab) {
    TRY(check_ignored(config));
    TRY(check_offload(config, ranks));
    if (config->shard_group > 0 && ranks % config->shard_group != 0)
        return fail_usage("--shard-group %d does not divide the %d ranks", config->shard_group, ranks);
    TRY(resolve_schedule(config));
    if (config->plan_params > 0)
        return OK;
    TRY(resolve_model(config, data_vocab));
    return resolve_batch(config, ranks);
}
