"""Random inputs for the tests of the reward mathematics: ragged batches of rewards, recipes,
measured rollouts, token batches for the loss; and how exactly float64 can be expected to agree.

Of a batch, hypothesis draws and shrinks the sizes; its numbers are too many to draw and come from
one drawn seed.
"""

import random
from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from minvenus.igpo.advantage import turn_advantages
from minvenus.igpo.recipes import Recipe
from minvenus.train.batch import pack_stats
from minvenus.types import Question, Rollout, Sample, Turn, TurnRewards
from tests.igpo import oracle

AGGREGATIONS = ("seq-mean-token-mean", "token-mean", "seq-mean-token-sum")
MODES = ("scaled", "separate", "joint", "none")
ORDINARY = (1.0,)
ALL_MAGNITUDES = (1.0, 1.0, 1e-12, 1e-3, 1e4, 1e9)


@dataclass(frozen=True)
class Batch:
    """Rewards and group ids of one optimiser step; every malformed turn is flagged in
    `penalties`."""

    rewards: list[TurnRewards]
    groups: list[int]


def choices_of_recipes() -> dict:
    """The fields that the advantages read."""
    return {
        "browse": st.sampled_from(("replicate", "segment", "off")),
        "discount_over": st.sampled_from(("turns", "rewards")),
        "penalty_scope": st.sampled_from(("turn", "segment")),
        "normalize": st.sampled_from(MODES),
        "center_gain": st.booleans(),
        "spread": st.sampled_from(("std", "std", "rms", "one")),
        "outcome_on": st.sampled_from(("last", "last", "every")),
        "gamma": st.sampled_from((0.0, 0.5, 0.95, 1.0))
        | st.floats(0.0, 1.0, allow_subnormal=False),
        "ig_weight": st.sampled_from((1.0, 1.0, 0.0, 0.5, 2.0)),
        "gain": st.sampled_from(("log_prob", "prob")),
    }


def recipes(**fixed):
    """Recipes over all of these; a keyword fixes a field, or gives the values that it may take."""
    choices = choices_of_recipes()
    for name, value in fixed.items():
        choices[name] = st.sampled_from(value) if isinstance(value, tuple) else st.just(value)
    return st.builds(Recipe, **choices)


# ------------------------------------------------------------------------------------------ batches


@st.composite
def batches(draw, magnitudes=ALL_MAGNITUDES, max_groups: int = 12) -> Batch:
    rng = random.Random(draw(st.integers(0, 2**32 - 1)))
    most_rollouts, most_turns = draw(st.integers(1, 8)), draw(st.integers(0, 12))
    rewards, groups = [], []
    for group in range(draw(st.integers(1, max_groups))):
        size = rng.choice(magnitudes)
        gain = rng.choice(
            (
                lambda size=size: size * rng.gauss(0.0, 1.0),
                lambda size=size: size * rng.choice((0.0, 0.5, -0.25)),
                lambda: 0.0,
                lambda: 0.7,
            )
        )
        outcome = rng.choice(
            (
                lambda: float(rng.random() < 0.5),
                lambda: 1.0,
                lambda: 0.1,
                rng.random,
                lambda size=size: size * rng.gauss(0.0, 1.0),
            )
        )
        absent, malformed = rng.choice((0.0, 0.3, 0.9, 1.0)), rng.choice((0.0, 0.0, 0.1, 0.5))
        for _ in range(rng.randint(1, most_rollouts)):
            turns, penalties = [], []
            for _ in range(rng.randint(0, most_turns)):
                penalties.append(rng.random() < malformed)
                turns.append(-1.0 if penalties[-1] else None if rng.random() < absent else gain())
            rewards.append(
                TurnRewards(
                    turns, -1.0 if rng.random() < malformed else outcome(), penalties=penalties
                )
            )
            groups.append(group)
    return shuffled(rewards, groups, rng)


def shuffled(rewards, groups, rng) -> Batch:
    """Groups interleaved, under arbitrary ids: neither order nor numbering may matter."""
    names = {g: rng.randint(-(10**6), 10**6) * 12 + g for g in set(groups)}
    order = rng.sample(range(len(groups)), len(groups))
    return Batch([rewards[i] for i in order], [names[groups[i]] for i in order])


# ---------------------------------------------------------------------------- running and comparing


def advantages(batch: Batch, recipe: Recipe) -> list[list[float]]:
    return turn_advantages(batch.rewards, batch.groups, recipe)


def amplification(batch: Batch, recipe: Recipe) -> float:
    """How much rounding a z-score can magnify: the largest |value| / (sigma + 1e-6) of any set that
    is normalised.

    v - mu carries an absolute error of about n * 1e-16 * max|v|, and z divides it by sigma, which
    may be as small as 1e-4: z-scores of nearly equal, large values are ill-conditioned in any
    implementation.
    """
    worst = 1.0
    for group in set(batch.groups):
        outcomes, gains = oracle.group_sets(batch.rewards, batch.groups, group)
        if recipe.normalize == "none":
            worst = max([worst, *map(abs, outcomes), *map(abs, gains)])
            continue
        if recipe.normalize == "joint":
            outcomes = gains = outcomes + gains
        for values, sigma in (
            (outcomes, oracle.stats(outcomes)[1]),
            (gains, oracle.divisor(gains, recipe)),
        ):
            worst = max(worst, max(map(abs, values), default=0.0) / (sigma + 1e-6))
    return worst


def rounding(batch: Batch, recipe: Recipe) -> float:
    """The absolute error allowed in an advantage: 1e-9, and where values are large against their
    spread, what float64 itself costs: 1e-16 in the mean of a set, times the scale of up to 10,
    times about 10 turns in a sum, times `amplification`."""
    return 1e-9 + 1e-14 * amplification(batch, recipe)


def assert_close(ours, theirs, tolerance: float) -> None:
    """Nested lists of floats of equal shape, None at the same places, that differ by `tolerance` at
    most."""
    assert [len(row) for row in ours] == [len(row) for row in theirs]
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        for t, (x, y) in enumerate(zip(a, b, strict=True)):
            assert x is y or abs(x - y) <= tolerance, (
                f"rollout {i}, turn {t}: {x!r}, {y!r}; allowed {tolerance:.3g}"
            )


# ----------------------------------------------------------------- measured rollouts, token batches


@st.composite
def samples(draw, max_turns: int = 12) -> Sample:
    """A rollout with the answer scored before every turn, as browse="off" needs it; gains of zero
    are among them. One that was cut short may end in any kind of turn."""
    kinds = draw(
        st.lists(st.sampled_from(("search", "search", "visit", "none")), max_size=max_turns)
    )
    kinds = [*kinds, draw(st.sampled_from(("answer", "answer", "visit", "none")))]
    malformed = [
        kind == "none" or draw(st.sampled_from((False, False, False, True))) for kind in kinds
    ]
    logprobs = st.lists(
        st.sampled_from((-3.0, -2.0)) if draw(st.booleans()) else st.floats(-20.0, 0.0),
        min_size=1,
        max_size=3,
    )
    logprobs = draw(st.lists(logprobs, min_size=len(kinds), max_size=len(kinds)))
    return sample(kinds, logprobs, draw(st.sampled_from((0.0, 1.0, 0.3))), malformed)


def sample(kinds, truth_logprobs, outcome=1.0, malformed=None, group=0) -> Sample:
    """A sample whose turns have one token each and no text."""
    malformed = malformed or [False] * len(kinds)
    turns = [
        Turn(kind, t, t + 1, text="", malformed=bad)
        for t, (kind, bad) in enumerate(zip(kinds, malformed, strict=True))
    ]
    n = len(turns)
    question = Question("q", "where?", ["here"])
    rollout = Rollout(question, [0] * n, [False] * n, [None] * n, turns, "answered")
    return Sample(rollout, truth_logprobs, outcome, group)


def beliefs_of(m: Sample, kind: str = "log_prob") -> list[float]:
    return [oracle.belief(logprobs, kind) for logprobs in m.truth_logprobs]


def flat(rows: list[list]) -> list:
    return [x for row in rows for x in row]


@dataclass(frozen=True)
class Tokens:
    """The sampled tokens of a batch for the loss: a list of numbers for each rollout."""

    logp: list[list[float]]
    old: list[list[float]]
    ref: list[list[float]]
    advantages: list[list[float]]

    def columns(self):
        return self.logp, self.old, self.ref, self.advantages

    def tokens(self) -> list[tuple[float, float, float, float]]:
        """(logp, old, ref, advantage) of every token."""
        return list(zip(*map(flat, self.columns()), strict=True))


def loss_stats(*inputs) -> dict[str, float]:
    """What a step reports of the loss of one pack."""
    *tensors, config = inputs
    nothing = torch.zeros(())
    numbers = {"kl": 0.0} | pack_stats(nothing, nothing, tensors, config)
    others = ("loss", "entropy", "logprob_gap", "logprob_gap_mean")
    return {name: number for name, number in numbers.items() if name not in others}


@st.composite
def token_batches(draw, max_rows: int = 5, max_length: int = 6) -> Tokens:
    rng = random.Random(draw(st.integers(0, 2**32 - 1)))
    lengths = draw(st.lists(st.integers(1, max_length), min_size=1, max_size=max_rows))
    logp = [[-3.0 * rng.random() for _ in range(n)] for n in lengths]
    old, ref = (
        [[x + rng.choice((0.0, 1.0)) * rng.gauss(0.0, 1.0) for x in row] for row in logp]
        for _ in range(2)
    )
    advantage = lambda: rng.choice((0.0, 1.0, -1.0, rng.gauss(0.0, 2.0)))  # noqa: E731
    return Tokens(logp, old, ref, [[advantage() for _ in range(n)] for n in lengths])
