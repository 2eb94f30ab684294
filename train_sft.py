"""Stage one: supervised fine-tuning on trajectories.   python train_sft.py --help"""

import sys
from dataclasses import asdict
from pathlib import Path

import torch

from minvenus.config import ConfigError, ModelConfig
from minvenus.flags import parse_flags, save_config
from minvenus.model import weights
from minvenus.model.qwen3 import Qwen3
from minvenus.report.terminal import Progress, curve
from minvenus.sft import dataset
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools.toyweb import ToyWeb
from minvenus.tools.toyweb_teachers import Teacher
from minvenus.train import checkpoint, metrics
from minvenus.train.config import SFT_PRESETS, SFTConfig
from minvenus.train.data import batch_indices
from minvenus.train.optim import Diverged, adamw, learning_rate
from minvenus.train.sft import train_step, validation_loss
from minvenus.train.signals import stop_on_signals


def main(config: SFTConfig) -> Path:
    """Train, and return the folder of the trained model."""
    run = Path(config.out)
    newest = checkpoint.latest(run) if config.resume == "auto" else None
    if newest is None and (run / "latest").exists():
        raise ConfigError(f"{run} holds a run already: choose another --out, remove it, or go on with --resume auto")
    model, tokenizer = start_model(config)
    optimizer = adamw(model, (0.9, config.beta2), config.weight_decay)
    start = checkpoint.restore(newest, model, optimizer, config)["step"] if newest else 0
    save_config(config, run)
    examples, held_out = load_examples(config, tokenizer)
    log, progress = metrics.Metrics(run, start), Progress("sft", start, config.steps)

    def save(step):
        return checkpoint.save(run, step, model, optimizer, {"config": asdict(config)}, tokenizer.files)

    with stop_on_signals() as stop:
        for step in range(start, config.steps):
            batch = [examples[i] for i in batch_indices(step, config.batch, len(examples), config.seed)]
            rate = learning_rate(step, config.steps, config.learning_rate, int(config.warmup * config.steps))
            numbers, timing = train_step(model, optimizer, batch, rate, config.clip, config.pack_tokens, config.reduction)
            last = step + 1 == config.steps
            if held_out and (last or (step + 1) % config.validate_every == 0):
                numbers["validation_loss"] = validation_loss(model, held_out, config.pack_tokens, config.reduction)
            log.log(step, numbers, timing)
            progress.show(step, numbers, timing)
            if last or stop or (step + 1) % config.save_every == 0:
                newest = save(step + 1)
            if stop:
                print(f"stopped after step {step + 1} of {config.steps}; the same command goes on from there")
                return newest / "model"
    summary(run, newest, config)
    return newest / "model"


def start_model(config: SFTConfig) -> tuple[Qwen3, Tokenizer]:
    """The tiny model with random weights, or a checkpoint with the tokenizer beside it; parameters in float32."""
    device = ("cuda" if torch.cuda.is_available() else "cpu") if config.device == "auto" else config.device
    torch.manual_seed(config.seed)              # nothing draws from it, but its state is part of every checkpoint
    if config.model == "tiny":
        model, tokenizer = Qwen3(ModelConfig.preset("tiny"), seed=config.seed).to(device), Tokenizer.tiny()
    else:
        model, tokenizer = weights.load(config.model, device), Tokenizer.from_file(config.model)
    model.model.recompute = config.recompute
    return model, tokenizer


def load_examples(config: SFTConfig, tokenizer: Tokenizer) -> tuple[list[dataset.Example], list[dataset.Example]]:
    """Training and held-out trajectories."""
    if config.data == "toyweb":
        web = ToyWeb(config.seed, hops=tuple(range(1, config.hops + 1)), train=config.demonstrations)
        teacher = Teacher(wrong_result=config.wrong_result, wrong_relation=config.wrong_relation, at_once=config.at_once)
        records = ({"messages": messages} for messages in web.demonstrations(config.demonstrations, teacher, seed=config.seed))
    else:
        records = dataset.read_jsonl(config.data)
    examples, loaded = dataset.load(records, tokenizer, config.max_tokens, config.overlong)
    if len(examples) <= config.validation:
        raise ConfigError(f"{len(examples)} trajectories are not enough to hold {config.validation} out for validation")
    cut = len(examples) - config.validation
    print(f"data: {loaded}; {config.validation} held out")
    return examples[:cut], examples[cut:]


def summary(run: Path, newest: Path, config: SFTConfig) -> None:
    rows = metrics.read(run / "metrics.jsonl")
    print("loss        " + curve([row["loss"] for row in rows]))
    held_out = [row["validation_loss"] for row in rows if "validation_loss" in row]
    if held_out:
        print("validation  " + curve(held_out))
    print(f"model       {newest / 'model'}")
    print(f"next        python infer.py --model {newest / 'model'}")


if __name__ == "__main__":
    try:
        main(parse_flags(SFTConfig, description=__doc__, presets=SFT_PRESETS))
    except (ValueError, Diverged) as error:
        print(f"train_sft.py: {error}", file=sys.stderr)
        sys.exit(2)
