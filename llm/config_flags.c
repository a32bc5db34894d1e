// The table of options. To add one: a field in Config, a row here.

#include <limits.h>
#include <math.h>

#include "llm/flags.h"

const char *const flag_group_titles[FLAG_GROUPS] = {"Model", "Data",   "Batch", "Optimizer", "Precision",
                                                    "ZeRO",  "Memory", "Run",   "Tools"};
const char *const flag_group_keys[FLAG_GROUPS] = {"model", "data",   "batch", "optimizer", "precision",
                                                  "zero",  "memory", "run",   "tools"};

// Where a field is and of which kind: from its type. Enumerations are unsigned in GCC and Clang; nothing else here is.
#define FIELD(field) \
    _Generic(((const Config *)0)->field, bool: FLAG_BOOL, int: FLAG_INT, unsigned: FLAG_CHOICE, int64_t: FLAG_INT64, \
             uint64_t: FLAG_UINT64, double: FLAG_REAL, float: FLAG_FLOAT, const char *: FLAG_TEXT),              \
        offsetof(Config, field)

#define WHOLE   FLAG_MAX_WHOLE
#define NUMBERS FLAG_NUMBERS
#define DERIVED (FLAG_DERIVED | FLAG_NUMBERS)

// clang-format off
const Flag flags[] = {
    // name, group, field, value, default, its words, min, max, traits, help
    {"model", GROUP_MODEL, FIELD(model_name), "NAME", "gpt2-124m", 0, 0, 0, 0,
     "preset (gpt2-tiny -124m -350m -774m -1558m, llama-tiny -110m -1b, llama2-7b -13b, llama3-8b -70b), or a Hugging "
     "Face config.json"},
    {"layers", GROUP_MODEL, FIELD(model.layers), "N", 0, "the model's", 1, 1 << 14, NUMBERS, "transformer blocks"},
    {"heads", GROUP_MODEL, FIELD(model.heads), "N", 0, "the model's", 1, 1 << 14, NUMBERS,
     "query heads; they divide the channels"},
    {"kv-heads", GROUP_MODEL, FIELD(model.kv_heads), "N", 0, "in the model's proportion to the heads",
     1, 1 << 14, NUMBERS, "key/value heads (grouped-query attention, LLaMA); they divide the heads"},
    {"channels", GROUP_MODEL, FIELD(model.channels), "N", 0, "the model's", 1, 1 << 20, NUMBERS,
     "width of the residual stream"},
    {"ffn", GROUP_MODEL, FIELD(model.ffn), "N", 0,
     "the model's; with --channels: GPT-2 4 * channels, LLaMA 8/3 * channels rounded up to a multiple of 64",
     1, 1 << 22, NUMBERS, "hidden width of the feed-forward part"},
    {"vocab-size", GROUP_MODEL, FIELD(model.vocab_size), "N", 0, "the shards' own, else the model's",
     1, 1 << 24, NUMBERS, "vocabulary"},
    {"seq-len", GROUP_MODEL, FIELD(seq_len), "TOKENS", 0, "the model's longest, at most 1024", 1, 1 << 24, NUMBERS,
     "tokens of a sequence (T); beyond the model's longest it enlarges GPT-2's position table"},
    {"tie", GROUP_MODEL, FIELD(model.tied), "on|off", 0, "the model's", 0, 0, NUMBERS,
     "the head uses the token embedding's weight"},
    {"init-from", GROUP_MODEL, FIELD(init_from), "DIR", 0, "random weights", 0, 0, 0,
     "start from a Hugging Face model: its config.json gives the shape, its safetensors the weights"},
    {"arch", GROUP_MODEL, FIELD(model.arch), "gpt2|llama", 0, 0, 0, 0, DERIVED, 0},
    {"head-dim", GROUP_MODEL, FIELD(model.head_dim), 0, 0, 0, 0, 0, DERIVED, 0},
    {"max-seq-len", GROUP_MODEL, FIELD(model.max_seq_len), 0, 0, 0, 0, 0, DERIVED, 0},
    {"qkv-bias", GROUP_MODEL, FIELD(model.qkv_bias), 0, 0, 0, 0, 0, DERIVED, 0},
    {"norm-eps", GROUP_MODEL, FIELD(model.norm_eps), 0, 0, 0, 0, 0, DERIVED, 0},
    {"rope-theta", GROUP_MODEL, FIELD(model.rope_theta), 0, 0, 0, 0, 0, DERIVED, 0},
    {"rope-llama3", GROUP_MODEL, FIELD(model.rope_llama3), 0, 0, 0, 0, 0, DERIVED, 0},
    {"rope-factor", GROUP_MODEL, FIELD(model.rope_factor), 0, 0, 0, 0, 0, DERIVED, 0},
    {"rope-low-freq", GROUP_MODEL, FIELD(model.rope_low_freq), 0, 0, 0, 0, 0, DERIVED, 0},
    {"rope-high-freq", GROUP_MODEL, FIELD(model.rope_high_freq), 0, 0, 0, 0, 0, DERIVED, 0},
    {"rope-original-len", GROUP_MODEL, FIELD(model.rope_original_len), 0, 0, 0, 0, 0, DERIVED, 0},
    {"init-std", GROUP_MODEL, FIELD(model.init_std), 0, 0, 0, 0, 0, DERIVED, 0},

    {"train", GROUP_DATA, FIELD(train), "PATH", 0, "none", 0, 0, 0,
     "training shards: an HDF5 file, a directory, or a quoted glob pattern"},
    {"val", GROUP_DATA, FIELD(val), "PATH", 0, "none", 0, 0, 0, "validation shards"},
    {"seed", GROUP_DATA, FIELD(seed), "N", "1234", 0, 0, WHOLE, NUMBERS,
     "of initial weights, sample order and sampling"},

    {"micro-batch", GROUP_BATCH, FIELD(micro_batch), "SEQUENCES", 0,
     "4; with --global-batch alone the largest of 4, 3, 2, 1 that divides a rank's share",
     1, 1 << 20, 0, "sequences that a rank computes at a time"},
    {"grad-accum", GROUP_BATCH, FIELD(grad_accum), "N", 0, "1, or what --global-batch leaves", 1, 1 << 20, 0,
     "micro-batches of a step"},
    {"global-batch", GROUP_BATCH, FIELD(global_batch), "SEQUENCES", 0, "micro-batch * grad-accum * ranks",
     1, INT_MAX, NUMBERS, "sequences of a step over all ranks; the equation is checked"},

    {"optimizer", GROUP_OPTIMIZER, FIELD(optimizer), "adamw|adam|sgd", "adamw", 0, 0, 0, NUMBERS,
     "weights of two or more dimensions decay"},
    {"lr", GROUP_OPTIMIZER, FIELD(lr), "RATE", "6e-4", 0, 0, 1e6, NUMBERS, "peak learning rate"},
    {"min-lr", GROUP_OPTIMIZER, FIELD(min_lr), "RATE", 0, "lr / 10", 0, 1e6, NUMBERS,
     "learning rate of the last step (not with constant)"},
    {"warmup", GROUP_OPTIMIZER, FIELD(warmup), "STEPS", 0, "1/20 of the steps, at most 2000", 0, WHOLE, NUMBERS,
     "linear warm-up"},
    {"schedule", GROUP_OPTIMIZER, FIELD(schedule), "cosine|linear|constant|wsd", "cosine", 0, 0, 0, NUMBERS,
     "how the learning rate goes from lr to min-lr after warm-up"},
    {"wsd-decay", GROUP_OPTIMIZER, FIELD(wsd_decay), "FRACTION", "0.1", 0, 0, 1, NUMBERS,
     "part of the steps that wsd decays over"},
    {"steps", GROUP_OPTIMIZER, FIELD(steps), "STEPS", "1000", 0, 1, WHOLE, NUMBERS,
     "length of the run and of the schedule"},
    {"stop-at", GROUP_OPTIMIZER, FIELD(stop_at), "STEP", 0, "the last step", 1, WHOLE, 0,
     "end early without changing the schedule"},
    {"beta1", GROUP_OPTIMIZER, FIELD(beta1), "X", "0.9", 0, 0, 1, NUMBERS | FLAG_BELOW_MAX,
     "decay of Adam's first moment"},
    {"beta2", GROUP_OPTIMIZER, FIELD(beta2), "X", "0.95", 0, 0, 1, NUMBERS | FLAG_BELOW_MAX,
     "decay of Adam's second moment"},
    {"eps", GROUP_OPTIMIZER, FIELD(eps), "X", "1e-8", 0, 0, 1, NUMBERS | FLAG_ABOVE_MIN,
     "added to the root of Adam's second moment"},
    {"momentum", GROUP_OPTIMIZER, FIELD(momentum), "X", "0.9", 0, 0, 1, NUMBERS | FLAG_BELOW_MAX, "of sgd"},
    {"weight-decay", GROUP_OPTIMIZER, FIELD(weight_decay), "X", "0.1", 0, 0, 1e6, NUMBERS,
     "adamw: decoupled; adam, sgd: added to the gradient"},
    {"grad-clip", GROUP_OPTIMIZER, FIELD(grad_clip), "NORM", "1", 0, 0, 1e30, NUMBERS,
     "largest gradient norm, 0 = off; the log's norm is the one before clipping"},
    {"max-skips", GROUP_OPTIMIZER, FIELD(max_skips), "STEPS", "50", 0, 1, WHOLE, 0,
     "stop after this many steps in a row that were skipped because they were not finite"},
    {"skip-loss-zscore", GROUP_OPTIMIZER, FIELD(skip_loss_zscore), "Z", "0", 0, 0, 1e6, NUMBERS,
     "skip the update of a step whose loss is more than Z standard deviations above the mean of the last 128 steps, once "
     "there are 32; does not count for --max-skips; 0 = never"},
    {"skip-norm-zscore", GROUP_OPTIMIZER, FIELD(skip_norm_zscore), "Z", "0", 0, 0, 1e6, NUMBERS,
     "the same for the gradient norm before clipping"},

    {"dtype", GROUP_PRECISION, FIELD(dtype), "fp32|bf16|fp16", "fp32", 0, 0, 0, NUMBERS,
     "parameters and activations; sums are fp32, and so are the master weights"},
    {"grad-dtype", GROUP_PRECISION, FIELD(grad_dtype), "fp32|param", "fp32", 0, 0, 0, NUMBERS,
     "gradients that a rank keeps; param = --dtype, the textbook's 2 bytes a parameter"},
    {"reduce-dtype", GROUP_PRECISION, FIELD(reduce_dtype), "fp32|param", "fp32", 0, 0, 0, NUMBERS,
     "gradients that travel between ranks"},
    {"loss-scale", GROUP_PRECISION, FIELD(loss_scale), "X", 0, "dynamic for fp16, 1 otherwise",
     0, 0x1p60, NUMBERS | FLAG_ABOVE_MIN, "a fixed loss scale"},

    {"zero", GROUP_ZERO, FIELD(zero_stage), "STAGE", "0", 0, 0, 3, 0,
     "what ranks share out: 0 nothing, 1 optimizer state, 2 and gradients, 3 and parameters"},
    {"shard-group", GROUP_ZERO, FIELD(shard_group), "RANKS", "0", 0, 0, 1 << 24, 0,
     "consecutive ranks that share one copy; divides the ranks; 0 = all"},
    {"overlap", GROUP_ZERO, FIELD(overlap), "on|off", "on", 0, 0, 0, 0,
     "communicate while computing; the same bits either way"},
    {"deterministic", GROUP_ZERO, FIELD(deterministic), "on|off", "on", 0, 0, 0, 0,
     "off, with several GPUs: NCCL chooses the order of sums, and runs do not repeat bit for bit"},

    {"recompute", GROUP_MEMORY, FIELD(recompute), "none|selective|full", "none", 0, 0, 0, 0,
     "forget activations and compute them again in backward; the same bits"},
    {"device-memory", GROUP_MEMORY, FIELD(device_memory), "BYTES", 0, "no limit of ours", 1, WHOLE, 0,
     "the most to use on a device (80G, 512Mi)"},
    {"head-chunk", GROUP_MEMORY, FIELD(head_chunk), "TOKENS", 0, "chosen for speed", 1, 1 << 24, 0,
     "rows of logits that exist at a time; the same bits"},

    {"device", GROUP_RUN, FIELD(device), "auto|cpu|cuda", "auto", 0, 0, 0, 0, "auto: the GPU if one answers, else the CPU"},
    {"threads", GROUP_RUN, FIELD(threads), "N", 0, "the cores that this rank may use", 1, 4096, 0,
     "compute threads on the CPU"},
    {"out", GROUP_RUN, FIELD(out), "DIR", 0, "none: no log file, no checkpoints", 0, 0, 0,
     "log.jsonl and checkpoints go here"},
    {"resume", GROUP_RUN, FIELD(resume), "auto|never|DIR", "auto", 0, 0, 0, 0,
     "auto: the newest complete checkpoint of --out, if there is one"},
    {"resume-changed", GROUP_RUN, FIELD(resume_changed), 0, 0, 0, 0, 0, 0,
     "resume although options that change the numbers differ"},
    {"checkpoint-every", GROUP_RUN, FIELD(checkpoint_every), "STEPS", "1000", 0, 0, WHOLE, 0,
     "save every so many steps; 0 = never"},
    {"checkpoint-async", GROUP_RUN, FIELD(checkpoint_async), "off|on|auto", "auto", 0, 0, 0, 0,
     "write a copy of the state while training goes on; off: training waits; auto: where the host's memory has room for "
     "the copy"},
    {"keep", GROUP_RUN, FIELD(keep), "N", "3", 0, 0, WHOLE, 0, "newest checkpoints to keep; 0 = all"},
    {"keep-every", GROUP_RUN, FIELD(keep_every), "STEPS", "0", 0, 0, WHOLE, 0,
     "besides --keep, keep those of all multiples of so many steps; 0 = no others"},
    {"max-minutes", GROUP_RUN, FIELD(max_minutes), "MINUTES", 0, "no limit", 0, 1e9, FLAG_ABOVE_MIN,
     "so long after the start save and end, with exit status 3; looked at before each micro-batch, so leave time for one "
     "and for a save"},
    {"eval-every", GROUP_RUN, FIELD(eval_every), "STEPS", "250", 0, 0, WHOLE, 0,
     "validation loss every so many steps; 0 = never"},
    {"eval-batches", GROUP_RUN, FIELD(eval_batches), "N", "20", 0, 0, WHOLE, 0,
     "micro-batches of a validation; 0 = the whole set"},
    {"sample-every", GROUP_RUN, FIELD(sample_every), "STEPS", "0", 0, 0, WHOLE, 0,
     "print generated text every so many steps; 0 = never"},
    {"log-every", GROUP_RUN, FIELD(log_every), "STEPS", "1", 0, 0, WHOLE, 0,
     "log a line every so many steps; 0 = never"},
    {"comm-timeout", GROUP_RUN, FIELD(comm_timeout), "SECONDS", "600", 0, 0, 1e7, FLAG_ABOVE_MIN,
     "end the run when a collective makes no progress for so long"},
    {"prompt", GROUP_RUN, FIELD(prompt), "TEXT", 0, "none", 0, 0, 0,
     "how samples begin; token ids where the shards have no vocabulary"},
    {"sample-tokens", GROUP_RUN, FIELD(sample_tokens), "TOKENS", "128", 0, 1, 1 << 24, 0, "length of a sample"},
    {"temperature", GROUP_RUN, FIELD(temperature), "X", "0.8", 0, 0, 1000, 0,
     "of samples; 0 = always the most likely token"},
    {"top-k", GROUP_RUN, FIELD(top_k), "N", "50", 0, 0, WHOLE, 0, "sample among the k most likely tokens; 0 = off"},
    {"top-p", GROUP_RUN, FIELD(top_p), "X", "1", 0, 0, 1, FLAG_ABOVE_MIN,
     "sample among the likeliest tokens that hold this probability; 1 = off"},

    {"plan", GROUP_TOOLS, FIELD(plan), 0, 0, 0, 0, 0, 0,
     "print what every ZeRO stage would need on a device, and exit"},
    {"ranks", GROUP_TOOLS, FIELD(ranks), "N", "1", 0, 1, 1 << 24, 0,
     "with --plan: ranks to plan for; left out, and with --device-memory: print how many each stage takes"},
    {"params", GROUP_TOOLS, FIELD(plan_params), "X", 0, "those of --model", 1, 1e15, FLAG_UNITS,
     "with --plan: plan for a number of parameters (7e9)"},
    {"flops", GROUP_TOOLS, FIELD(plan_flops), "X", 0, "unknown: no seconds", 1, 1e18, FLAG_UNITS,
     "with --plan: FLOP/s that a rank reaches in training (200T)"},
    {"bandwidth", GROUP_TOOLS, FIELD(plan_bandwidth), "BITS", 0, "unknown: no seconds", 1, 1e15, FLAG_UNITS,
     "with --plan: bits/s that a rank can send while all do (10G); ranks that share a link divide it"},
    {"measure", GROUP_TOOLS, FIELD(measure), 0, 0, 0, 0, 0, 0,
     "with --plan: measure --flops and, with mpirun, --bandwidth here"},
    {"print-config", GROUP_TOOLS, FIELD(print_config), 0, 0, 0, 0, 0, 0,
     "print the effective options as JSON, and exit"},
    {"hash", GROUP_TOOLS, FIELD(hash), "DIR", 0, 0, 0, 0, 0,
     "print the hashes of a checkpoint's weights and state, and exit"},
    {"verify", GROUP_TOOLS, FIELD(verify), "DIR", 0, 0, 0, 0, 0, "check every byte of a checkpoint, and exit"},
    {"check-replicas-every", GROUP_TOOLS, FIELD(check_replicas_every), "STEPS", "0", 0, 0, WHOLE, 0,
     "compare what ranks hold copies of every so many steps; ends the run with the rank and tensor that differ; 0 = never"},
    {"trace", GROUP_TOOLS, FIELD(trace), "FILE", 0, 0, 0, 0, 0,
     "write a timeline of streams, units and waits, for ui.perfetto.dev"},
    {"export-hf", GROUP_TOOLS, FIELD(export_hf), "DIR", 0, 0, 0, 0, 0,
     "make DIR of a checkpoint (--resume DIR, or the newest of --out) for Hugging Face transformers, in fp32 or in the "
     "--dtype given, and exit"},
    {"version", GROUP_TOOLS, FIELD(version), 0, 0, 0, 0, 0, 0, "print the version, and exit"},
    {"help", GROUP_TOOLS, FIELD(help), 0, 0, 0, 0, 0, 0, "print this, and exit"},
};
// clang-format on

const int n_flags = sizeof flags / sizeof *flags;
_Static_assert(sizeof flags / sizeof *flags <= 8 * sizeof((Config *)0)->given, "Config.given has a bit for every row");
