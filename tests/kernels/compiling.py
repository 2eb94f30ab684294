"""Compile a shipped kernel, with its shipped tiles, for a GPU that is not here, and read what it uses. Imports
triton."""

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
SHARED_LIMIT = {
    "sm_80": 163 * 1024,
    "sm_90": 227 * 1024,
    "sm_100": 227 * 1024,
    "gfx942": 64 * 1024,
}  # bytes
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
HEADS, KV_HEADS = 32, 8  # Qwen3-4B's

INPUTS = (
    "Q",
    "K",
    "V",
    "Out",
    "DOut",
    "DQ",
    "DK",
    "DV",
    "KPages",
    "VPages",
)  # in the model's own type
ARGUMENTS = {
    "Lse": "*fp32",
    "Delta": "*fp32",
    "Parts": "*fp32",
    "cu_seqlens": "*i32",
    "Table": "*i32",
    "lengths": "*i32",
    "cu_queries": "*i64",
    "scale": "fp32",
    "scale2": "fp32",
}  # everything else is an i32


@dataclass(frozen=True)
class Compiled:
    spilled: int  # bytes of stack on NVIDIA, registers on AMD
    shared: int  # bytes
    tensor_cores: str  # the instruction found, or ""
    ttir: str  # what Triton made of the kernel before it knew the GPU


def kernels(dtype, channels, amd):
    """name -> kernel, compile-time constants and launch options, as the wrappers choose them."""
    shape = {"H": HEADS, "KV": KV_HEADS, "D": channels}
    packed = {
        name: attention_triton.tiles(name, dtype, channels, amd)
        for name in ("forward", "dq", "dkv")
    }
    group = HEADS // KV_HEADS
    decode, chunk = (paged_triton.tiles(dtype, tokens * group, group, amd) for tokens in (1, 512))
    return {
        "forward": (attention_triton.forward_kernel, shape | packed["forward"]),
        "delta": (attention_triton.delta_kernel, {"H": HEADS, "D": channels, "BLOCK_M": 64}),
        "dq": (attention_triton.dq_kernel, shape | packed["dq"]),
        "dkv": (attention_triton.dkv_kernel, shape | packed["dkv"]),
        "paged decode": (paged_triton.split_kernel, shape | {"PAGE": 16} | decode),
        "paged chunk": (paged_triton.split_kernel, shape | {"PAGE": 16} | chunk),
        "paged combine": (paged_triton.combine_kernel, {"D": channels, "BLOCK_S": 32}),
    }


def compile_one(case):
    """case (kernel, dtype, head_dim, target), all by name -> Compiled."""
    name, dtype, channels, target = case
    kernel, constants = kernels(DTYPES[dtype], channels, target == "gfx942")[name]
    options = {key: constants.pop(key) for key in ("num_warps", "num_stages") if key in constants}
    signature = {
        a: "constexpr"
        if a in constants
        else f"*{dtype}"
        if a in INPUTS
        else ARGUMENTS.get(a, "i32")
        for a in kernel.arg_names
    }
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, kind in enumerate(signature.values())
        if kind.startswith("*")
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    compiled = triton.compile(source, target=TARGETS[target], options=options)
    text = compiled.asm.get("ptx") or compiled.asm["amdgcn"]
    cores = [word for word in ("tcgen05.mma", "wgmma", "mma.sync", "mfma") if word in text]
    return Compiled(
        spills(compiled.asm),
        compiled.metadata.shared,
        cores[0] if cores else "",
        compiled.asm["ttir"],
    )


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
