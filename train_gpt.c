// train_gpt: pretrain a GPT-2 or LLaMA class model from tokenized HDF5 shards, with ZeRO stages 0–3 in the loop.
//
// The program, top to bottom: configure → open → loop(step) → close. There is no arithmetic in it. What to read next:
//   zero/params.h, zero/grads.h    how a unit's parameters come to be whole, and where its gradient goes: all of ZeRO
//   llm/model.h, llm/gpt2.c        what one rank computes
//   zero/optimizer.h               one decision and one update a step
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/shards.h"
#include "data/vocab.h"
#include "llm/config.h"
#include "llm/deepspeed.h"
#include "llm/model.h"
#include "llm/peak.h"
#include "zero/checkpoint.h"
#include "zero/measure.h"
#include "zero/explain.h"
#include "zero/generate.h"
#include "zero/heartbeat.h"
#include "zero/hf.h"
#include "zero/intro.h"
#include "zero/optimizer_state.h"
#include "zero/options.h"
#include "zero/plan.h"
#include "zero/plan_cluster.h"
#include "zero/replicas.h"
#include "zero/run.h"
#include "zero/saver.h"
#include "zero/spikes.h"
#include "zero/trace.h"

static const double PEAK_MEASUREMENT_FLOPS = 1e11;  // about six products of 2048 x 2048 matrices

typedef struct Run {
    Config config;
    Schedule schedule;
    Device *device;
    char device_why[256];     // how --device auto came to it
    Stream *compute, *gather, *reduce;
    CommWorld world;          // who this rank is
    Comm *comm;
    int rank, n_ranks;        // of the run; --plan: of the cluster that is planned
    Layout layout;
    Model *model;
    Params *params;
    Grads *grads;
    Offload *offload;         // NULL: everything stays on the device
    Optim *optimizer;
    OptimizerView view;       // the optimizer's state as checkpoints and hashes see it
    RunState state;           // everything else that makes the next step the same
    Saver *saver;             // NULL without --out
    bool async;               // saves are copied first, and written while training goes on
    char saves[256];          // the same for people, and why
    Shards *train, *val;
    Loader *loader;
    Vocab *vocab;
    char data[256];           // the training data's fingerprint
    char environment[256];    // what the same bits depend on besides the config
    RunLog *log;
    double *loss_sums;        // (grad_accum) host memory: Σ of the rows' losses of each micro-batch
    Generator generator;      // for samples
    int32_t *prompt;          // (T) tokens of --prompt (else the end-of-text token, or token 0), and room to continue
    int n_prompt;
    double peak_flops;        // of this rank's device, measured; NAN if it was not
    int64_t end;              // the step after which this run ends: --stop-at, or --steps
    int64_t last_saved;       // step of the last checkpoint; -1: none
    double save_wait_s;       // that saves have held training up since the last step
} Run;

// ---- one step ----

// Forward and backward of one micro-batch. This is ZeRO: acquire makes a unit's parameters whole, grads_reduce sends its
// gradient on its way, and both happen on their own streams while the next unit computes.
static void forward_backward(Run *r, float loss_gradient_scale, double *loss_sum) {
    int head = r->layout.n_units - 1;
    for (int u = 0; u < head; u++) {
        UnitParams w = params_acquire(r->params, u, FORWARD);
        model_forward(r->model, u, w);
        params_release(r->params, u);
    }

    // The head's forward and backward go together, in chunks of rows: all logits at once would be the largest tensor by far.
    UnitParams w = params_acquire(r->params, head, BACKWARD);
    UnitGrads g = grads_acquire(r->grads, head);
    model_loss(r->model, w, &g, loss_gradient_scale, loss_sum);
    grads_reduce(r->grads, head);
    params_release(r->params, head);

    for (int u = head - 1; u > 0; u--) {
        w = params_acquire(r->params, u, BACKWARD);
        g = grads_acquire(r->grads, u);
        model_backward(r->model, u, w, g);
        grads_reduce(r->grads, u);
        params_release(r->params, u);
    }
    g = grads_acquire(r->grads, 0);  // the embedding's backward needs no parameters
    model_backward(r->model, 0, (UnitParams){0}, g);
    grads_reduce(r->grads, 0);
}

// Micro-batch number `micro` of a step, from a loader that stands there.
static Status micro_batch(Run *r, Loader *loader, int micro, double loss_scale, double *data_wait_s) {
    const Config *c = &r->config;
    const int32_t *inputs, *targets;
    int64_t n_valid;
    double waited;
    trace_begin(r->compute, "wait for data", -1);
    TRY(loader_next(loader, &inputs, &targets, &n_valid, &waited));
    trace_end(r->compute);
    *data_wait_s += waited;
    model_set_batch(r->model, inputs, targets);
    grads_begin_micro_batch(r->grads, micro == 0, micro == c->grad_accum - 1);
    forward_backward(r, (float)(loss_scale / ((double)c->global_batch * c->seq_len)), &r->loss_sums[micro]);
    return OK;
}

// A boundary that all ranks pass together: what was asked for, and a save's progress.
static Status meet(Run *r, RunRequest *request) {
    RunNews news = {.writing = saver_busy(r->saver)};
    TRY(run_exchange(r->comm, &news));
    *request = news.request > *request ? news.request : *request;
    if (r->rank == 0)
        heartbeat(r->config.out, r->state.step);
    double start = comm_clock();
    if (!news.writing)
        TRY(saver_advance(r->saver));
    r->save_wait_s += comm_clock() - start;
    return OK;
}

// Whether the step's update is better left out, by every rank alike; the report says why.
static bool skips(Run *r, StepReport *report) {
    const Config *c = &r->config;
    const StepResult *result = &report->result;
    char *reason = report->skip_reason;
    if (!result->finite) {
        snprintf(reason, sizeof report->skip_reason, "gradients are not finite, loss scale %g", report->loss_scale);
        return true;
    }
    bool loss = spikes_look(&r->state.losses, "loss", c->skip_loss_zscore, result->loss, reason, sizeof report->skip_reason);
    bool norm = spikes_look(&r->state.norms, "norm", c->skip_norm_zscore, result->norm, reason, sizeof report->skip_reason);
    return loss || norm;
}

// One step over the global batch. `*request` is what was asked for meanwhile; from REQUEST_TIME_OVER on it drops the step.
static Status train_step(Run *r, StepReport *report, RunRequest *request) {
    const Config *c = &r->config;
    double start = comm_clock(), scale = r->state.scale.scale, tokens = (double)c->global_batch * c->seq_len;
    *report = (StepReport){.loss_scale = scale, .lr = schedule_lr(&r->schedule, r->state.updates)};
    comm_stats_reset(r->comm);
    offload_begin_step(r->offload, r->model);
    comm_set_step(r->comm, r->state.step + 1);
    trace_begin(r->compute, "step", r->state.step + 1);

    for (int micro = 0; micro < c->grad_accum; micro++) {
        TRY(meet(r, request));
        if (*request >= REQUEST_TIME_OVER)
            return OK;
        TRY(micro_batch(r, r->loader, micro, scale, &report->data_wait_s));
    }

    TRY(optimizer_measure(r->optimizer, r->loss_sums, c->grad_accum, tokens, scale, &report->result));
    if (skips(r, report)) {
        r->state.skipped++;
    } else {
        TRY(optimizer_step(r->optimizer, report->lr, r->state.updates, scale, report->result.norm));
        r->state.updates++;
    }
    r->state.skipped_in_a_row = report->result.finite ? 0 : r->state.skipped_in_a_row + 1;
    loss_scale_update(&r->state.scale, !report->result.finite);
    r->state.step++;
    r->state.samples += c->global_batch;

    trace_end(r->compute);
    report->step = r->state.step;
    report->steps = r->end;
    report->skipped = r->state.skipped;
    report->tokens = r->state.step * c->global_batch * c->seq_len;
    report->seconds = comm_clock() - start;
    report->tokens_per_s = tokens / report->seconds;
    report->peak_fraction =
        report->tokens_per_s * model_flops_per_token(&c->model, c->seq_len) / (r->peak_flops * r->n_ranks);
    report->comm = comm_stats(r->comm);
    report->offload = offload_end_step(r->offload, r->model);
    report->save_wait_s = r->save_wait_s;
    r->save_wait_s = 0;
    return OK;
}

// ---- validation, samples, checkpoints ----

// Mean loss over the validation shards (or the first --eval-batches batches of every rank).
static Status evaluate(Run *r, double *loss) {
    const Config *c = &r->config;
    int64_t n = shards_n_windows(r->val), stride = (int64_t)c->micro_batch * r->n_ranks;
    int64_t batches = (n + stride - 1) / stride;
    if (c->eval_batches > 0 && c->eval_batches < batches)
        batches = c->eval_batches;
    LoaderOptions options = {.shards = r->val, .batch = c->micro_batch, .first_sample = (int64_t)c->micro_batch * r->rank,
                             .stride = stride, .n_samples = n, .depth = 2};
    Loader *loader;
    TRY(loader_open(&options, &loader));
    Status status = OK;
    double totals[2] = {0, 0};  // Σ loss, valid targets
    int head = r->layout.n_units - 1;
    for (int64_t b = 0; b < batches; b++) {
        const int32_t *inputs, *targets;
        int64_t n_valid;
        double waited;
        TRY_GOTO(loader_next(loader, &inputs, &targets, &n_valid, &waited), done);
        if (r->rank == 0)
            heartbeat(c->out, r->state.step);
        model_set_batch(r->model, inputs, targets);
        for (int u = 0; u <= head; u++) {
            UnitParams w = params_acquire(r->params, u, FORWARD);
            if (u < head)
                model_forward(r->model, u, w);
            else
                model_loss(r->model, w, NULL, 1.0f, r->loss_sums);
            params_release(r->params, u);
        }
        TRY_GOTO(stream_sync(r->compute), done);
        totals[0] += r->loss_sums[0];
        totals[1] += (double)n_valid;
    }
    TRY_GOTO(offload_check(r->offload), done);
    TRY_GOTO(comm_sum(r->comm, "validation loss", totals, 2), done);
    *loss = totals[0] / totals[1];
done:
    loader_close(loader);
    return status;
}

// Continue the prompt up to --sample-tokens or the model's context, and print it.
static Status sample(Run *r) {
    const Config *c = &r->config;
    SamplerOptions options = {.temperature = c->temperature, .top_k = c->top_k, .top_p = c->top_p,
                              .seed = c->seed + (uint64_t)r->state.step};
    int n = r->n_prompt, end = n + (int)c->sample_tokens < c->seq_len ? n + (int)c->sample_tokens : c->seq_len;
    int64_t eot = vocab_eot(r->vocab);
    TRY(generate(&r->generator, &options, r->prompt, &n, end, eot));
    char text[16384];
    bool begins_with_eot = r->prompt[0] == eot, ends_with_eot = n > 1 && r->prompt[n - 1] == eot;
    vocab_decode(r->vocab, r->prompt + begins_with_eot, n - begins_with_eot - ends_with_eot, text, sizeof text);
    log_line(r->log, "sample at step %lld:\n%s\n", (long long)r->state.step, text);
    cJSON *fields = cJSON_CreateObject();
    cJSON_AddNumberToObject(fields, "step", (double)r->state.step);
    cJSON_AddStringToObject(fields, "text", text);
    log_event(r->log, "sample", fields);
    return OK;
}

static CheckpointRun checkpoint_run(const Run *r) {
    return (CheckpointRun){.config = &r->config, .data = r->data, .environment = r->environment,
                           .reduce_group = comm_shape(r->comm).reduce_group};
}

// Called by the saver: a save has ended.
static void save_ended(void *context, const SaveReport *report) {
    Run *r = context;
    if (report->saved) {
        r->last_saved = report->step;
        log_line(r->log, "checkpoint of step %lld saved in %.1f s%s%s", (long long)report->step, report->seconds,
                 report->message[0] ? "; old ones stay: " : "", report->message);
        return;
    }
    log_line(r->log, "checkpoint of step %lld FAILED: %s", (long long)report->step, report->message);
    cJSON *fields = cJSON_CreateObject();
    cJSON_AddNumberToObject(fields, "step", (double)report->step);
    cJSON_AddStringToObject(fields, "reason", report->message);
    log_event(r->log, "checkpoint_failed", fields);
}

// Save this step. A save that fails is reported and leaves the previous checkpoint as the newest; training goes on.
static Status save(Run *r) {
    if (!r->saver || r->last_saved == r->state.step || saver_under_way(r->saver) == r->state.step)
        return OK;
    double start = comm_clock();
    if (saver_under_way(r->saver) >= 0)
        log_line(r->log, "the checkpoint of step %lld waits for that of step %lld", (long long)r->state.step,
                 (long long)saver_under_way(r->saver));
    TRY(saver_finish(r->saver));
    cJSON *fields = cJSON_CreateObject();
    cJSON_AddNumberToObject(fields, "step", (double)r->state.step);
    log_event(r->log, "checkpoint", fields);  // before the length is taken: the line belongs to the checkpoint
    r->state.log_bytes = log_length(r->log);
    CheckpointRun run = checkpoint_run(r);
    TRY(saver_start(r->saver, &run, &r->state));
    r->save_wait_s += comm_clock() - start;
    return OK;
}

// Save the last step of this run, and wait for it. Whether that went well.
static Status save_last(Run *r, bool *saved) {
    TRY(save(r));
    TRY(saver_finish(r->saver));
    *saved = !r->saver || r->last_saved == r->state.step;
    return OK;
}

static bool every(int64_t interval, int64_t step) {
    return interval > 0 && step % interval == 0;
}

static Status report_evaluation(Run *r) {
    double loss;
    TRY(evaluate(r, &loss));
    log_line(r->log, "step %lld | validation loss %.4f", (long long)r->state.step, loss);
    cJSON *fields = cJSON_CreateObject();
    cJSON_AddNumberToObject(fields, "step", (double)r->state.step);
    cJSON_AddNumberToObject(fields, "val_loss", loss);
    log_event(r->log, "eval", fields);
    return OK;
}

// ---- the loop ----

static Status open_loader(const Run *r, int64_t first_sample, Loader **loader) {
    const Config *c = &r->config;
    LoaderOptions options = {.shards = r->train, .seed = c->seed, .shuffle = true, .batch = c->micro_batch,
                             .first_sample = first_sample + (int64_t)c->micro_batch * r->rank,
                             .stride = (int64_t)c->micro_batch * r->n_ranks, .depth = 2};
    return loader_open(&options, loader);
}

// Too many steps in a row were skipped: compute the last one again, looking at each gradient before it is reduced, and
// fail with the first that is not finite.
static Status explain_last_skip(Run *r, double loss_scale) {
    Explain explain = {.layout = &r->layout, .comm = r->comm, .compute = r->compute, .grads = r->grads,
                       .staging = r->view.view.staging};
    Loader *loader;
    double waited = 0;
    TRY(open_loader(r, r->state.samples - r->config.global_batch, &loader));
    grads_inspect(r->grads, explain_look, &explain);
    Status status = OK;
    for (explain.micro = 0; explain.micro < r->config.grad_accum; explain.micro++)
        TRY_GOTO(micro_batch(r, loader, explain.micro, loss_scale, &waited), done);
    status = explain_skips(&explain, r->state.step, r->state.skipped_in_a_row, loss_scale);
done:
    grads_inspect(r->grads, NULL, NULL);
    loader_close(loader);
    return status;
}

static Status train(Run *r) {
    const Config *c = &r->config;
    bool saved = false;
    while (r->state.step < r->end) {
        StepReport report;
        RunRequest request = REQUEST_NONE;
        TRY(train_step(r, &report, &request));
        if (request >= REQUEST_TIME_OVER) {
            log_line(r->log, "%s: %s step %lld", request == REQUEST_STOP ? "asked to stop" : "--max-minutes have passed",
                     r->saver ? "saving" : "nothing is saved without --out; ending after", (long long)r->state.step);
            TRY(save_last(r, &saved));
            return saved ? INTERRUPTED : fail("stopped on request, but the last step could not be saved");
        }
        bool last = r->state.step == r->end;
        if (every(c->log_every, r->state.step) || last || report.skip_reason[0])
            log_step(r->log, &report, r->device);
        if (c->max_skips > 0 && r->state.skipped_in_a_row >= c->max_skips)
            return explain_last_skip(r, report.loss_scale);
        if (every(c->check_replicas_every, r->state.step))
            TRY(replicas_check(&r->layout, options_zero(c), r->comm, r->compute, r->params, r->optimizer,
                               &r->view.view));
        if (r->val && (every(c->eval_every, r->state.step) || (last && c->eval_every > 0)))
            TRY(report_evaluation(r));
        if (every(c->sample_every, r->state.step) || (last && c->sample_every > 0))
            TRY(sample(r));
        if (every(c->checkpoint_every, r->state.step) || request == REQUEST_SAVE)
            TRY(save(r));
    }
    TRY(saver_finish(r->saver));
    if (c->checkpoint_every > 0) {
        TRY(save_last(r, &saved));
        if (!saved)
            return fail("the run is complete, but its last checkpoint could not be saved (see above)");
    }
    return OK;
}

static Status report_end(Run *r) {
    char weights[HASH_TEXT_BYTES], state[HASH_TEXT_BYTES];
    TRY(state_hashes(&r->layout, r->comm, &r->view.view, weights, state));
    log_line(r->log, "done: %lld steps, weights_hash %s, state_hash %s", (long long)r->state.step, weights, state);
    cJSON *fields = cJSON_CreateObject();
    cJSON_AddNumberToObject(fields, "step", (double)r->state.step);
    cJSON_AddStringToObject(fields, "weights_hash", weights);
    cJSON_AddStringToObject(fields, "state_hash", state);
    log_event(r->log, "end", fields);
    return OK;
}

// ---- open and close ----

// Ranks with other programs, options or data would compute nonsense together.
static Status agree_on_run(Run *r) {
    TRY(comm_agree_build(r->comm));
    cJSON *json = config_to_json(&r->config);
    char *text = cJSON_Print(json);
    cJSON_Delete(json);
    if (!text)
        return fail("out of host memory");
    Status status = comm_agree(r->comm, "configuration", text);
    cJSON_free(text);
    TRY(status);
    TRY(comm_agree(r->comm, "training data", r->data));
    char val[sizeof r->data] = "none";
    if (r->val)
        shards_fingerprint(r->val, val, sizeof val);
    return comm_agree(r->comm, "validation data", val);
}

// A rank whose host has no room for a snapshot decides for all.
static Status agree_on_saves(Run *r) {
    double streamed = !r->async;
    TRY(comm_max(r->comm, "how to save", &streamed, 1));
    if (streamed > 0 && r->async)
        snprintf(r->saves, sizeof r->saves, "streamed while the step waits: the host of another rank has no room for a copy");
    r->async = streamed == 0;
    return OK;
}

static Status encode_prompt(Run *r) {
    const Config *c = &r->config;
    r->prompt = calloc((size_t)c->seq_len, sizeof *r->prompt);
    if (!r->prompt)
        return fail("out of host memory");
    if (!c->prompt) {
        r->n_prompt = 1;
        r->prompt[0] = vocab_eot(r->vocab) >= 0 ? (int32_t)vocab_eot(r->vocab) : 0;
    } else {
        r->n_prompt = c->seq_len;
        TRY(vocab_encode(r->vocab, c->prompt, r->prompt, &r->n_prompt));
    }
    if (r->n_prompt == 0)
        return fail_usage("--prompt is empty: leave it out, and samples begin with nothing");
    for (int i = 0; i < r->n_prompt; i++)
        if (r->prompt[i] < 0 || r->prompt[i] >= c->model.vocab_size)
            return fail_usage("--prompt: token %d is outside the model's vocabulary of %lld", r->prompt[i],
                              (long long)c->model.vocab_size);
    return OK;
}

static Status open_data(Run *r) {
    Config *c = &r->config;
    if (!c->train)
        return fail_usage("--train is missing: a file, directory or glob of HDF5 shards (data/prepare.py makes them)");
    TRY(shards_open(c->train, c->seq_len, &r->train));
    if (c->val)
        TRY(shards_open(c->val, c->seq_len, &r->val));
    TRY(config_resolve(c, r->n_ranks, shards_vocab_size(r->train)));
    shards_set_vocab(r->train, c->model.vocab_size);
    if (r->val)
        shards_set_vocab(r->val, c->model.vocab_size);
    if (r->val && shards_vocab_size(r->val) > c->model.vocab_size)
        return fail_usage("%s: the vocabulary of the validation shards has %lld tokens, more than the model's %lld: make both "
                          "kinds of shards with one tokenizer", c->val, (long long)shards_vocab_size(r->val),
                          (long long)c->model.vocab_size);
    if (shards_n_windows(r->train) == 0)
        return fail("%s: every shard is shorter than --seq-len + 1 = %d tokens", c->train, c->seq_len + 1);
    if (r->val && shards_n_windows(r->val) == 0)
        return fail("%s: every shard is shorter than --seq-len + 1 = %d tokens", c->val, c->seq_len + 1);
    shards_fingerprint(r->train, r->data, sizeof r->data);
    TRY(vocab_open(shards_path(r->train, 0), &r->vocab));
    c->eot_token = vocab_eot(r->vocab);
    return c->sample_every > 0 ? encode_prompt(r) : OK;
}

static Status open_device(Run *r) {
    const Config *c = &r->config;
    TRY(options_open_device(c, &r->world, &r->device, r->device_why, sizeof r->device_why));
    TRY(stream_create(r->device, STREAM_COMPUTE, "compute", &r->compute));
    if (!c->overlap) {  // the same calls, one after another
        r->gather = r->reduce = r->compute;
        return OK;
    }
    TRY(stream_create(r->device, STREAM_BACKGROUND, "gather", &r->gather));
    return stream_create(r->device, STREAM_BACKGROUND, "reduce", &r->reduce);
}

static Status open_model(Run *r) {
    const Config *c = &r->config;
    ZeroOptions zero = options_zero(c);
    ModelOptions model = options_model(c);
    OptimizerConfig optimizer = {.kind = c->optimizer, .beta1 = c->beta1, .beta2 = c->beta2, .eps = c->eps,
                                 .momentum = c->momentum, .weight_decay = c->weight_decay, .grad_clip = c->grad_clip};
    CommShape shape;
    TRY(options_shape(c, &r->world, device_kind(r->device), &shape));
    CommOptions comm = options_comm(c, &r->layout, shape, device_kind(r->device));
    TRY(comm_open(r->device, r->compute, &comm, &r->comm));
    TRY(agree_on_run(r));
    TRY(agree_on_saves(r));
    TRY(offload_open(r->device, r->compute, options_offload(c, r->rank), &r->offload));
    TRY(params_open(r->device, &r->layout, r->comm, r->compute, r->gather, zero, r->offload, &r->params));
    TRY(grads_open(r->device, &r->layout, r->comm, r->compute, r->reduce, zero, r->offload, &r->grads));
    TRY(optimizer_open(r->device, &r->layout, r->comm, r->compute, r->params, r->grads, optimizer, zero, r->offload,
                       &r->optimizer));
    if (model.offload_inputs) {
        model.down = r->offload->down;
        model.up = r->offload->up;
    }
    TRY(model_open(r->device, r->compute, &model, &r->model));
    TRY(optimizer_view_open(r->device, r->compute, r->optimizer, &r->view));
    SaverOptions saver = {.out = c->out, .async = r->async, .keep = c->keep, .keep_every = c->keep_every,
                          .ended = save_ended, .context = r};
    if (c->out)
        TRY(saver_open(r->device, &saver, &r->layout, r->comm, &r->view.view, &r->saver));
    TRY(device_host_alloc(r->device, "loss sums", (size_t)c->grad_accum * sizeof(double), (void **)&r->loss_sums));
    if (c->sample_every > 0) {
        r->generator = (Generator){.device = r->device, .compute = r->compute, .comm = r->comm, .model = r->model,
                                   .params = r->params, .layout = &r->layout, .vocab_size = c->model.vocab_size};
        TRY(generator_open(&r->generator));
    }
    device_seal(r->device, true);  // nothing is allocated from here on
    return OK;
}

// The checkpoint that --resume means; "" when there is none.
static Status find_checkpoint(const Config *c, char path[PATH_BYTES]) {
    *path = '\0';
    if (strcmp(c->resume, "auto") == 0)
        return c->out ? checkpoint_newest(c->out, path, PATH_BYTES) : OK;
    return strcmp(c->resume, "never") == 0 ? OK : checkpoint_find(c->resume, path);
}

// A run that does not go on from a checkpoint in --out must not mix its own with those that are there: the next resume
// would take the wrong ones, and pruning would delete them.
static Status check_out_is_free(const Config *c, const char *resumed) {
    char newest[PATH_BYTES] = "";
    if (!c->out)
        return OK;
    TRY(checkpoint_newest(c->out, newest, sizeof newest));
    if (!*newest || checkpoint_is_same(newest, resumed))
        return OK;
    if (checkpoint_is_in(c->out, resumed))
        return fail("--resume %s with --out %s, which holds newer checkpoints, up to %s: the next run would go on from those, and "
                    "they would count for --keep. Move them away, or choose another --out", c->resume, c->out, newest);
    return fail("--resume %s with --out %s, which holds checkpoints of another run, up to %s: choose another --out, or "
                "move them away", c->resume, c->out, newest);
}

// Start anew, from a Hugging Face model, or from a checkpoint.
static Status open_state(Run *r) {
    const Config *c = &r->config;
    char path[PATH_BYTES], notes[2048] = "";
    snprintf(r->environment, sizeof r->environment, "%s", device_name(r->device));
    TRY(find_checkpoint(c, path));
    TRY(check_out_is_free(c, path));
    TRY(comm_agree(r->comm, "checkpoint to go on from (all must see the same --out)", path));
    r->last_saved = -1;
    r->end = c->stop_at ? c->stop_at : c->steps;
    r->state.scale = options_loss_scale(c);
    if (path[0]) {
        CheckpointRun run = checkpoint_run(r);
        TRY(checkpoint_load(path, &run, &r->layout, r->comm, &r->view.view, &r->state, notes, sizeof notes));
        TRY(optimizer_state_loaded(r->optimizer));
        r->state.scale = loss_scale_resume(r->state.scale, options_loss_scale(c));
        if (checkpoint_is_in(c->out, path))
            r->last_saved = r->state.step;
        else
            r->state.log_bytes = 0;  // of another --out's log
    } else if (c->init_from) {
        TRY(hf_import(c->init_from, &c->model, &r->layout, r->comm, &r->view.view));
        TRY(optimizer_state_loaded(r->optimizer));
    } else {
        TRY(optimizer_init(r->optimizer, c->seed));
    }
    TRY(log_open(c->out, r->state.log_bytes, r->rank, r->n_ranks, &r->log));
    if (c->out)
        TRY(checkpoint_out_is_shared(c->out, r->comm));
    if (path[0])
        log_line(r->log, "resumed from %s at step %lld%s%s", path, (long long)r->state.step, notes[0] ? "\n" : "", notes);
    if (r->state.step >= r->end)
        log_line(r->log, "nothing is left to do: this run ends at step %lld (%s)", (long long)r->end,
                 c->stop_at ? "--stop-at" : "--steps");
    return open_loader(r, r->state.samples, &r->loader);
}

static void close_run(Run *r) {
    status_clear();
    if (r->n_ranks == 1 && saver_finish(r->saver) != OK)  // of a run that failed: what it was saving is good
        status_clear();
    Stream *streams[] = {r->gather, r->reduce};  // the last step's parameters may still be travelling
    for (int i = 0; i < 2; i++)
        if (streams[i] && stream_sync(streams[i]) != OK)
            status_clear();
    if (offload_check(r->offload) != OK)
        status_clear();
    loader_close(r->loader);
    saver_close(r->saver);
    log_close(r->log);
    generator_close(&r->generator);
    free(r->prompt);
    device_host_free(r->device, r->loss_sums);
    optimizer_view_close(&r->view);
    model_close(r->model);
    optimizer_close(r->optimizer);
    grads_close(r->grads);
    params_close(r->params);
    offload_close(r->offload);
    comm_close(r->comm);
    layout_free(&r->layout);
    if (r->reduce != r->compute)
        stream_destroy(r->reduce);
    if (r->gather != r->compute)
        stream_destroy(r->gather);
    stream_destroy(r->compute);
    device_close(r->device);
    vocab_close(r->vocab);
    shards_close(r->val);
    shards_close(r->train);
}

// Predict this run's memory, check that it fits, and choose how to save.
static Status predict(Run *r, PlanBytes *predicted) {
    const Config *c = &r->config;
    CommShape shape;
    PlanChoice choices[PLAN_CHOICES];
    PlanInput input;
    Plan plan;
    TRY(options_shape(c, &r->world, device_kind(r->device), &shape));
    TRY(plan_model(c, r->device, &r->layout, shape, true, choices, &input));
    if (input.device_memory == 0) {
        input.device_memory = device_memory_size(r->device);
        input.limit_is_found = true;
    }
    plan_compute(&input, &plan);
    *predicted = plan.bytes[c->zero_stage];
    predicted->snapshot = plan.snapshot[c->zero_stage];
    plan_describe_saves(&input, &plan, c->zero_stage, r->saves, sizeof r->saves);
    r->async = plan.async[c->zero_stage];
    return plan_check(&input, &plan);
}

// How fast this rank's device is, to show which part of it the model gets: not shown where the measurement would cost more
// than the run, or finds no room for its matrices under --device-memory.
static void measure_peak(Run *r) {
    const Config *c = &r->config;
    double tokens = (double)c->steps * c->global_batch * c->seq_len;
    r->peak_flops = NAN;
    if (tokens * model_flops_per_token(&c->model, c->seq_len) < PEAK_MEASUREMENT_FLOPS)
        return;
    if (peak_measure(r->device, r->compute, c->dtype, 3, 0.1, &r->peak_flops) != OK) {
        r->peak_flops = NAN;
        status_clear();
    }
}

// ---- the program ----

static Status run_export(const Config *c) {
    char path[PATH_BYTES];
    TRY(find_checkpoint(c, path));
    if (!*path)
        return fail_usage("--export-hf needs a checkpoint: give --resume DIR, or --out of a run that has saved one");
    HfExport options = {.checkpoint = path, .directory = c->export_hf,
                        .dtype = config_given(c, "dtype") ? c->dtype : DTYPE_FP32};
    return hf_export(&options, stdout);
}

static Status run_plan(Run *r) {
    const Config *c = &r->config;
    ClusterSpeed speed = {.flops = c->plan_flops, .bytes_per_s = c->plan_bandwidth / 8}, measured = {0};
    TRY(options_open_device(c, &r->world, &r->device, r->device_why, sizeof r->device_why));
    if (c->measure)
        TRY(measure_speed(r->device, &r->world, c, &measured));
    if (speed.flops == 0)
        speed.flops = measured.flops;
    if (speed.bytes_per_s == 0)
        speed.bytes_per_s = measured.bytes_per_s;
    speed.copy_bytes_per_s = measured.copy_bytes_per_s;
    speed.update_len_per_s = measured.update_len_per_s;
    speed.nvme_bytes_per_s = measured.nvme_bytes_per_s;
    return r->rank == 0 ? plan_cluster(c, r->device, speed, stdout) : OK;
}

// What takes no data and no time.
static Status run_answer(Run *r) {
    Config *c = &r->config;
    if (c->help) {
        config_print_help(stdout);
    } else if (c->config_help) {
        deepspeed_print_help(stdout);
    } else if (c->version) {
        puts("zero.c train_gpt 0.1");
    } else {
        TRY(config_resolve(c, r->n_ranks, 0));
        config_print_json(c, stdout);
    }
    return OK;
}

static Status run_training(Run *r) {
    Config *c = &r->config;
    PlanBytes predicted;
    TRY(open_data(r));
    if (c->print_config) {
        if (r->rank == 0)
            config_print_json(c, stdout);
        return OK;
    }
    TRY(layout_make(&c->model, r->n_ranks, c->shard_group ? c->shard_group : r->n_ranks, r->rank, &r->layout));
    TRY(open_device(r));
    TRY(predict(r, &predicted));
    measure_peak(r);
    TRY(open_model(r));
    TRY(open_state(r));
    predicted.snapshot = r->async ? predicted.snapshot : 0;
    Intro intro = {.config = c, .layout = &r->layout, .device = r->device, .device_why = r->device_why, .comm = r->comm,
                   .zero = options_zero(c), .peak_flops = r->peak_flops, .n_tokens = shards_n_tokens(r->train),
                   .n_windows = shards_n_windows(r->train), .n_shards = shards_n_files(r->train),
                   .predicted = predicted, .offload = r->offload, .saves = c->out ? r->saves : NULL};
    TRY(introduce(&intro, r->log));
    r->schedule = options_schedule(c);
    run_listen(r->rank);
    if (c->trace)
        TRY(trace_open(r->comm, c->trace));
    Status status = train(r);
    if (status == OK || status == INTERRUPTED) {
        TRY(trace_close(r->comm));
        TRY(report_end(r));
    }
    return status;
}

static Status run(Run *r, int argc, char **argv) {
    Config *c = &r->config;
    config_defaults(c);
    TRY(run_take_signals());     // before there are threads
    TRY(comm_start(&r->world));  // early, so that of many ranks one speaks
    r->rank = r->world.rank;
    r->n_ranks = r->world.size;
    TRY(config_parse(c, argc, argv));
    if (c->config_file)
        TRY(deepspeed_read(c, r->rank == 0 ? stderr : NULL));
    run_limit_time(c->max_minutes);
    bool prints = c->print_config && !c->train && !c->plan;
    if (!!c->hash + !!c->verify + !!c->export_hf + c->plan + prints > 1)
        return fail_usage("--hash, --verify, --export-hf, --plan and --print-config are a tool each: give one of them");
    const char *alone = c->hash ? "hash" : c->verify ? "verify" : c->export_hf ? "export-hf" : NULL;
    if (alone && r->n_ranks > 1)
        return fail_usage("--%s is the work of one rank: leave out mpirun", alone);
    if (c->help || c->version || c->config_help || prints)
        return r->rank == 0 ? run_answer(r) : OK;
    if (c->plan) {
        TRY(config_resolve(c, c->ranks, 0));
        return run_plan(r);
    }
    if (c->hash || c->verify) {
        char path[PATH_BYTES];
        TRY(checkpoint_find(c->hash ? c->hash : c->verify, path));
        return c->hash ? checkpoint_hash(path, stdout) : checkpoint_verify(path, stdout);
    }
    if (c->export_hf)
        return run_export(c);
    TRY(config_resolve(c, r->n_ranks, 0));
    return run_training(r);
}

int main(int argc, char **argv) {
    static Run r;
    run_open_standard_files();
    Status status = run(&r, argc, argv);
    if (status == FAILED || status == BAD_USAGE)
        log_end_line(r.log), comm_fail(status);  // of many ranks this is the end
    close_run(&r);
    comm_stop();
    return status;
}
