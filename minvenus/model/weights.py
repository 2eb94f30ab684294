"""Checkpoints: a folder of safetensors files in Hugging Face's layout, to and from a Qwen3 model.

    config.json   generation_config.json   tokenizer files
    model.safetensors,  or  model-00001-of-0000n.safetensors ... and model.safetensors.index.json

Loading is strict and straight into place: each parameter is allocated once, in its final type and on its final device, and filled
from the file through a buffer of a few MB. The file is read, not mapped, so its pages never count as the process's memory.

Saving replaces the whole folder at once (atomic.py): after a crash, `load` gives the old checkpoint or the new one.

This file knows names, shapes and bytes; it never looks at what a weight means.
"""

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from minvenus.config import ConfigError, ModelConfig, read_json
from minvenus.files import current, latest_checkpoint, replaced
from minvenus.model.qwen3 import Qwen3

TINY_BASE = Path(__file__).parents[1] / "tiny_base"         # made by `make base`
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
WEIGHT_FILE = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?")
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
BUFFER = 2**22               # bytes read at a time, whatever the size of the largest tensor

# Qwen3's published sampling defaults
GENERATION = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20}
IM_END, ENDOFTEXT = 151_645, 151_643         # either ends a generation


class WeightsError(ConfigError):
    """A checkpoint that cannot be read or written; the message says which file or tensor, and what was expected."""


class Stored(NamedTuple):
    """Where a tensor's bytes lie."""

    path: Path
    dtype: torch.dtype
    shape: list[int]
    offset: int                  # of its first byte, from the start of the file


# ------------------------------------------------------------------------------------------- which model, on which device


def start_folder(name: str) -> Path | None:
    """The folder of the model that training starts from; None for "tiny", which has random weights."""
    return {"tiny": None, "tiny-base": TINY_BASE}.get(name, Path(name))


def start_model(name: str, device: str, seed: int) -> Qwen3:
    """The model that training starts from, its parameters in float32."""
    folder = start_folder(name)
    return Qwen3(ModelConfig.preset("tiny"), seed=seed).to(device) if folder is None else load(folder, device)


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


# ----------------------------------------------------------------------------------------------------------------- loading


def load(folder, device="cpu", dtype=torch.float32) -> Qwen3:
    """The model in a folder, every parameter in `dtype`, whatever the file holds."""
    if not dtype.is_floating_point:
        raise WeightsError(f"weights are floating-point numbers, not {dtype}")
    folder = current(folder)
    if not folder.is_dir():
        raise WeightsError(f"{folder} is not a folder")
    config = ModelConfig.from_json(folder)
    with torch.device("meta"):
        model = Qwen3(config)
    stored = list_tensors(folder)
    if config.tie_word_embeddings:
        stored.pop("lm_head.weight", None)                   # some published files hold a second copy of the embedding
    check_tensors(folder, stored, model.state_dict())
    buffer = torch.empty(BUFFER, dtype=torch.uint8)          # one for all: many would leave holes between the parameters
    model.load_state_dict({name: read_tensor(where, device, dtype, buffer) for name, where in stored.items()}, assign=True)
    return model


def list_tensors(folder: Path) -> dict[str, Stored]:
    single, index = folder / SINGLE, folder / INDEX
    if single.exists() and index.exists():
        raise WeightsError(f"{folder} holds both {SINGLE} and {INDEX}: remove the one that does not belong to it")
    if single.exists():
        return read_header(single)
    if not index.exists():
        raise WeightsError(f"{folder} holds neither {SINGLE} nor {INDEX}")
    return read_shards(folder, read_index(index))


def read_index(index: Path) -> dict[str, str]:
    """tensor name -> shard name"""
    try:
        weight_map = read_json(index).get("weight_map")
    except ConfigError as error:
        raise WeightsError(str(error)) from None
    if not isinstance(weight_map, dict) or not weight_map:
        raise WeightsError(f"{index} has no weight_map from tensor names to files")
    # A name with a path in it could point anywhere on the disk
    bad = [s for s in weight_map.values() if not isinstance(s, str) or not re.fullmatch(r"[\w.-]+\.safetensors", s)]
    if bad:
        raise WeightsError(f"{index}: a shard must be the plain name of a .safetensors file beside it, got {bad[0]!r}")
    return weight_map


def read_shards(folder: Path, weight_map: dict[str, str]) -> dict[str, Stored]:
    shards = sorted(set(weight_map.values()))
    absent = [shard for shard in shards if not (folder / shard).is_file()]
    if absent:
        raise WeightsError(f"{folder} lacks {len(absent)} of {len(shards)} shards that its index names: {', '.join(absent)}")
    stored: dict[str, Stored] = {}
    wrong = []
    for shard in shards:
        held = read_header(folder / shard)
        placed = {name for name, file in weight_map.items() if file == shard}
        wrong += [f"{name} is not in {shard}" for name in sorted(placed - held.keys())]
        wrong += [f"{name} is in {shard} without being listed there" for name in sorted(held.keys() - placed)]
        stored |= held
    if wrong:
        raise WeightsError(f"{folder / INDEX} does not match its shards: {'; '.join(wrong)}")
    return stored


def read_header(path: Path) -> dict[str, Stored]:
    """Layout of a file: 8 bytes n, then n bytes of JSON with every tensor's type, shape and byte range, then the data."""
    try:
        with safe_open(path, "pt"):                          # validates the header, and the file's length against it
            pass
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{path} is not a complete safetensors file: {error}") from None
    header.pop("__metadata__", None)
    odd = [f"{name} ({entry['dtype']})" for name, entry in header.items() if entry["dtype"] not in DTYPES]
    if odd:
        raise WeightsError(f"{path}: only {', '.join(DTYPES)} weights can be read; found {', '.join(odd)}")
    return {name: Stored(path, DTYPES[entry["dtype"]], entry["shape"], 8 + size + entry["data_offsets"][0])
            for name, entry in header.items()}


def check_tensors(folder: Path, stored: dict[str, Stored], expected: dict[str, Tensor]) -> None:
    """Raise one error with everything that is missing, unexpected or of another shape."""
    wrong = [f"missing {name}" for name in expected if name not in stored]
    wrong += [f"unexpected {name}" for name in sorted(stored) if name not in expected]
    wrong += [f"{name} is {where.shape}, the config says {list(expected[name].shape)}" for name, where in stored.items()
              if name in expected and where.shape != list(expected[name].shape)]
    if wrong:
        raise WeightsError(f"the tensors in {folder} are not those of its config.json:\n  " + "\n  ".join(wrong))


def read_tensor(where: Stored, device, dtype: torch.dtype, buffer: Tensor) -> Tensor:
    """One parameter, through `buffer`, bytes of any number that holds at least one element."""
    tensor = torch.empty(where.shape, dtype=dtype, device=device)
    with open(where.path, "rb") as file:
        file.seek(where.offset)
        for piece in tensor.view(-1).split(len(buffer) // where.dtype.itemsize):
            raw = buffer[:len(piece) * where.dtype.itemsize]
            if file.readinto(raw.numpy().data) != len(raw):
                raise WeightsError(f"{where.path} ended while it was read")
            piece.copy_(raw.view(where.dtype))
    return tensor


# ------------------------------------------------------------------------------------------------------------------ saving


def save(model: Qwen3, folder, tokenizer_files: Mapping | Iterable = (), generation: dict | None = None, shard_bytes=5 * 10**9):
    """Write a folder that `load` and transformers read, in the model's own type; replace the one that is there.

    `tokenizer_files` are copied in: paths, or a mapping from the name in the folder to the path. `generation` is what
    generation_config.json says, by default Qwen3's published values. A tensor larger than `shard_bytes` has a file of its own.
    """
    kind = str(model.head_weight.dtype).removeprefix("torch.")
    named = tokenizer_files if isinstance(tokenizer_files, Mapping) else {Path(file).name: file for file in tokenizer_files}
    with replaced(folder) as new:
        check_save(model, Path(folder), named)
        for name, file in named.items():
            shutil.copyfile(file, new / name)
        write_tensors(model.state_dict(), new, shard_bytes)
        write_json(new / "generation_config.json", default_generation(model.config) if generation is None else generation)
        write_json(new / "config.json", {**model.config.to_hf(), "dtype": kind, "torch_dtype": kind})    # new and old key
        for file in new.glob("*.safetensors"):
            shutil.copymode(new / "config.json", file)       # save_file leaves them readable to their owner only


def check_save(model: Qwen3, folder: Path, tokenizer_files: Mapping) -> None:
    if model.head_weight.is_meta:
        raise WeightsError("a model on the meta device has no weights to save")
    absent = [str(file) for file in tokenizer_files.values() if not Path(file).is_file()]
    if absent:
        raise WeightsError(f"tokenizer files that do not exist: {', '.join(absent)}")
    own = {"config.json", "generation_config.json"}
    taken = [name for name in tokenizer_files if name in own or WEIGHT_FILE.fullmatch(name) or Path(name).name != name]
    if taken:
        raise WeightsError(f"{', '.join(taken)} cannot name a tokenizer file: save writes it itself, or it is not a plain name")
    if folder.exists() and not folder.is_dir():
        raise WeightsError(f"{folder} is a file, not a folder")
    present = sorted(os.listdir(folder)) if folder.exists() else []
    lost = [name for name in present if name not in own | tokenizer_files.keys() and not WEIGHT_FILE.fullmatch(name)]
    if lost:                                                 # a home or run folder given by mistake must survive
        raise WeightsError(f"saving replaces the whole of {folder} and would delete {', '.join(lost)}: choose another folder, or "
                           f"give them as tokenizer_files")


def write_tensors(state: dict[str, Tensor], folder: Path, shard_bytes: int) -> None:
    shards: list[list[str]] = [[]]
    room = shard_bytes
    for name, tensor in state.items():
        if shards[-1] and tensor.nbytes > room:
            shards.append([])
            room = shard_bytes
        shards[-1].append(name)
        room -= tensor.nbytes
    files = [SINGLE] if len(shards) == 1 else [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    for file, names in zip(files, shards, strict=True):
        tensors = {name: state[name].cpu().contiguous() for name in names}
        save_file(tensors, folder / file, metadata={"format": "pt"})         # transformers asks for this entry
    if len(files) > 1:
        weight_map = {name: file for file, names in zip(files, shards, strict=True) for name in names}
        total = sum(tensor.nbytes for tensor in state.values())
        write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def default_generation(config: ModelConfig) -> dict:
    """Qwen3's values; without the token ids when the vocabulary is too small to be Qwen3's."""
    if config.vocab_size <= IM_END:
        return GENERATION
    return GENERATION | {"bos_token_id": ENDOFTEXT, "eos_token_id": [IM_END, ENDOFTEXT], "pad_token_id": ENDOFTEXT}


def write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
