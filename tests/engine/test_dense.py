"""The contiguous copy of decoding sequences: its products read slices of larger tensors, with one thread or several."""

from contextlib import contextmanager

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minvenus.engine import Engine, Sampling
from minvenus.engine.dense import product, zeros
from tests.engine.models import CONFIG, sharp_model

sizes = st.integers(1, 6)


@contextmanager
def threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("count", (1, 2))
@given(sizes, sizes, sizes, sizes, st.sampled_from((torch.float32, torch.float64, torch.bfloat16)), st.integers(0, 99))
def test_the_product_of_rows_and_matrices_is_their_sum_of_products(count, batch, n, x, y, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(batch, n, x, generator=generator).to(dtype)
    matrices = torch.randn(batch, x + 2, y + 3, generator=generator).to(dtype)[:, :x, :y]       # cut out of larger ones
    out = torch.full((batch, n, y), float("nan"), dtype=dtype)
    with threads(count):
        assert product(rows, matrices, out) is out
    wanted = (rows.double()[:, :, :, None] * matrices.double()[:, None]).sum(dim=2)
    torch.testing.assert_close(out.double(), wanted, rtol=0, atol=0.05 if dtype == torch.bfloat16 else 1e-5)


def test_memory_that_is_used_again_holds_nothing_of_what_it_held():
    for count in (24, 30, 23):                                                     # just enough, more, too little
        again = zeros((2, 3, 4), torch.full((count,), float("nan")))
        assert again.shape == (2, 3, 4) and again.is_contiguous() and not again.any()


def test_sequences_of_different_lengths_decode_to_the_same_tokens_with_one_thread_and_with_two():
    drawn = {}
    for count in (1, 2):
        with threads(count):
            prompts = [[(7 * i + j) % CONFIG.vocab_size for j in range(3 + 5 * i)] for i in range(4)]
            groups = Engine(sharp_model(), pages=64, page_size=4).generate(prompts, Sampling(12, temperature=0), n=2)
        drawn[count] = [completion for group in groups for completion in group]
    for one, two in zip(drawn[1], drawn[2], strict=True):
        assert one.tokens == two.tokens and one.logprobs == pytest.approx(two.logprobs, abs=1e-5)
