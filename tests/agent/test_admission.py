"""Rollouts that wait for room: whatever the pool, the same rollouts and scores come out, hardly
anything is computed twice, and every rollout gets its turn."""

import random
from functools import cache
from itertools import chain
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import admission
from minvenus.agent.policy import LocalWriter
from minvenus.engine import Sampling
from minvenus.types import Question
from tests.agent import scripted
from tests.agent.scripted import TOKENIZER, Tools, answer, budget, policy_for, search, visit
from tests.engine.models import check_pool

CONTEXT, PAGE = 420, 16
ONE = -(-CONTEXT // PAGE)  # pages of a rollout of full length
TRUTH = TOKENIZER.encode_untrusted("a black cat")
few = settings(max_examples=max(5, settings.default.max_examples // 4))


def script(name, turn, attempt):
    """Two to five turns, short ones and long ones."""
    draw = random.Random(name)
    last = draw.randint(1, 4)
    thought = "Find boss. " * draw.randint(1, 3)
    return (
        answer()
        if turn == last
        else (visit(f"Bob {turn}", thought) if turn % 2 else search(f"Bob {turn}", thought))
    )


class Result:
    """Rollouts of `questions` questions with groups of `n`, from a pool of so many pages; the
    scores of the truth."""

    def __init__(self, pages, questions=4, n=4, limits=None, **options):
        self.policy = policy_for(script, pages=pages, page_size=PAGE)
        self.engine, self.scores, self.most_open = self.policy.engine, {}, 0
        with scripted.loop_for(self.policy, limits or budget(6, CONTEXT), **options) as loop:
            tools = Tools(search=lambda queries: "Bob sings. " * 3)
            groups = [
                loop.add(Question(f"q{i}", f"Pet of {i}?", ["cat"]), lambda q: tools, n)
                for i in range(questions)
            ]
            self.most_open = len(loop.open)
            for ended in loop.run():
                self.most_open = max(self.most_open, len(loop.open))
                self.score(ended)
        self.rollouts = [episode.rollout for group in groups for episode in group]
        self.order = [self.scores[episode] for group in groups for episode in group]
        self.counters = self.engine.counters()
        self.computed = self.counters.prefilled + self.counters.decoded + self.counters.scored
        assert self.engine.pool.used == 0 and not self.engine.scheduler.sequences
        check_pool(self.engine.pool)

    def score(self, episodes):
        requests = [(e.sequence, [turn.start for turn in e.rollout.turns], TRUTH) for e in episodes]
        assert not self.scores.keys() & set(episodes), "once each"
        self.scores |= dict(zip(episodes, self.engine.score_many(requests), strict=True))


@cache
def unlimited(questions=4, n=4) -> Result:
    return Result(4000, questions, n)


def same(a: Result, b: Result) -> None:
    """Bit for bit what was sampled and shown; log-probs to the rounding of another batch size."""
    for own, other in zip(a.rollouts, b.rollouts, strict=True):
        assert (own.tokens, own.termination) == (other.tokens, other.termination)
        assert own.sampled == other.sampled
        logprobs = [[p for p in rollout.logprobs if p is not None] for rollout in (own, other)]
        assert logprobs[0] == pytest.approx(logprobs[1], abs=1e-5)
    for own, other in zip(a.order, b.order, strict=True):
        assert list(chain(*own)) == pytest.approx(list(chain(*other)), abs=1e-5)


@few
@given(st.integers(4 * ONE, 20 * ONE), st.sampled_from([(4, 4), (6, 2), (9, 1), (1, 4)]))
def test_any_pool_that_holds_a_group_gives_the_same_rollouts_and_computes_a_fifth_more_at_most(
    pages, shape
):
    limited = Result(pages, *shape)
    same(limited, unlimited(*shape))
    assert (
        limited.computed <= 1.2 * unlimited(*shape).computed and limited.counters.preemptions == 0
    )


@pytest.mark.parametrize("tool_threads", [None, 4])
@pytest.mark.parametrize("pages", [ONE, 2 * ONE + 5, 3 * ONE + 1])
def test_a_pool_that_holds_no_group_runs_what_it_holds_of_it(pages, tool_threads):
    """Those that wait for a tool keep their pages."""
    limited = Result(pages, questions=2, limits=budget(6, CONTEXT, tool_threads=tool_threads))
    same(limited, unlimited(2))
    assert limited.computed <= 1.2 * unlimited(2).computed and limited.counters.preemptions == 0
    assert limited.most_open >= pages // ONE


def rollouts_of(names, prompt, length):
    """As much of open rollouts as the room for others depends on."""
    stream = SimpleNamespace(prompt_length=prompt, ids=[0] * length)
    return [SimpleNamespace(name=name, stream=stream) for name in names]


@pytest.mark.parametrize(("prompt", "pages"), [(31, 13), (32, 13), (33, 10)])
def test_a_group_counts_the_full_pages_of_its_prompt_once_but_for_the_page_of_the_last_token(
    prompt, pages
):
    """Contexts of 4 pages. Every rollout computes the last token of the prompt and has a copy of
    that token's page."""
    group = rollouts_of("qqqq", prompt, prompt)
    for count, fitting in ((pages, 4), (pages - 1, 3)):
        policy = policy_for(script, pages=count, page_size=16)
        assert policy.fitting(group, [], 64) == fitting
        assert (
            policy.fitting(group[:1], group, 64) == 0
            and policy.fitting(group, group[:3], 64) == fitting - 3
        )
    assert policy_for(script, pages=3, page_size=16).fitting(group, [], 64) == 1, (
        "one alone always may"
    )
    apart = rollouts_of("abcd", prompt, prompt)
    assert policy_for(script, pages=13, page_size=16).fitting(apart, [], 64) == 3, (
        "only a group shares its prompt"
    )


def test_those_that_wait_start_in_their_order_and_their_clock_starts_then():
    started = []
    policy = policy_for([search(), answer()], pages=2 * ONE, page_size=PAGE)
    with scripted.loop_for(policy, budget(6, CONTEXT, time_limit=1000.0)) as loop:
        episodes = [
            loop.add(Question(f"q{i}", "Pet?", ["cat"]), lambda q: Tools())[0] for i in range(6)
        ]
        for episode in episodes:
            episode.started -= 2000.0 if episode.sequence is None else 0.0  # added long ago
        while loop.running or loop.waiting:
            loop.step()
            started += [
                e.question.id
                for e in episodes
                if e.sequence is not None and e.question.id not in started
            ]
    assert started == [f"q{i}" for i in range(6)]
    assert {episode.rollout.termination for episode in episodes} == {"answered"}


def test_those_that_wait_when_the_user_stops_end_once():
    ended = []
    policy = policy_for([search()], pages=ONE, page_size=PAGE)
    groups = scripted.run_groups(
        policy,
        budget(6, CONTEXT),
        questions=[Question(f"q{i}", "Pet?", ["cat"]) for i in range(4)],
        stop=True,
        watch=lambda event, e: ended.extend([e.question.id] if event == "end" else []),
    )
    assert ended == ["q0", "q1", "q2", "q3"]
    for [rollout] in groups:
        assert (rollout.termination, rollout.error) == ("error", "stopped by the user")
        assert rollout.turns[-1].seconds < 60
    assert not any(rollout.sampled), "the last one, before its first turn"


# ------------------------------------------------------------------------- by the expected length


def test_rollouts_are_admitted_by_their_expected_length_and_counted_as_long_as_they_are():
    """A pool of 16 pages. Expected are 4 pages, the limit is 16: four rollouts, or two beside one
    that has grown to eight pages."""
    engine = policy_for(script, pages=16, page_size=16).engine
    policy = LocalWriter(engine, TOKENIZER, Sampling(1), expected_context=64)
    short, grown = (rollouts_of("abcdef", 9, length) for length in (9, 128))
    assert policy.fitting(short, [], 256) == 4
    assert policy.fitting(short, grown[:1], 256) == 2
    assert policy.fitting(short, grown[:2], 256) == 0
    assert policy.fitting(short, [], 32) == 6, "none is expected to be longer than the limit"
    assert policy_for(script, pages=16, page_size=16).fitting(short, [], 256) == 1


def test_by_the_expected_length_more_run_at_once_for_few_tokens_and_the_same_come_out():
    """The benchmark's workload, smaller: benchmarks/admission.py."""
    unlimited = admission.Rollouts(32, 384, pool=32)
    full = admission.Rollouts(32, 384, pool=4)
    expected = admission.Rollouts(32, 384, pool=4, expected=115)
    assert expected.tokens == full.tokens == unlimited.tokens
    assert expected.at_once >= 2.5 * full.at_once
    assert expected.computed <= 1.3 * unlimited.computed
    assert expected.engine.counters().preemptions > 0, "some grew longer than expected"
    assert expected.longest_wait <= 0.2 * expected.steps, "none starves"
