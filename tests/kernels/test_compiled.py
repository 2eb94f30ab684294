"""Every Triton kernel, as shipped, compiled for four GPUs that are not here: tensor cores used,
memory fits, nothing spills. Says nothing about results: test_interpreted.py does."""

import os
import re
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from itertools import product

import pytest
import torch

possible = find_spec("triton") is not None and os.environ.get("TRITON_INTERPRET") != "1"
reason = "needs triton, and a process without TRITON_INTERPRET=1"
pytestmark = [
    pytest.mark.compile,
    pytest.mark.seconds(900),
    pytest.mark.skipif(not possible, reason=reason),
]

MATRIX = ("forward", "dq", "dkv", "paged decode", "paged chunk")  # kernels with matrix products
OTHERS = ("delta", "paged combine")  # sums of products by rows: limited by memory
INSTRUCTION = {
    "sm_80": {"mma.sync"},
    "sm_90": {"wgmma", "mma.sync"},
    "sm_100": {"tcgen05.mma", "mma.sync"},
    "gfx942": {"mfma"},
}
CASES = list(product(MATRIX + OTHERS, ("bf16", "fp32"), (64, 128), INSTRUCTION))


@pytest.fixture(scope="module")
def results():
    """All cases, two at a time: compiling is most of this file's time, unless Triton has them."""
    from tests.kernels.compiling import compile_one

    with ProcessPoolExecutor(2) as pool:
        return dict(zip(CASES, pool.map(compile_one, CASES), strict=True))


def test_matrix_products_use_tensor_cores(results):
    for case, result in results.items():
        if case[0] in MATRIX:
            assert result.tensor_cores in INSTRUCTION[case[3]], case


def test_large_half_precision_tiles_use_the_newest_instruction_of_their_gpu(results):
    for name, dim in product(("forward", "dq", "dkv", "paged chunk"), (64, 128)):
        assert results[name, "bf16", dim, "sm_90"].tensor_cores == "wgmma", name
        assert results[name, "bf16", dim, "sm_100"].tensor_cores == "tcgen05.mma", name


def test_nothing_spills_and_shared_memory_fits_the_gpu(results):
    from tests.kernels.compiling import KILOBYTES

    assert len(results) == len(CASES) == 112
    for case, result in results.items():
        assert not result.spilled and result.shared <= KILOBYTES[case[3]] * 1024, case


@pytest.mark.parametrize("name", MATRIX)
def test_float32_is_multiplied_in_three_parts_and_amd_has_half_the_warps(name):
    from tests.kernels.compiling import kernel_of

    (_, nvidia), (_, amd) = (kernel_of(name, torch.float32, 64, amd) for amd in (False, True))
    assert (nvidia["PRECISION"], amd["PRECISION"]) == ("tf32x3", "ieee")
    assert nvidia["num_warps"] == 2 * amd["num_warps"]


@pytest.mark.parametrize("name", MATRIX + OTHERS)
def test_no_kernel_is_compiled_again_for_another_number_of_tokens(name):
    from tests.kernels.compiling import kernel_of

    kernel, constants = kernel_of(name, torch.bfloat16, 64, amd=False)
    numbers = {"tokens", "table_width", "split_length", "rows", "splits"} - set(constants)
    parameters = [p for p in kernel.params if p.name in numbers]
    assert parameters and all(p.do_not_specialize for p in parameters)


@pytest.mark.parametrize("name", ("forward", "dq", "dkv"))
def test_token_offsets_of_packed_kernels_are_int64(results, name):
    """A token's index times the size of its row passes 2^31: such a product may be taken in 32
    bits only inside a block."""
    ttir = results[name, "bf16", 128, "sm_90"].ttir
    scalar = re.findall(r"arith\.muli %\S+, %c(\d+)_i(32|64)\S* .*: i\d+", ttir)
    assert not [size for size, bits in scalar if bits == "32" and int(size) in (32 * 128, 8 * 128)]
    assert [size for size, bits in scalar if bits == "64"], "no 64-bit product found at all"


@pytest.mark.parametrize("name", ("paged decode", "paged chunk", "paged combine"))
def test_slot_and_row_offsets_of_paged_kernels_are_int64(results, name):
    """Blocks of slots, of rows and of parts are far apart: every product over a block is 64 bits
    wide, and every product with the number of tokens, rows or table columns."""
    ttir = results[name, "bf16", 128, "sm_90"].ttir
    assert not re.findall(r"arith\.muli .*: tensor<[^>]*xi32>", ttir)
    assert not re.findall(r"arith\.muli .*%(?:tokens|rows|table_width)\b.*: i32\b", ttir)
    assert re.findall(r"arith\.muli .*: tensor<[^>]*xi64>", ttir), "no 64-bit product found at all"
