// config: every option of a run in one struct, and the ways to fill it: defaults, presets, flags, a Hugging Face config.json,
// DeepSpeed's JSON (llm/deepspeed.h).
//
// Data flows one way: flags → Config → layout → device memory → steps → log and checkpoint. After config_parse and
// config_resolve nothing changes a Config. One declarative table of flags (in config_flags.c) drives parsing, --help,
// --print-config, the nearest-name suggestion and the comparison of two runs' configs (resume), so an option is one row.
//
// Sizes given by users take K, M, G (10³, 10⁶, 10⁹) and Ki, Mi, Gi. Strings point into the process's arguments or into
// memory that lives as long as the program.
#ifndef LLM_CONFIG_H
#define LLM_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "llm/device.h"
#include "llm/dtype.h"
#include "llm/status.h"

typedef enum Arch { ARCH_GPT2, ARCH_LLAMA } Arch;

enum { MAX_LAYERS = 9998 };  // names of units have four digits

// A transformer's shape. GPT-2: LayerNorm, GELU, learned positions, biases, tied head. LLaMA: RMSNorm, RoPE, SwiGLU,
// grouped-query attention, no biases (Qwen2 adds one to QKV).
typedef struct ModelConfig {
    Arch arch;
    int layers;         // L, transformer blocks
    int heads;          // query heads
    int kv_heads;       // key/value heads; divides heads
    int channels;       // C, width of the residual stream
    int head_dim;       // channels / heads unless a config.json says otherwise
    int ffn;            // F, hidden width of the feed-forward part
    int64_t vocab_size; // V
    int max_seq_len;    // rows of GPT-2's position table; the longest sequence RoPE was asked for
    bool tied;          // the head uses the token embedding's weight
    bool qkv_bias;      // bias on QKV without the other biases (Qwen2)
    float norm_eps;
    float rope_theta;
    bool rope_llama3;   // LLaMA 3.1's frequency scaling with the four numbers below
    float rope_factor, rope_low_freq, rope_high_freq;
    int rope_original_len;
    float init_std;     // 0.02; residual projections use init_std / sqrt(2·layers)
    bool had_dropout;   // the config.json asks for dropout, which is read as 0: main says so once
} ModelConfig;

typedef enum Optimizer { OPTIMIZER_ADAMW, OPTIMIZER_ADAM, OPTIMIZER_SGD } Optimizer;
typedef enum ScheduleKind {
    SCHEDULE_COSINE,
    SCHEDULE_LINEAR,
    SCHEDULE_CONSTANT,
    SCHEDULE_WSD,
    SCHEDULE_WARMUP_LR,  // DeepSpeed's, from here on
    SCHEDULE_WARMUP_DECAY_LR,
    SCHEDULE_WARMUP_COSINE_LR
} ScheduleKind;
typedef enum WarmupType { WARMUP_LOG, WARMUP_LINEAR } WarmupType;  // of DeepSpeed's schedules
typedef enum Recompute { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL } Recompute;
typedef enum DeviceChoice { CHOOSE_AUTO, CHOOSE_CPU, CHOOSE_CUDA } DeviceChoice;
typedef enum OffloadLevel { OFFLOAD_NONE, OFFLOAD_CPU, OFFLOAD_NVME } OffloadLevel;  // device, host memory, a file
typedef enum Choice { CHOICE_OFF, CHOICE_ON, CHOICE_AUTO } Choice;
typedef enum StateDtype { STATE_FP32, STATE_PARAM } StateDtype;  // fp32, or the parameters' dtype

typedef struct Config {
    // model
    const char *model_name;  // preset, or path of a Hugging Face config.json
    ModelConfig model;
    const char *init_from;   // directory of a Hugging Face model to start from, or NULL

    // data
    const char *train, *val; // file, directory or glob of HDF5 shards
    uint64_t seed;
    int64_t data_vocab;      // the shards' own vocabulary, 0 if none says; below the model's where that one is padded
    int64_t eot_token;       // that ends a text in the shards, -1 if none says

    // batch: global = micro · grad_accum · ranks, in sequences. Any two; 0 = not given.
    int micro_batch, grad_accum, global_batch;
    int seq_len;             // T

    // optimizer
    Optimizer optimizer;
    double lr, min_lr;       // min_lr: floor of cosine, linear, wsd and WarmupCosineLR
    int64_t warmup;          // steps of warm-up
    ScheduleKind schedule;
    int64_t steps;           // length of the schedule and of the run
    int64_t stop_at;         // end early at this step without changing the schedule; 0 = steps
    double wsd_decay;        // fraction of the steps that wsd decays over (0.1)
    double warmup_min_lr;    // of DeepSpeed's schedules: where warm-up begins
    WarmupType warmup_type;  // and how it rises
    double beta1, beta2, eps, momentum, weight_decay;
    double grad_clip;        // 0 = off
    int64_t max_skips;       // stop after this many skipped steps in a row

    // precision
    Dtype dtype;
    bool tf32;               // fp32 matmuls of a GPU take operands rounded to TF32
    StateDtype grad_dtype, reduce_dtype;
    double loss_scale;       // 0 = dynamic (fp16) or 1 (others)
    double loss_scale_init, loss_scale_min;  // of the dynamic one, as the rest: see llm/loss_scale.h
    int loss_scale_window, loss_scale_hysteresis;
    bool loss_scale_consecutive;

    // ZeRO
    int zero_stage;          // 0–3
    int shard_group;         // ranks a parameter group is sharded over; 0 = all
    bool overlap, deterministic;

    // offload
    OffloadLevel offload_optimizer, offload_params;
    bool offload_activations;
    const char *nvme_path;   // directory of the files that hold what is offloaded to nvme
    size_t nvme_buffer;      // bytes that one request reads or writes

    // memory
    Recompute recompute;
    size_t device_memory;    // cap in bytes; 0 = none
    int64_t head_chunk;      // rows of logits that exist at a time; changes no bit

    // run
    DeviceChoice device;
    int threads;             // 0 = the cores this rank may use
    const char *out;         // output directory or NULL (no log file, no checkpoints)
    const char *resume;      // "auto", "never" or a directory
    bool resume_changed;
    int64_t checkpoint_every, eval_every, eval_batches, sample_every, log_every;  // steps; 0 = never (eval_batches 0 = all)
    Choice checkpoint_async; // copy the state and write the copy while training goes on; auto: where host memory has room
    int64_t keep;            // newest checkpoints to keep; 0 = all
    int64_t keep_every;      // and all of steps that are its multiples; 0 = no others
    double max_minutes;      // save and end then; 0 = never
    double skip_loss_zscore, skip_norm_zscore;  // skip the update of a step this far above the mean; 0 = never (zero/spikes.h)
    double comm_timeout;     // seconds
    const char *prompt;
    int64_t sample_tokens;
    double temperature, top_p;
    int64_t top_k;

    // tools
    bool plan, print_config, help, version, config_help;
    const char *config_file;   // DeepSpeed's JSON, or NULL
    int ranks;               // --plan: number of ranks to plan for
    double plan_params;      // --params: plan for this many parameters without a model
    double plan_flops;       // --flops: that a rank reaches, a second; 0 = unknown
    double plan_bandwidth;   // --bandwidth: bits that a rank sends, a second; 0 = unknown
    bool measure;            // --plan: measure the two
    const char *hash;        // checkpoint directory to hash, or NULL
    const char *verify;      // checkpoint directory to verify, or NULL
    const char *export_hf;   // directory to make of a checkpoint for transformers, or NULL
    const char *trace;       // file for a Chrome trace, or NULL
    int64_t check_replicas_every;  // steps; 0 = never

    uint32_t given[4];            // bit i: flag i of the table was given (config_flags.c)
    const char *given_by[4 * 32]; // the key of config_file that gave flag i; NULL: the command line
} Config;

// Defaults of every field.
void config_defaults(Config *config);

// Parse argv over `config`. Unknown options fail with the nearest name; values out of range with the range.
Status config_parse(Config *config, int argc, char **argv);

// Fill what depends on other things: model preset or config.json, head_dim, ffn, the vocabulary (`data_vocab` from the
// shards, 0 if there are none) and the batch equation for `ranks` ranks. Prints nothing. Errors show the whole equation and
// where each number came from. What config_parse was not given is worked out anew each time, so a second call, once the
// shards' vocabulary is known, is fine. With --params there is no model: `model` and the batch stay as they are.
Status config_resolve(Config *config, int ranks, int64_t data_vocab);

// Fail unless the model's numbers make sense together (heads divide channels, kv_heads divides heads, sizes positive …).
Status model_config_check(const ModelConfig *model);

// Look up a preset by name; read a Hugging Face config.json, or that of a directory (GPT2LMHeadModel, LlamaForCausalLM,
// Qwen2ForCausalLM, MistralForCausalLM). Values that would change the arithmetic are refused by name.
Status model_config_preset(ModelConfig *model, const char *name);
Status model_config_read_hf(ModelConfig *model, const char *path);

// The other way: what transformers reads as config.json, for weights in `dtype`; caller frees. Qwen2ForCausalLM where QKV
// has a bias, else LlamaForCausalLM, or GPT2LMHeadModel.
struct cJSON *model_config_to_hf(const ModelConfig *model, Dtype dtype);

// The model in a config that config_to_json wrote.
Status model_config_from_json(ModelConfig *model, const struct cJSON *saved);

// Give a flag the value that `key` of config_file says, as if it were on the command line. Fails if the command line says
// another. `text` (of options that are text) and `key` must live as long as the program.
Status config_set(Config *config, const char *flag, const char *text, const char *key);

// Whether the user gave the flag (by its long name, without dashes), on the command line or in config_file; and what gave
// it, for messages: `--lr`, or `"optimizer.params.lr" of ds.json`. Returns text.
bool config_given(const Config *config, const char *flag);
const char *config_source(const Config *config, const char *flag, char *text, size_t text_bytes);

void config_print_help(FILE *file);
void config_print_json(const Config *config, FILE *file);                // --print-config
struct cJSON *config_to_json(const Config *config);                      // for logs and manifests; caller frees

// Compare the options that alter a run's numbers (seed, global batch, optimizer, schedule, precision, model) with those of
// a saved run; the data are compared by their fingerprint, and ranks, stage and paths may differ. Writes one line a
// difference ("lr: saved 0.0006, now 0.001") to `differences`; returns their number.
int config_compare(const Config *config, const struct cJSON *saved, char *differences, size_t differences_bytes);

// The decimal number that was meant by a float: 1e-5, not 9.9999997e-06. Converting it to float gives x again.
double float_decimal(float x);

// "8 GiB" style text of a byte count, in `text` (at least 16 bytes); returns text.
char *format_bytes(char *text, size_t text_bytes, double bytes);

#endif
