"""Load a model, ask it a question and print what it writes.   python infer.py --help"""

import json
import sys
import time
from pathlib import Path

import torch

from minvenus.config import InferConfig, ModelConfig
from minvenus.flags import parse_flags, save_config
from minvenus.model import weights
from minvenus.model.qwen3 import Qwen3
from minvenus.text.chat import Stream
from minvenus.text.tokenizer import Tokenizer

SYSTEM = "You are a research assistant. Think first, then put the answer inside <answer></answer>."


def main(config: InferConfig) -> str:
    """Returns the text that the model wrote; it is also saved, with the resolved config, in the run's folder."""
    path = save_config(config, config.out)
    start = time.perf_counter()
    model, tokenizer = load(config)
    shape, count = model.config, sum(p.numel() for p in model.parameters())
    kind = "random weights" if config.model == "tiny" else f"weights from {config.model}"
    print(f"model      {count:,} parameters, {kind}: {shape.num_hidden_layers} layers, hidden {shape.hidden_size}, "
          f"{shape.num_attention_heads} query and {shape.num_key_value_heads} kv heads of {shape.head_dim}")
    print(f"tokenizer  {tokenizer.size:,} ids")
    print(f"loaded     in {time.perf_counter() - start:.2f} s, {model.head_weight.dtype} on {model.head_weight.device}")

    stream = Stream(tokenizer, SYSTEM, config.question)
    prompt = len(stream.ids)
    start = time.perf_counter()
    stream.add_turn(generate(model, tokenizer, stream.ids, config))
    seconds, new = time.perf_counter() - start, sum(stream.sampled)
    text = tokenizer.decode(stream.ids[prompt:])
    print(f"question   {config.question}")
    print(f"wrote      {text!r}")
    print(f"speed      {new} tokens after a prompt of {prompt} in {seconds:.2f} s: {new / seconds:.0f} tokens/s")
    if config.model == "tiny":
        print("           (the tiny model is untrained, so its text means nothing yet)")
    output = Path(config.out) / "output.json"
    output.write_text(json.dumps({"question": config.question, "text": text}, ensure_ascii=False, indent=2) + "\n")
    print(f"saved      {path} and {output}")
    return text


def load(config: InferConfig) -> tuple[Qwen3, Tokenizer]:
    """The tiny model with random weights, or a checkpoint with the tokenizer beside it."""
    device = ("cuda" if torch.cuda.is_available() else "cpu") if config.device == "auto" else config.device
    dtype = torch.bfloat16 if device == "cuda" else torch.float32          # bfloat16 is slow on most CPUs
    if config.model == "tiny":
        return Qwen3(ModelConfig.preset("tiny"), seed=config.seed).to(device, dtype), Tokenizer.tiny()
    return weights.load(config.model, device, dtype), Tokenizer.from_file(config.model)


@torch.no_grad()
def generate(model: Qwen3, tokenizer: Tokenizer, prompt: list[int], config: InferConfig) -> list[int]:
    """Sample until a stop id, running the whole context anew for every token: the definition, without a cache."""
    device = model.head_weight.device
    generator = torch.Generator(device).manual_seed(config.seed)
    ids: list[int] = []
    while len(ids) < config.max_new_tokens and not (ids and ids[-1] in tokenizer.stop_ids):
        tokens = torch.tensor([prompt + ids], device=device)                                  # [1, L]
        logits = model(tokens)[0, -1, :tokenizer.size].float()     # the head may have more rows than there are tokens
        if config.temperature == 0:
            ids.append(int(logits.argmax()))
        else:
            probabilities = (logits / config.temperature).softmax(dim=-1)
            ids.append(int(torch.multinomial(probabilities, 1, generator=generator)))
    return ids


if __name__ == "__main__":
    try:
        main(parse_flags(InferConfig, description=__doc__))
    except ValueError as error:                                    # a checkpoint or a tokenizer that cannot be used
        print(f"infer.py: {error}", file=sys.stderr)
        sys.exit(2)
