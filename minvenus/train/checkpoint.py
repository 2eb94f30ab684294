"""Checkpoints of a training run: all that is needed to go on as if nothing had happened.

    RUN/checkpoints/step-00000120/model/                 a folder that transformers reads too
    RUN/checkpoints/step-00000120/optimizer.safetensors  moments and step counts of AdamW, random states
    RUN/checkpoints/step-00000120/state.json             step, settings, versions, and what the script counts
    RUN/latest                                           the name of the newest complete one

Schedule and data position follow from the step. A checkpoint is written under another name and renamed when it is complete and
on the disk; then `latest` is moved, and only then is anything deleted but the newest and the one before it. Whenever the process
dies, `latest` names a checkpoint that loads. Safetensors and JSON only: loading a checkpoint runs no code.
One process at a time writes into a run (`atomic.claimed`). This file knows no data and no loss.
"""

import json
import os
import platform
import shutil
import subprocess
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from minvenus.config import ConfigError, read_json
from minvenus.files import latest_checkpoint, replaced, step_name, sync
from minvenus.model import weights

MAY_CHANGE = ("save_every", "rollouts_every", "resume", "device", "out")
MOMENTS = ("step", "exp_avg", "exp_avg_sq")          # what AdamW keeps for a parameter
PACKAGES = ("torch", "safetensors", "tokenizers", "numpy")


class SaveError(OSError):
    """A checkpoint that could not be written. The one before it is still there."""


def save(run, step: int, model, optimizer, state: dict, tokenizer_files=()) -> Path:
    """Write the checkpoint after `step` steps and point `latest` at it. `state` is any JSON, the settings as "config"."""
    run = Path(run)
    folder = run / "checkpoints" / step_name(step)
    before = latest_checkpoint(run)
    if before == folder:                                                 # stopped with nothing done since
        return folder
    for torn in (run / "checkpoints").glob(".step-*"):                   # a crash left it; the space may be needed now
        shutil.rmtree(torn)
    try:
        with replaced(folder) as new:
            weights.save(model, new / "model", tokenizer_files)
            save_file(optimizer_tensors(model, optimizer) | random_states(), new / "optimizer.safetensors")
            write_json(new / "state.json", {"step": step, "versions": versions(), **state})
        point_to(run, folder.name)
    except (OSError, SafetensorError) as error:
        raise SaveError(f"the checkpoint after step {step} could not be written to {folder}: {error}. Earlier ones are whole: "
                        "once the disk has room again the same command goes on from the latest") from error
    for old in (run / "checkpoints").glob("step-*"):
        if old not in (folder, before):
            shutil.rmtree(old)
    return folder


def point_to(run: Path, name: str) -> None:
    beside = run / ".latest"
    beside.write_text(name + "\n")
    sync(beside)
    os.replace(beside, run / "latest")
    sync(run)


def restore(folder: Path, model, optimizer, config) -> dict:
    """Fill model, optimiser and random states from a checkpoint; returns its state. `config` must be the run's own."""
    state = read_json(folder / "state.json")
    check_same(state["config"], asdict(config), folder)
    try:
        loaded = weights.load(folder / "model", model.head_weight.device, model.head_weight.dtype)
        tensors = load_file(folder / "optimizer.safetensors")
        check_tensors(model, tensors)
    except (OSError, SafetensorError, ValueError) as error:
        raise ConfigError(f"{folder} cannot be read: {error}. To go on from the checkpoint before it, write that one's name into "
                          f"{folder.parents[1] / 'latest'}") from None
    model.load_state_dict(loaded.state_dict())
    fill_optimizer(model, optimizer, tensors)
    torch.set_rng_state(tensors["random.cpu"])
    if "random.cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["random.cuda"])
    return state


def check_same(saved: dict, now: dict, folder: Path) -> None:
    """Other settings would make another run, half of it under the old ones. How often to save or look may change."""
    saved, now = json.loads(json.dumps(saved)), json.loads(json.dumps(now))              # tuples become lists in both
    changed = [f"{key} was {saved.get(key)!r}, is {value!r}" for key, value in now.items()
               if saved.get(key) != value and key not in MAY_CHANGE]
    if changed:
        raise ConfigError(f"{folder} was made with other settings: {'; '.join(changed)}. Use the same, or another --out")


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Nothing before the first update."""
    return {f"{name}.{key}": value for name, parameter in model.named_parameters()
            for key, value in optimizer.state.get(parameter, {}).items()}


def check_tensors(model: nn.Module, tensors: dict[str, torch.Tensor]) -> None:
    """All of them or none: a parameter without its moments would take its next step as if it were the first."""
    expected = {f"{name}.{key}" for name, _ in model.named_parameters() for key in MOMENTS}
    stored = tensors.keys() - {"random.cpu", "random.cuda"}
    if "random.cpu" not in tensors or (stored and stored != expected):
        wrong = sorted(({"random.cpu"} - tensors.keys()) | (stored ^ expected))
        raise ConfigError(f"optimizer.safetensors does not fit the model: missing or unexpected {', '.join(wrong)}")


def fill_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor]) -> None:
    for name, parameter in model.named_parameters():
        own = {key: tensors[f"{name}.{key}"] for key in MOMENTS if f"{name}.{key}" in tensors}
        if own:
            # AdamW keeps its step counts on the CPU
            optimizer.state[parameter] = {key: v if key == "step" else v.to(parameter.device) for key, v in own.items()}


def random_states() -> dict[str, torch.Tensor]:
    states = {"random.cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["random.cuda"] = torch.cuda.get_rng_state()
    return states


@cache
def versions() -> dict[str, str]:
    """What the run was made with: packages, Python, and the commit of this source tree if it is one."""
    source = Path(__file__).resolve().parents[2]
    commit = ""
    if (source / ".git").exists() and shutil.which("git"):
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=source, capture_output=True, text=True, check=False)
        commit = done.stdout.strip()
    return {"python": platform.python_version(), "commit": commit or "unknown", **{p: version(p) for p in PACKAGES}}


def write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
