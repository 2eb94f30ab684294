"""Checkpoints of a training run: all that is needed to go on as if nothing had happened.

    RUN/checkpoints/step-00000120/model/                 a folder that transformers reads too
    RUN/checkpoints/step-00000120/optimizer.safetensors  moments and step counts of AdamW, random state
    RUN/checkpoints/step-00000120/state.json             step, versions, and what the run counts
    RUN/latest                                           the name of the newest complete one

Schedule and data position follow from the step. A checkpoint is written under another name and renamed when it is
complete and on the disk; then `latest` is moved, and only then all but the newest and the one before it are deleted.
Whenever the process dies, `latest` names a checkpoint that loads. Safetensors and JSON only: loading a checkpoint runs
no code.
"""

import json
import platform
import shutil
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from minvenus.config import ConfigError, read_json
from minvenus.files import latest_checkpoint, replaced, step_name, sync, write_text
from minvenus.model import weights
from minvenus.model.lora import adapters, load_adapter, plain_weight
from minvenus.model.qwen3 import Qwen3

MOMENTS = ("step", "exp_avg", "exp_avg_sq")          # what AdamW keeps for a parameter
PACKAGES = ("torch", "safetensors", "tokenizers", "numpy")


def save(run: Path, step: int, model: Qwen3, optimizer: torch.optim.Optimizer, state: dict,
         tokenizer_files=()) -> Path:
    """Write the checkpoint after `step` steps and point `latest` at it. `state` is JSON that `restore` gives back."""
    folder = run / "checkpoints" / step_name(step)
    before = latest_checkpoint(run)
    if before == folder:                                                 # nothing was done since
        return folder
    tensors = {"random.cpu": torch.get_rng_state()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():    # nothing before the first update
            tensors[f"{name}.{key}"] = value
    try:
        with replaced(folder) as new:
            weights.save(model, new / "model", tokenizer_files)
            save_file(tensors, new / "optimizer.safetensors")
            text = json.dumps({"step": step, **state, "versions": versions()}, indent=2)
            (new / "state.json").write_text(text + "\n", encoding="utf-8")
        write_text(run / "latest", folder.name + "\n")
        sync(run)                                                        # before the older one is deleted
    except (OSError, SafetensorError) as error:
        raise OSError(f"the checkpoint after step {step} could not be written to {folder}: {error}. Earlier ones are "
                      "whole: once the disk has room again the same command goes on from the latest") from error
    for old in (run / "checkpoints").iterdir():                          # also what a crash has left
        if old not in (folder, before):
            shutil.rmtree(old)
    return folder


def restore(folder: Path, model: Qwen3, optimizer: torch.optim.Optimizer) -> dict:
    """Fill model, optimiser and random state from a checkpoint; returns its state."""
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    try:
        state = read_json(folder / "state.json")
        loaded = weights.load(folder / "model", model.head_weight.device, model.head_weight.dtype)
        tensors = load_file(folder / "optimizer.safetensors")
        # all moments or none: a parameter without its own would take its next step as if it were the first
        moved = parameters if len(tensors) > 1 else {}
        expected = {"random.cpu"} | {f"{name}.{key}" for name in moved for key in MOMENTS}
        if tensors.keys() != expected:
            wrong = ", ".join(sorted(tensors.keys() ^ expected))
            raise ConfigError(f"optimizer.safetensors does not fit the model: missing or unexpected {wrong}")
    except (OSError, SafetensorError, ValueError) as error:
        raise ConfigError(f"{folder} cannot be read: {error}. To go on from the checkpoint before it, write that one's "
                          f"name into {folder.parents[1] / 'latest'}") from None
    fill(model, loaded, folder / "model")
    for name, parameter in moved.items():
        moments = {key: tensors[f"{name}.{key}"].to(parameter.device) for key in MOMENTS}
        optimizer.state[parameter] = moments | {"step": tensors[f"{name}.step"]}         # AdamW counts on the CPU
    torch.set_rng_state(tensors["random.cpu"])
    return state


def fill(model: Qwen3, loaded: Qwen3, folder: Path) -> None:
    """Give the model what is in a checkpoint's folder. With adapters that is the adapters: the weights beside them have
    not changed since the start, and must be those that they were trained with."""
    if not adapters(model):
        model.load_state_dict(loaded.state_dict())
        return
    load_adapter(model, folder / "adapter")
    changed = [name for name, tensor in loaded.state_dict().items()
               if not torch.allclose(plain_weight(model, name), tensor, rtol=1e-2, atol=1e-5)]
    if changed:
        raise ConfigError(f"{folder} has an adapter for other weights than --model has now: {changed[0]} differs. Put "
                          f"the old ones back, or begin another run with --model {folder}")


@cache
def versions() -> dict[str, str]:
    """Versions of the packages and of Python, and the commit of this source tree if it is one."""
    source = Path(__file__).resolve().parents[2]
    commit = ""
    if (source / ".git").exists() and shutil.which("git"):
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=source, capture_output=True, text=True, check=False)
        commit = done.stdout.strip()
    return {"python": platform.python_version(), "commit": commit or "unknown", **{p: version(p) for p in PACKAGES}}
