"""Checkpoints: a folder of safetensors files in Hugging Face's layout, to and from a Qwen3 model.

    config.json   tokenizer.json and what others need beside it (text/companions.py)   agent.json (agent/prompt.py)
    model.safetensors,  or  model-00001-of-0000n.safetensors ... and model.safetensors.index.json
    adapter/      of a model with adapters, whose weights are saved merged (lora.py)

Loading is strict and frugal: each parameter is allocated once, in its final type and on its final device, and filled
from the file in pieces of a few MB. A folder that is saved appears under its name when it is complete (files.py).
"""

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from minvenus.config import ConfigError, ModelConfig, read_json
from minvenus.files import latest_checkpoint, replaced_folder, write_json
from minvenus.model.lora import adapter_tensors, adapters, plain_weight, save_adapter
from minvenus.model.qwen3 import Qwen3
from minvenus.model.split import own_rows

TINY_BASE = Path(__file__).parents[1] / "tiny_base"         # made by `make base`
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
WEIGHT_FILE = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?")
PLAIN_NAME = re.compile(r"[\w.-]+\.safetensors")
DTYPES = ("F64", "F32", "F16", "BF16")
PIECE = 2**23                # bytes read at a time, at most


class Stored(NamedTuple):
    """A tensor in a file."""

    path: Path
    dtype: str
    shape: list[int]


# ----------------------------------------------------------------------------------- which model, on which device


def start_folder(name: str) -> Path | None:
    """The folder of the model that training starts from; None for "tiny", which has random weights."""
    return {"tiny": None, "tiny-base": TINY_BASE}.get(name, Path(name))


def model_fingerprint(model: str) -> str:
    """A hash of the files of a model's folder, or of a tokenizer's file. The tiny model with random
    weights has no files."""
    root = Path(model)
    paths = sorted([*root.glob("*.safetensors"), *root.glob("*.json")])
    if root.is_file():
        paths = [root]
    fingerprint = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256")
        fingerprint.update(f"{path.name} {content.hexdigest()}\n".encode())
    return fingerprint.hexdigest()[:16]


def start_model(name: str, device: str, seed: int, dtype=torch.float32) -> Qwen3:
    """The model that training starts from."""
    folder = start_folder(name)
    if folder is None:
        return Qwen3(ModelConfig.preset(name), seed=seed).to(device, dtype)
    return load(folder, device, dtype)


def newest_model(runs="runs") -> Path | None:
    """The model of the training run that saved a checkpoint last; a run may lie one folder deeper, as the demo's do."""
    found = [*Path(runs).glob("*/latest"), *Path(runs).glob("*/*/latest")]
    newest = max(found, key=lambda path: path.stat().st_mtime, default=None)
    checkpoint = latest_checkpoint(newest.parent) if newest else None
    return checkpoint / "model" if checkpoint else None


def device_of(name: str) -> Literal["cpu", "cuda"]:
    """auto = a GPU if there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device cuda: torch sees no GPU here")
    return "cuda" if name == "cuda" or (name == "auto" and torch.cuda.is_available()) else "cpu"


# ----------------------------------------------------------------------------------------------------------- loading


def load(folder, device="cpu", dtype=torch.float32) -> Qwen3:
    """The model in a folder, every parameter in `dtype`, whatever type the file has. Every error names the file or the
    tensor."""
    if newest := latest_checkpoint(folder):
        raise ConfigError(f"{folder} is the folder of a training run: its newest model is {newest}/model")
    folder = Path(folder)
    with torch.device("meta"):
        model = Qwen3(ModelConfig.from_json(folder))
    stored = list_tensors(folder, model)
    tensors = {name: torch.empty(where.shape, dtype=dtype, device=device) for name, where in stored.items()}
    read_tensors(stored, tensors)
    model.load_state_dict(tensors, assign=True)
    return model


def list_tensors(folder: Path, model: Qwen3) -> dict[str, Stored]:
    """The model's tensors in the files of a folder. One error lists everything that is missing, unexpected, of another
    shape or not a plain float."""
    stored, expected = stored_tensors(folder), own_tensors(model)
    if model.config.tie_word_embeddings:
        stored.pop("lm_head.weight", None)                   # some published files hold a second copy of the embedding
    wrong = [f"missing {name}" for name in expected if name not in stored]
    for name, (_, dtype, shape) in sorted(stored.items()):
        if name not in expected:
            wrong.append(f"unexpected {name}")
        elif shape != list(expected[name].shape):
            wrong.append(f"{name} is {shape}, the config says {list(expected[name].shape)}")
        elif dtype not in DTYPES:
            wrong.append(f"{name} is {dtype}, only {', '.join(DTYPES)} can be read")
    if wrong:
        raise ConfigError(f"the tensors in {folder} are not those of its config.json:\n  " + "\n  ".join(wrong))
    return stored


def own_tensors(model: Qwen3) -> dict[str, Tensor]:
    """What the model has under the names that it would have without adapters."""
    return {name: tensor for name, tensor in model.state_dict().items() if name.endswith(".weight")}


def stored_tensors(folder: Path) -> dict[str, Stored]:
    """What the weight files hold, by name."""
    single, index = folder / SINGLE, folder / INDEX
    if single.exists() == index.exists():
        raise ConfigError(f"{folder} must hold either {SINGLE} or {INDEX}")
    if single.exists():
        return read_header(single)
    weight_map = read_json(index).get("weight_map")          # tensor name -> file name
    # a name with a path in it could point anywhere on the disk
    if not isinstance(weight_map, dict) or not all(PLAIN_NAME.fullmatch(str(file)) for file in weight_map.values()):
        raise ConfigError(f"{index}: weight_map must give every tensor the plain name of a .safetensors file beside it")
    headers = {file: read_header(folder / file) for file in sorted(set(weight_map.values()))}
    return {name: headers[file][name] for name, file in weight_map.items() if name in headers[file]}


def read_header(path: Path) -> dict[str, Stored]:
    try:
        with safe_open(path, "pt") as file:                  # checks the header, and the file's length against it
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {name: Stored(path, part.get_dtype(), part.get_shape()) for name, part in slices.items()}
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{path} is not a complete safetensors file: {error}") from None


def read_tensors(stored: dict[str, Stored], tensors: Mapping[str, Tensor]) -> None:
    """Fill tensors from files, some rows at a time. The library maps a file, and pages that were read count as this
    process's memory until it is closed: so it is opened anew for every piece."""
    for name, tensor in tensors.items():
        own, first = own_rows(tensor)
        rows = max(1, PIECE // max(1, 4 * own[:1].numel()))
        for start in range(0, len(own), rows):
            piece = own[start:start + rows]
            try:
                with safe_open(stored[name].path, "pt") as file:
                    piece.copy_(file.get_slice(name)[first + start:first + start + len(piece)])
            except (OSError, SafetensorError) as error:
                raise ConfigError(f"{stored[name].path} changed while it was read: {error}") from None


# ------------------------------------------------------------------------------------------------------------ saving


def save(model: Qwen3, folder, tokenizer_files: Mapping[str, Path | dict] | None = None, shard_bytes=5 * 10**9,
         tensors: dict[str, Tensor] | None = None):
    """Write a folder that `load` and transformers read, in the model's own type; replace the one that is there.

    `tokenizer_files` maps a name in the folder to the file that is copied there, or to the JSON object that is written.
    A tensor larger than `shard_bytes` has a file of its own. `tensors` are those of a model that is split over
    processes, gathered.
    """
    kind = str(model.head_weight.dtype).removeprefix("torch.")
    files = tokenizer_files or {}
    with replaced_folder(folder) as new:
        check_save(Path(folder), files)
        for name, file in files.items():
            if isinstance(file, dict):
                write_json(new / name, file)
            else:
                shutil.copyfile(file, new / name)
        write_tensors(model, new, shard_bytes, tensors)
        if adapters(model):
            save_adapter(model, new / "adapter", tensors)
        write_json(new / "config.json", {**model.config.to_hf(), "dtype": kind, "torch_dtype": kind})   # new, old key
        for file in new.rglob("*.safetensors"):
            shutil.copymode(new / "config.json", file)       # save_file leaves them readable to their owner only


def check_save(folder: Path, tokenizer_files: Mapping[str, Path | dict]) -> None:
    """Refuse to delete anything but a checkpoint: a home or run folder given by mistake must survive."""
    own = {"config.json", "adapter", *tokenizer_files}
    present = sorted(os.listdir(folder)) if folder.exists() else []
    lost = [name for name in present if name not in own and not WEIGHT_FILE.fullmatch(name)]
    if lost:
        raise ConfigError(f"saving replaces the whole of {folder} and would delete {', '.join(lost)}: choose another "
                          "folder, or give them as tokenizer_files")


def saved_tensors(model: Qwen3) -> Iterator[tuple[str, Tensor]]:
    """What `save` writes, one after the other, for a model that is split over processes."""
    for name in own_tensors(model):
        yield name, plain_weight(model, name)
    yield from adapter_tensors(model).items()


def write_tensors(model: Qwen3, folder: Path, shard_bytes: int, gathered: dict[str, Tensor] | None) -> None:
    sizes = {name: tensor.nbytes for name, tensor in own_tensors(model).items()}
    shards: list[list[str]] = [[]]
    room = shard_bytes
    for name, size in sizes.items():
        if shards[-1] and size > room:
            shards.append([])
            room = shard_bytes
        shards[-1].append(name)
        room -= size
    weight_map: dict[str, str] = {}
    for i, names in enumerate(shards, start=1):
        file = SINGLE if len(shards) == 1 else f"model-{i:05}-of-{len(shards):05}.safetensors"
        tensors = {name: gathered[name] if gathered else plain_weight(model, name).cpu().contiguous()
                   for name in names}
        save_file(tensors, folder / file, metadata={"format": "pt"})         # transformers asks for this entry
        weight_map |= dict.fromkeys(names, file)
    if len(shards) > 1:
        write_json(folder / INDEX, {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map})
