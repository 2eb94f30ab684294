"""A batch under several recipes, so that a page can show what each of them would teach.

All numbers are those of igpo/credit.py. A recipe that needs more than was measured has no numbers but a
reason: nothing is filled with zeros.
"""

from dataclasses import asdict, dataclass, replace

from minvenus.config import Recipe
from minvenus.igpo.credit import Measured, credit
from minvenus.igpo.gain import needed_values

MEASURING = ("lead_in", "newlines_after_think")       # how the answer was asked for: not arithmetic
WITHOUT_GROUP = ("values", "gains", "turn_rewards", "penalties")      # numbers that need no group
WORDS = {
    "paper": "A visit is paid the gain in log P(answer) since the last visit, and so is every search that led to it. "
             "Every turn costs a factor gamma.",
    "released": "The gain stays on the visit; the searches before it share its return. Only rewarded turns cost a "
                "factor gamma, and a malformed turn's penalty is shared by the searches before it.",
    "GRPO": "Only the final answer is paid: every turn of a rollout gets the same number, and a group whose rollouts "
            "all failed teaches nothing.",
}
NOT_SCORED = ("The file has no log P(answer) for it: nothing was scored in this run, so there are no values and no "
              "gains.")


@dataclass(frozen=True)
class Arithmetic:
    """One rollout under one recipe."""

    recipe: Recipe
    measured: Measured
    numbers: dict                       # Credit.arithmetic; of a lone trajectory WITHOUT_GROUP only
    group: list[dict]                   # the numbers of all rollouts of its group
    batch: str                          # what IG-Scale is over, in words


@dataclass(frozen=True)
class Compared:
    """A batch under one recipe."""

    name: str
    recipe: Recipe
    trained: bool                       # the rollouts were trained with it
    rollouts: list[Arithmetic] | None   # None: not everything that it needs was measured

    @property
    def label(self) -> str:
        return f"{self.name} (this run)" if self.trained and self.name != "this run" else self.name

    @property
    def described(self) -> str:
        return self.name if self.name in WORDS else as_change(self.recipe)

    @property
    def words(self) -> str:
        return WORDS.get(self.name) or f"What this run was trained with: {self.described}."


def recipes_for(run: Recipe | None) -> dict[str, Recipe]:
    """The three to compare, and that of the run if it is none of them."""
    named = {"paper": Recipe.paper(), "released": Recipe.released(), "GRPO": Recipe.paper(use_gain=False, gamma=1.0)}
    if run is not None and not any(same_numbers(run, recipe) for recipe in named.values()):
        named = {"this run": run} | named
    return named


def same_numbers(a: Recipe, b: Recipe) -> bool:
    """Whether two recipes give the same numbers from the same measurements."""
    return a == replace(b, **{name: getattr(a, name) for name in MEASURING})


def settings(recipe: Recipe) -> dict[str, str]:
    """The settings that change numbers."""
    words = {True: "on", False: "off"}
    return {key: words[value] if isinstance(value, bool) else str(value)
            for key, value in asdict(recipe).items() if key not in MEASURING}


def as_change(recipe: Recipe) -> str:
    """A recipe as what it changes in the paper's."""
    paper = settings(Recipe.paper())
    changed = [f"{key} {value}" for key, value in settings(recipe).items() if value != paper[key]]
    return f"paper with {', '.join(changed)}"


def under_recipes(measured: list[Measured], run: Recipe | None) -> list[Compared]:
    """A whole training batch under every recipe: IG-Scale is over all of it. Without a run, each rollout
    is a trajectory without group or outcome: recipes that pay the outcome only are left out."""
    compared = []
    for name, recipe in recipes_for(run).items():
        trained = run is not None and same_numbers(run, recipe)
        if any(m.logprobs[t] is None for m in measured for t in needed_values(m.kinds, recipe)):
            compared.append(Compared(name, recipe, trained, None))
        elif run is not None or recipe.use_gain:
            compared.append(Compared(name, recipe, trained, arithmetic(measured, recipe, run is not None)))
    return compared


def arithmetic(measured: list[Measured], recipe: Recipe, grouped: bool) -> list[Arithmetic]:
    whole = credit(measured, recipe)
    numbers = [whole.arithmetic(i, m.group) for i, m in enumerate(measured)]
    if not grouped:
        numbers = [{key: n[key] for key in WITHOUT_GROUP} for n in numbers]
    groups: dict[int, list[dict]] = {}
    for m, n in zip(measured, numbers, strict=True):
        groups.setdefault(m.group, []).append(n)
    rewarded = sum(reward is not None for n in numbers for reward in n["turn_rewards"])
    batch = f"{len(measured)} rollouts, {len(groups)} questions, {rewarded} rewarded turns"
    return [Arithmetic(recipe, m, n, groups[m.group], batch) for m, n in zip(measured, numbers, strict=True)]
