"""Where every number of a turn's reward comes from: its formula, its equation and its inputs.

    under_recipes(measured, recipe)     a batch under each of the recipes that a page compares
    steps(arithmetic, t)                the numbers of turn t in the order of the computation

The values are those of igpo/credit.py. A test computes each of them again from the inputs that are shown
with it. A recipe that needs more than was measured has no numbers: nothing is filled with zeros. In
equations P is the DR-Venus paper and I the IGPO paper.
"""

from dataclasses import asdict, dataclass, replace
from math import exp, fsum

from minvenus.config import Recipe
from minvenus.igpo.advantage import SCALE_CAP, SCALE_FLOOR
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


@dataclass(frozen=True)
class Arithmetic:
    """One rollout under one recipe."""

    recipe: Recipe
    measured: Measured
    numbers: dict                       # Credit.arithmetic; of a lone trajectory WITHOUT_GROUP only
    group: list[dict]                   # the numbers of all rollouts of its group


@dataclass(frozen=True)
class Compared:
    """A batch under one recipe."""

    name: str
    recipe: Recipe
    trained: bool                       # the rollouts were trained with it
    rollouts: list[Arithmetic] | None   # None: not everything that it needs was measured

    @property
    def described(self) -> str:
        """Its name, or what it changes in the paper's recipe."""
        paper = asdict(Recipe.paper())
        changed = [f"{key} {value}" for key, value in asdict(self.recipe).items()
                   if key not in MEASURING and value != paper[key]]
        return self.name if self.name in WORDS else f"paper with {', '.join(changed)}"

    @property
    def words(self) -> str:
        return WORDS.get(self.name) or f"What this run was trained with: {self.described}."


@dataclass(frozen=True)
class Step:
    """One number on the way from the measurements to an advantage."""

    id: str
    name: str                           # on the button
    value: float | None                 # None: there is none, and `words` say why
    formula: str                        # and its equation in brackets
    words: str
    inputs: list[tuple[str, float]]


def recipes_for(run: Recipe | None) -> dict[str, Recipe]:
    """The three to compare, and that of the run if it is none of them."""
    named = {"paper": Recipe.paper(), "released": Recipe.released(), "GRPO": Recipe.paper(use_gain=False, gamma=1.0)}
    if run is not None and not any(same_numbers(run, recipe) for recipe in named.values()):
        named = {"this run": run} | named
    return named


def same_numbers(a: Recipe, b: Recipe) -> bool:
    """Whether two recipes give the same numbers from the same measurements."""
    return a == replace(b, **{name: getattr(a, name) for name in MEASURING})


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
    return [Arithmetic(recipe, m, n, groups[m.group]) for m, n in zip(measured, numbers, strict=True)]


def steps(a: Arithmetic, t: int) -> list[Step]:
    last, grouped = t == len(a.measured.kinds) - 1, "advantages" in a.numbers
    if last and not grouped:
        return []
    reward = outcome_step(a) if last else reward_step(a, t)
    found = [reward] if last else [*gain_steps(a, t), reward]
    if not grouped:
        return found
    if reward.value is not None:
        found += normal_steps(a, t, reward.value, last)
    return [*found, *advantage_steps(a, t)]


# -------------------------------------------------------------------------------------------- up to the reward


def gain_steps(a: Arithmetic, t: int) -> list[Step]:
    """log P(answer) before and after a turn, and the difference. values[p]: after turn p, counted from 1."""
    values, gain = a.numbers["values"], a.numbers["gains"][t]
    if gain is None:
        return []
    before = max(p for p in range(t + 1) if values[p] is not None)
    words = "How much more probable the true answer became. A visit's gain covers the searches that led to it."
    start = f"V after turn {before}" if before else "V of the question"
    inputs = [(f"V after turn {t + 1}", values[t + 1]), (start, values[before])]
    return [value_step(a, before, "value-before", "before"), value_step(a, t + 1, "value", "after"),
            Step("gain", "gain", gain, "IG = V after − V before [P eq.3]", words, inputs)]


def value_step(a: Arithmetic, p: int, step: str, when: str) -> Step:
    logprobs = a.measured.logprobs[p] or []
    place = f"turn {p}" if p else "reading the question alone"
    words = (f"How probable the model found the true answer after {place}, had it been asked right then: the mean "
             f"log-probability of the answer's tokens, {exp(fsum(logprobs) / len(logprobs)):.2%} per token.")
    inputs = [(f"token {j}", logprob) for j, logprob in enumerate(logprobs, 1)]
    name, formula = f"log P {when}", "V = 1/L · Σ log π(answer token) [P eq.2]"
    if a.recipe.gain == "prob":
        name, formula = f"P {when}", "V = exp( 1/L · Σ log π(answer token) ) [I v1]"
    return Step(step, name, a.numbers["values"][p], formula, words, inputs)


def reward_step(a: Arithmetic, t: int) -> Step:
    value, gains, malformed = a.numbers["turn_rewards"][t], a.numbers["gains"], a.measured.malformed
    penalty = a.recipe.format_penalty
    if value is None:
        words = "The turn has no reward of its own. Absent is not zero: it enters no statistics."
        return Step("reward", "reward", None, "no reward", words, [])
    if a.numbers["penalties"][t] and malformed[t]:
        words = "The turn breaks a rule of the format: the penalty replaces what it would have earned."
        return Step("reward", "reward", value, "r = −λ, instead of any gain [P eq.4]", words, [("λ", penalty)])
    if gains[t] is not None:
        return Step("reward", "reward", value, "r = gain [P eq.3]", "The turn is paid its gain.", [("gain", gains[t])])
    shared = [broken and a.recipe.penalty_scope == "segment" for broken in malformed]
    source = next(k for k in range(t + 1, len(gains)) if shared[k] or gains[k] is not None)
    turn, what, paid = f"turn {source + 1}", "gain", gains[source]
    if shared[source]:
        what, paid = "penalty", -penalty
    words = f"The {what} of {turn} is shared with the searches that led to it."
    return Step("reward", "shared reward", value, f"r = {what} of {turn} [P, browse-aware]", words, [(turn, paid)])


def outcome_step(a: Arithmetic) -> Step:
    value, score = a.numbers["outcome"], a.measured.outcome
    if a.measured.malformed[-1]:
        words = "The last turn breaks a rule of the format: whatever it answered, the penalty replaces it."
        inputs = [("λ", a.recipe.format_penalty), ("outcome without the penalty", score)]
        return Step("reward", "outcome", value, "r = −λ, instead of the outcome [P eq.4]", words, inputs)
    return Step("reward", "outcome", value, "r = score of the answer",
                "1 for a right answer, 0 for a wrong one; F1 gives what lies between.", [("score", score)])


# ---------------------------------------------------------------------------------- from the reward to the advantage


def normal_steps(a: Arithmetic, t: int, reward: float, last: bool) -> list[Step]:
    """The reward compared with its group, and a turn's reward scaled to the size of the outcomes."""
    n, found = a.numbers, []
    z = n["outcome_z"] if last else n["turn_z"][t]
    if a.recipe.normalize != "none":
        found += z_steps(a, reward, z, last)
    if last:
        return found
    if a.recipe.normalize == "scaled":
        formula = f"s = min( max(M_O, {SCALE_FLOOR}) / (M_IG + 1e-6), {SCALE_CAP:g} ) [P eq.6-8]"
        inputs = [("M_O = mean |z| of the outcomes", n["m_outcome"]),
                  ("M_IG = mean |z| of the turn rewards", n["m_gain"])]
        words = "Scales turn rewards to the mean size of the outcomes, over all rollouts of the batch."
        found.append(Step("scale", "IG-Scale s", n["scale"], formula, words, inputs))
    words = "The normalised reward of this turn, before anything that follows is added."
    inputs = [("weight", a.recipe.ig_weight), ("s", n["scale"]), ("z", z)]
    return [*found, Step("term", "scaled r̃", n["terms"][t], "r̃ = weight · s · z [P eq.6-8]", words, inputs)]


def z_steps(a: Arithmetic, reward: float, z: float, last: bool) -> list[Step]:
    half, stats = "outcome" if last else "gain", a.numbers["group_stats"]
    mean, std = stats[f"{half}_mean"], stats[f"{half}_std"]
    what, listed = compared_with(a, last)
    spread = f"How far the group's {what} lie apart. A single number has no spread: σ is set to 1, and z becomes 0."
    formula = "z = (r − μ) / (σ + 1e-6) [P eq.5]"
    words = "How far this reward lies above or below the group's mean."
    inputs = [("r", reward), ("μ", mean), ("σ", std)]
    if not last and not a.recipe.center_gain:
        formula, words = "z = r / (σ + 1e-6) [P eq.5]", "The reward in units of σ; this recipe does not subtract μ."
        inputs = [("r", reward), ("σ", std)]
    return [
        Step("mean", "mean μ", mean, f"μ = mean of the group's {what} [P eq.5]",
             f"Over all rollouts of this question: {len(listed)} in number.", listed),
        Step("std", "std σ", std, "σ = √( mean (r − μ)² + 1e-8 ) [P eq.5]", spread, [("μ", mean), *listed]),
        Step("z", "z", z, formula, words, inputs)]


def compared_with(a: Arithmetic, last: bool) -> tuple[str, list[tuple[str, float]]]:
    """The group's rewards that a reward is normalised with: in words, and one by one."""
    rewards, outcomes = [], []
    for i, numbers in enumerate(a.group, 1):
        outcomes.append((f"outcome of rollout {i}", numbers["outcome"]))
        turns = enumerate(numbers["turn_rewards"], 1)
        rewards += [(f"rollout {i}, turn {t}", reward) for t, reward in turns if reward is not None]
    if a.recipe.normalize == "joint":
        return "turn rewards and outcomes", rewards + outcomes
    return ("outcomes", outcomes) if last else ("turn rewards", rewards)


def advantage_steps(a: Arithmetic, t: int) -> list[Step]:
    """What later turns add, and the advantage."""
    terms, advantages = a.numbers["terms"], a.numbers["advantages"]
    if t == len(terms) - 1:
        words = "Nothing follows the last turn: its advantage is its normalised outcome."
        return [Step("advantage", "advantage A", advantages[t], "A = z [P eq.9]", words, [("z", terms[t])])]
    k = next_turn(a, t)
    following = (f"A of turn {k + 1}", advantages[k])
    if terms[t] is None and a.recipe.discount_over == "rewards":
        words = "The turn has no reward of its own and shares the return of the next rewarded turn."
        return [Step("advantage", "advantage A", advantages[t], f"A = {following[0]} [P eq.9]", words, [following])]
    rest = a.recipe.gamma * advantages[k]
    words = f"What the turn made possible: the advantage of turn {k + 1} is itself its reward and what follows it."
    inputs = [("γ", a.recipe.gamma), following]
    later = Step("later", "later turns", rest, f"γ · {following[0]} [P eq.9]", words, inputs)
    formula = "A = r̃ + later turns   ( = Σ γ^(k−t) r̃ ) [P eq.9]"
    inputs = [("r̃", terms[t]), ("later turns", rest)]
    words = "What the turn earned itself, and what it made possible."
    if terms[t] is None:
        formula, inputs, words = "A = later turns [P eq.9]", inputs[1:], "The turn earned nothing itself."
    return [later, Step("advantage", "advantage A", advantages[t], formula, words, inputs)]


def next_turn(a: Arithmetic, t: int) -> int:
    """The turn that the advantage of turn t builds on. Over rewards, a turn with a reward builds on the next one with a
    reward; a turn without passes over penalties that are not shared."""
    terms, penalties = a.numbers["terms"], a.numbers["penalties"]
    if a.recipe.discount_over == "turns":
        return t + 1
    rewarded = [k for k in range(t + 1, len(terms)) if terms[k] is not None]
    if terms[t] is None and a.recipe.penalty_scope == "turn":
        rewarded = [k for k in rewarded if k == len(penalties) or not penalties[k]]
    return rewarded[0]
