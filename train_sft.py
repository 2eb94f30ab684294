"""Stage one: supervised fine-tuning on trajectories.   python train_sft.py --help"""

from collections.abc import Iterable
from pathlib import Path

import torch

from minvenus.config import ConfigError
from minvenus.console import curve
from minvenus.files import read_jsonl
from minvenus.flags import parse_flags
from minvenus.model.qwen3 import Qwen3
from minvenus.model.weights import device_of, start_folder, start_model
from minvenus.settings import SFT_PRESETS, SFTConfig
from minvenus.sft import dataset
from minvenus.text.tokenizer import TINY, Tokenizer
from minvenus.tools.toyweb import ToyWeb
from minvenus.tools.toyweb_lessons import Teacher, demonstrations, notes
from minvenus.train.batch import batch_indices, fingerprint, hold_out
from minvenus.train.optim import adamw, learning_rate
from minvenus.train.run import Run, one_line_errors
from minvenus.train.update import sft_step, validation_loss

TEACHER = Teacher(wrong_result=0.5, wrong_relation=0.3, at_once=0.03, stop_early=0.05, cut_off=0.5)


def main(config: SFTConfig) -> Path:
    """Train, and return the folder of the trained model."""
    with Run("sft", config) as run:
        model, tokenizer = prepare(config)
        optimizer = adamw(model, (0.9, config.beta2), config.weight_decay)
        training, held_out = load_examples(config, tokenizer)

        def evaluate() -> dict:
            if not held_out:
                return {}
            return {"validation_loss": validation_loss(model, held_out, config.pack_tokens, config.reduction)}

        run.begin(model, optimizer, tokenizer.files, fingerprint(training + held_out), evaluate, config.validate_every)
        for step in run.steps():
            batch = [training[i] for i in batch_indices(step, config.batch, len(training), config.seed)]
            rate = learning_rate(step, config.steps, config.learning_rate, int(config.warmup * config.steps))
            numbers = sft_step(model, optimizer, batch, rate, config.clip, config.pack_tokens, config.reduction)
            run.lap("update", numbers["tokens"])
            run.counters["tokens_seen"] = run.counters.get("tokens_seen", 0) + numbers["tokens"]
            run.log(numbers | run.counters | {"epoch": step * config.batch / len(training)})
    if run.done == config.steps:
        print_summary(run.folder, run.model_folder, config)
    return run.model_folder


def prepare(config: SFTConfig) -> tuple[Qwen3, Tokenizer]:
    torch.manual_seed(config.seed)              # nothing draws from it, but its state is part of every checkpoint
    model = start_model(config.model, device_of(config.device), config.seed)
    tokenizer = Tokenizer.from_file(start_folder(config.model) or TINY)
    if config.max_tokens > model.config.max_position_embeddings:
        raise ConfigError(f"max_tokens is {config.max_tokens}, but the model reads "
                          f"{model.config.max_position_embeddings} tokens at most: lower max_tokens")
    model.model.recompute = config.recompute
    return model, tokenizer


def load_examples(config: SFTConfig, tokenizer: Tokenizer) -> tuple[list[dataset.Example], list[dataset.Example]]:
    """Training and held-out trajectories."""
    if config.data == "toyweb":
        web = ToyWeb(config.seed, hops=tuple(range(1, config.hops + 1)), train=config.demonstrations)
        taught = demonstrations(web, config.demonstrations, TEACHER, seed=config.seed)
        records: Iterable[dict] = ({"messages": messages} for messages in taught)
    else:
        records = dataset.read_records(config.data)
    examples, dropped = dataset.load(records, tokenizer, config.max_tokens)
    tokens, trained = sum(map(len, examples)), sum(example.trained for example in examples)
    print(f"data        {len(examples):,} trajectories, {tokens:,} tokens, {trained:,} of them trained")
    if dropped:
        print(f"            {dropped:,} dropped because they are too long")
    training, held_out = hold_out(examples, config.validation)
    print(f"            {len(held_out):,} held out, {len(training):,} trained on")
    if config.data == "toyweb" and config.replay:
        count = round(len(training) * config.replay / (1 - config.replay))
        replay = (notes(config.seed + 1, i) for i in range(count))
        training += [dataset.encode_pieces(pieces, tokenizer) for pieces in replay]
        print(f"            and {count:,} texts like those of the base's training, so that it forgets nothing")
    return training, held_out


def print_summary(folder: Path, model: Path, config: SFTConfig) -> None:
    """The curves of the losses, the folder of the model, and the command to run next."""
    rows = read_jsonl(folder / "metrics.jsonl")
    for name, key in (("loss", "loss"), ("validation", "validation_loss")):
        if values := [row[key] for row in rows if key in row]:
            print(f"{name:<11} {curve(values)}")
    print(f"model       {model}")
    if config.data == "toyweb":
        print(f"next        python train_igpo.py --model {model}")
        print("            python infer.py                 asks the newest model below runs/ a question of the toy web")
    else:
        print(f"next        python infer.py --model {model} --tools live --question ...")


if __name__ == "__main__":
    with one_line_errors("train_sft.py"):
        main(parse_flags(SFTConfig, description=__doc__, presets=SFT_PRESETS))
