"""Stage one: supervised fine-tuning on trajectories."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from minvenus.agent.prompt import AgentFormat, read_format
from minvenus.config import ConfigError
from minvenus.console import one_line_errors
from minvenus.files import step_name
from minvenus.flags import parse_flags
from minvenus.model.weights import start_folder
from minvenus.presets import SFT_PRESETS
from minvenus.settings import SFTConfig
from minvenus.sft import dataset
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools.toyweb import ToyWeb
from minvenus.tools.toyweb_lessons import Teacher, demonstrations, notes
from minvenus.train.batch import batch_indices, fingerprint, hold_out
from minvenus.train.optim import adamw, learning_rate
from minvenus.train.parallel import processes, size
from minvenus.train.plan import plan_table
from minvenus.train.run import load_start, open_run
from minvenus.train.update import sft_step, validation_loss

TEACHER = Teacher(wrong_relation=0.3, at_once=0.03, stop_early=0.05, cut_off=0.5)


def main(config: SFTConfig) -> Path:
    """Train, and return the folder of the trained model."""
    with open_run("sft", config) as run:
        model, tokenizer = load_start(config)
        if config.max_tokens > model.config.max_position_embeddings:
            raise ConfigError(f"max_tokens is {config.max_tokens}, but the model reads "
                              f"{model.config.max_position_embeddings} tokens at most: lower max_tokens")
        optimizer = adamw(model, (0.9, 0.95), config.weight_decay)
        training, held_out, prompts = load_examples(config, tokenizer)
        told = agent_format(config, prompts)

        def evaluate() -> dict:
            if not held_out:
                return {}
            return {"validation_loss": validation_loss(model, held_out, config.pack_tokens, config.reduction)}

        data = fingerprint(training + held_out)
        for step in run.steps(model, optimizer, tokenizer.files | told.files, data=data, evaluate=evaluate):
            batch = [training[i] for i in batch_indices(step, config.batch, len(training), config.seed)]
            rate = learning_rate(step, config.steps, config.learning_rate, int(config.warmup * config.steps))
            numbers = sft_step(model, optimizer, batch, rate, config.clip, config.pack_tokens, config.reduction)
            run.log(numbers | {"epoch": step * config.batch / len(training)}, numbers["tokens"])
    return run.model_folder


def agent_format(config: SFTConfig, prompts: set[str]) -> AgentFormat:
    """What the trained model will have learned to read. Its system prompt is that of the trajectories: not known if
    they have several."""
    like = "toyweb" if config.data == "toyweb" else config.like
    told = read_format(start_folder(config.model), like)
    return replace(told, system=min(prompts) if len(prompts) == 1 else None)


def load_examples(config: SFTConfig,
                  tokenizer: Tokenizer) -> tuple[list[dataset.Example], list[dataset.Example], set[str]]:
    """Training and held-out trajectories, and their system prompts."""
    prompts: set[str] = set()
    if config.data == "toyweb":
        web = ToyWeb(config.seed, tuple(range(1, config.most_hops + 1)), train=config.demonstrations)
        teacher = replace(TEACHER, wrong_result=config.wrong_result)
        taught = demonstrations(web, config.demonstrations, teacher, seed=config.seed)
        records: Iterable[dict] = ({"messages": messages} for messages in taught)
    else:
        records = dataset.read_records(config.data)
    examples, dropped = dataset.load(records, tokenizer, config.max_tokens, prompts)
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
    return training, held_out, prompts


if __name__ == "__main__":
    with one_line_errors("train_sft.py"), processes():
        settings = parse_flags(SFTConfig, description=__doc__, presets=SFT_PRESETS)
        if settings.plan:
            print(plan_table(settings, size()))
        else:
            trained = main(settings)
            infer = f"infer.py --model {trained} --tools live --question ..."
            next_command = f"train_igpo.py --model {trained}" if settings.data == "toyweb" else infer
            print(f"model       {trained}")
            if trained.parent.name == step_name(settings.steps):            # not if it was stopped before
                print(f"next        python {next_command}")
