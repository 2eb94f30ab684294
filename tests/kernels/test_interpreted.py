"""The Triton kernels in Triton's interpreter against the definitions: what they compute.

In float32, and in float16 for the casts; the interpreter is wrong for bfloat16. That the kernels
compile is test_compiled.py's. The interpreter pays per block, not per number: problems are small,
and most tests choose their own tiles.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minvenus.kernels import attention as packed_attention
from minvenus.kernels.attention import attention_reference, attention_triton
from minvenus.kernels.paged import paged_attention, paged_attention_reference
from tests.kernels.cases import INTERPRETED, NEEDS_INTERPRETER, packed, paged, paged_cases
from tests.kernels.test_attention import with_gradients

pytestmark = NEEDS_INTERPRETER
if INTERPRETED:
    pytest.importorskip("triton")
    from minvenus.kernels import attention_triton as packed_kernels
    from minvenus.kernels import paged_triton as paged_kernels

close = {"rtol": 2e-5, "atol": 2e-5}
half_close = {"rtol": 2e-3, "atol": 4e-3}
few = settings(max_examples=max(5, settings.default.max_examples // 4))
heads = ((1, 1), (2, 1), (4, 2), (4, 1), (8, 1), (6, 2))


def same_as_the_definition(case, block=None, **limits):
    """With the shipped tiles, or with one block (m, n) for all passes."""
    with pytest.MonkeyPatch.context() as patch:
        for name in dict(packed_kernels.TILES) if block else ():
            patch.setitem(packed_kernels.TILES, name, ((*block, 4, 1),) * 3)
        results = with_gradients(attention_triton, *case)
    q, k, v, cu_seqlens = case
    definition = with_gradients(attention_reference, q.float(), k.float(), v.float(), cu_seqlens)
    for ours, theirs in zip(results, definition, strict=True):
        assert ours.dtype == q.dtype
        torch.testing.assert_close(ours.float(), theirs, **(limits or close))


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
    same_as_the_definition(case, block)


def test_packed_attention_with_the_shipped_float32_tiles():
    same_as_the_definition(packed([33, 1, 18], 2, 1, 128))


@pytest.mark.parametrize("channels", [64, 128])
def test_packed_attention_in_float16(channels):
    q, k, v, cu = packed([70, 1, 20], 4, 2, channels)
    same_as_the_definition((q.half(), k.half(), v.half(), cu), **half_close)


def test_backward_gives_the_same_bits_twice():
    case = packed([50, 20], 4, 2, 16)
    one, two = (with_gradients(attention_triton, *case) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_strided_inputs_and_int32_lengths_are_taken():
    q, k, v, cu = packed([20, 13], 4, 2, 16)
    both, strided = torch.cat((k, v), dim=1), q.transpose(0, 1).contiguous().transpose(0, 1)
    out = attention_triton(strided, both[:, :2], both[:, 2:], cu.int())
    torch.testing.assert_close(out, attention_reference(q, k, v, cu), **close)


def test_a_gradient_that_comes_back_transposed_gives_the_same_as_a_plain_one():
    q, k, v, cu = packed([20, 13], 4, 2, 16)
    plain = torch.randn(q.shape, generator=torch.Generator().manual_seed(1))
    transposed = plain.transpose(0, 1).contiguous().transpose(0, 1)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    expected, found = (
        torch.autograd.grad(attention_triton(*leaves, cu), leaves, gradient)
        for gradient in (plain, transposed)
    )
    assert all(map(torch.equal, expected, found))


def run_paged(case, splits):
    longest = int(case.cu_queries.diff().max()), int(case.lengths.max())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paged_kernels, "choose_splits", lambda *_: splits)
        return paged_kernels.paged_attention_triton(*case, *longest)


@settings(max_examples=max(5, settings.default.max_examples // 2))
@given(
    paged_cases(heads=heads, channels=(16, 40)),
    st.integers(1, 4),
    st.sampled_from([(16, 32), (32, 32), (32, 64)]),
)
def test_paged_attention_is_the_definition_whatever_the_splits(case, splits, block):
    with pytest.MonkeyPatch.context() as patch:
        for key in dict(paged_kernels.TILES):
            patch.setitem(paged_kernels.TILES, key, (*block, 4, 1))
        out = run_paged(case, splits)
    torch.testing.assert_close(out, paged_attention_reference(*case), **close)


@pytest.mark.parametrize("page", [16, 64, 256])
@pytest.mark.parametrize("new", [[1, 1, 1], [7, 1, 41]], ids=["decoding", "chunks"])
def test_paged_attention_with_the_shipped_tiles(page, new):
    """Three query heads read a kv head: 32 rows hold ten tokens, and 41 need five blocks."""
    case = paged([300, 16, 41], new, 6, 2, 64, page, shared=1)
    expected = paged_attention_reference(*case)
    torch.testing.assert_close(run_paged(case, 3), expected, **close)
    case.q, case.k_pages, case.v_pages = case.q.half(), case.k_pages.half(), case.v_pages.half()
    out = run_paged(case, 3)
    assert out.dtype == torch.float16
    torch.testing.assert_close(out.float(), expected, **half_close)


def test_splits_of_half_precision_are_rounded_once_at_the_end():
    """All keys weigh the same, so the result is the mean of the values. In steps of float16 above 1
    it is 0.56 over all eight splits, and below a half or between 1 and 1.5 in each of them."""
    case = paged([512], [1], 1, 1, 16, 64)
    step = 2.0**-10
    case.q.zero_()
    for split, page in enumerate(case.block_table[0, :8].tolist()):
        case.v_pages[page] = 1.0
        case.v_pages[page, : 64 if split == 7 else 28] += step  # means of 0.44 steps,
        case.v_pages[page, : 26 if split == 7 else 0] += step  # and in the last one of 1.41
    case.q, case.k_pages, case.v_pages = case.q.half(), case.k_pages.half(), case.v_pages.half()
    assert run_paged(case, 8).unique().tolist() == [1 + step]


def test_a_caller_need_not_know_the_longest_lengths(monkeypatch):
    """Two blocks of at most 16 tokens, for two kv heads of two sequences, are 8 programs."""
    monkeypatch.setattr(packed_attention, "TRITON_DEVICES", {"cpu"})
    asked = []
    monkeypatch.setattr(paged_kernels, "choose_splits", lambda *sizes: asked.append(sizes) or 2)
    case = paged([100, 30], [2, 20], 4, 2, 16, 16)
    torch.testing.assert_close(paged_attention(*case), paged_attention_reference(*case), **close)
    assert asked == [(8, 100, 1)]


def far_away(*shape):
    """Memory that is reserved and never touched: numbers past 2^31 on a small machine."""
    try:
        return torch.empty(shape)
    except RuntimeError:
        gigabytes = torch.Size(shape).numel() / 2**28
        pytest.skip(f"this machine does not reserve {gigabytes:.0f} GiB of untouched memory")


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


@pytest.mark.parametrize(
    "programs, longest, splits",
    [
        (8, 262_144, 33),  # one sequence, 8 kv heads: 264 programs
        (8, 1000, 3),  # 256 keys at least
        (256, 262_144, 2),
        (300, 262_144, 1),
        (1, 262_144, 128),
        (1, 10, 1),
    ],
)
def test_splits_fill_the_processors_and_are_never_too_short(programs, longest, splits):
    assert paged_kernels.choose_splits(programs, longest, processors=132) == splits
