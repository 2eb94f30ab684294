"""What a run needs of a device's memory, by part, from the model's shape and the settings; nothing is loaded.

    loading     with several processes, the whole model on each, before its rows are split
    always      weights, Adam's moments, reference, engine copy
    rollouts    pages of keys and values, what one step of the engine computes
    update      gradients, what the forward pass keeps for the backward pass, largest temporary

Pages exist during rollouts only, gradients and layers during the update only: a process needs the largest of these
sums. With N processes each has 1/N of what is trained, and a whole engine copy. With --sequence-parallel P it has 1/P
of a pack's tokens. docs/scale.md has the plans of the presets; tests/train/test_plan.py holds the numbers against
measured ones.
"""

from dataclasses import dataclass
from operator import mul

import torch
from torch import nn

from minvenus.config import ConfigError, ModelConfig
from minvenus.kernels.logprob import TILE
from minvenus.model.precision import PRECISION
from minvenus.model.qwen3 import Qwen3
from minvenus.model.weights import device_of
from minvenus.settings import IGPOConfig, SFTConfig, model_shape

PAGE_SIZE = 16           # tokens of a page in training
STEP_TOKENS = 4096       # that the engine prefills at once
GB = 10**9

# Bytes that autograd keeps per token and layer: for each channel of the hidden state, of the queries, of the keys, and
# of the MLP. By the bytes of a product's number, and by what is trained: all, all of it split over processes, or
# adapters. Counted, not derived.
KEPT = {(4, "all"): (24, 20, 16, 16), (4, "adapters"): (16, 16, 12, 16),
        (2, "all"): (26, 12, 10, 8), (2, "split"): (16, 12, 10, 8), (2, "adapters"): (12, 10, 8, 8)}


@dataclass(frozen=True)
class Part:
    name: str
    bytes: float
    when: str                # loading, always, rollouts, update
    note: str = ""


@dataclass(frozen=True)
class Plan:
    """The memory of one of `processes` processes."""

    parts: list[Part]
    processes: int

    def peak(self, when: str) -> float:
        return sum(part.bytes for part in self.parts if part.when in ("always", when))

    @property
    def bytes(self) -> float:
        return max(self.of("whole model"), self.peak("rollouts"), self.peak("update"))

    def of(self, name: str) -> float:
        return sum(part.bytes for part in self.parts if part.name == name)


def make_plan(config: SFTConfig | IGPOConfig, shape: ModelConfig, processes: int, device: str) -> Plan:
    """The plan of one process, on a device of this kind."""
    with torch.device("meta"):
        model = Qwen3(shape)
    parts = trainer_parts(config, model, processes, device)
    if isinstance(config, IGPOConfig):
        parts += engine_parts(config, model, processes, device)
    return Plan(parts, processes)


def trainer_parts(config: SFTConfig | IGPOConfig, model: Qwen3, processes: int, device: str) -> list[Part]:
    precision, shape = PRECISION[device], model.config
    frozen, number = precision.engine.itemsize, (precision.compute or torch.float32).itemsize          # bytes
    size = count(model)
    adapters = config.lora_rank * sum(sum(p.shape) for p in model.model.layers.parameters() if p.dim() == 2)
    trained = adapters or size
    cast = number < 4 and not adapters and processes == 1      # several processes gather weights that are cast already
    what = "adapters" if adapters else "all" if cast or number == 4 else "split"
    weights = frozen * size + 4 * adapters if adapters else 4 * size
    tokens = -(-config.pack_tokens // config.sequence_parallel)
    stream = 4 if cast else number                             # bytes of a number between two layers
    channels = (shape.hidden_size, shape.num_attention_heads * shape.head_dim,
                shape.num_key_value_heads * shape.head_dim, shape.intermediate_size)
    layer = tokens * (sum(map(mul, KEPT[number, what], channels)) + 7 * number * config.lora_rank)
    every_layer, inputs = shape.num_hidden_layers * layer, shape.num_hidden_layers * tokens * stream * shape.hidden_size
    last_norm = {"all": 12, "split": 8, "adapters": 4 + stream}[what]
    ends = tokens * (last_norm * shape.hidden_size + 8 * shape.head_dim)                        # and the rotation
    backward = 2 * tokens * shape.intermediate_size * number
    # log-probs and entropies: two tiles of logits, and the gradient that a pack gives the head
    logits = 2 * 4 * min(TILE, tokens * shape.vocab_size) + (0 if adapters else 4 * model.head_weight.numel())
    temporary = max(logits, backward + layer) if config.recompute else max(logits, backward)
    parts = [
        Part("weights", weights / processes, "always", f"{size:,} parameters, {trained:,} of them trained"),
        Part("Adam", 8 * trained / processes, "always", "two moments of what is trained, float32"),
        Part("gradients", 4 * trained / processes, "update", "float32"),
        Part("layers", ends + (inputs if config.recompute else every_layer), "update",
             f"{tokens:,} tokens; {every_layer / GB:.2f} without --recompute, {inputs / GB:.2f} with it"),
        Part("temporary", temporary, "update", "the largest: logits, or the backward pass of a layer"),
    ]
    if cast:
        parts.append(Part("casts", number * size, "update", "weights in the type of the products"))
    if processes > 1:
        parts.append(Part("whole model", weights, "loading", "before its rows are split"))
        layer_size = count(model.model.layers[0])
        embeddings = size - shape.num_hidden_layers * layer_size
        # two layers and the embeddings at their whole size, and the gradients of one of each
        fetched = (2 * layer_size + embeddings) * number + (layer_size + embeddings) * 4
        parts.append(Part("gathered", fetched, "update", "layers whose rows have been fetched"))
    return parts


def engine_parts(config: IGPOConfig, model: Qwen3, processes: int, device: str) -> list[Part]:
    number, size, shape = PRECISION[device].engine.itemsize, count(model), model.config
    shared = device == "cpu" and processes == 1 and not config.lora_rank        # the engine runs the trained module
    pools = 2 if config.gain_policy == "reference" else 1
    parts = []
    if config.loss.kl_coef or config.gain_policy == "reference":
        note = "the weights without the adapters" if config.lora_rank else "the start checkpoint"
        parts.append(Part("reference", 0 if config.lora_rank else number * size / processes, "always", note))
    copies = (not shared) + (pools == 2 and processes > 1)                      # of the policy, and of the reference
    parts.append(Part("engine copy", copies * number * size, "always",
                      "the trained module itself" if shared else "whole on every process"))
    per_token = 2 * shape.num_hidden_layers * shape.num_key_value_heads * shape.head_dim * number
    pages = pools * config.pages * PAGE_SIZE * per_token
    at_once = config.pages * PAGE_SIZE // config.max_context
    parts.append(Part("pages", pages, "rollouts",
                      f"{config.pages * PAGE_SIZE:,} tokens of {per_token:,} bytes: {at_once} rollouts at full length"))
    if device == "cpu":
        parts.append(Part("CPU copies", pages + pools * number * size, "rollouts", "engine/decode.py, at most"))
    rows = min(-(-config.questions // processes) * config.group, config.pages)
    flat = 3 * shape.hidden_size + 3 * shape.intermediate_size + 2 * shape.num_attention_heads * shape.head_dim
    step = min(STEP_TOKENS, config.pages * PAGE_SIZE) * flat * number + 3 * rows * shape.vocab_size * 4
    parts.append(Part("engine step", step, "rollouts", f"{STEP_TOKENS:,} tokens, and logits of all rollouts"))
    return parts


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


# -------------------------------------------------------------------------------------------------- table and refusal


def plan_table(config: SFTConfig | IGPOConfig, processes: int = 1) -> str:
    """The plan as text: for this number of processes, and on GPUs also for 8 and 64 of them; for as many as share a
    pack where none of these will do."""
    device = "cuda" if config.device == "cuda" else device_of(config.device)
    shape, shared = model_shape(config.model), config.sequence_parallel
    if shape.num_key_value_heads % shared:
        raise ConfigError(f"sequence_parallel {shared} must divide the model's kv heads, {shape.num_key_value_heads}")
    counts = {processes, 8, 64} if device == "cuda" else {processes}
    fitting = sorted(count for count in counts if count % shared == 0) or [shared]
    plans = [make_plan(config, shape, count, device) for count in fitting]
    return f"{config.model}, preset {config.preset}, device {device}\n" + table(plans)


def table(plans: list[Plan]) -> str:
    parts = {part.name: part for plan in plans for part in plan.parts}
    lines = ["GB of each process, of" + "".join(f"{plan.processes:>10}" for plan in plans)]
    for when in ("loading", "always", "rollouts", "update"):
        for part in parts.values():
            if part.when == when:
                numbers = "".join(f"{plan.of(part.name) / GB:10.2f}" for plan in plans)
                lines.append(f"  {when:<9}{part.name:<11}{numbers}   {part.note}")
    for when in ("rollouts", "update"):
        if any(part.when == when for part in parts.values()):
            lines.append(f"  {'peak of ' + when:<20}" + "".join(f"{plan.peak(when) / GB:10.2f}" for plan in plans))
    return "\n".join(lines)


def check_memory(config: SFTConfig | IGPOConfig, processes: int) -> None:
    """On a GPU, refuse at the start what cannot fit. On a CPU the system decides."""
    device = device_of(config.device)
    if device == "cpu":
        return
    room = torch.cuda.mem_get_info()[0]
    plan = make_plan(config, model_shape(config.model), processes, device)
    if plan.bytes > room:
        raise ConfigError(f"this run needs {plan.bytes / GB:.1f} GB, {room / GB:.1f} GB of the device are free: lower "
                          "--pages, --pack-tokens or the context, add --recompute or --lora-rank, start more "
                          f"processes, or take a smaller model\n{table([plan])}")
