"""The engine against the model without a cache: tokens, log-probs, what is computed, and what is
refused."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from minvenus.config import ConfigError
from minvenus.engine import Counters, Engine, Sampling, decode
from minvenus.model.qwen3 import Qwen3
from tests.engine.models import (
    CountingModel,
    check_engine,
    naive_greedy,
    naive_scores,
    poisoned,
    sharp_model,
)
from tests.engine.test_score import close

ROOT = Path(__file__).resolve().parents[2]
MODEL = sharp_model()
GREEDY = Sampling(12, temperature=0)


def prompts(*lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 40, (n,), generator=generator).tolist() for n in lengths]


PROMPTS = prompts(5, 33, 64, 17, 1)
WANTED = [naive_greedy(MODEL, p, 12) for p in PROMPTS]


@pytest.mark.parametrize(
    ("page_size", "step_tokens"), [*itertools.product((16, 64, 256), (7, 64, 1000)), (1, 5), (3, 3)]
)
def test_greedy_tokens_are_those_of_the_model_for_every_page_and_chunk_size(page_size, step_tokens):
    engine = poisoned(
        Engine(MODEL, pages=-(-800 // page_size), page_size=page_size, step_tokens=step_tokens)
    )
    completions = [c for [c] in engine.generate(PROMPTS, GREEDY)]
    assert [c.tokens for c in completions] == WANTED
    naive = [naive_scores(MODEL, p, w) for p, w in zip(PROMPTS, WANTED, strict=True)]
    assert close([c.logprobs for c in completions], naive)
    check_engine(engine)
    assert engine.pool.used == 0


def test_samples_do_not_depend_on_what_else_is_in_the_batch():
    sampling = Sampling(10, temperature=0.8, top_k=30, top_p=0.9)
    engine = poisoned(Engine(MODEL, pages=100, page_size=4, seed=5, vocab_limit=40))
    together = engine.generate(PROMPTS, sampling, n=3)
    for question, prompt in enumerate(PROMPTS):
        alone = poisoned(Engine(MODEL, pages=100, page_size=16, seed=5, step_tokens=9))
        group = alone.turn(alone.open_group([list(prompt) for _ in range(3)], question), sampling)
        assert [c.tokens for c in group] == [c.tokens for c in together[question]]
        assert close([c.logprobs for c in group], [c.logprobs for c in together[question]])
    other = Engine(MODEL, pages=100, page_size=4, seed=6).generate(PROMPTS, sampling, n=3)
    assert other != together and len({tuple(c.tokens) for c in together[1]}) == 3


def test_a_sequence_may_fill_the_pool_exactly_and_no_more():
    engine = poisoned(Engine(MODEL, pages=4, page_size=4))
    [[c]] = engine.generate(
        [PROMPTS[0]], Sampling(12, temperature=0)
    )  # 5 + 12 tokens, of which the last is never run
    assert c.tokens == WANTED[0] and engine.counters().pages_peak == 4
    with pytest.raises(
        ValueError, match="need 5 pages of 4 for 5 tokens and up to 13 more, the pool has 4"
    ):
        engine.generate([PROMPTS[0]], Sampling(13, temperature=0))


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_stored_log_probs_are_those_of_the_trainers_packed_forward(temperature):
    engine = Engine(MODEL, pages=100, page_size=16, seed=1)
    sampling = Sampling(20, temperature=temperature, top_p=0.9, presence_penalty=0.5)
    rollouts = [(p, c) for p, [c] in zip(PROMPTS, engine.generate(PROMPTS, sampling), strict=True)]
    flat = torch.tensor([t for p, c in rollouts for t in p + c.tokens])
    bounds = [0, *itertools.accumulate(len(p) + len(c.tokens) for p, c in rollouts)]
    ends = zip(bounds[1:], rollouts, strict=True)
    drawn = torch.cat([torch.arange(end - len(c.tokens), end) for end, (_, c) in ends])
    trained = MODEL.logprobs(flat, torch.tensor(bounds), drawn - 1, temperature)
    stored = torch.tensor([x for _, c in rollouts for x in c.logprobs])
    assert float((trained - stored).abs().max()) < 1e-5


def test_a_groups_prompt_is_computed_once():
    model = CountingModel(MODEL)
    engine = Engine(model, pages=100, page_size=4)
    groups = [engine.open_group([list(PROMPTS[i]) for _ in range(4)], i) for i in (1, 2)]
    assert model.count == 32 + 63  # all but the last token of either prompt
    assert engine.pool.used == 8 + 16
    engine.turn([s for group in groups for s in group], Sampling(1))
    assert model.count == 32 + 63 + 8  # the last token of the prompt, per rollout
    assert engine.counters().shared == 3 * (32 + 63)


def test_a_turn_computes_only_what_was_appended():
    model = CountingModel(MODEL)
    engine = poisoned(Engine(model, pages=100, page_size=4))
    sequence = engine.open(list(PROMPTS[1]))
    first = engine.turn([sequence], GREEDY)[0]
    assert model.count == 33 + 11
    sequence.tokens += PROMPTS[3]
    second = engine.turn([sequence], GREEDY)[0]
    assert model.count == 33 + 11 + (1 + 17) + 11
    assert first.tokens == WANTED[1]
    assert second.tokens == naive_greedy(MODEL, PROMPTS[1] + first.tokens + PROMPTS[3], 12)
    assert sequence.tokens == PROMPTS[1] + first.tokens + PROMPTS[3] + second.tokens
    assert sequence.logprobs == first.logprobs + second.logprobs != 2 * first.logprobs
    counters = engine.counters()
    assert (counters.prefilled, counters.decoded, counters.preemptions) == (33 + 18, 22, 0)
    assert counters.rolled_out == 33 + 18 + 22


@pytest.mark.parametrize("pages", [20, 24, 30])
def test_preempted_sequences_give_the_same_tokens_and_log_probs(pages):
    """One sequence of 76 tokens fits 19 pages of 4; eight of them do not."""
    many, sampling = prompts(50, 55, 60, 64, seed=3), Sampling(12, temperature=0.9)
    wide = Engine(MODEL, pages=200, page_size=4).generate(many, sampling, n=2)
    engine = poisoned(Engine(MODEL, pages=pages, page_size=4, step_tokens=40))
    for group, wanted in zip(engine.generate(many, sampling, n=2), wide, strict=True):
        assert [c.tokens for c in group] == [c.tokens for c in wanted]
        assert close([c.logprobs for c in group], [c.logprobs for c in wanted])
    assert engine.counters().preemptions > 0 and engine.counters().pages_peak <= pages


@pytest.mark.parametrize("copy", ["merged", "packed", "plain"])
def test_new_weights_make_new_tokens_and_new_scores(copy, monkeypatch):
    if copy == "packed":
        monkeypatch.setattr(decode, "SMALL", 0)
    if copy == "plain":
        monkeypatch.setattr(decode, "LARGEST_COPY", 0)
    model = sharp_model()
    engine = Engine(model, pages=100, page_size=4)
    sequence = engine.open(list(PROMPTS[1]))
    engine.turn([sequence], Sampling(3, temperature=0))
    assert isinstance(engine.runner.merged, Qwen3) == (copy == "plain")
    model.load_state_dict(sharp_model(seed=1).state_dict())
    engine.load_weights(model)
    assert engine.pool.used == 0 and engine.counters() == Counters()
    tokens = list(sequence.tokens)
    assert engine.turn([sequence], GREEDY)[0].tokens == naive_greedy(model, tokens, 12)
    assert engine.generate([PROMPTS[1]], GREEDY)[0][0].tokens == naive_greedy(model, PROMPTS[1], 12)
    assert close(engine.score(PROMPTS[1], [[1, 2]]), [naive_scores(model, PROMPTS[1], [1, 2])])


def test_weights_may_not_change_in_the_middle_of_a_turn():
    engine = Engine(MODEL, pages=100, page_size=4)
    sequence = engine.open(list(PROMPTS[0]))
    engine.start(sequence, GREEDY)
    engine.step()
    with pytest.raises(RuntimeError, match="1 sequences are running"):
        engine.load_weights(MODEL)
    for state in ("running", "closed"):
        for call in (lambda: engine.start(sequence, GREEDY), lambda: engine.score(sequence, [[1]])):
            with pytest.raises(ValueError, match=f"sequence 0 is {state}"):
                call()
        if state == "running":
            engine.close(sequence)
    assert engine.pool.used == 0 and sequence.job is None


def test_a_presence_penalty_counts_the_tokens_of_this_turn_only():
    engine = Engine(MODEL, pages=100, page_size=4)
    once = Sampling(30, temperature=0, presence_penalty=1e4)
    sequence = engine.open(list(PROMPTS[1]))
    first = engine.turn([sequence], once)[0].tokens
    assert len(set(first)) == 30  # nothing twice
    sequence.tokens += [1]
    second = engine.turn([sequence], once)[0].tokens
    assert len(set(second)) == 30 and set(first) & set(second)


def test_what_can_never_fit_is_refused_with_the_numbers():
    engine, wide = (Engine(MODEL, pages=pages, page_size=16) for pages in (4, 100))
    for call, message in (
        (
            lambda: engine.generate([PROMPTS[0], PROMPTS[2]], GREEDY, n=2),
            "need 5 pages of 16 for 64 tokens and up to 12 more, the pool has 4",
        ),
        (lambda: engine.open_group([[1] * 65] * 2), "need 5 pages of 16 for 65 tokens"),
        (
            lambda: wide.generate([[1] * 500], Sampling(13)),
            "500 tokens and up to 13 more are 513, the model has room for 512",
        ),
        (lambda: engine.open([1, 40]), "got 2, from 1 to 40"),
        (lambda: engine.open([]), "need at least one token"),
        (lambda: engine.generate([[1, 2]], GREEDY, n=0), "at least 1 completion"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
        assert engine.pool.used == 0 and not engine.scheduler.sequences
    [[c]] = wide.generate([[1] * 500], Sampling(12))
    assert len(c.tokens) == 12


BFLOAT16 = """
import torch
from minvenus.engine import Engine, Sampling
from minvenus.model.qwen3 import Qwen3
from tests.engine.models import CONFIG
model = Qwen3(CONFIG, seed=0).to(torch.bfloat16).requires_grad_(False)
engine = Engine(model, pages=50, page_size=16)
[[c]] = engine.generate([[7] * 64], Sampling(10))
flat = torch.tensor([7] * 64 + c.tokens)
trained = model.logprobs(flat, torch.tensor([0, len(flat)]), torch.arange(63, len(flat) - 1))
print(float((trained - torch.tensor(c.logprobs)).abs().max()))
hidden = torch.randn(5, CONFIG.hidden_size).bfloat16()
exact = hidden.double() @ model.head_weight.double().T
print(float((engine.runner.logits(hidden) - exact).abs().max()))
"""


def test_bfloat16_log_probs_agree_with_their_own_packed_forward():
    """Within what bfloat16 can tell apart; logits are not rounded to it. In a process of its own,
    because some virtual machines announce matrix instructions for bfloat16 that they cannot
    run."""
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}
    done = subprocess.run(
        [sys.executable, "-c", BFLOAT16], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    gap, rounding = map(float, done.stdout.split())
    assert gap < 0.02 and rounding < 1e-6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vocab_limit": 0}, "do not belong together"),
        ({"vocab_limit": 41}, "do not belong together"),
        ({"step_tokens": 0}, "at least one token, got step_tokens 0"),
        ({"pages": 0}, "at least one page"),
        ({"page_size": 0}, "at least one page"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises((ConfigError, ValueError), match=message):
        Engine(MODEL, **{"pages": 4} | settings)


@pytest.mark.parametrize("prompt", ["text", ["te", "xt"], 7, [1.0], [True], torch.tensor([1])])
def test_a_prompt_that_is_no_list_of_ids_is_refused_in_words(prompt):
    engine = Engine(MODEL, pages=4)
    with pytest.raises(ValueError, match=r"need a list of token ids, got .* tokenizer"):
        engine.generate([[1, 2], prompt], GREEDY)
    assert not engine.scheduler.sequences and engine.pool.used == 0


@pytest.mark.parametrize("wrong", [-1, 40, 2**63])
def test_an_id_outside_of_the_vocabulary_is_refused_before_anything_runs(wrong):
    """Wherever it enters: a prompt, an observation, a prefix to score after, or a continuation."""
    model = CountingModel(MODEL)
    engine = Engine(model, pages=40, page_size=4)
    sequence = engine.open([1, 2, 3])
    calls = [
        lambda: engine.open([1, wrong]),
        lambda: engine.generate([[1, 2], [1, wrong]], GREEDY),
        lambda: engine.open_group([[wrong, 2]] * 2),
        lambda: engine.score([1, 2, wrong], [[1]]),
        lambda: engine.score([1, 2, 3], [[1, wrong]]),
        lambda: engine.score(sequence, [[1]]),
        lambda: engine.start(sequence, GREEDY),
    ]
    for call in calls:
        if call is calls[-2]:
            engine.turn([sequence], GREEDY)
            sequence.tokens.append(wrong)
            model.count = 0
        with pytest.raises(ValueError, match="all in 0 to 39; got"):
            call()
        assert model.count == 0
