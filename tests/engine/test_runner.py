"""Running a step: cut into pieces, hidden states only of the tokens that are asked for, and the decoder in fewer calls."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minvenus.config import ModelConfig
from minvenus.engine import Engine, Sampling, runner
from minvenus.engine.pages import Table
from minvenus.engine.runner import Chunk, pieces
from minvenus.engine.scheduler import Work
from minvenus.engine.sequence import Prefill, Scoring, Sequence, Turn
from minvenus.model.fused import FusedDecoder, fusible
from minvenus.model.qwen3 import Qwen3
from tests.engine.models import CONFIG, FixedLogits, naive_greedy, naive_scores, poisoned, sharp_model
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
        [Chunk(long, 10, 8, 2)],
        [Chunk(long, 18, 8, 8)],
        [Chunk(long, 26, 3, 3), Chunk(short, 0, 5, 1)],
        [Chunk(other, 3, 4, 0)]]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20), st.integers(0, 40)), min_size=1, max_size=6),
       st.integers(1, 30))
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
    torch.testing.assert_close(MODEL.paged(tokens, positions, sees_everything, kept),
                               MODEL.paged(tokens, positions, sees_everything)[kept])


# ------------------------------------------------------------------------------------------------------ the fused decoder


def sees_everything(layer, q, k, v):
    keys, values = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    return torch.einsum("qhk,khd->qhd", torch.einsum("qhd,khd->qhk", q, keys).softmax(dim=-1), values)


def uneven(config, seed=0):
    """Random weights everywhere: norms of 1 would hide that one was left out or applied twice."""
    model, generator = Qwen3(config, seed).requires_grad_(False), torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.mul_(3.0) if parameter.dim() == 2 else parameter.uniform_(0.5, 2.0, generator=generator)
    return model


@given(st.integers(1, 3), st.integers(1, 3), st.sampled_from([1, 2, 4]), st.integers(1, 5), st.booleans(), st.integers(0, 9))
def test_the_fused_decoder_gives_the_hidden_states_of_the_plain_one(layers, kv_heads, group, half, some_rows, seed):
    config = ModelConfig(24, 40, layers, kv_heads * group, kv_heads, head_dim=2 * half, vocab_size=40, rms_norm_eps=1e-2)
    model = uneven(config, seed)
    tokens, positions = torch.arange(12), torch.arange(12) * 7
    rows = torch.tensor([11, 3]) if some_rows else None
    plain = model.paged(tokens, positions, sees_everything, rows)
    torch.testing.assert_close(FusedDecoder(model)(tokens, positions, sees_everything, rows), plain, rtol=1e-5, atol=1e-5)


def test_large_models_half_precision_and_models_of_another_kind_are_not_fused():
    small = Qwen3(CONFIG)
    assert fusible(small) and not fusible(small.bfloat16()) and not fusible(FixedLogits([0.0, 1.0]))
    with torch.device("meta"):
        assert not fusible(Qwen3(ModelConfig.preset("qwen3-0.6b")))


def test_an_engine_of_a_model_that_is_not_fused_gives_the_same_tokens():
    engine = Engine(MODEL, pages=20, page_size=16)
    engine.runner._fusible = False
    prompt = list(range(20))
    assert engine.generate([prompt], Sampling(6, temperature=0))[0][0].tokens == naive_greedy(MODEL, prompt, 6)
