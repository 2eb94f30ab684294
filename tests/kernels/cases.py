"""Problems for the tests of all implementations: packed sequences, and pages with NaN in every
slot that nobody wrote."""

import os
from dataclasses import dataclass

import pytest
import torch
from hypothesis import strategies as st

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
NEEDS_INTERPRETER = [
    pytest.mark.interpret,
    pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1 in its own process"),
    # an empty split: lse is -inf
    pytest.mark.filterwarnings("ignore:divide by zero encountered in log2"),
]


@dataclass
class Paged:
    """S sequences in pages. The last new_S[s] tokens of sequence s are the queries."""

    q: torch.Tensor  # [N, H, D]
    k_pages: torch.Tensor  # [P, page, K, D]
    v_pages: torch.Tensor
    block_table: torch.Tensor  # [S, most pages + spare]
    lengths: torch.Tensor  # [S]
    cu_queries: torch.Tensor  # [S + 1]

    def __iter__(self):
        return iter(vars(self).values())


def cumulative(lengths):
    return torch.tensor([0, *lengths], dtype=torch.int64).cumsum(0)


def packed(lengths, heads, kv_heads, channels, seed=0):
    """q [N, H, D], k and v [N, K, D], cu_seqlens."""
    g = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(sum(lengths), h, channels, generator=g) for h in (heads, kv_heads, kv_heads)
    )
    return q, k, v, cumulative(lengths)


def paged(lengths, new, heads, kv_heads, channels, page, seed=0, shared=0, spare=2):
    """Scattered pages; every sequence that fills the first `shared` pages has the same ones."""
    g = torch.Generator().manual_seed(seed)
    need = [-(-length // page) for length in lengths]
    pool = sum(need) + shared + 3
    free = torch.randperm(pool, generator=g).tolist()
    common, free = free[:shared], free[shared:]
    # entries that are not used name any page
    width = max(need, default=0) + spare
    block_table = torch.randint(0, pool, (len(lengths), width), generator=g, dtype=torch.int32)
    k_pages, v_pages = torch.full((2, pool, page, kv_heads, channels), float("nan"))
    for s, length in enumerate(lengths):
        for i in range(need[s]):
            full = length >= (i + 1) * page
            p = common[i] if i < shared and full else free.pop(0)
            block_table[s, i] = p
            live = min(page, length - i * page)
            for pages in (k_pages, v_pages):
                pages[p, :live] = torch.randn(live, kv_heads, channels, generator=g)
    q = torch.randn(sum(new), heads, channels, generator=g)
    lengths = torch.tensor(lengths, dtype=torch.int32)
    return Paged(q, k_pages, v_pages, block_table, lengths, cumulative(new))


@st.composite
def paged_cases(draw, heads=((4, 2), (1, 1), (2, 1), (4, 2), (4, 1), (8, 1)), channels=(16, 32)):
    """Lengths at page edges are as likely as any; some sequences have no queries at all."""
    page = draw(st.sampled_from([16, 32]))
    edge = st.sampled_from([1, page - 1, page, page + 1, 2 * page, 2 * page + 1])
    lengths = draw(st.lists(edge | st.integers(1, 70), min_size=1, max_size=4))
    new = [
        draw(st.sampled_from([1, 0, length, min(length, page + 1)]) | st.integers(0, length))
        for length in lengths
    ]
    return paged(
        lengths,
        new,
        *draw(st.sampled_from(heads)),
        draw(st.sampled_from(channels)),
        page,
        seed=draw(st.integers(0, 2**16)),
        shared=draw(st.integers(0, 2)),
        spare=draw(st.integers(0, 3)),
    )
