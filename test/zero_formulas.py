"""What DESIGN promises of bytes, worked out from the shapes alone: the layout, messages sent and memory of one rank.

Written a second time on purpose, from the description and not from the C sources.
"""

DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


def round_up(n, multiple):
    return -(-n // multiple) * multiple


def unit_lens(model):
    """Elements of each unit: tensors one after the other, each start aligned to 64."""
    c, f, v, layers = model["channels"], model["ffn"], model["vocab_size"], model["layers"]
    a = model["heads"] * model["head_dim"]
    qkv = a + 2 * model["kv_heads"] * model["head_dim"]
    if model["arch"] == "gpt2":
        first = [v * c, model["max_seq_len"] * c]
        block = [c, c, qkv * c, qkv, c * a, c, c, c, f * c, f, c * f, c]
        last = [c, c]
    else:
        first = [v * c]
        block = [c, qkv * c, c * a, c, 2 * f * c, c * f]
        last = [c]
    if not model["tie"]:
        last.append(v * c)
    return [sum(round_up(tensor, 64) for tensor in unit) for unit in [first] + [block] * layers + [last]]


def shard_lens(model, ranks, group):
    return [round_up(n, 64 * ranks) // group for n in unit_lens(model)]


def gathers(n_units, tied, accum, after_forward):
    """How often a step of stage 3 gathers each unit, given what is still in a slot: two slots for blocks, used in turn, and one
    for the first and last unit, or both of them where the head is tied. after_forward: an evaluation came between the last
    update and this step."""
    counts, slots = [0] * n_units, {}

    def need(unit):
        ends = unit in (0, n_units - 1)
        slot = ("end", unit if tied else 0) if ends else ("block", unit % 2)
        if slots.get(slot) != unit:
            slots[slot] = unit
            counts[unit] += 1

    for unit in range(n_units if after_forward else 0):
        need(unit)
    counts[:] = [0] * n_units
    for _ in range(accum):
        for unit in range(n_units):
            need(unit)
        for unit in range(n_units - 2, 0, -1):
            need(unit)
    return counts


def bytes_sent(config, ranks, after_forward=False):
    """Bytes that a rank sends in one step, by collective. One host: plain ZeRO reduces in one level."""
    zero, precision = config["zero"], config["precision"]
    stage, accum = zero["zero"], config["batch"]["grad_accum"]
    group = zero["shard_group"] or ranks
    element = DTYPE_BYTES[precision["dtype"]]
    gradient = element if precision["grad_dtype"] == "param" else 4
    wire = element if precision["reduce_dtype"] == "param" else 4
    shards = shard_lens(config["model"], ranks, group)
    reductions = accum if stage >= 2 else 1
    sent = {"all_gather": 0, "reduce_scatter": reductions * (group - 1) * sum(shards) * wire,
            "all_reduce": reductions * (ranks // group - 1) * sum(shards) * 4}
    if stage == 3:
        counts = gathers(len(shards), config["model"]["tie"], accum, after_forward)
        sent["all_gather"] = (group - 1) * element * sum(n * shard for n, shard in zip(counts, shards))
    else:
        sent["all_gather"] = (group - 1) * sum(shards) * (gradient if stage == 0 else element)
    return sent


def state_bytes(config, ranks):
    """Bytes of a rank's parameters, gradients, optimizer state and slots."""
    zero, precision = config["zero"], config["precision"]
    stage, tied = zero["zero"], config["model"]["tie"]
    group = zero["shard_group"] or ranks
    element = DTYPE_BYTES[precision["dtype"]]
    gradient = element if precision["grad_dtype"] == "param" else 4
    moments = 4 if config["optimizer"]["optimizer"] == "sgd" else 8
    shards = shard_lens(config["model"], ranks, group)
    full = [n * group for n in shards]
    ends = full[0] + full[-1] if tied else max(full[0], full[-1])
    slots = min(2, len(full) - 2) * full[1] + ends
    return {"parameters": sum(shards if stage == 3 else full) * element,
            "gradients": sum(shards if stage >= 2 else full) * gradient,
            "optimizer": sum(shards if stage >= 1 else full) * (moments + (0 if precision["dtype"] == "fp32" else 4)),
            "slots": slots * ((element if stage == 3 else 0) + (4 if stage >= 2 or gradient != 4 else 0))}
