"""Compile a shipped kernel, with its shipped tiles, for a GPU that is not here, and read what it
uses. Imports triton."""

import os
import re
import subprocess
import tempfile
from dataclasses import dataclass

import torch
import triton
from triton.backends import nvidia
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from minvenus.kernels import attention_triton, paged_triton

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
KILOBYTES = {"sm_80": 163, "sm_90": 227, "sm_100": 227, "gfx942": 64}  # of shared memory
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
HEADS, KV_HEADS = 32, 8  # Qwen3-4B's

# the arguments of kernels: tensors of the model's own type, and others; all else is an i32
OWN_TYPE = {"Q", "K", "V", "Out", "DOut", "DQ", "DK", "DV", "KPages", "VPages"}
TYPES = {
    **dict.fromkeys(("Lse", "Delta", "Parts"), "*fp32"),
    **dict.fromkeys(("cu_seqlens", "Table", "lengths"), "*i32"),
    "cu_queries": "*i64",
    **dict.fromkeys(("scale", "scale2"), "fp32"),
}


@dataclass(frozen=True)
class Compiled:
    spilled: int  # bytes of stack on NVIDIA, registers on AMD
    shared: int  # bytes
    tensor_cores: str  # the instruction found, or ""
    ttir: str  # what Triton made of the kernel before it knew the GPU


def kernel_of(name, dtype, channels, amd):
    """The kernel, its constants and its launch options, as the wrappers choose them."""
    shape = {"H": HEADS, "KV": KV_HEADS, "D": channels}
    if name == "delta":
        rows = attention_triton.DELTA_ROWS
        return attention_triton.delta_kernel, {"H": HEADS, "D": channels, "BLOCK_M": rows}
    if name == "paged combine":
        return paged_triton.combine_kernel, {"D": channels, "BLOCK_S": 32}
    if name.startswith("paged"):
        group = HEADS // KV_HEADS
        tokens = 1 if name == "paged decode" else 512
        options = paged_triton.tiles(dtype, tokens * group, group, amd)
        return paged_triton.split_kernel, shape | {"PAGE": 16} | options
    kernel = getattr(attention_triton, f"{name}_kernel")
    return kernel, shape | attention_triton.tiles(name, dtype, channels, amd)


def compile_one(case):
    """case (kernel, dtype, head_dim, target), all by name -> Compiled."""
    name, dtype, channels, target = case
    kernel, constants = kernel_of(name, DTYPES[dtype], channels, target == "gfx942")
    options = {key: constants.pop(key) for key in ("num_warps", "num_stages") if key in constants}
    types = TYPES | dict.fromkeys(OWN_TYPE, f"*{dtype}") | dict.fromkeys(constants, "constexpr")
    signature = {argument: types.get(argument, "i32") for argument in kernel.arg_names}
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, kind in enumerate(signature.values())
        if kind.startswith("*")
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    compiled = triton.compile(source, target=TARGETS[target], options=options)
    asm = compiled.asm
    text = asm.get("ptx") or asm["amdgcn"]
    cores = [word for word in ("tcgen05.mma", "wgmma", "mma.sync", "mfma") if word in text]
    return Compiled(spills(asm), compiled.metadata.shared, "".join(cores[:1]), asm["ttir"])


def spills(asm):
    """Of one thread."""
    if "amdgcn" in asm:
        return int(re.search(r"\.vgpr_spill_count:\s+(\d+)", asm["amdgcn"])[1])
    tool = os.path.join(os.path.dirname(nvidia.__file__), "bin", "cuobjdump")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(asm["cubin"])
        file.flush()
        command = [tool, "--dump-resource-usage", file.name]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    stack, local = re.search(r"STACK:(\d+).*? LOCAL:(\d+)", report).groups()
    return int(stack) + int(local)
