"""Stage one: supervised fine-tuning on trajectories."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from minvenus.agent.prompt import AgentFormat, read_format
from minvenus.config import ConfigError
from minvenus.console import one_line_errors
from minvenus.evaluation.questions import batch_indices
from minvenus.files import read_records, step_name
from minvenus.flags import parse_flags
from minvenus.model.qwen3 import Qwen3
from minvenus.model.weights import start_folder
from minvenus.sft import dataset
from minvenus.sft.dataset import Example
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools.toyweb import ToyWeb
from minvenus.tools.toyweb_lessons import Teacher, demonstrations, notes
from minvenus.train.checkpoint import load_start
from minvenus.train.optim import adamw
from minvenus.train.parallel import processes, size
from minvenus.train.plan import plan_table
from minvenus.train.presets import SFT_PRESETS
from minvenus.train.run import Run, open_run
from minvenus.train.settings import SFTConfig
from minvenus.train.sft import (
    fingerprint,
    hold_out,
    learning_rate,
    sft_step,
    validation_loss,
)

TEACHER = Teacher(wrong_relation=0.3, at_once=0.03, stop_early=0.05, cut_off=0.5)


def main(config: SFTConfig) -> Path:
    """Train, and return the folder of the trained model."""
    with open_run("sft", config) as run:
        model, tokenizer = load_start(config)
        longest = model.config.max_position_embeddings
        if config.max_tokens > longest:
            raise ConfigError(f"max_tokens is {config.max_tokens}, but the model reads {longest} "
                              "tokens at most: lower max_tokens")
        optimizer = adamw(model, (0.9, 0.95), config.weight_decay)
        training, held_out, prompts = load_examples(config, tokenizer)

        files = tokenizer.files | prompt_format(config, prompts).files
        data = fingerprint(training + held_out)
        warmup = int(config.warmup * config.steps)
        for step in run.steps(model, optimizer, files, data):        # resumes; stops on signals
            validation = {}
            if step == 1:
                validation = validate(run, model, held_out, "before_validation_loss")
            indices = batch_indices(step, config.batch, len(training), config.seed)
            batch = [training[i] for i in indices]
            rate = learning_rate(step, config.steps, config.learning_rate, warmup)

            with run.update():
                numbers = sft_step(model, optimizer, batch, rate, config)

            numbers["epoch"] = step * config.batch / len(training)
            if run.is_due(config.evaluate_every):
                validation |= validate(run, model, held_out, "validation_loss")
            run.log(step, numbers | validation)
            if step % config.save_every == 0:
                run.save()
    return run.model_folder


def validate(run: Run, model: Qwen3, held_out: list[Example], name: str) -> dict[str, float]:
    """The loss on trajectories that are never trained on; {} where none is held out."""
    if not held_out:
        return {}
    with run.phase("evaluation"):
        return {name: validation_loss(model, held_out, run.config)}


def prompt_format(config: SFTConfig, prompts: set[str]) -> AgentFormat:
    """What the trained model will have learned to read.

    Its system prompt is that of the trajectories: not known if they have several.
    """
    like = "toyweb" if config.data == "toyweb" else config.like
    start = read_format(start_folder(config.model), like)
    return replace(start, system=min(prompts) if len(prompts) == 1 else None)


def load_examples(config: SFTConfig,
                  tokenizer: Tokenizer) -> tuple[list[Example], list[Example], set[str]]:
    """Training and held-out trajectories, and their system prompts."""
    prompts: set[str] = set()
    records = toyweb_records(config)
    if config.data != "toyweb":
        records = (record for _, record in read_records(config.data))
    examples, dropped = dataset.load(records, tokenizer, config.max_tokens, prompts)
    tokens = sum(map(len, examples))
    trained = sum(example.trained for example in examples)
    print(f"data        {len(examples):,} trajectories, {tokens:,} tokens, {trained:,} of them "
          "trained")
    if dropped:
        print(f"            {dropped:,} dropped because they are too long")

    training, held_out = hold_out(examples, config.validation)
    print(f"            {len(held_out):,} held out, {len(training):,} trained on")
    if config.data == "toyweb" and config.replay:
        count = round(len(training) * config.replay / (1 - config.replay))
        texts = [notes(config.seed + 1, i) for i in range(count)]
        training += [dataset.encode_pieces(pieces, tokenizer) for pieces in texts]
        print(f"            and {count:,} texts like those of the base's training, so that it "
              "forgets nothing")
    return training, held_out, prompts


def toyweb_records(config: SFTConfig) -> Iterable[dict]:
    """Demonstrations of a teacher on the toy web."""
    hops = tuple(range(1, config.most_hops + 1))
    web = ToyWeb(config.seed, hops, train=config.demonstrations, asks=config.asks)
    teacher = replace(TEACHER, wrong_result=config.wrong_result)
    for messages in demonstrations(web, config.demonstrations, teacher, seed=config.seed):
        yield {"messages": messages}


def print_next(config: SFTConfig, trained: Path) -> None:
    """Where the model is, and what to run next, unless the run was stopped before its end."""
    print(f"model       {trained}")
    if trained.parent.name == step_name(config.steps):
        command = f"infer.py --model {trained} --tools live --question ..."
        if config.data == "toyweb":
            command = f"train_igpo.py --model {trained}"
            if config.asks != "every":
                command += f" --asks {config.asks}"
        print(f"next        python {command}")


if __name__ == "__main__":
    with one_line_errors("train_sft.py"), processes():
        settings = parse_flags(SFTConfig, description=__doc__, presets=SFT_PRESETS)
        if settings.plan:
            print(plan_table(settings, size()))
        else:
            print_next(settings, main(settings))
