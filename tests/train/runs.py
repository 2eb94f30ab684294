"""Very small runs of train_sft.py: a model of one layer, a handful of toy demonstrations, a few
steps."""

import json
import os
import re
import runpy
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from minvenus.agent.prompt import TOYWEB
from minvenus.config import ModelConfig
from minvenus.files import read_jsonl
from minvenus.model import weights
from minvenus.model.qwen3 import Qwen3
from minvenus.sft.dataset import Example, load
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools import toyweb_lessons
from minvenus.tools.toyweb import ToyWeb
from minvenus.tools.toyweb_lessons import Teacher
from minvenus.train.optim import adamw, optimizer_step
from minvenus.train.run import MAY_CHANGE, open_run
from minvenus.train.settings import SFTConfig

ROOT = Path(__file__).resolve().parents[2]
torch.set_num_threads(
    1
)  # more only wait for each other on models this small, and a fork has none of its parent's
TINY = Tokenizer.tiny()
SMALL = ModelConfig(
    16, 32, 1, 2, 1, head_dim=8, vocab_size=768, rope_theta=100.0, max_position_embeddings=4096
)


def lively_model(shape: ModelConfig = SMALL, seed: int = 1) -> Qwen3:
    """With weights that look at their context, unlike the usual random ones."""
    model = Qwen3(shape, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
    return model


def demonstrations(count: int, hops=(1,), **rates) -> list[dict]:
    web = ToyWeb(0, hops=hops, train=count)
    return [
        {"messages": messages}
        for messages in toyweb_lessons.demonstrations(web, count, Teacher(**rates))
    ]


def examples(count: int, hops=(1, 2)) -> list[Example]:
    return load(demonstrations(count, hops), TINY, 4096)[0]


def write_inputs(folder: Path, count: int = 8) -> dict:
    """A start model and a data file in `folder`; returns the settings that name them."""
    weights.save(Qwen3(SMALL, seed=3), folder / "start", TINY.files | TOYWEB.files)
    (folder / "data.jsonl").write_text(
        "".join(json.dumps(record) + "\n" for record in demonstrations(count))
    )
    return {"model": str(folder / "start"), "data": str(folder / "data.jsonl")}


def small_config(inputs: dict, out, **changes) -> SFTConfig:
    values = {
        "out": str(out),
        "steps": 3,
        "batch": 3,
        "max_tokens": 400,
        "pack_tokens": 400,
        "learning_rate": 1e-2,
        "warmup": 0.4,
        "validation": 2,
        "evaluate_every": 2,
        "save_every": 1,
        "device": "cpu",
    }
    return SFTConfig(**(values | inputs | changes))


def unexplained_metrics(run: Path) -> set[str]:
    """The numbers that a run logged and docs/metrics.md names neither as such nor by a pattern such
    as test_*."""
    explained = re.findall(r"`([\w*]+)`", (ROOT / "docs" / "metrics.md").read_text())
    patterns = "|".join(name.replace("*", r"\w+") for name in explained)
    logged = {
        name
        for file in ("metrics.jsonl", "timing.jsonl")
        for row in read_jsonl(run / file)
        for name in row
    }
    return {name for name in logged if not re.fullmatch(patterns, name)}


def content(run) -> dict[str, object]:
    """Every file of a run, as another with the same settings has it, however often it was stopped.

    What may differ: the lock; pages, which are made from these files; older checkpoints, which
    depend on where a run was stopped; in run.json what a resumed run may change; in timing.jsonl
    and in rollouts how long something took.
    """
    run = Path(run)
    newest = run / "checkpoints" / (run / "latest").read_text().strip()
    files = {}
    for path in set(filter(Path.is_file, run.rglob("*"))) - {run / ".lock"}:
        name = str(path.relative_to(run))
        if path.name == "run.json":
            settings = json.loads(path.read_text())
            files[name] = {k: v for k, v in settings.items() if k not in MAY_CHANGE}
        elif path.name == "timing.jsonl" or path.parent.name == "rollouts":
            files[name] = re.sub(r'(seconds|second)": [-+.e\d]+', r'\1"', path.read_text())
        elif path.suffix != ".html" and (newest in path.parents or path.parent == run):
            files[name] = path.read_bytes()
    return files


def made_up_update(model, optimizer, step: int) -> float:
    for i, parameter in enumerate(model.parameters()):
        parameter.grad = torch.sin(torch.arange(parameter.numel()) + i + step).view_as(parameter)
    return optimizer_step(model, optimizer, 1e-2, 1.0)


def made_up_run(config, during=lambda step: None, after=lambda step: None, data="data"):
    """A run in its folder with made-up gradients. `during` is called before the weights move,
    `after` once they have."""
    model = Qwen3(SMALL, seed=0)
    optimizer = adamw(model, (0.9, 0.95), 0.01)
    with open_run("sft", config) as run:
        for step in run.steps(model, optimizer, TINY.files, data):
            during(step)
            with run.update():
                norm = made_up_update(model, optimizer, step)
                after(step)
            run.log(step, {"grad_norm": norm, "tokens": 0})
            if step % config.save_every == 0:
                run.save()
    return parameters(model)


def command(script: str, config, *more: str) -> int:
    """`python SCRIPT` with these settings, in this process; returns its exit code."""
    with tempfile.NamedTemporaryFile("w") as file, pytest.MonkeyPatch.context() as patch:
        json.dump(asdict(config), file)
        file.flush()
        patch.setattr(sys, "argv", [script, "--config", file.name, *more])
        try:
            runpy.run_path(str(ROOT / script), run_name="__main__")
            return 0
        except SystemExit as end:
            return end.code


def signalled(patch, script, update: str, numbers: list[int], at_step: int = 1) -> None:
    """The signals arrive in the middle of a step, when the function `update` is called."""
    real, calls = getattr(script, update), []

    def step(*arguments):
        calls.append(1)
        if len(calls) == at_step:
            for number in numbers:
                os.kill(os.getpid(), number)
        return real(*arguments)

    for module in (sys.modules[real.__module__], script):
        patch.setattr(module, update, step)


def parameters(model) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).clone()


def gradients(model) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters()])
