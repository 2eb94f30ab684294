"""Stage one: supervised fine-tuning on trajectories.   python train_sft.py --help"""

import sys
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path

import torch

from minvenus.config import ConfigError
from minvenus.console import Progress, curve
from minvenus.files import claimed, latest_checkpoint
from minvenus.flags import parse_flags, save_config
from minvenus.model.qwen3 import Qwen3
from minvenus.model.weights import device_of, start_folder, start_model
from minvenus.settings import SFT_PRESETS, SFTConfig
from minvenus.sft import dataset
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools.toyweb import ToyWeb
from minvenus.tools.toyweb_lessons import Teacher, lessons, notes
from minvenus.train import checkpoint, metrics
from minvenus.train.data import batch_indices, fingerprint, split
from minvenus.train.optim import Diverged, adamw, learning_rate
from minvenus.train.sft import train_step, validation_loss
from minvenus.train.signals import stop_on_signals

TEACHER = Teacher(wrong_result=0.5, wrong_relation=0.3, at_once=0.03, stop_early=0.05, cut_off=0.5)


def main(config: SFTConfig) -> Path:
    """Train, and return the folder of the trained model."""
    with claimed(config.out, "training"):
        return train(config)


def train(config: SFTConfig) -> Path:
    run = Path(config.out)
    newest = latest_checkpoint(run)
    if newest and config.resume == "never":
        raise ConfigError(f"{run} holds a run already: choose another --out, remove it, or go on with --resume auto")
    model, tokenizer = prepare(config)
    optimizer = adamw(model, (0.9, config.beta2), config.weight_decay)
    state = checkpoint.restore(newest, model, optimizer, config) if newest else {}
    examples, held_out, data = load_examples(config, tokenizer)
    if newest and state["data"] != data:
        raise ConfigError(f"{newest} was trained on other trajectories than {config.data} holds now: use those or another --out")
    announce(config, model, save_config(config, run), newest)
    start, seen = state.get("step", 0), state.get("tokens_seen", 0)
    log, progress = metrics.Metrics(run, start), Progress("sft", start, config.steps)

    with stop_on_signals() as stop:
        for step in range(start, config.steps):
            batch = [examples[i] for i in batch_indices(step, config.batch, len(examples), config.seed)]
            rate = learning_rate(step, config.steps, config.learning_rate, int(config.warmup * config.steps))
            numbers, timing = train_step(model, optimizer, batch, rate, config.clip, config.pack_tokens, config.reduction)
            seen += numbers["tokens"]
            numbers |= {"tokens_seen": seen, "epoch": (step + 1) * config.batch / len(examples)}
            last = step + 1 == config.steps
            if held_out and (last or (step + 1) % config.validate_every == 0):
                numbers["validation_loss"] = validation_loss(model, held_out, config.pack_tokens, config.reduction)
            log.log(step + 1, numbers, timing)
            progress.show(step + 1, numbers, timing)
            stopping = bool(stop)                     # read once: a signal may come between here and the end of the step
            if last or stopping or (step + 1) % config.save_every == 0:
                log.sync()
                state = {"config": asdict(config), "data": data, "tokens_seen": seen}
                newest = checkpoint.save(run, step + 1, model, optimizer, state, tokenizer.files)
            if stopping and not last:
                progress.end()
                print(f"stopped after step {step + 1} of {config.steps}; the same command goes on from there")
                return newest / "model"
    summary(run, newest / "model", toy=config.data == "toyweb")
    return newest / "model"


def prepare(config: SFTConfig) -> tuple[Qwen3, Tokenizer]:
    torch.manual_seed(config.seed)              # nothing draws from it, but its state is part of every checkpoint
    model = start_model(config.model, device_of(config.device), config.seed)
    tokenizer = Tokenizer.of_model(start_folder(config.model))
    if config.max_tokens > model.config.max_position_embeddings:
        raise ConfigError(f"max_tokens is {config.max_tokens}, but the model reads {model.config.max_position_embeddings} tokens "
                          "at most: lower max_tokens")
    model.model.recompute = config.recompute
    return model, tokenizer


def load_examples(config: SFTConfig, tokenizer: Tokenizer) -> tuple[list[dataset.Example], list[dataset.Example], str]:
    """Training and held-out trajectories, and the fingerprint of both."""
    if config.data == "toyweb":
        web = ToyWeb(config.seed, hops=tuple(range(1, config.hops + 1)), train=config.demonstrations)
        taught = lessons(web, config.demonstrations, TEACHER, seed=config.seed)
        records: Iterable[dict] = ({"messages": lesson.messages} for lesson in taught)
    else:
        records = dataset.read_records(config.data)
    examples, loaded = dataset.load(records, tokenizer, config.max_tokens, config.overlong)
    print(f"data        {loaded}")
    training, held_out = split(examples, config.validation)
    print(f"            {len(held_out):,} held out, {len(training):,} trained on")
    if config.data == "toyweb" and config.replay:
        count = round(len(training) * config.replay / (1 - config.replay))
        replay = (notes(config.seed + 1, i) for i in range(count))
        training += [dataset.encode_pieces(pieces, tokenizer) for pieces in replay]
        print(f"            and {count:,} texts like those of the base's training, so that it forgets nothing")
    return training, held_out, fingerprint(training + held_out)


def announce(config: SFTConfig, model: Qwen3, saved: Path, newest: Path | None) -> None:
    changed = [f"{f.name} {getattr(config, f.name)}" for f in fields(config) if getattr(config, f.name) != f.default]
    print(f"model       {sum(p.numel() for p in model.parameters()):,} parameters on {model.head_weight.device}")
    print(f"settings    {', '.join(changed) or 'the defaults'}; all of them in {saved}")
    print(f"start       {newest or 'step 0'}", flush=True)


def summary(run: Path, model: Path, toy: bool) -> None:
    """How it went, where the model is, and what to do with it."""
    rows = metrics.read(run / "metrics.jsonl")
    print("loss        " + curve([row["loss"] for row in rows]))
    held_out = [row["validation_loss"] for row in rows if "validation_loss" in row]
    if held_out:
        print("validation  " + curve(held_out))
    print(f"model       {model}")
    if toy:
        print(f"next        python train_igpo.py --model {model}")
        if run.resolve().parent == Path("runs").resolve():
            print("            python infer.py                 asks the newest model below runs/ a question of the toy web")
    else:
        print(f"next        python infer.py --model {model} --tools live --question ...")


if __name__ == "__main__":
    try:
        main(parse_flags(SFTConfig, description=__doc__, presets=SFT_PRESETS))
    except (ValueError, OSError, Diverged) as error:
        print(f"\ntrain_sft.py: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("\ntrain_sft.py: stopped at once; the same command goes on from the last checkpoint", file=sys.stderr)
        sys.exit(130)
