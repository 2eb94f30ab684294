"""The decoding step on a CPU: keys and values side by side, and the merged matrices of small
models, against the plain model."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minvenus.config import FAMILIES, ModelConfig
from minvenus.engine import Engine, Sampling, decode, runner
from minvenus.engine.decode import MergedModel
from minvenus.model.qwen3 import Qwen3
from tests.engine.models import (
    CONFIG,
    CountingModel,
    FixedLogits,
    is_greedy,
    naive_scores,
    poisoned,
    sharp_model,
)

MODEL = sharp_model()


def sees_everything(layer, q, k, v):
    keys, values = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->qhk", q * q.shape[-1] ** -0.5, keys)
    return torch.einsum("qhk,khd->qhd", scores.softmax(dim=-1), values)


def uneven(config, seed=0):
    """Random weights everywhere: norms of 1 would hide that one was left out or applied twice."""
    model = Qwen3(config, seed).requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.mul_(3.0)
        else:
            parameter.uniform_(0.5, 2.0, generator=generator)
    return model


@pytest.mark.parametrize("small", (2**20, 0), ids=("small", "large"))
@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 5),
    st.integers(0, 9),
    st.sampled_from(sorted(FAMILIES)),
)
def test_the_merged_model_is_the_plain_one(
    small, layers, kv_heads, group, half, seed, family
):
    config = ModelConfig(
        24,
        40,
        layers,
        kv_heads * group,
        kv_heads,
        head_dim=2 * half,
        vocab_size=40,
        rms_norm_eps=1e-2,
        **FAMILIES[family].attention,
    )
    model = uneven(config, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "SMALL", small)
        copy = MergedModel(model)
    tokens, positions = torch.arange(12), torch.arange(12) * 7
    close = {"rtol": 1e-5, "atol": 1e-5}
    whole = model.model(tokens, positions, sees_everything)
    torch.testing.assert_close(copy.logits(whole), model.logits(whole), **close)
    for rows in (None, torch.tensor([2, 3, 11]), torch.tensor([], dtype=torch.int64)):
        plain, fast = (m.model(tokens, positions, sees_everything, rows) for m in (model, copy))
        torch.testing.assert_close(plain, whole if rows is None else whole[rows], **close)
        torch.testing.assert_close(fast, plain, **close)


def test_half_precision_models_of_another_kind_and_copies_that_do_not_fit_are_not_merged():
    small = Qwen3(CONFIG)
    assert MergedModel.fits(small)
    with torch.device("meta"):
        assert not MergedModel.fits(Qwen3(CONFIG))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "LARGEST_COPY", sum(p.nbytes for p in small.parameters()) - 1)
        assert not MergedModel.fits(small)
    assert not MergedModel.fits(small.bfloat16()) and not MergedModel.fits(FixedLogits([0.0]))


@pytest.mark.parametrize("model", (MODEL, CountingModel(MODEL)), ids=("merged", "plain"))
def test_sequences_that_come_and_go_decode_to_the_tokens_of_the_model(model):
    """Turns of different lengths end at different times. A sequence goes on with its next turn,
    or leaves its row to a new one; contexts outgrow the room of a row."""
    engine = poisoned(Engine(model, pages=400, page_size=4))
    turn_tokens = {}

    def start(sequence):
        turn_tokens[sequence] = 4 + 25 * (sequence.number % 3)
        engine.start(sequence, Sampling(turn_tokens[sequence], temperature=0))

    for i in range(5):
        start(engine.open([(7 * i + j) % 40 for j in range(3 + 9 * i)]))
    ended = 0
    while ended < 12:
        engine.step()
        for sequence in [s for s in turn_tokens if not s.job]:
            ended += 1
            count = turn_tokens.pop(sequence)
            prompt, turn = sequence.tokens[:-count], sequence.tokens[-count:]
            assert is_greedy(MODEL, prompt, turn)
            assert sequence.logprobs[-count:] == pytest.approx(
                naive_scores(MODEL, prompt, turn), abs=1e-5
            )
            if ended % 3:
                sequence.tokens += [1, 2, 3]
                start(sequence)
            elif ended % 2:
                engine.close(sequence)
                start(engine.open([(3 * ended + j) % 40 for j in range(5)]))


def test_what_is_held_is_read_again_when_rows_become_longer_or_more():
    """A turn of 150 tokens outgrows the room of its row, and a second sequence joins it in the
    middle."""
    engine = poisoned(Engine(MODEL, pages=200, page_size=4))
    first, second = engine.open([1, 2, 3]), engine.open([4, 5], 1)
    engine.start(first, Sampling(150))
    for _ in range(20):
        engine.step()
    engine.start(second, Sampling(30))
    while engine.scheduler.running():
        engine.step()
    for prompt, sequence in (([1, 2, 3], first), ([4, 5], second)):
        turn = sequence.tokens[len(prompt) :]
        assert sequence.logprobs == pytest.approx(naive_scores(MODEL, prompt, turn), abs=1e-4)


def test_a_group_on_one_long_prompt_decodes_from_the_pages_when_a_copy_would_be_too_large():
    prompt = [(5 * i) % 40 for i in range(200)]
    engine = poisoned(Engine(MODEL, pages=100, page_size=4))
    [group] = engine.generate([prompt], Sampling(5, temperature=0), n=6)
    assert all(is_greedy(MODEL, prompt, c.tokens) for c in group)
    assert engine.runner.decode_cache.k.numel() == 0
    wide = Engine(MODEL, pages=4000, page_size=4)  # 30 short rows would be padded to the long one
    wide.generate([prompt, *([i, 5] for i in range(30))], Sampling(2))
    assert wide.runner.decode_cache.k.numel() == 0


def test_a_long_sequence_after_many_short_ones_makes_no_copy_larger_than_the_pool():
    engine = poisoned(Engine(MODEL, pages=100, page_size=4))
    for prompts in (
        [[i, 5] for i in range(16)],
        [[(3 * i) % 40 for i in range(300)]],
        [[i, 7] for i in range(16)],
    ):
        for prompt, [turn] in zip(
            prompts, engine.generate(prompts, Sampling(20, temperature=0)), strict=True
        ):
            assert is_greedy(MODEL, prompt, turn.tokens)
        _, rows, _, room, _ = engine.runner.decode_cache.k.shape
        assert 0 < rows * room <= 400


def test_a_step_in_parts_gives_every_sequence_its_own_tokens(monkeypatch):
    monkeypatch.setattr(runner, "PART", 6)
    prompts = [[(5 * i + j) % 40 for j in range(2 + 3 * i)] for i in range(5)]
    done = Engine(MODEL, pages=100, page_size=4).generate(prompts, Sampling(3, temperature=0))
    for prompt, [completion] in zip(prompts, done, strict=True):
        assert is_greedy(MODEL, prompt, completion.tokens)
