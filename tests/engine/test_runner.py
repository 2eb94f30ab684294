"""Running a step: cut into pieces, and hidden states only of the tokens that are asked for."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minvenus.engine import Engine, Sampling, runner
from minvenus.engine.pages import Table
from minvenus.engine.runner import Chunk, pieces
from minvenus.engine.scheduler import Work
from minvenus.engine.sequence import Prefill, Scoring, Sequence, Turn
from tests.engine.models import naive_greedy, naive_scores, poisoned, sharp_model
from tests.engine.test_score import close

MODEL = sharp_model()


def sequence(computed, job, goal):
    return Sequence(0, list(range(99)), table=Table(0, length=computed), job=job, goal=goal)


def test_a_turn_asks_for_its_last_token_scoring_for_those_from_its_first_on_and_a_prefill_for_none():
    turn = sequence(10, Turn(Sampling(5)), 20)
    assert [turn.asked(n) for n in (1, 9, 10)] == [0, 0, 1]
    scoring = sequence(10, Scoring(13, 1.0, turn), 20)
    assert [scoring.asked(n) for n in (1, 3, 4, 10)] == [0, 0, 1, 7]
    assert sequence(14, Scoring(13, 1.0, turn), 20).asked(5) == 5
    assert sequence(10, Prefill(), 20).asked(10) == 0


def test_pieces_of_eight_tokens_worked_by_hand():
    long, short, other = sequence(10, Scoring(16, 1.0, None), 40), sequence(0, Turn(Sampling(5)), 5), sequence(3, Prefill(), 9)
    assert pieces([Work(long, 19, []), Work(short, 5, []), Work(other, 4, [])], 8) == [
        [Chunk(long, 10, 8, 2)], [Chunk(long, 18, 8, 8)], [Chunk(long, 26, 3, 3), Chunk(short, 0, 5, 1)], [Chunk(other, 3, 4, 0)]]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20), st.integers(0, 40)), min_size=1, max_size=6), st.integers(1, 30))
def test_pieces_are_the_whole_work_in_its_order_and_never_too_large(lengths, limit):
    work = [Work(sequence(start, Scoring(first, 1.0, None), 99), new, []) for start, new, first in lengths]
    parts = pieces(work, limit)
    assert all(1 <= sum(c.count for c in part) <= limit for part in parts)
    chunks = [c for part in parts for c in part]
    tokens = [(id(c.sequence), i, i >= c.start + c.count - c.asked) for c in chunks for i in range(c.start, c.start + c.count)]
    assert tokens == [(id(s), i, i >= s.job.first) for s, new, _ in work for i in range(s.table.length, s.table.length + new)]


@pytest.mark.parametrize("piece", [1, 5, 40])
def test_a_step_in_pieces_gives_the_same_tokens_and_scores(piece, monkeypatch):
    monkeypatch.setattr(runner, "PIECE", piece)
    prompts = [torch.randint(0, 40, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in (5, 33, 64, 17, 1)]
    engine = poisoned(Engine(MODEL, pages=60, page_size=16))
    wanted = [naive_greedy(MODEL, p, 6) for p in prompts]
    assert [c.tokens for [c] in engine.generate(prompts, Sampling(6, temperature=0))] == wanted
    for prompt in prompts:
        assert close(engine.score(prompt, [[3, 1, 4], [1, 5]]), [naive_scores(MODEL, prompt, c) for c in ([3, 1, 4], [1, 5])])


@given(st.lists(st.integers(0, 11), unique=True, max_size=12))
def test_asking_for_some_rows_gives_those_of_all(rows):
    tokens, positions, kept = torch.arange(12), torch.arange(12), torch.tensor(rows, dtype=torch.int64)

    def attend(layer, q, k, v):                                        # every query sees every key
        keys, values = (x.repeat_interleave(2, dim=1) for x in (k, v))
        return torch.einsum("qhk,khd->qhd", torch.einsum("qhd,khd->qhk", q, keys).softmax(dim=-1), values)

    torch.testing.assert_close(MODEL.paged(tokens, positions, attend, kept), MODEL.paged(tokens, positions, attend)[kept])
