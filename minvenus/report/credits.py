"""One batch under several recipes, so that a page can show what each of them would teach.

Everything here comes out of igpo/credit.py: a recipe whose numbers cannot be had from what was measured is left out with the
reason, never filled with zeros. Where there is no group to compare with (a single trajectory), only the first half of the
arithmetic exists: values, gains and rewards.
"""

from dataclasses import asdict, dataclass, replace

from minvenus.config import Recipe
from minvenus.igpo.credit import Measured, credit, measured_values
from minvenus.igpo.gain import needed_values, segment_gains
from minvenus.igpo.rewards import turn_rewards

MEASURING = ("lead_in", "newlines_after_think")       # how the answer was asked for: no part of the arithmetic
WORDS = {
    "paper": "A visit is paid the gain in log P(answer) since the last visit, and so is every search that led to it. Every turn "
             "costs a factor gamma.",
    "released": "The gain stays on the visit; the searches before it share its return. Only rewarded turns cost a factor gamma, "
                "and a malformed turn's penalty is shared by the searches before it.",
    "GRPO": "Only the final answer is paid: every turn of a rollout gets the same number, and a group whose rollouts all failed "
            "teaches nothing.",
}
NOT_SCORED = "The file has no log P(answer) for it: nothing was scored in this run, so there are no values and no gains."


@dataclass(frozen=True)
class Credited:
    """A recipe and what it makes of every rollout of the batch; or why it cannot."""

    name: str
    recipe: Recipe
    trained: bool                                # the rollouts were trained with it
    rollouts: list[dict] | None                  # Credit.arithmetic of each
    missing: str | None = None                   # why not
    rewarded: int = 0                            # turns before the last that carry a reward, in the whole batch

    def described(self, rollouts: int, groups: int) -> dict:
        fields = {k: v for k, v in asdict(self.recipe).items() if k not in MEASURING}
        described = self.name if self.name in WORDS else as_change(self.recipe)
        words = WORDS.get(self.name) or f"What this run was trained with: {described}."
        return {"name": self.name, "described": described, "words": words, "trained": self.trained, "missing": self.missing,
                "fields": fields, "batch": {"rollouts": rollouts, "groups": groups, "rewarded": self.rewarded}}


def recipes_for(run: Recipe | None) -> dict[str, Recipe]:
    """The three to compare, and that of the run if it is none of them. GRPO is the usual one: one number for all turns."""
    named = {"paper": Recipe.paper(), "released": Recipe.released(), "GRPO": Recipe.paper(use_gain=False, gamma=1.0)}
    if run is not None and not any(same(run, recipe) for recipe in named.values()):
        named = {"this run": run} | named
    return named


def same(a: Recipe, b: Recipe) -> bool:
    """Whether two recipes give the same numbers from the same measurements."""
    return a == replace(b, **{name: getattr(a, name) for name in MEASURING})


def as_change(recipe: Recipe) -> str:
    """A recipe as what it changes in the named one that it is closest to."""
    found = []
    for name, other in recipes_for(None).items():
        changed = [f"{key} {spelled(value)}" for key, value in asdict(recipe).items()
                   if key not in MEASURING and value != getattr(other, key)]
        found.append((len(changed), f"{name} with {', '.join(changed)}"))
    return min(found, key=lambda one: one[0])[1]


def spelled(value) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def can_credit(measured: list[Measured], recipe: Recipe) -> bool:
    return all(m.logprobs[t] is not None for m in measured for t in needed_values(m.kinds, recipe))


def credited(measured: list[Measured], run: Recipe | None) -> list[Credited]:
    """The batch under every recipe; all rollouts of the batch are needed, since IG-Scale is over all of them."""
    result = []
    for name, recipe in recipes_for(run).items():
        trained = run is not None and same(run, recipe)
        if can_credit(measured, recipe):
            whole = credit(measured, recipe)
            rewarded = sum(r is not None for rewards in whole.rewards for r in rewards.turns)
            result.append(Credited(name, recipe, trained, [whole.arithmetic(i, m.group) for i, m in enumerate(measured)],
                                   rewarded=rewarded))
        else:
            result.append(Credited(name, recipe, trained, None, NOT_SCORED))
    return result


def gains_only(kinds: list[str], malformed: list[bool], logprobs: list[list[float]]) -> list[Credited]:
    """What can be said of one trajectory without a group. Its outcome is not known here, and never enters."""
    result = []
    for name, recipe in recipes_for(None).items():
        if not recipe.use_gain:                  # pays the outcome only, which nobody knows here
            continue
        values = measured_values(Measured(kinds, malformed, list(logprobs), 0.0, 0), recipe, "the trajectory")
        gains = segment_gains(values, kinds, recipe)
        rewards = turn_rewards(kinds, gains, malformed, 0.0, recipe)
        result.append(Credited(name, recipe, False, [{"values": values, "gains": gains, "turn_rewards": rewards.turns,
                                                      "penalties": rewards.is_penalty()}]))
    return result
