"""Checkpoints of a training run: all that is needed to go on as if nothing had happened.

    RUN/checkpoints/step-00000120/model/                 a folder that transformers reads too
    RUN/checkpoints/step-00000120/optimizer.safetensors  moments and step counts of AdamW, random states
    RUN/checkpoints/step-00000120/state.json             step, counters, data position, config, versions
    RUN/latest                                           the name of the newest complete one

A checkpoint is written under another name and renamed when it is complete and on the disk; then `latest` is moved, and only
then is the one before the previous deleted. Whenever the process dies, `latest` names a checkpoint that loads. Safetensors and
JSON only: loading a checkpoint runs no code.
"""

import json
import os
import platform
import shutil
import subprocess
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from minvenus.config import ConfigError, read_json
from minvenus.model import weights
from minvenus.model.atomic import replaced, sync

KEEP = 2                     # the newest one, and the one before in case the newest is ever found unreadable
MAY_CHANGE = ("save_every", "resume", "device", "out")
PACKAGES = ("torch", "safetensors", "tokenizers", "numpy")


def save(run, step: int, model, optimizer, state: dict, tokenizer_files=()) -> Path:
    """Write the checkpoint after `step` steps and point `latest` at it. `state` is any JSON: counters, positions, the config."""
    run = Path(run)
    folder = run / "checkpoints" / f"step-{step:08d}"
    with replaced(folder) as new:
        weights.save(model, new / "model", tokenizer_files)
        save_file(optimizer_tensors(model, optimizer) | random_states(), new / "optimizer.safetensors")
        write_json(new / "state.json", {"step": step, "versions": versions(), **state})
    point_to(run, folder.name)
    for old in sorted((run / "checkpoints").glob("step-*"))[:-KEEP]:
        shutil.rmtree(old)
    return folder


def point_to(run: Path, name: str) -> None:
    beside = run / ".latest"
    beside.write_text(name + "\n")
    sync(beside)
    os.replace(beside, run / "latest")
    sync(run)


def latest(run) -> Path | None:
    """The newest complete checkpoint of a run, or None if it has none yet."""
    pointer = Path(run) / "latest"
    if not pointer.is_file():
        return None
    folder = Path(run) / "checkpoints" / pointer.read_text().strip()
    if not (folder / "state.json").is_file():
        raise ConfigError(f"{pointer} names {folder}, which is not a checkpoint")
    return folder


def restore(folder: Path, model, optimizer, config) -> dict:
    """Fill model, optimiser and random states from a checkpoint; returns its state. `config` must be the run's own."""
    state = read_json(folder / "state.json")
    check_same(state["config"], asdict(config), folder)
    loaded = weights.load(folder / "model", model.head_weight.device, model.head_weight.dtype)
    model.load_state_dict(loaded.state_dict())
    try:
        tensors = load_file(folder / "optimizer.safetensors")
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{folder} has no readable optimizer.safetensors: {error}") from None
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
    return {f"{name}.{key}": value for name, parameter in model.named_parameters()
            for key, value in optimizer.state.get(parameter, {}).items()}


def fill_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor]) -> None:
    for name, parameter in model.named_parameters():
        own = {key: tensors[f"{name}.{key}"] for key in ("step", "exp_avg", "exp_avg_sq") if f"{name}.{key}" in tensors}
        if own:
            # AdamW keeps its step counts on the CPU
            optimizer.state[parameter] = {key: v if key == "step" else v.to(parameter.device) for key, v in own.items()}


def random_states() -> dict[str, torch.Tensor]:
    states = {"random.cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["random.cuda"] = torch.cuda.get_rng_state()
    return states


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
