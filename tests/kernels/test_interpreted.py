"""The Triton kernels in Triton's interpreter, in float32, against the definitions: what they compute. That they
compile is test_compiled.py's. The interpreter pays per block, not per number: problems are small, and most tests
choose their own tiles."""

from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minvenus.kernels.attention import attention_reference, attention_triton
from minvenus.kernels.paged import paged_attention_reference
from tests.kernels.cases import INTERPRETED, NEEDS_INTERPRETER, packed, paged, paged_cases
from tests.kernels.test_attention import with_gradients

pytestmark = NEEDS_INTERPRETER
if INTERPRETED:
    pytest.importorskip("triton")
    from minvenus.kernels import attention_triton as packed_kernels
    from minvenus.kernels import paged_triton as paged_kernels

close = {"rtol": 2e-5, "atol": 2e-5}
few = settings(max_examples=max(5, settings.default.max_examples // 4))
heads = ((1, 1), (2, 1), (4, 2), (4, 1), (8, 1), (6, 2))


@contextmanager
def tiles(module, **changed):
    """The module's tiles, changed for a while. A block (m, n) for all its passes, or its whole table."""
    shipped, table = dict(module.TILES), changed.get("table")
    if table is None:
        one = (*changed["block"], 4, 1)
        table = {key: (one,) * 3 if isinstance(key, str) else one for key in shipped}
    module.TILES.update(table)
    try:
        yield
    finally:
        module.TILES.update(shipped)


def same_as_the_definition(case):
    definition = with_gradients(attention_reference, *case)
    for ours, theirs in zip(with_gradients(attention_triton, *case), definition, strict=True):
        torch.testing.assert_close(ours, theirs, **close)


@st.composite
def packed_cases(draw):
    """Lengths on both sides of every block edge, 0 and 1 among them."""
    edge = st.sampled_from([1, 0, 31, 32, 33, 64, 65])
    lengths = draw(st.lists(edge | st.integers(1, 80), min_size=1, max_size=3).filter(sum))
    channels, seed = draw(st.sampled_from([16, 32, 40])), draw(st.integers(0, 2**16))
    return packed(lengths, *draw(st.sampled_from(heads)), channels, seed)


@few
@given(case=packed_cases(), block=st.sampled_from([(32, 64), (64, 32), (64, 64)]))
def test_packed_attention_and_its_gradients_are_the_definition(case, block):
    with tiles(packed_kernels, block=block):
        same_as_the_definition(case)


def test_packed_attention_with_the_shipped_float32_tiles():
    same_as_the_definition(packed([33, 1, 18], 2, 1, 128))


@pytest.mark.parametrize("column", [0, 1])
def test_packed_attention_with_the_shipped_half_precision_tiles_run_in_float32(column):
    with tiles(
        packed_kernels, table={key: (row[column],) * 3 for key, row in packed_kernels.TILES.items()}
    ):
        same_as_the_definition(packed([129, 0, 1, 64], 2, 1, 64))


def test_backward_gives_the_same_bits_twice():
    case = packed([50, 20], 4, 2, 16)
    with tiles(packed_kernels, block=(32, 32)):
        for a, b in zip(
            with_gradients(attention_triton, *case),
            with_gradients(attention_triton, *case),
            strict=True,
        ):
            assert torch.equal(a, b)


def test_strided_inputs_and_int32_lengths_are_taken():
    q, k, v, cu = packed([20, 13], 4, 2, 16)
    both, strided = torch.cat((k, v), dim=1), q.transpose(0, 1).contiguous().transpose(0, 1)
    out = attention_triton(strided, both[:, :2], both[:, 2:], cu.int())
    torch.testing.assert_close(out, attention_reference(q, k, v, cu), **close)


def run_paged(case, splits):
    return paged_kernels.paged_attention_triton(
        *case,
        max_queries=int(case.cu_queries.diff().max()),
        max_length=int(case.lengths.max()),
        splits=splits,
    )


@settings(max_examples=max(5, settings.default.max_examples // 2))
@given(
    paged_cases(heads=heads, channels=(16, 40)),
    st.integers(1, 4),
    st.sampled_from([(16, 32), (32, 32), (32, 64)]),
)
def test_paged_attention_is_the_definition_whatever_the_splits(case, splits, block):
    with tiles(paged_kernels, block=block):
        torch.testing.assert_close(
            run_paged(case, splits), paged_attention_reference(*case), **close
        )


@pytest.mark.parametrize("page", [16, 64, 256])
def test_decoding_and_chunks_with_the_shipped_tiles(page):
    for new in ([1, 1, 1], [7, 1, 40]):
        case = paged([300, 16, 40], new, 6, 2, 64, page, shared=1)
        torch.testing.assert_close(run_paged(case, 3), paged_attention_reference(*case), **close)


def far_away(*shape):
    """Memory that is reserved and never touched, so that numbers past 2^31 can be addressed on a small machine."""
    try:
        return torch.empty(shape)
    except RuntimeError:
        pytest.skip(
            f"this machine does not reserve {torch.Size(shape).numel() / 2**28:.0f} GiB of untouched memory"
        )


def test_packed_tokens_past_2_to_the_31_numbers_are_found():
    far = 2**31 // 128 + 7  # rows of 128 numbers before the sequence
    x = far_away(far + 5, 1, 128)
    _, k, _, cu = packed([5], 1, 1, 128)
    x[far:] = k
    out = attention_triton(x, x, x, torch.tensor([far, far + 5]), max_seqlen=5)[far:]
    torch.testing.assert_close(out, attention_reference(k, k, k, cu), **close)


def test_slots_past_2_to_the_31_numbers_are_found():
    case = paged([20], [3], 2, 1, 128, 16, spare=0)
    far = 2**31 // (16 * 128) + 3  # pages before the two that are used
    x = far_away(far + 2, 16, 1, 128)
    x[far:] = case.k_pages[case.block_table[0].long()]
    case.v_pages = case.k_pages
    expected = paged_attention_reference(*case)
    case.k_pages = case.v_pages = x
    case.block_table = torch.tensor([[far, far + 1]], dtype=torch.int32)  # as the engine's
    torch.testing.assert_close(run_paged(case, 1), expected, **close)


def test_splits_fill_the_processors_and_are_never_too_short():
    choose_splits = paged_kernels.choose_splits
    assert choose_splits(8, 262_144, 132) == 33  # one sequence, 8 kv heads: 264 programs
    assert choose_splits(8, 1000, 132) == 3  # 256 keys at least
    assert choose_splits(256, 262_144, 132) == 2 and choose_splits(300, 262_144, 132) == 1
    assert choose_splits(1, 262_144, 132) == 128 and choose_splits(1, 10, 132) == 1
