"""The memory that a run needs on each process, from the model's shape and the settings: `--plan`.
Leave a tenth of a card free, for scoring and for what torch's allocator cannot fill."""

import torch

from minvenus.config import ConfigError
from minvenus.kernels.logprob import TILE
from minvenus.model.precision import PRECISION, device_of
from minvenus.model.qwen3 import Qwen3
from minvenus.train.settings import PAGE_SIZE, IGPOConfig, SFTConfig, model_shape

TOTAL = "device, at most"


def memory_plan(config: SFTConfig | IGPOConfig, processes: int, device: str) -> dict[str, float]:
    """Bytes of each part; "host inputs" lie in the host's memory."""
    shape = model_shape(config.model)
    with torch.device("meta"):
        model = Qwen3(shape)
    size = sum(parameter.numel() for parameter in model.parameters())
    matrices = [p for p in model.model.layers.parameters() if p.dim() == 2]
    adapters = config.lora_rank * sum(sum(matrix.shape) for matrix in matrices)
    trained = adapters or size
    head_gradient = 0 if adapters else 4 * model.head_weight.numel()
    number = PRECISION[device].engine.itemsize          # bytes of a number in products and pages
    casts = 0 if adapters or number == 4 else number * size

    # numbers that a layer keeps of a token; its backward pass adds four tensors of the MLP
    tokens = config.pack_tokens
    queries = shape.num_attention_heads * shape.head_dim
    keys = shape.num_key_value_heads * shape.head_dim
    kept = 8 * shape.hidden_size + 4 * (queries + keys + shape.intermediate_size)
    layers = kept if config.recompute else kept * shape.num_hidden_layers
    inputs = shape.num_hidden_layers * shape.hidden_size if config.recompute else 0

    always = {
        "weights": (number * size + 4 * adapters if adapters else 4 * size) / processes,
        "moments": 8 * trained / processes,
    }
    update = {
        "gradients": (4 * trained + casts) / processes,
        "host inputs" if config.offload else "layer inputs": number * tokens * inputs,
        "layers": number * tokens * (layers + 4 * shape.intermediate_size),
        "logits": 8 * min(TILE, tokens * shape.vocab_size) + head_gradient,
    }
    rollouts = {}
    if isinstance(config, IGPOConfig):
        frozen = config.gain_policy == "reference"      # the start checkpoint scores, too
        shared = device == "cpu" and processes == 1 and not adapters
        reference = (config.loss.kl_coef or frozen) and not adapters
        always["reference"] = number * size / processes if reference else 0
        always["engine copy"] = number * size * ((not shared) + (frozen and processes > 1))
        page = 2 * number * shape.num_hidden_layers * keys * PAGE_SIZE
        rollouts["pages"] = page * config.pages * (1 + frozen)

    on_device = sum(amount for name, amount in update.items() if name != "host inputs")
    most = sum(always.values()) + max(on_device, sum(rollouts.values()))
    return always | rollouts | update | {TOTAL: most}


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
                              f"{plan_table(config, processes)}")
