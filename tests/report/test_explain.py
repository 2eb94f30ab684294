"""Every number that an X-ray explains is the credit's own number, and follows from the inputs shown
with it."""

import math
from statistics import fmean

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from minvenus.igpo.credit import assign_credit
from minvenus.igpo.recipes import RECIPES, Recipe
from minvenus.report.explain import (
    belief_steps,
    group_steps,
    recipe_words,
    turn_steps,
    under_recipes,
)
from tests.igpo.strategies import recipes
from tests.report.examples import answer, random_batch, rollout, saved_batch, visit

FEW = settings(max_examples=max(5, settings.default.max_examples // 2))
seeds = st.integers(0, 2**32 - 1)


def from_inputs(step) -> float:
    """The formula, applied to nothing but the inputs that are shown."""
    x = [value for _, value in step.inputs]
    named = dict(step.inputs)
    if step.id == "belief":
        return math.exp(fmean(x)) if "exp" in step.formula else fmean(x)
    if step.id == "std":
        rms = "mean r²" in step.formula
        centre = 0.0 if rms else x[0]
        if "√" not in step.formula or (len(x) == 2 and not rms):
            return 1.0
        return math.sqrt(fmean((r - centre) ** 2 for r in x[1:]) + 1e-8)
    if step.id == "z":
        return (named["r"] - (named["μ"] if "μ" in step.formula else 0.0)) / (named["σ"] + 1e-6)
    return {
        "reward": lambda: -x[0] if "−λ" in step.formula else x[0],
        "gain": lambda: x[0] - x[1],
        "mean": lambda: fmean(x),
        "term": lambda: x[0] * x[1] * x[2] + sum(x[3:]),
        "scale": lambda: min(max(x[0], 0.3) / (x[1] + 1e-6), 10.0),
        "advantage": lambda: named.pop("r̃", 0.0) + math.prod(named.values()),
    }[step.id]()


def follows(step) -> bool:
    assert step.name and step.formula and (step.value is None or step.inputs)
    return step.value is None or from_inputs(step) == pytest.approx(step.value, rel=1e-7, abs=1e-7)


@example(0, Recipe(normalize="joint", browse="off", gain="prob"))
@example(1, Recipe(normalize="none", penalty_scope="segment", ig_weight=0.5))
@example(2, Recipe(normalize="separate", discount_over="rewards"))
@example(3, Recipe(center_gain=False, browse="segment", gamma=0.5))
@example(4, Recipe.released(penalty_scope="turn"))
@example(5, Recipe(center_gain=False, spread="rms"))
@example(6, Recipe.raw_ig())
@given(seeds, recipes(use_gain=(True, False), format_penalty=(1.0, 1.0, None)))
@FEW
def test_every_number_is_that_of_the_code_and_follows_from_its_inputs(seed, run):
    batch = random_batch(seed, run)
    for i, under in enumerate(under_recipes(batch.samples, run)):
        left_out = set() if run.use_gain else {*RECIPES} - {"grpo"}
        assert {*RECIPES} - set(under) == left_out
        assert next(iter(under.values())).recipe.gamma == run.gamma  # its own recipe comes first
        for name, c in under.items():
            credit = assign_credit(batch.samples, c.recipe)
            assert c.numbers == credit.of_rollout(i, c.sample.group)
            check_rollout(name, c)


def check_rollout(name, c):
    numbers, beliefs = c.numbers, belief_steps(c)
    assert all(map(follows, beliefs))
    assert [step.value for step in beliefs] == [v for v in numbers.beliefs if v is not None]
    known = {
        "s": numbers.scale,
        "weight": c.recipe.ig_weight,
        "γ": c.recipe.gamma,
        "λ": c.recipe.format_penalty or 0.0,
        "score": c.sample.outcome,
        "z of the outcome": numbers.outcome_z,
        **{step.name: step.value for step in beliefs},
    }
    for t, gain in enumerate(numbers.gains):
        known |= {f"gain of turn {t + 1}": gain, f"A of turn {t + 1}": numbers.advantages[t]}
        known[f"penalty of turn {t + 1}"] = -known["λ"]
    code = {
        "advantage": numbers.advantages,
        "term": numbers.terms,
        "reward": [*numbers.turn_rewards, numbers.outcome],
        "gain": numbers.gains,
        "z": [*numbers.turn_z, numbers.outcome_z],
    }
    for t in range(len(numbers.terms)):
        steps = turn_steps(c, t)
        ids = [step.id for step in steps]
        assert ids[-1] == "advantage" and len(set(ids)) == len(ids)
        for step in steps:
            assert follows(step), (name, step)
            assert step.value == code[step.id][t], (name, step)
            assert all(known.get(key, value) == value for key, value in step.inputs), (name, step)


@given(seeds, recipes(use_gain=(True, False)))
@FEW
def test_the_numbers_of_a_group_are_the_codes_and_follow_from_its_rewards(seed, run):
    batch = random_batch(seed, run)
    compared = under_recipes(batch.samples, run)
    for name in compared[0]:
        for group in {sample.group for sample in batch.samples}:
            rollouts = [under[name] for under in compared]
            check_group([c for c in rollouts if c.sample.group == group])


def check_group(members):
    numbers = members[0].numbers
    outcomes = [c.numbers.outcome for c in members]
    turns = [r for c in members for r in c.numbers.turn_rewards if r is not None]
    if members[0].recipe.normalize == "joint":
        outcomes = turns = outcomes + turns
    stats = numbers.group_stats
    expected = {
        "mean μ of turn rewards": (stats.turn_reward_mean, turns),
        "std σ of turn rewards": (stats.turn_reward_spread, turns),
        "mean μ of outcomes": (stats.outcome_mean, outcomes),
        "std σ of outcomes": (stats.outcome_std, outcomes),
        "IG-Scale s": (numbers.scale, []),
    }
    for step in group_steps(members):
        assert follows(step), step
        listed = [value for name, value in step.inputs if "rollout" in name]
        value, rewards = expected[step.name]
        assert step.value == value and sorted(listed) == sorted(rewards)


def test_one_rollout_worked_by_hand():
    """Two rollouts of a visit and an answer, gains 2 and 1, outcomes 1 and 0: every z is almost 1
    or -1."""
    run = Recipe.paper(gamma=0.5, lead_in="Answer.")
    logprobs = [[[-4.0, -2.0], [-1.0, -1.0]], [[-3.0], [-2.0]]]
    batch = saved_batch([rollout([visit(), answer()])] * 2, [7, 7], [1.0, 0.0], run, logprobs)
    compared = under_recipes(batch.samples, run)
    assert list(compared[0]) == ["this run", *RECIPES]
    first, second = (under["this run"] for under in compared)
    assert recipe_words("this run", first.recipe) == "The paper's recipe with gamma 0.5."
    shown = {step.id: step for step in turn_steps(first, 0)}
    assert shown["gain"].formula == "IG = V after − V before [P eq.3]"
    assert shown["gain"].inputs == (("V after turn 1", -1.0), ("V of the question", -3.0))
    values = [shown[name].value for name in ("gain", "reward", "z", "term", "advantage")]
    assert values == pytest.approx([2.0, 2.0, 1.0, 1.0, 1.5], abs=1e-4)
    group = {step.name: step.value for step in group_steps([first, second])}
    assert (group["mean μ of turn rewards"], group["mean μ of outcomes"]) == (1.5, 0.5)
    same_formulas = Recipe.released(lead_in="Answer.", newlines_after_think=2)
    renamed = under_recipes(batch.samples, same_formulas)
    assert list(renamed[0]) == ["released", "grpo", "paper", "raw_ig", "uncentred"]
