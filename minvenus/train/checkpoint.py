"""The checkpoint that a run starts from, and its own: all that it needs to go on.

    RUN/checkpoints/step-00000120/model/                 a folder that transformers reads, too
    RUN/checkpoints/step-00000120/optimizer.safetensors  moments and step counts of AdamW
    RUN/checkpoints/step-00000120/state.json             step, fingerprint of the data, versions
    RUN/latest                                           the name of the newest complete one

The learning rate, the position in the data and all random numbers follow from seed and step. A
checkpoint is written under another name and renamed when it is complete and on the disk; then
`latest` is moved, and only then all but the newest two are deleted. So `latest` always names a
checkpoint that loads. Files are safetensors and JSON: loading one runs no code.
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
from torch.optim import Optimizer

from minvenus.config import ConfigError, read_json
from minvenus.files import (
    latest_checkpoint,
    replaced_folder,
    step_name,
    sync,
    write_json,
    write_text,
)
from minvenus.model import weights
from minvenus.model.lora import TENSORS, adapter_tensors, adapters, add_adapters
from minvenus.model.precision import PRECISION, device_of
from minvenus.model.qwen3 import Qwen3
from minvenus.model.weights import start_folder, start_model
from minvenus.text.tokenizer import TINY, Tokenizer
from minvenus.train.parallel import on_rank_0, shard, size, use_device, whole_tensors
from minvenus.train.plan import check_memory
from minvenus.train.settings import model_shape

MOMENTS = ("exp_avg", "exp_avg_sq")          # what AdamW has for a parameter, beside its step count
PACKAGES = ("torch", "safetensors", "tokenizers", "numpy")


# -------------------------------------------------------------------------------- start models


def load_start(config) -> tuple[Qwen3, Tokenizer]:
    """The model that training starts from, and its tokenizer.

    It has new adapters if these are what is trained, and is split over the ranks.
    """
    device = device_of(config.device)
    use_device(device)
    check_memory(config, size())
    folder = start_folder(config.model)

    # a GPU would not say which id has no row: so every id of the tokenizer has one
    tokenizer = Tokenizer.from_file(folder or TINY)
    rows = model_shape(config.model).vocab_size
    if tokenizer.size > rows:
        raise ConfigError(f"the tokenizer of {folder} has {tokenizer.size} tokens, the model "
                          f"{rows}: they are not of one model")

    dtype = PRECISION[device].engine if config.lora_rank else torch.float32
    model = start_model(config.model, device, config.seed, dtype)
    if config.lora_rank:
        add_adapters(model, config.lora_rank, config.seed)
    model.model.recompute = config.recompute
    model.model.offload = config.offload
    return shard(model), tokenizer


def load_reference(config, model: Qwen3) -> Qwen3 | None:
    """The start checkpoint, not trained, where something is measured against it.

    A model with adapters is its own reference: see lora.switched_off.
    """
    if not config.loss.kl_coef and config.gain_policy == "current":
        return None
    if config.lora_rank:
        return model
    device = device_of(config.device)
    reference = start_model(config.model, device, config.seed, PRECISION[device].engine)
    return shard(reference.requires_grad_(False))


# -------------------------------------------------------------------------------------- saving


def save(run: Path, state: dict, model: Qwen3, optimizer: Optimizer, tokenizer_files=()) -> Path:
    """Write the checkpoint after state["step"] steps and point `latest` at it.

    `state` is what `restore` returns; the versions of the packages are added to it.
    """
    folder = run / "checkpoints" / step_name(state["step"])
    if on_rank_0(latest_checkpoint, run) == folder:          # nothing was done since
        return folder

    moments = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            moments[f"{name}.{key}"] = value
    moments = whole_tensors(moments.items())
    model_tensors = whole_tensors(weights.saved_tensors(model))

    def write() -> None:
        with replaced_folder(folder) as new:
            weights.save(model, new / "model", tokenizer_files, tensors=model_tensors)
            save_file(moments, new / "optimizer.safetensors")
            write_json(new / "state.json", state | {"versions": versions()})
        move_pointer(run, folder)

    try:
        on_rank_0(write)
    except (OSError, SafetensorError) as error:
        raise OSError(f"the checkpoint after step {state['step']} could not be written to "
                      f"{folder}: {error}. Earlier ones are whole: once the disk has room again "
                      "the same command goes on from the latest") from error
    return folder


def move_pointer(run: Path, newest: Path) -> None:
    """Point `latest` at a checkpoint, then delete all others but the one that it named before."""
    before = latest_checkpoint(run)
    write_text(run / "latest", newest.name + "\n")
    sync(run)
    for folder in (run / "checkpoints").iterdir():           # also what a crash has left
        if folder not in (newest, before):
            shutil.rmtree(folder, ignore_errors=True)


@cache
def versions() -> dict[str, str]:
    """Versions of the packages and of Python, and the commit of this source tree if it is one."""
    source = Path(__file__).resolve().parents[2]
    commit = ""
    if (source / ".git").exists() and shutil.which("git"):
        command = ["git", "rev-parse", "HEAD"]
        result = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
        commit = result.stdout.strip()
    packages = {package: version(package) for package in PACKAGES}
    return {"python": platform.python_version(), "commit": commit or "unknown", **packages}


# ------------------------------------------------------------------------------------- loading


def restore(folder: Path, model: Qwen3, optimizer: Optimizer) -> dict:
    """Fill model and optimiser from a checkpoint; returns its state.

    Of several ranks each reads its own rows, however many there were when it was written.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    file = folder / "optimizer.safetensors"
    try:
        state = read_json(folder / "state.json")
        stored = weights.list_tensors(folder / "model", model)
        moments = weights.read_header(file)
        if not moments:                                      # saved before the first update
            trained = {}
        check_moments(moments.keys(), trained.keys())
        with safe_open(file, "pt") as tensors:
            counts = {name: tensors.get_tensor(f"{name}.step") for name in trained}
    except (OSError, SafetensorError, ValueError) as error:
        raise ConfigError(f"{folder} cannot be read: {error}. To go on from the checkpoint before "
                          "it, write that one's name into "
                          f"{folder.parents[1] / 'latest'}") from None

    if adapters(model):                      # the weights beside them are those of the start
        stored = weights.read_header(folder / "model" / "adapter" / TENSORS)
        weights.read_tensors(stored, adapter_tensors(model))
    else:
        weights.read_tensors(stored, model.state_dict())

    for name, parameter in trained.items():
        parameter_state = {key: torch.zeros_like(parameter) for key in MOMENTS}
        named = {f"{name}.{key}": tensor for key, tensor in parameter_state.items()}
        weights.read_tensors(moments, named)
        count_device = parameter.device if optimizer.defaults["fused"] else "cpu"    # as AdamW does
        parameter_state["step"] = counts[name].to(count_device)
        optimizer.state[parameter] = parameter_state
    return state


def check_moments(names, trained) -> None:
    """A parameter without its moments would take its next step as if it were the first."""
    expected = {f"{name}.{key}" for name in trained for key in ("step", *MOMENTS)}
    if names != expected:
        differences = ", ".join(sorted(names ^ expected))
        raise ConfigError("optimizer.safetensors does not fit the model: missing or unexpected "
                          f"{differences}")
