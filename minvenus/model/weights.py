"""Checkpoints: a folder of safetensors files in Hugging Face's layout, to and from a Qwen3 model.

    config.json   agent.json (agent/prompt.py)
    tokenizer.json and what others need beside it (text/companions.py)
    model.safetensors, which is what is saved; loaded is also
    model-00001-of-0000n.safetensors ... and model.safetensors.index.json
    adapter/      of a model with adapters, whose weights are saved merged (lora.py)

Loading is strict and frugal: each parameter is allocated once, in its final type and on its final
device, and filled from the file in pieces of a few MB. A saved folder appears under its name when
it is complete (files.py).
"""

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from minvenus.config import ConfigError, ModelConfig, read_json
from minvenus.files import latest_checkpoint, replaced_folder, write_json
from minvenus.model import lora
from minvenus.model.qwen3 import Qwen3

TINY_BASE = Path(__file__).parents[1] / "tiny_base"         # made by `make base`
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PLAIN_NAME = re.compile(r"[\w.-]+\.safetensors")
DTYPES = ("F64", "F32", "F16", "BF16")
PIECE = 2**23                # bytes read at a time, at most
SHOWN = 20                   # tensors in the list of an error, at most


# ----------------------------------------------------------------------------------- which model


def start_folder(name: str) -> Path | None:
    """The folder of the model that training starts from; None for "tiny", which has none."""
    if name == "tiny":
        return None
    return TINY_BASE if name == "tiny-base" else Path(name)


def start_model(name: str, device: str, seed: int, dtype=torch.float32) -> Qwen3:
    """The model that training starts from; "tiny" has random weights."""
    folder = start_folder(name)
    if folder is None:
        return Qwen3(ModelConfig.preset(name), seed).to(device, dtype)
    return load(folder, device, dtype)


def newest_model(runs="runs") -> Path | None:
    """The model of the training run that saved a checkpoint last.

    A run may lie one folder deeper, as the demo's do.
    """
    pointers = [*Path(runs).glob("*/latest"), *Path(runs).glob("*/*/latest")]
    if not pointers:
        return None
    newest = max(pointers, key=lambda path: path.stat().st_mtime)
    checkpoint = latest_checkpoint(newest.parent)
    return checkpoint / "model" if checkpoint else None


# --------------------------------------------------------------------------------------- loading


class Stored(NamedTuple):
    """A tensor in a file."""

    path: Path
    dtype: str
    shape: list[int]


def load(folder, device="cpu", dtype=torch.float32) -> Qwen3:
    """The model in a folder, every parameter in `dtype`, whatever type the file has.

    Every error names the file or the tensor.
    """
    if newest := latest_checkpoint(folder):
        raise ConfigError(f"{folder} is the folder of a training run: "
                          f"its newest model is {newest}/model")
    folder = Path(folder)
    with torch.device("meta"):
        model = Qwen3(ModelConfig.from_json(folder))
    stored = list_tensors(folder, model)
    tensors = {}
    for name, entry in stored.items():
        tensors[name] = torch.empty(entry.shape, dtype=dtype, device=device)
    read_tensors(stored, tensors)
    model.load_state_dict(tensors, assign=True)
    return model


def list_tensors(folder: Path, model: Qwen3) -> dict[str, Stored]:
    """The model's tensors in the files of a folder.

    One error lists what is missing, unexpected, of another shape or not a plain float.
    """
    stored = stored_tensors(folder)
    expected = plain_shapes(model)
    if model.config.tie_word_embeddings:
        stored.pop("lm_head.weight", None)       # some files hold a second copy of the embedding

    wrong = [f"missing {name}" for name in expected if name not in stored]
    for name, entry in sorted(stored.items()):
        if name not in expected:
            wrong.append(f"unexpected {name}")
        elif entry.shape != expected[name]:
            wrong.append(f"{name} is {entry.shape}, the config says {expected[name]}")
        elif entry.dtype not in DTYPES:
            wrong.append(f"{name} is {entry.dtype}, only {', '.join(DTYPES)} can be read")
    if wrong:
        shown = wrong[:SHOWN]
        if len(wrong) > SHOWN:
            shown.append(f"and {len(wrong) - SHOWN:,} more")
        raise ConfigError(f"the tensors in {folder} are not those of its config.json:\n  "
                          + "\n  ".join(shown))
    return stored


def plain_shapes(model: Qwen3) -> dict[str, list[int]]:
    """The names and shapes of the tensors that the model has without its adapters."""
    state = model.state_dict()
    return {name: list(state[name].shape) for name in state if name.endswith((".weight", ".bias"))}


def stored_tensors(folder: Path) -> dict[str, Stored]:
    """What the weight files hold, by name."""
    single = folder / SINGLE
    index = folder / INDEX
    if single.exists() == index.exists():
        raise ConfigError(f"{folder} must hold either {SINGLE} or {INDEX}")
    if single.exists():
        return read_header(single)

    weight_map: Any = read_json(index).get("weight_map")     # tensor name -> file name
    files = weight_map.values() if isinstance(weight_map, dict) else [None]
    if not all(PLAIN_NAME.fullmatch(str(file)) for file in files):
        raise ConfigError(f"{index}: weight_map must give every tensor the plain name of a "
                          ".safetensors file beside it")     # a path could point anywhere
    tensors = {}
    for file in sorted(set(files)):
        for name, entry in read_header(folder / file).items():
            if weight_map.get(name) == file:
                tensors[name] = entry
    return tensors


def read_header(path: Path) -> dict[str, Stored]:
    tensors = {}
    try:
        with safe_open(path, "pt") as file:      # checks the header, and the file's length
            for name in file.keys():  # noqa: SIM118
                part = file.get_slice(name)
                tensors[name] = Stored(path, part.get_dtype(), part.get_shape())
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{path} is not a complete safetensors file: {error}") from None
    return tensors


@torch.no_grad()
def read_tensors(stored: dict[str, Stored], tensors: Mapping[str, Tensor]) -> None:
    """Fill tensors from files, some rows at a time.

    The library maps a file, and pages that were read count as this process's memory until it is
    closed: so it is opened anew for every piece.
    """
    for name, tensor in tensors.items():
        path = stored[name].path
        rows, first = local_rows(tensor)
        row_bytes = 4 * rows[:1].numel()
        step = max(1, PIECE // max(1, row_bytes))
        for start in range(0, len(rows), step):
            piece = rows[start:start + step]
            place = first + start
            with safe_open(path, "pt") as file:
                values = file.get_slice(name)[place:place + len(piece)]
                finite = torch.stack(values.aminmax()).isfinite().all()
                piece.copy_(values)
            if not finite:
                raise ConfigError(f"{path}: {name} has numbers that are not finite (NaN or "
                                  "infinity): the file is damaged, take it from an earlier copy")


def local_rows(tensor: Any) -> tuple[Tensor, int]:
    """The rows that this process has of a tensor, and the number of the first.

    The rows of FSDP2's DTensor are split over processes. It is known by its method: to import
    its class takes half a second.
    """
    if not hasattr(tensor, "to_local"):
        return tensor, 0
    mesh = tensor.device_mesh
    share = -(-len(tensor) // mesh.size())
    return tensor.to_local(), min(len(tensor), share * mesh.get_local_rank())


# ---------------------------------------------------------------------------------------- saving


def save(model: Qwen3, folder, tokenizer_files: Mapping[str, Path | dict] | None = None,
         tensors: dict[str, Tensor] | None = None) -> None:
    """Write a folder that `load` and transformers read, in the model's own type.

    It replaces a checkpoint that is there. `tokenizer_files` maps a name in the folder to the file
    that is copied there, or to the JSON object that is written. `tensors` are those of
    `saved_tensors`, for a model that is split over processes: gathered.
    """
    files = tokenizer_files or {}
    tensors = tensors or {name: tensor.cpu() for name, tensor in saved_tensors(model)}
    kind = str(model.head_weight.dtype).removeprefix("torch.")
    config = model.config.to_hf() | {"dtype": kind, "torch_dtype": kind}       # new, old key
    with replaced_folder(folder) as new:
        check_save(Path(folder), files)
        for name, file in files.items():
            if isinstance(file, dict):
                write_json(new / name, file)
            else:
                shutil.copyfile(file, new / name)
        plain = {name: tensors[name].contiguous() for name in plain_shapes(model)}
        save_file(plain, new / SINGLE, metadata={"format": "pt"})      # transformers reads this
        if lora.adapters(model):
            lora.save_adapter(model, new / "adapter", tensors)
        write_json(new / "config.json", config)
        for path in new.rglob("*.safetensors"):
            shutil.copymode(new / "config.json", path)       # save_file lets only the owner read


def check_save(folder: Path, tokenizer_files: Mapping[str, Path | dict]) -> None:
    """Refuse to delete anything but a checkpoint: a home or run folder given by mistake."""
    present = set(os.listdir(folder)) if folder.exists() else set()
    lost = present - {"config.json", SINGLE, "adapter", *tokenizer_files}
    if lost:
        raise ConfigError(f"saving replaces the whole of {folder} and would delete "
                          f"{', '.join(sorted(lost))}: choose another folder")


def saved_tensors(model: Qwen3) -> Iterator[tuple[str, Tensor]]:
    """What `save` writes, one after the other."""
    for name in plain_shapes(model):
        yield name, lora.plain_weight(model, name)
    yield from lora.adapter_tensors(model).items()
