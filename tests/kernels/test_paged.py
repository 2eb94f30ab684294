"""Attention over pages, the torch path: decoding, chunks on a cached prefix, fresh prompts, and
slots that nobody wrote."""

import pytest
import torch
from hypothesis import given

from minvenus.kernels.paged import paged_attention, paged_attention_reference, write_pages
from tests.kernels.cases import paged, paged_cases

close = {"rtol": 1e-5, "atol": 1e-5}


def test_two_tokens_in_two_pages_worked_by_hand():
    k_pages, v_pages = torch.full((2, 3, 1, 1, 2), float("nan"))
    k_pages[2], v_pages[2] = torch.zeros(2), torch.tensor([4.0, 0.0])  # token 0 in page 2
    k_pages[0], v_pages[0] = torch.tensor([4.0, 1.0]).log(), torch.tensor([0.0, 8.0])  # token 1
    q = torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]]]) * 2**0.5  # takes out 1 / sqrt(D)
    table, length, bounds = torch.tensor([[2, 0, 1]]), torch.tensor([2]), torch.tensor([0, 2])
    expected = torch.tensor([[[4.0, 0.0]], [[0.8, 6.4]]])  # weights 1, then 1/5 and 4/5
    for function in (paged_attention, paged_attention_reference):
        torch.testing.assert_close(function(q, k_pages, v_pages, table, length, bounds), expected)


def test_writing_touches_only_the_named_slots():
    k_pages, v_pages = torch.zeros(2, 4, 16, 2, 8, dtype=torch.bfloat16)
    k, v = torch.ones(3, 2, 8), torch.full((3, 2, 8), 2.0)
    write_pages(k, v, k_pages, v_pages, torch.tensor([0, 31, 50]))
    for place in ((0, 0), (1, 15), (3, 2)):
        assert (k_pages[place] == 1).all() and (v_pages[place] == 2).all()
    assert k_pages.sum() == 3 * 16 and v_pages.sum() == 6 * 16
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        write_pages(k, v, k_pages, v_pages, torch.tensor([0, 1, 64]))


@pytest.mark.parametrize("numbers", (1, 140, 10**6))
@given(paged_cases())
def test_the_torch_path_is_the_definition_however_its_chunks_are_cut(numbers, case):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("minvenus.kernels.paged.MASK_NUMBERS", numbers)
        out = paged_attention(*case)
    torch.testing.assert_close(out, paged_attention_reference(*case), **close)


def test_wrong_arguments_are_refused_with_the_numbers():
    q, k_pages, v_pages, table, lengths, cu = paged([40, 20], [1, 1], 4, 2, 16, 16, spare=0)
    for queries, values, wrong_lengths, bounds, message in (
        (q, v_pages, lengths[:1], cu, r"lengths \[S\].*\[2, 3\], \[1\]"),
        (q, v_pages, lengths, cu[:2], r"\[2\], \[2\]\]"),
        (q[..., :8], v_pages, lengths, cu, r"got \[\[2, 4, 8\]"),
        (q[:, :3], v_pages, lengths, cu, r"got \[\[2, 3, 16\]"),
        (q, v_pages[1:], lengths, cu, "need q"),
    ):
        with pytest.raises(ValueError, match=message):
            paged_attention(queries, k_pages, values, table, wrong_lengths, bounds)
