// Every key of DeepSpeed's configuration file (its documentation, and the keys that its sources read besides), in the order
// of the documentation, and what is made of it here.
#include "llm/deepspeed.h"

#define BLOCK(path)                                {path, DS_HONOURED, DS_BLOCK, 0, 0, 0, 0}
#define FLAG(path, value, flag)                    {path, DS_HONOURED, value, flag, 0, 0, 0}
#define OWN(path, value, note)                     {path, DS_HONOURED, value, 0, 0, note, 0}
#define NO_EFFECT(path, harmless, note)            {path, DS_NO_EFFECT, DS_ANY, 0, harmless, note, 0}
#define REFUSED(path, harmless, note)              {path, DS_REFUSED, DS_ANY, 0, harmless, note, 0}
#define REFUSED_WITH(path, harmless, note, keys)   {path, DS_REFUSED, DS_ANY, 0, harmless, note, keys}
#define NO_EFFECT_WITH(path, harmless, note, keys) {path, DS_NO_EFFECT, DS_ANY, 0, harmless, note, keys}
#define REFUSED_ALL(path, note)                    {path, DS_REFUSED, DS_FREE, 0, 0, note, 0}
#define NO_EFFECT_ALL(path, note)                  {path, DS_NO_EFFECT, DS_FREE, 0, 0, note, 0}

#define SIZED  "buffers are sized from the model; --plan shows them"
#define PACE   "the next unit is gathered while this one computes"
#define LOG    "OUT/log.jsonl has every number of every step"
#define OTHER  "of an optimizer that this program does not have"
#define SCHED  "of a scheduler that this program does not have"
#define MASTER "master weights, moments and accumulated gradients are fp32"
#define NVME   "--nvme-buffer sizes the buffers of NVMe"
#define EXPORT "--export-hf makes one model of any checkpoint"
#define ORDER  "the sample order is a function of --seed; there is no curriculum"

// clang-format off
const DsKey deepspeed_keys[] = {
    // ---- batch ----
    FLAG("train_batch_size", DS_NUMBER, "global-batch"),
    FLAG("train_micro_batch_size_per_gpu", DS_NUMBER, "micro-batch"),
    FLAG("gradient_accumulation_steps", DS_NUMBER, "grad-accum"),
    REFUSED("managed_gradient_accumulation", "true", "a step is always one update"),
    NO_EFFECT("dataloader_drop_last", "false", "windows that do not fill a batch go to the next epoch"),

    // ---- optimizer ----
    BLOCK("optimizer"),
    OWN("optimizer.type", DS_TEXT, "--optimizer: Adam (adamw unless adam_w_mode is false), AdamW, SGD"),
    REFUSED("optimizer.legacy_fusion", "false", "there is one implementation"),
    BLOCK("optimizer.params"),
    OWN("optimizer.params.lr", DS_NUMBER, "--lr; 0.001 if left out; warmup_max_lr goes before it"),
    OWN("optimizer.params.betas", DS_FREE, "--beta1 --beta2; [0.9, 0.999] if left out"),
    OWN("optimizer.params.eps", DS_NUMBER, "--eps; 1e-8 if left out"),
    OWN("optimizer.params.weight_decay", DS_NUMBER, "--weight-decay; 0 if left out"),
    OWN("optimizer.params.momentum", DS_NUMBER, "--momentum, of SGD; 0 if left out"),
    OWN("optimizer.params.adam_w_mode", DS_SWITCH, "decoupled weight decay, of Adam; true if left out"),
    NO_EFFECT("optimizer.params.torch_adam", "false", "there is one implementation"),
    NO_EFFECT("optimizer.params.fused", "false|true", "there is one implementation"),
    NO_EFFECT("optimizer.params.foreach", "false|true", "there is one implementation"),
    REFUSED("optimizer.params.bias_correction", "true", "Adam's moments are always corrected"),
    REFUSED("optimizer.params.amsgrad", "false", "not implemented"),
    REFUSED("optimizer.params.maximize", "false", "the loss is minimised"),
    REFUSED("optimizer.params.nesterov", "false", "not implemented"),
    REFUSED("optimizer.params.dampening", "0", "not implemented"),
    REFUSED("optimizer.params.max_grad_norm", "0", "DeepSpeed does not take it either: write gradient_clipping"),
    REFUSED_WITH("optimizer.params.muon_lr", "", OTHER, "adam_lr ns_method per_head_muon"),
    REFUSED_WITH("optimizer.params.max_coeff", "", OTHER, "min_coeff freeze_step cuda_aware comm_backend_name coeff_beta "
                 "factor_max factor_min factor_threshold var_freeze_step var_update_scaler local_step_scaler "
                 "local_step_clipper"),
    NO_EFFECT("zero_allow_untested_optimizer", "false|true", "every optimizer here is tested with every stage"),
    NO_EFFECT("zero_force_ds_cpu_optimizer", "false|true", "there is one implementation"),

    // ---- scheduler ----
    BLOCK("scheduler"),
    OWN("scheduler.type", DS_TEXT, "--schedule: WarmupLR, WarmupDecayLR, WarmupCosineLR"),
    BLOCK("scheduler.params"),
    OWN("scheduler.params.warmup_min_lr", DS_NUMBER, "--warmup-min-lr"),
    OWN("scheduler.params.warmup_max_lr", DS_NUMBER, "--lr; if left out that of the optimizer"),
    OWN("scheduler.params.warmup_num_steps", DS_NUMBER, "--warmup; 1000 if left out"),
    OWN("scheduler.params.warmup_type", DS_TEXT, "--warmup-type"),
    OWN("scheduler.params.total_num_steps", DS_NUMBER, "--steps; --stop-at ends a run before its schedule does"),
    OWN("scheduler.params.warmup_min_ratio", DS_NUMBER, "--warmup-min-lr = ratio * lr"),
    OWN("scheduler.params.cos_min_ratio", DS_NUMBER, "--min-lr = ratio * lr; 0.0001 if left out"),
    REFUSED("scheduler.params.last_batch_iteration", "-1", "--resume goes on with the schedule"),
    REFUSED_WITH("scheduler.params.cycle_min_lr", "", SCHED, "cycle_max_lr decay_lr_rate cycle_first_step_size "
                 "cycle_second_step_size cycle_first_stair_count cycle_second_stair_count decay_step_size cycle_momentum "
                 "cycle_min_mom cycle_max_mom decay_mom_rate"),
    REFUSED_WITH("scheduler.params.lr_range_test_min_lr", "", SCHED,
                 "lr_range_test_step_size lr_range_test_step_rate lr_range_test_staircase"),

    // ---- communication ----
    OWN("communication_data_type", DS_TEXT, "--reduce-dtype: fp32, or the dtype of the run"),
    REFUSED("gradient_allreduce_op", "\"mean\"", "the loss is the mean over all ranks"),
    NO_EFFECT("prescale_gradients", "false", "gradients are added in fp32, which needs no scaling"),
    NO_EFFECT("gradient_predivide_factor", "1", "gradients are added in fp32, which needs no scaling"),
    REFUSED("sparse_gradients", "false", "gradients are dense"),
    NO_EFFECT("disable_allgather", "false", "--zero decides what is gathered"),
    NO_EFFECT("seq_parallel_comm_data_type", "\"fp32\"", "there is no sequence parallelism"),
    REFUSED("sequence_parallel_size", "1", "there is no sequence parallelism; --zero 3 and --recompute save memory"),

    // ---- fp16, bf16 ----
    BLOCK("fp16"),
    OWN("fp16.enabled", DS_SWITCH, "--dtype fp16"),
    OWN("fp16.loss_scale", DS_NUMBER, "--loss-scale; 0 = dynamic"),
    OWN("fp16.initial_scale_power", DS_NUMBER, "--loss-scale-init = 2^power"),
    OWN("fp16.loss_scale_window", DS_NUMBER, "--loss-scale-window"),
    OWN("fp16.hysteresis", DS_NUMBER, "--loss-scale-hysteresis"),
    OWN("fp16.consecutive_hysteresis", DS_SWITCH, "--loss-scale-consecutive"),
    OWN("fp16.min_loss_scale", DS_NUMBER, "--loss-scale-min"),
    NO_EFFECT("fp16.auto_cast", "false", "the inputs are tokens"),
    NO_EFFECT("fp16.fused_mode", "true", "there is one implementation"),
    REFUSED("fp16.fp16_master_weights_and_grads", "false", MASTER),
    BLOCK("bf16"),
    OWN("bf16.enabled", DS_SWITCH, "--dtype bf16"),
    NO_EFFECT("bf16.immediate_grad_update", "false|true", "gradients are reduced as soon as a unit has them"),
    REFUSED("bf16.bf16_master_weights_and_grads", "false", MASTER),
    REFUSED("bf16.bf16_optimizer_states", "false", MASTER),
    BLOCK("bfloat16"),
    OWN("bfloat16.enabled", DS_SWITCH, "the old name of bf16.enabled"),
    BLOCK("data_types"),
    OWN("data_types.grad_accum_dtype", DS_TEXT, "--grad-dtype: fp32, or the dtype of the run"),
    REFUSED("data_types.param_dtype", "", "--dtype says it"),
    REFUSED("data_types.buffer_dtype", "", "--dtype says it"),
    BLOCK("torch_autocast"),
    REFUSED_WITH("torch_autocast.enabled", "false", "write bf16 or fp16, which computes in that dtype throughout",
                 "dtype lower_precision_safe_modules"),
    REFUSED_ALL("amp", "write bf16 or fp16"),
    FLAG("gradient_clipping", DS_NUMBER, "grad-clip"),

    // ---- ZeRO ----
    BLOCK("zero_optimization"),
    FLAG("zero_optimization.stage", DS_NUMBER, "zero"),
    FLAG("zero_optimization.overlap_comm", DS_SWITCH, "overlap"),
    OWN("zero_optimization.mics_shard_size", DS_NUMBER, "--shard-group; -1 = all ranks"),
    NO_EFFECT("zero_optimization.mics_hierarchical_params_gather", "false", "gathers stay within --shard-group"),
    NO_EFFECT("zero_optimization.allgather_partitions", "true", "parameters are gathered unit by unit"),
    NO_EFFECT("zero_optimization.allgather_bucket_size", "", SIZED),
    NO_EFFECT("zero_optimization.compute_grad_norm", "true", "the norm is of every step"),
    NO_EFFECT("zero_optimization.reduce_scatter", "true", "stages 1 to 3 reduce-scatter"),
    NO_EFFECT("zero_optimization.reduce_bucket_size", "", SIZED),
    NO_EFFECT("zero_optimization.use_multi_rank_bucket_allreduce", "false|true", SIZED),
    NO_EFFECT("zero_optimization.contiguous_gradients", "true", "a unit's gradients are one array"),
    NO_EFFECT("zero_optimization.load_from_fp32_weights", "true", "checkpoints hold the fp32 master weights"),
    NO_EFFECT("zero_optimization.elastic_checkpoint", "false|true", "every checkpoint loads at any number of ranks"),
    NO_EFFECT("zero_optimization.round_robin_gradients", "false", "each rank copies the gradients of its own shard"),
    NO_EFFECT("zero_optimization.parameter_alignment", "false|true", "tensors begin at multiples of 64 elements"),
    NO_EFFECT("zero_optimization.sub_group_size", "", "the optimizer works unit by unit"),
    NO_EFFECT("zero_optimization.stage3_max_live_parameters", "", PACE),
    NO_EFFECT("zero_optimization.stage3_max_reuse_distance", "", PACE),
    NO_EFFECT("zero_optimization.stage3_prefetch_bucket_size", "", PACE),
    NO_EFFECT("zero_optimization.stage3_param_persistence_threshold", "", "every unit is sharded whole"),
    NO_EFFECT("zero_optimization.stage3_model_persistence_threshold", "", "every unit is sharded whole"),
    NO_EFFECT("zero_optimization.stage3_gather_16bit_weights_on_model_save", "false", EXPORT),
    NO_EFFECT("zero_optimization.stage3_gather_fp16_weights_on_model_save", "false", EXPORT),
    NO_EFFECT("zero_optimization.stage3_module_granularity_threshold", "0", "a unit is what is gathered"),
    NO_EFFECT("zero_optimization.stage3_use_all_reduce_for_fetch_params", "false", PACE),
    NO_EFFECT("zero_optimization.stage3_allgather_sequential", "false", PACE),
    NO_EFFECT("zero_optimization.stage3_partition_stream_chunk_size", "0", "initial weights are made in place"),
    NO_EFFECT_WITH("zero_optimization.prefetch_bucket_size", "", "another name of stage3_…",
                   "param_persistence_threshold model_persistence_threshold max_live_parameters max_reuse_distance "
                   "gather_16bit_weights_on_model_save module_granularity_threshold use_all_reduce_for_fetch_params "
                   "allgather_sequential partition_stream_chunk_size"),
    NO_EFFECT("zero_optimization.ignore_unused_parameters", "true", "every parameter is used"),
    NO_EFFECT("zero_optimization.legacy_stage1", "false", "there is one implementation"),
    NO_EFFECT("zero_optimization.memory_efficient_linear", "false|true", "there is one implementation"),
    NO_EFFECT("zero_optimization.pipeline_loading_checkpoint", "false", "there is no pipeline"),
    NO_EFFECT("zero_optimization.override_module_apply", "false|true", "there are no modules"),
    NO_EFFECT("zero_optimization.log_trace_cache_warnings", "false", "the order of units is known, not traced"),
    NO_EFFECT("zero_optimization.enable_sanity_checks", "false", "--check-replicas-every compares ranks"),
    NO_EFFECT("zero_optimization.save_muon_momentum_buffer_in_memory", "false", OTHER),
    NO_EFFECT_ALL("zero_optimization.leaf_module", "a unit is what is gathered"),
    REFUSED("zero_optimization.zero_hpz_partition_size", "0|1", "no secondary copy; --shard-group shards within groups"),
    REFUSED("zero_optimization.zero_quantized_weights", "false", "not implemented"),
    REFUSED("zero_optimization.zero_quantized_nontrainable_weights", "false", "not implemented"),
    REFUSED("zero_optimization.zero_quantized_gradients", "false", "--reduce-dtype param halves what travels"),
    REFUSED_ALL("zero_optimization.zeropp_loco_param", "not implemented"),
    REFUSED_ALL("zero_optimization.zenflow", "not implemented"),
    REFUSED("zero_optimization.cpu_offload", "false", "an old name: write offload_optimizer: {device: cpu}"),
    REFUSED("zero_optimization.cpu_offload_param", "false", "an old name: write offload_param: {device: cpu}"),
    NO_EFFECT("zero_optimization.cpu_offload_use_pin_memory", "false|true", "host memory of copies is pinned"),
    BLOCK("zero_optimization.offload_param"),
    OWN("zero_optimization.offload_param.device", DS_TEXT, "--offload-params"),
    OWN("zero_optimization.offload_param.nvme_path", DS_TEXT, "--nvme-path, where the device is nvme"),
    NO_EFFECT("zero_optimization.offload_param.pin_memory", "false|true", "host memory of copies is pinned"),
    NO_EFFECT("zero_optimization.offload_param.buffer_count", "", NVME),
    NO_EFFECT("zero_optimization.offload_param.buffer_size", "", NVME),
    NO_EFFECT("zero_optimization.offload_param.max_in_cpu", "", NVME),
    BLOCK("zero_optimization.offload_optimizer"),
    OWN("zero_optimization.offload_optimizer.device", DS_TEXT, "--offload-optimizer"),
    OWN("zero_optimization.offload_optimizer.nvme_path", DS_TEXT, "--nvme-path, where the device is nvme"),
    NO_EFFECT("zero_optimization.offload_optimizer.pin_memory", "false|true", "host memory of copies is pinned"),
    NO_EFFECT("zero_optimization.offload_optimizer.buffer_count", "", NVME),
    NO_EFFECT("zero_optimization.offload_optimizer.pipeline_read", "false|true", "I/O overlaps with the update"),
    NO_EFFECT("zero_optimization.offload_optimizer.pipeline_write", "false|true", "I/O overlaps with the update"),
    NO_EFFECT("zero_optimization.offload_optimizer.fast_init", "false|true", "initial state is written once"),
    NO_EFFECT("zero_optimization.offload_optimizer.convert_grad_on_cpu", "false|true", "they travel in --grad-dtype"),
    NO_EFFECT("zero_optimization.offload_optimizer.cpuadam_cores_perc", "", "--threads says it"),
    REFUSED("zero_optimization.offload_optimizer.ratio", "1", "all of the optimizer state is offloaded, or none"),
    REFUSED("zero_optimization.offload_optimizer.super_offload", "false", "not implemented"),
    BLOCK("aio"),
    NO_EFFECT_WITH("aio.block_size", "", NVME,
                   "queue_depth thread_count intra_op_parallelism single_submit overlap_events use_gds"),

    // ---- parallelism that is not there ----
    BLOCK("tensor_parallel"),
    REFUSED_WITH("tensor_parallel.autotp_size", "0|1", "there is no tensor parallelism; --zero 3 shards the parameters",
                 "preset_model tp_overlap_comm vocab_parallel_lm_head tp tp_size tp_grain_size mpu tp_group "
                 "keep_module_on_host replace_with_kernel_inject"),
    BLOCK("tensor_parallel.partition_config"),
    NO_EFFECT_ALL("tensor_parallel.partition_config.layer_specs", "there is no tensor parallelism"),
    NO_EFFECT("tensor_parallel.partition_config.use_default_specs", "false|true", "there is no tensor parallelism"),
    BLOCK("expert_parallel"),
    REFUSED_WITH("expert_parallel.enabled", "false", "models here have no experts",
                 "autoep_size expert_tensor_parallel_size async_split_plan preset_model use_grouped_mm "
                 "disable_triton_grouped_mm moe_layer_pattern router_pattern expert_pattern score_func score_apply combine_impl "
                 "route_norm route_scale top_k routed_scaling_factor num_expert_groups num_limited_groups load_balance_coeff "
                 "expert_w1 expert_w2 expert_w3 num_experts_attr top_k_attr has_shared_experts shared_experts_pattern "
                 "comm_backend"),
    NO_EFFECT("use_data_before_expert_parallelism", "false", "models here have no experts"),
    NO_EFFECT_ALL("pipeline", "there is no pipeline parallelism"),
    BLOCK("hybrid_engine"),
    REFUSED_WITH("hybrid_engine.enabled", "false", "this program pretrains", "max_out_tokens inference_tp_size "
                 "release_inference_cache pin_parameters tp_gather_partition_size enable_cuda_graph"),

    // ---- logging ----
    NO_EFFECT("disable_python_gc", "false|true", "there is no Python"),
    FLAG("steps_per_print", DS_NUMBER, "log-every"),
    NO_EFFECT("wall_clock_breakdown", "false", "each step logs its seconds and waits; --trace FILE has every unit's"),
    NO_EFFECT("memory_breakdown", "false", "the table of memory is printed at start"),
    NO_EFFECT("dump_state", "false", "--print-config prints the options"),
    NO_EFFECT("log_level", "", "there are no levels"),
    NO_EFFECT_ALL("timers", "--trace FILE has every unit's times"),
    BLOCK("autotuning"),
    REFUSED_WITH("autotuning.enabled", "false", "--plan shows what each stage needs, and what fits", "results_dir exps_dir "
                 "overwrite metric start_profile_step end_profile_step fast max_train_batch_size mp_size "
                 "num_tuning_micro_batch_sizes tuner_type tuner_early_stopping tuner_num_trials arg_mappings"),
    BLOCK("flops_profiler"),
    NO_EFFECT_WITH("flops_profiler.enabled", "false", "each step logs its fraction of the measured peak",
                   "profile_step module_depth top_modules detailed output_file recompute_fwd_factor"),

    // ---- activation checkpointing: whether to recompute is the model's own code in DeepSpeed, and --recompute here ----
    BLOCK("activation_checkpointing"),
    NO_EFFECT("activation_checkpointing.partition_activations", "false", "for model parallelism; see --recompute"),
    NO_EFFECT("activation_checkpointing.contiguous_memory_optimization", "false", "they lie together; see --recompute"),
    NO_EFFECT("activation_checkpointing.number_checkpoints", "false", "each block is one checkpoint; see --recompute"),
    NO_EFFECT("activation_checkpointing.synchronize_checkpoint_boundary", "false", "streams are ordered by events"),
    NO_EFFECT("activation_checkpointing.profile", "false", "--trace FILE has every unit's times"),
    FLAG("activation_checkpointing.cpu_checkpointing", DS_SWITCH, "offload-activations"),

    // ---- data ----
    BLOCK("data_efficiency"),
    REFUSED_WITH("data_efficiency.enabled", "false", ORDER, "seed"),
    NO_EFFECT_ALL("data_efficiency.data_routing", "goes with data_efficiency.enabled"),
    NO_EFFECT_ALL("data_efficiency.data_sampling", "goes with data_efficiency.enabled"),
    BLOCK("curriculum_learning"),
    REFUSED_WITH("curriculum_learning.enabled", "false", ORDER,
                 "curriculum_type min_difficulty max_difficulty schedule_type"),
    NO_EFFECT_ALL("curriculum_learning.schedule_config", "goes with curriculum_learning.enabled"),
    NO_EFFECT("vocabulary_size", "", "--vocab-size, or the shards, say it"),

    // ---- monitors ----
    BLOCK("tensorboard"),
    NO_EFFECT_WITH("tensorboard.enabled", "false", LOG, "output_path job_name"),
    BLOCK("wandb"),
    NO_EFFECT_WITH("wandb.enabled", "false", LOG, "group team project"),
    BLOCK("comet"),
    NO_EFFECT_WITH("comet.enabled", "false", LOG,
                   "workspace project samples_log_interval experiment_name api_key experiment_key online mode"),
    BLOCK("csv_monitor"),
    NO_EFFECT_WITH("csv_monitor.enabled", "false", LOG, "output_path job_name"),
    BLOCK("comms_logger"),
    NO_EFFECT_WITH("comms_logger.enabled", "false", "each step logs bytes and waits of every collective",
                   "verbose prof_all debug prof_ops"),

    // ---- checkpoints ----
    BLOCK("checkpoint"),
    NO_EFFECT("checkpoint.tag_validation", "\"Ignore\"|\"Warn\"|\"Fail\"", "ranks agree on a checkpoint"),
    NO_EFFECT("checkpoint.load_universal", "false", "every checkpoint loads at any number of ranks"),
    NO_EFFECT_ALL("checkpoint.parallel_write", "each rank writes its own file"),
    REFUSED("checkpoint.use_node_local_storage", "false", "--out must be one directory that every rank sees"),
    NO_EFFECT_ALL("nebula", "checkpoints go to --out"),
    NO_EFFECT_ALL("datastates", "checkpoints go to --out"),

    // ---- other things that change what is computed ----
    BLOCK("compile"),
    NO_EFFECT_WITH("compile.deepcompile", "false", "this program is compiled", "passes offload_activation "
                   "offload_activation_pin_memory free_activation offload_opt_states double_buffer symmetric_memory "
                   "debug_log offload_parameters sync_before_reduce sync_after_reduce sync_before_allgather "
                   "sync_after_allgather keep_int_input_tensors keep_all_input_tensors enabled backend kwargs"),
    NO_EFFECT("graph_harvesting", "false", "kernels are launched as they are"),
    BLOCK("progressive_layer_drop"),
    REFUSED_WITH("progressive_layer_drop.enabled", "false", "not implemented", "theta gamma"),
    BLOCK("eigenvalue"),
    REFUSED_WITH("eigenvalue.enabled", "false", "not implemented",
                 "verbose max_iter tol stability gas_boundary_resolution layer_name layer_num"),
    BLOCK("elasticity"),
    REFUSED_WITH("elasticity.enabled", "false", "any number of ranks can resume a run: give the batch itself",
                 "max_train_batch_size micro_batch_sizes min_gpus max_gpus min_time prefer_larger_batch "
                 "ignore_non_elastic_batch_info version model_parallel_size num_gpus_per_node"),
    REFUSED_ALL("sparse_attention", "attention is dense and causal"),
    REFUSED_ALL("compression_training", "not implemented"),
    REFUSED_ALL("quantize_training", "not implemented"),
    REFUSED_ALL("weight_quantization", "not implemented"),
};
// clang-format on

const int n_deepspeed_keys = sizeof deepspeed_keys / sizeof *deepspeed_keys;
