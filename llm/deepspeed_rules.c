// What more than one key of DeepSpeed's JSON says together: the batch, the dtype, the optimizer and its schedule.
#include <cjson/cJSON.h>
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "llm/deepspeed_reader.h"
#include "llm/flags.h"

static Status set_number(DsReader *r, const char *flag, double x, const char *path) {
    cJSON item = {.type = cJSON_Number, .valuedouble = x};
    char text[DS_PATH_BYTES];
    TRY(ds_value_text(r, path, &item, DS_NUMBER, text));
    return ds_set(r, flag, text, path);
}

typedef enum Said { ABSENT, AUTO, SAID } Said;  // AUTO: as the flag says

static const cJSON *look_up(const DsReader *r, const char *path) {
    const cJSON *item = r->json;
    char name[DS_PATH_BYTES];
    for (const char *at = path; item && *at; at += strspn(at, ".")) {
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at, "."), at);
        item = cJSON_GetObjectItemCaseSensitive(item, name);
        at += strlen(name);
    }
    return cJSON_IsNull(item) ? NULL : item;
}

static Status read_text(const DsReader *r, const char *path, DsValue value, Said *said, char text[DS_PATH_BYTES]) {
    const cJSON *item = look_up(r, path);
    *said = !item ? ABSENT : ds_is_auto(item) ? AUTO : SAID;
    return *said == SAID ? ds_value_text(r, path, item, value, text) : OK;
}

static Status read_number(const DsReader *r, const char *path, Said *said, double *x) {
    char text[DS_PATH_BYTES];
    TRY(read_text(r, path, DS_NUMBER, said, text));
    if (*said == SAID)
        *x = look_up(r, path)->valuedouble;
    return OK;
}

static Status read_switch(const DsReader *r, const char *path, Said *said, bool *on) {
    char text[DS_PATH_BYTES];
    TRY(read_text(r, path, DS_SWITCH, said, text));
    if (*said == SAID)
        *on = strcmp(text, "on") == 0;
    return OK;
}

// A key whose value is the flag's; `standard` is DeepSpeed's for one that is left out, or NULL: the flag's.
static Status take(DsReader *r, const char *path, DsValue value, const char *flag, const char *standard) {
    Said said;
    char text[DS_PATH_BYTES];
    TRY(read_text(r, path, value, &said, text));
    if (said == SAID)
        return ds_set(r, flag, text, path);
    return said == ABSENT && standard && !config_given(r->config, flag) ? ds_set(r, flag, standard, path) : OK;
}

// DeepSpeed infers what is left out of the three (config.py, _set_batch_related_parameters); config_resolve knows the rest.
static Status take_batch(DsReader *r) {
    bool global = look_up(r, "train_batch_size"), micro = look_up(r, "train_micro_batch_size_per_gpu");
    bool accum = look_up(r, "gradient_accumulation_steps");
    bool micro_flag = config_given(r->config, "micro-batch"), global_flag = config_given(r->config, "global-batch");
    if (accum && !global && !micro && !micro_flag && !global_flag)
        return fail_usage(
            "%s: gradient_accumulation_steps alone does not say the batch: train_batch_size or "
            "train_micro_batch_size_per_gpu is needed (global-batch = micro-batch * grad-accum * ranks)",
            r->path);
    bool global_said = global && !ds_is_auto(look_up(r, "train_batch_size"));
    if (global_said && !micro && !accum && !micro_flag && !config_given(r->config, "grad-accum"))
        return ds_set(r, "grad-accum", "1", "train_batch_size");
    return OK;
}

static Status take_dtype(DsReader *r) {
    Said fp16_said, bf16_said;
    bool fp16 = false, bf16 = false;
    TRY(read_switch(r, "fp16.enabled", &fp16_said, &fp16));
    const char *bf16_path = look_up(r, "bf16") ? "bf16.enabled" : "bfloat16.enabled";  // as DeepSpeed chooses
    TRY(read_switch(r, bf16_path, &bf16_said, &bf16));
    if (fp16 && bf16)
        return fail_usage("%s: \"fp16.enabled\" and \"bf16.enabled\" are both true; a run has one dtype", r->path);
    if (fp16 || bf16)
        return ds_set(r, "dtype", fp16 ? "fp16" : "bf16", fp16 ? "fp16.enabled" : bf16_path);
    if (fp16_said == SAID && bf16_said == SAID)
        return ds_set(r, "dtype", "fp32", "fp16.enabled");
    Dtype dtype = r->config->dtype;  // of the command line
    if ((fp16_said == SAID && dtype == DTYPE_FP16) || (bf16_said == SAID && dtype == DTYPE_BF16))
        return fail_usage("--dtype says %s, but \"%s.enabled\" of %s says false: leave one of the two out",
                          dtype_name(dtype), dtype_name(dtype), r->path);
    return OK;
}

static Status take_loss_scale(DsReader *r) {
    Config *c = r->config;
    Said said;
    double x;
    if (c->dtype != DTYPE_FP16)  // then the block says nothing, here as there
        return OK;
    TRY(read_number(r, "fp16.loss_scale", &said, &x));
    if (said == SAID && x == 0 && config_given(c, "loss-scale"))
        return fail_usage(
            "--loss-scale says %g, but \"fp16.loss_scale\" of %s says 0 (dynamic): leave one of the two out",
            c->loss_scale, r->path);
    if (said == SAID && x != 0)
        TRY(set_number(r, "loss-scale", x, "fp16.loss_scale"));
    if (c->loss_scale != 0)
        return OK;
    TRY(read_number(r, "fp16.initial_scale_power", &said, &x));
    if (said == SAID && !(x >= 0 && x <= 60 && x == floor(x)))
        return ds_wrong_value(r, "fp16.initial_scale_power", look_up(r, "fp16.initial_scale_power"),
                              "a whole number from 0 to 60");
    if (said == SAID)
        TRY(set_number(r, "loss-scale-init", ldexp(1, (int)x), "fp16.initial_scale_power"));
    TRY(take(r, "fp16.loss_scale_window", DS_NUMBER, "loss-scale-window", NULL));
    TRY(take(r, "fp16.hysteresis", DS_NUMBER, "loss-scale-hysteresis", NULL));
    TRY(take(r, "fp16.consecutive_hysteresis", DS_SWITCH, "loss-scale-consecutive", NULL));
    return take(r, "fp16.min_loss_scale", DS_NUMBER, "loss-scale-min", NULL);
}

// fp32, or the run's own dtype: what gradients are kept in, and what travels.
static Status take_gradient_dtype(DsReader *r, const char *path, const char *flag) {
    Said said;
    char text[DS_PATH_BYTES];
    TRY(read_text(r, path, DS_TEXT, &said, text));
    if (said != SAID)
        return OK;
    for (char *c = text; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    if (strcmp(text, "fp32") == 0)
        return ds_set(r, flag, "fp32", path);
    if (strcmp(text, dtype_name(r->config->dtype)) == 0)
        return ds_set(r, flag, "param", path);
    return fail_usage("%s: \"%s\" is \"%s\"; it takes \"fp32\" or the dtype of the run, which is %s", r->path, path,
                      text, dtype_name(r->config->dtype));
}

// A key that DeepSpeed's class of that name would not take.
static Status check_absent(const DsReader *r, const char *path, const char *owner) {
    return look_up(r, path) ? fail_usage("%s: \"%s\" does not go with %s", r->path, path, owner) : OK;
}

static Status take_betas(DsReader *r) {
    static const char *const path = "optimizer.params.betas", *const flags_of[2] = {"beta1", "beta2"};
    const cJSON *list = look_up(r, path);
    double standard[2] = {0.9, 0.999};
    if (ds_is_auto(list))
        return OK;
    if (list && !(cJSON_GetArraySize(list) == 2 && cJSON_IsNumber(list->child) && cJSON_IsNumber(list->child->next)))
        return ds_wrong_value(r, path, list, "two numbers, [0.9, 0.999]");
    for (int i = 0; i < 2; i++)
        if (list || !config_given(r->config, flags_of[i]))
            TRY(set_number(r, flags_of[i], list ? cJSON_GetArrayItem(list, i)->valuedouble : standard[i], path));
    return OK;
}

static Status take_optimizer(DsReader *r) {
    Said said, mode_said;
    char type[DS_PATH_BYTES];
    bool decoupled = true;
    const cJSON *block = look_up(r, "optimizer");
    if (!block || !block->child)
        return OK;
    TRY(read_text(r, "optimizer.type", DS_TEXT, &said, type));
    TRY(read_switch(r, "optimizer.params.adam_w_mode", &mode_said, &decoupled));
    if (said == ABSENT)
        return fail_usage("%s: \"optimizer.type\" is missing: Adam, AdamW or SGD", r->path);
    bool adamw = said == SAID && strcasecmp(type, "adamw") == 0, sgd = said == SAID && strcasecmp(type, "sgd") == 0;
    if (said == SAID && !adamw && !sgd && strcasecmp(type, "adam") != 0)
        return ds_wrong_value(r, "optimizer.type", look_up(r, "optimizer.type"), "Adam, AdamW or SGD");
    if (said == SAID)
        TRY(ds_set(r, "optimizer", sgd ? "sgd" : adamw || decoupled ? "adamw" : "adam", "optimizer.type"));
    TRY(take(r, "optimizer.params.weight_decay", DS_NUMBER, "weight-decay", "0"));
    if (r->config->optimizer == OPTIMIZER_SGD) {
        TRY(check_absent(r, "optimizer.params.betas", "SGD"));
        TRY(check_absent(r, "optimizer.params.eps", "SGD"));
        return take(r, "optimizer.params.momentum", DS_NUMBER, "momentum", "0");
    }
    TRY(check_absent(r, "optimizer.params.momentum", "Adam"));
    TRY(take_betas(r));
    return take(r, "optimizer.params.eps", DS_NUMBER, "eps", "1e-8");
}

// The peak rate: the scheduler's, which overwrites the optimizer's, or that.
static Status take_lr(DsReader *r, bool has_max, bool is_decay) {
    static const char *const of_optimizer = "optimizer.params.lr", *const of_scheduler =
                                                                       "scheduler.params.warmup_max_lr";
    Said lr_said, max_said = AUTO;
    double lr = 0.001, max = 0.001;  // DeepSpeed's for what is left out
    TRY(read_number(r, of_optimizer, &lr_said, &lr));
    if (has_max)
        TRY(read_number(r, of_scheduler, &max_said, &max));
    if (max_said == SAID) {
        if (lr_said == SAID && lr != max)
            ds_append(r->notes, "; ", "\"optimizer.params.lr\" gives way to \"scheduler.params.warmup_max_lr\"");
        return set_number(r, "lr", max, of_scheduler);
    }
    if (max_said == ABSENT && is_decay && lr_said == SAID && lr != max)
        return fail_usage(
            "%s: without \"%s\" DeepSpeed's WarmupDecayLR goes to 0.001, not to \"%s\", which is %g: write it", r->path,
            of_scheduler, of_optimizer, lr);
    bool standard = lr_said == ABSENT && (look_up(r, "optimizer.type") || (max_said == ABSENT && is_decay));
    if (lr_said == SAID || (standard && !config_given(r->config, "lr")))
        return set_number(r, "lr", lr, of_optimizer);
    return OK;
}

static Status take_ratio(DsReader *r, const char *path, const char *flag, double standard) {
    Said said;
    double ratio = standard;
    TRY(read_number(r, path, &said, &ratio));
    if (said == SAID || (said == ABSENT && !config_given(r->config, flag)))
        return set_number(r, flag, ratio * r->config->lr, path);
    return OK;
}

static Status take_scheduler(DsReader *r) {
    static const char *const total = "scheduler.params.total_num_steps";
    Said said;
    char type[DS_PATH_BYTES] = "";
    const cJSON *block = look_up(r, "scheduler");
    if (!block || !block->child)
        return take_lr(r, false, false);
    TRY(read_text(r, "scheduler.type", DS_TEXT, &said, type));
    if (said == AUTO)
        flag_text(flag_find("schedule"), r->config, type, sizeof type);
    bool constant = strcmp(type, "WarmupLR") == 0, decay = strcmp(type, "WarmupDecayLR") == 0;
    bool cosine = strcmp(type, "WarmupCosineLR") == 0;
    if (!constant && !decay && !cosine)
        return fail_usage("%s: \"scheduler.type\" is \"%s\"; it takes WarmupLR, WarmupDecayLR or WarmupCosineLR",
                          r->path, type);
    TRY(ds_set(r, "schedule", type, "scheduler.type"));
    TRY(take_lr(r, !cosine, decay));
    TRY(take(r, "scheduler.params.warmup_num_steps", DS_NUMBER, "warmup", "1000"));
    if (config_given(r->config, "warmup") && r->config->warmup < 1)
        return fail_usage("%s: %s needs a warm-up of at least 1 step", r->path, type);
    TRY(take(r, "scheduler.params.warmup_type", DS_TEXT, "warmup-type", NULL));
    if (constant)
        TRY(check_absent(r, total, type));
    else if (!look_up(r, total) && !config_given(r->config, "steps"))
        return fail_usage("%s: %s needs \"%s\", or --steps", r->path, type, total);
    else
        TRY(take(r, total, DS_NUMBER, "steps", NULL));
    if (!cosine) {
        TRY(check_absent(r, "scheduler.params.warmup_min_ratio", type));
        TRY(check_absent(r, "scheduler.params.cos_min_ratio", type));
        return take(r, "scheduler.params.warmup_min_lr", DS_NUMBER, "warmup-min-lr", NULL);
    }
    TRY(check_absent(r, "scheduler.params.warmup_min_lr", type));
    TRY(check_absent(r, "scheduler.params.warmup_max_lr", type));
    TRY(take_ratio(r, "scheduler.params.warmup_min_ratio", "warmup-min-lr", 0));
    return take_ratio(r, "scheduler.params.cos_min_ratio", "min-lr", 1e-4);
}

static Status take_shard_group(DsReader *r) {
    Said said;
    double ranks;
    TRY(read_number(r, "zero_optimization.mics_shard_size", &said, &ranks));
    return said == SAID && ranks > 0 ? set_number(r, "shard-group", ranks, "zero_optimization.mics_shard_size") : OK;
}

// `directory` is for nvme_path: options that are text live as long as the program.
static Status take_offload(DsReader *r, const char *device_path, const char *nvme_path, const char *flag,
                           char directory[DS_PATH_BYTES]) {
    Said said;
    char device[DS_PATH_BYTES];
    TRY(read_text(r, device_path, DS_TEXT, &said, device));
    if (said != SAID)
        return OK;
    TRY(ds_set(r, flag, device, device_path));
    TRY(read_text(r, nvme_path, DS_TEXT, &said, directory));
    return strcmp(device, "nvme") == 0 && said == SAID ? ds_set(r, "nvme-path", directory, nvme_path) : OK;
}

Status ds_take_rules(DsReader *r) {
    static char directories[2][DS_PATH_BYTES];
    TRY(take_batch(r));
    TRY(take_dtype(r));
    TRY(take_loss_scale(r));
    TRY(take_gradient_dtype(r, "data_types.grad_accum_dtype", "grad-dtype"));
    TRY(take_gradient_dtype(r, "communication_data_type", "reduce-dtype"));
    TRY(take_optimizer(r));
    TRY(take_scheduler(r));
    TRY(take_shard_group(r));
    TRY(take_offload(r, "zero_optimization.offload_optimizer.device", "zero_optimization.offload_optimizer.nvme_path",
                     "offload-optimizer", directories[0]));
    if (r->config->zero_stage < 3 && look_up(r, "zero_optimization.offload_param.device")) {  // as in DeepSpeed
        ds_append(r->notes, "; ", "\"zero_optimization.offload_param\" has no effect below stage 3");
        return OK;
    }
    return take_offload(r, "zero_optimization.offload_param.device", "zero_optimization.offload_param.nvme_path",
                        "offload-params", directories[1]);
}
