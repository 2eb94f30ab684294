"""`--plan`: the memory that a run needs, from the model's shape and the settings."""

import torch

from minvenus.config import ConfigError
from minvenus.kernels.logprob import TILE
from minvenus.model.precision import PRECISION, device_of
from minvenus.model.qwen3 import MLP_TOKENS, Qwen3
from minvenus.train.settings import PAGE_SIZE, IGPOConfig, SFTConfig, model_shape

FRAGMENTS = 0.06            # of all parts: what torch's allocator cannot fill (docs/scale.md)
TOTAL = "device, at most"


def memory_plan(config: SFTConfig | IGPOConfig, processes: int, device: str) -> dict[str, float]:
    """Bytes of each part on each process; the host's, which is pinned, is that of all together."""
    shape = model_shape(config.model)
    with torch.device("meta"):
        model = Qwen3(shape)
    size = sum(parameter.numel() for parameter in model.parameters())
    block = sum(parameter.numel() for parameter in model.model.layers[0].parameters())
    matrices = [p for p in model.model.layers.parameters() if p.dim() == 2]
    adapters = config.lora_rank * sum(sum(matrix.shape) for matrix in matrices)
    head = model.head_weight.numel()
    number = PRECISION[device].engine.itemsize          # bytes of a number in products and pages
    copies = 0 if adapters or number == 4 else number * size     # autocast's
    if processes > 1:     # FSDP2: two blocks, a gradient (in float32, too), the head and its own
        copies = number * (3 * block + 2 * head) + 4 * block
    # numbers that a layer keeps of a token; its backward pass adds two tensors of the MLP
    tokens = config.pack_tokens
    keys = shape.num_key_value_heads * shape.head_dim
    attention = shape.num_attention_heads * shape.head_dim + keys
    kept = number * tokens * (9 * shape.hidden_size + 4 * (attention + shape.intermediate_size))
    layers = kept if config.recompute else kept * shape.num_hidden_layers
    tile = min(TILE, tokens * shape.vocab_size)
    inputs = number * tokens * shape.num_hidden_layers * shape.hidden_size * config.recompute
    weights = number * size + 4 * adapters if adapters else 4 * size
    always = {"weights": weights / processes, "moments": 8 * (adapters or size) / processes}
    update = {"gradients": 4 * (adapters or size) / processes, "weight copies": copies}
    update["layer inputs"] = 0 if config.offload else inputs
    layers += number * 2 * shape.intermediate_size * min(tokens, MLP_TOKENS)
    logits = 4 * tokens * shape.hidden_size + (10 * tile if adapters else 6 * tile + 8 * head)
    passes = {"layers": layers, "logits": logits}        # one after the other

    rollouts = {}
    if isinstance(config, IGPOConfig):
        frozen = config.gain_policy == "reference"      # the start checkpoint scores, too
        shared = device == "cpu" and processes == 1 and not adapters
        reference = (config.loss.kl_coef or frozen) and not adapters
        always["reference"] = number * size / processes if reference else 0
        always["engine copy"] = number * size * ((not shared) + (frozen and processes > 1))
        page = 2 * number * shape.num_hidden_layers * keys * PAGE_SIZE
        rollouts = {"pages": page * config.pages * (1 + frozen), "scoring": 8 * tile}
    update_sum = sum(update.values()) + max(passes.values())
    most = sum(always.values()) + max(update_sum, sum(rollouts.values()))
    lost = FRAGMENTS * most if device == "cuda" else 0
    totals = {"fragments": lost, TOTAL: most + lost, "host": processes * inputs * config.offload}
    return always | rollouts | update | passes | totals


def plan_table(config: SFTConfig | IGPOConfig, processes: int = 1) -> str:
    device = "cuda" if config.device == "cuda" else device_of(config.device)
    counts = sorted({processes, 8}) if device == "cuda" else [processes]
    plans = [memory_plan(config, count, device) for count in counts]
    head = f"{config.model}, preset {config.preset}, device {device}\nGB of each process, of"
    lines = [head + "".join(f"{count:>8}" for count in counts)]
    for name in plans[0]:
        lines.append(f"  {name:<20}" + "".join(f"{plan[name] / 1e9:8.2f}" for plan in plans))
    return "\n".join(lines)


def check_memory(config: SFTConfig | IGPOConfig, processes: int) -> None:
    """On a GPU, refuse at the start what cannot fit. On a CPU the system decides."""
    if device_of(config.device) == "cuda":
        room = torch.cuda.mem_get_info()[0]
        if memory_plan(config, processes, "cuda")[TOTAL] > room:
            raise ConfigError(f"{room / 1e9:.1f} GB of the device are free, too little: lower "
                              "--pages, --pack-tokens or the context, add --recompute, --offload "
                              "or --lora-rank, or start more processes\n"
                              + plan_table(config, processes))
