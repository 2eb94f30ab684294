"""Checkpoints of a training run: all that is needed to go on as if nothing had happened.

    RUN/checkpoints/step-00000120/model/                 a folder that transformers reads too
    RUN/checkpoints/step-00000120/optimizer.safetensors  moments and step counts of AdamW
    RUN/checkpoints/step-00000120/state.json             step, fingerprint of the data, versions
    RUN/latest                                           the name of the newest complete one

Schedule, data position and all random numbers follow from seed and step. A checkpoint is written under another name
and renamed when it is complete and on the disk; then `latest` is moved, and only then all but the newest and the one
before it are deleted. Whenever the process dies, `latest` names a checkpoint that loads. Safetensors and JSON only:
loading a checkpoint runs no code.
"""

import platform
import shutil
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from minvenus.config import ConfigError, read_json
from minvenus.files import latest_checkpoint, replaced, step_name, sync, write_json, write_text
from minvenus.model import weights
from minvenus.model.lora import adapters, load_adapter
from minvenus.model.qwen3 import Qwen3
from minvenus.train.parallel import gathered, on_rank_0, size

MOMENTS = ("exp_avg", "exp_avg_sq")                  # what AdamW keeps for a parameter, beside its count of steps
PACKAGES = ("torch", "safetensors", "tokenizers", "numpy")


def save(run: Path, step: int, model: Qwen3, optimizer: torch.optim.Optimizer, data: str,
         tokenizer_files=()) -> Path:
    """Write the checkpoint after `step` steps and point `latest` at it. `data` is the fingerprint of what was trained
    on."""
    folder = run / "checkpoints" / step_name(step)
    before = on_rank_0(latest_checkpoint, run)
    if before == folder:                                                 # nothing was done since
        return folder
    tensors = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():    # nothing before the first update
            tensors[f"{name}.{key}"] = value
    model_tensors = gathered(weights.saved_tensors(model)) if size() > 1 else None
    tensors = gathered(tensors.items())

    def write() -> None:
        try:
            with replaced(folder) as new:
                weights.save(model, new / "model", tokenizer_files, tensors=model_tensors)
                save_file(tensors, new / "optimizer.safetensors")
                write_json(new / "state.json", {"step": step, "data": data, "versions": versions()})
            write_text(run / "latest", folder.name + "\n")
            sync(run)                                                    # before the older one is deleted
        except (OSError, SafetensorError) as error:
            raise OSError(f"the checkpoint after step {step} could not be written to {folder}: {error}. Earlier ones "
                          "are whole: once the disk has room again the same command goes on from the latest") from error
        for old in (run / "checkpoints").iterdir():                      # also what a crash has left
            if old not in (folder, before):
                shutil.rmtree(old, ignore_errors=True)                   # the new one is whole

    on_rank_0(write)
    return folder


def restore(folder: Path, model: Qwen3, optimizer: torch.optim.Optimizer) -> dict:
    """Fill model and optimiser from a checkpoint; returns its state. Of several ranks each reads its own rows, however
    many there were when it was written."""
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    file = folder / "optimizer.safetensors"
    try:
        state = read_json(folder / "state.json")
        stored, moments = weights.list_tensors(folder / "model", model), weights.read_header(file)
        # all moments or none: a parameter without its own would take its next step as if it were the first
        moved = parameters if moments else {}
        expected = {f"{name}.{key}" for name in moved for key in ("step", *MOMENTS)}
        if moments.keys() != expected:
            wrong = ", ".join(sorted(moments.keys() ^ expected))
            raise ConfigError(f"optimizer.safetensors does not fit the model: missing or unexpected {wrong}")
        with safe_open(file, "pt") as opened:
            steps = {name: opened.get_tensor(f"{name}.step") for name in moved}
    except (OSError, SafetensorError, ValueError) as error:
        raise ConfigError(f"{folder} cannot be read: {error}. To go on from the checkpoint before it, write that one's "
                          f"name into {folder.parents[1] / 'latest'}") from None
    if adapters(model):                         # the weights beside them are those of the start
        load_adapter(model, folder / "model" / "adapter")
    else:
        weights.read_tensors(stored, model.state_dict())
    for name, parameter in moved.items():
        own = {key: torch.zeros_like(parameter) for key in MOMENTS}
        weights.read_tensors(moments, {f"{name}.{key}": own[key] for key in MOMENTS})
        counts_on = parameter.device if optimizer.defaults["fused"] else "cpu"           # as AdamW does it
        optimizer.state[parameter] = own | {"step": steps[name].to(counts_on)}
    return state


@cache
def versions() -> dict[str, str]:
    """Versions of the packages and of Python, and the commit of this source tree if it is one."""
    source = Path(__file__).resolve().parents[2]
    commit = ""
    if (source / ".git").exists() and shutil.which("git"):
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=source, capture_output=True, text=True, check=False)
        commit = done.stdout.strip()
    return {"python": platform.python_version(), "commit": commit or "unknown", **{p: version(p) for p in PACKAGES}}
