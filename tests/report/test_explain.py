"""Every number that an X-ray explains is the advantage code's own number, and follows from the inputs shown with it."""

import math
from statistics import fmean

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from minvenus.igpo.credit import assign_credit
from minvenus.igpo.recipes import RECIPES, Recipe
from minvenus.report.explain import (
    group_steps,
    recipe_words,
    turn_steps,
    under_recipes,
    value_steps,
)
from tests.igpo.strategies import recipes
from tests.report.examples import answer, random_batch, rollout, saved_batch, visit


def of_the_code(numbers: dict, t: int, name: str) -> float | None:
    """The number that a step of this name must show, looked up in Credit.arithmetic."""
    last = t == len(numbers["advantages"]) - 1
    return {
        "advantage": numbers["advantages"][t],
        "term": numbers["terms"][t],
        "reward": numbers["outcome"] if last else numbers["turn_rewards"][t],
        "gain": numbers["gains"][t],
        "z": numbers["outcome_z"] if last else numbers["turn_z"][t],
    }[name]


def from_inputs(step) -> float:
    """The formula, applied to nothing but the inputs that are shown."""
    x = [value for _, value in step.inputs]
    named = dict(step.inputs)
    if step.id == "value":
        return math.exp(fmean(x)) if "exp" in step.formula else fmean(x)
    if step.id == "std":
        if "mean r²" in step.formula:
            return math.sqrt(fmean(r**2 for r in x[1:]) + 1e-8)
        return (
            math.sqrt(fmean((r - x[0]) ** 2 for r in x[1:]) + 1e-8)
            if len(x) > 2 and "√" in step.formula
            else 1.0
        )
    if step.id == "z":
        return (named["r"] - (named["μ"] if "μ" in step.formula else 0.0)) / (named["σ"] + 1e-6)
    if step.id == "reward":
        return -x[0] if "−λ" in step.formula else x[0]
    return {
        "gain": lambda: x[0] - x[1],
        "mean": lambda: fmean(x),
        "term": lambda: x[0] * x[1] * x[2] + sum(x[3:]),
        "scale": lambda: min(max(x[0], 0.3) / (x[1] + 1e-6), 10.0),
        "later": lambda: x[0] * x[1],
        "advantage": lambda: sum(x),
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
@given(st.integers(0, 2**32 - 1), recipes(use_gain=(True, False), format_penalty=(1.0, 1.0, None)))
@settings(max_examples=max(5, settings.default.max_examples // 2))
def test_every_number_is_that_of_the_code_and_follows_from_its_inputs(seed, run):
    batch = random_batch(seed, run)
    compared = under_recipes(batch.samples, run)
    left_out = set() if run.use_gain else {*RECIPES} - {"grpo"}
    assert {*RECIPES} - set(compared) == left_out
    assert next(iter(compared.values()))[0].recipe.gamma == run.gamma  # its own recipe comes first
    for name, rollouts in compared.items():
        whole = assign_credit(batch.samples, rollouts[0].recipe)
        for i, c in enumerate(rollouts):
            numbers, values = c.numbers, value_steps(c)
            assert numbers == whole.arithmetic(i, c.sample.group) and all(map(follows, values))
            assert [step.value for step in values] == [
                value for value in numbers["beliefs"] if value is not None
            ]
            known = {
                "s": numbers["scale"],
                "weight": c.recipe.ig_weight,
                "γ": c.recipe.gamma,
                "λ": c.recipe.format_penalty or 0.0,
                **{step.name: step.value for step in values},
            }
            for t, (gain, advantage) in enumerate(
                zip(numbers["gains"], numbers["advantages"], strict=True), 1
            ):
                known |= {f"gain of turn {t}": gain, f"A of turn {t}": advantage}
            for t in range(len(c.sample.rollout.kinds)):
                found = turn_steps(c, t)
                assert found[-1].id == "advantage" and len({step.id for step in found}) == len(
                    found
                )
                for step in found:
                    assert follows(step), (name, step)
                    assert step.id == "later" or step.value == of_the_code(numbers, t, step.id), (
                        name,
                        step,
                    )
                    assert dict(step.inputs) == dict(step.inputs) | {
                        k: known[k] for k, _ in step.inputs if k in known
                    }


@given(st.integers(0, 2**32 - 1), recipes(use_gain=(True, False)))
@settings(max_examples=max(5, settings.default.max_examples // 2))
def test_the_numbers_of_a_group_are_those_of_the_code_and_follow_from_its_rewards(seed, run):
    batch = random_batch(seed, run)
    for rollouts in under_recipes(batch.samples, run).values():
        for group in {c.sample.group for c in rollouts}:
            members = [c for c in rollouts if c.sample.group == group]
            numbers = members[0].numbers
            rewards = {
                "outcomes": [c.numbers["outcome"] for c in members],
                "turn rewards": [
                    r for c in members for r in c.numbers["turn_rewards"] if r is not None
                ],
            }
            for step in group_steps(members):
                assert follows(step), step
                half = "turn_reward" if step.name.endswith("turn rewards") else "outcome"
                stats = numbers["group_stats"] | {"outcome_scale": numbers["scale"]}
                stats["turn_reward_std"] = stats["turn_reward_spread"]
                assert step.value == stats[f"{half}_{step.id}"]
                listed = [value for name, value in step.inputs if "rollout" in name]
                assert sorted(listed) == sorted(
                    r for name, of in rewards.items() if name in step.name for r in of
                )


def test_one_rollout_worked_by_hand():
    """Two rollouts of a visit and an answer, gains 2 and 1, outcomes 1 and 0: every z is almost 1 or -1."""
    run = Recipe.paper(gamma=0.5, lead_in="Answer.")
    batch = saved_batch(
        [rollout([visit(), answer()])] * 2,
        [7, 7],
        [1.0, 0.0],
        run,
        [[[-4.0, -2.0], [-1.0, -1.0]], [[-3.0], [-2.0]]],
    )
    compared = under_recipes(batch.samples, run)
    assert list(compared) == ["this run", *RECIPES]
    own = compared["this run"]
    assert recipe_words("this run", own[0].recipe) == "The paper's recipe with gamma 0.5."
    shown = {step.id: step for step in turn_steps(own[0], 0)}
    assert list(shown) == ["gain", "reward", "z", "term", "later", "advantage"]
    assert [shown[name].value for name in ("gain", "reward")] == [2.0, 2.0]
    assert shown["gain"].formula == "IG = V after − V before [P eq.3]"
    assert shown["gain"].inputs == (("V after turn 1", -1.0), ("V of the question", -3.0))
    assert shown["advantage"].value == pytest.approx(1.5, abs=1e-4)
    assert shown["later"].value == pytest.approx(0.5, abs=1e-4)
    group = [(step.name, step.value) for step in group_steps(own)]
    assert group[0] == ("mean μ of turn rewards", 1.5) and group[2] == ("mean μ of outcomes", 0.5)
    assert [name for name, _ in group[3:]] == ["std σ of outcomes", "IG-Scale s"]
    renamed = under_recipes(
        batch.samples, Recipe.released(lead_in="Answer.")
    )  # the same arithmetic
    assert list(renamed) == ["released", "grpo", "paper", "raw_ig", "uncentred"]
