"""Where every number of a turn's reward comes from: its formula, its equation and its inputs.

    under_recipes(measured, recipe)     a batch under each of the recipes that a page compares
    steps(arithmetic, t)                the numbers of turn t in the order of the computation

The values are those of igpo/credit.py. A test computes each of them again from the inputs that are shown
with it. A recipe that needs more than was measured has no numbers: nothing is filled with zeros. In
equations P is the DR-Venus paper and I the IGPO paper.
"""

from dataclasses import asdict, dataclass, field, replace
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
NOT_SCORED = "The file has no log P(answer) for it: nothing was scored in this run, so there are no gains."
MOST_PARTS = 8                          # of an advantage, the largest ones


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
        """Its name, or what it changes in the paper's recipe."""
        paper = settings(Recipe.paper())
        changed = [f"{key} {value}" for key, value in settings(self.recipe).items() if value != paper[key]]
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
    parts: list[tuple[int, float, float]] = field(default_factory=list)    # turn, factor, term


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
    return [*found, advantage_step(a, t)]


def gain_steps(a: Arithmetic, t: int) -> list[Step]:
    """log P(answer) before and after a turn, and the difference. values[p]: after turn p, counted from 1."""
    values, gain = a.numbers["values"], a.numbers["gains"][t]
    if gain is None:
        return []
    before = max(p for p in range(t + 1) if values[p] is not None)
    words = f"How much more probable the true answer became since {f'turn {before}' if before else 'the question'}."
    words += " A visit's gain covers the searches that led to it." if before < t else ""
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
        return Step("reward", "reward", None, "no reward of its own", why_no_reward(a, t), [])
    if a.numbers["penalties"][t] and malformed[t]:
        words = "The turn breaks a rule of the format: the penalty replaces what it would have earned."
        return Step("reward", "reward", value, "r = −λ, instead of any gain [P eq.4]", words, [("λ", penalty)])
    if gains[t] is not None:
        return Step("reward", "reward", value, "r = gain [P eq.3]", "The turn is paid its gain.", [("gain", gains[t])])
    shared = [broken and a.recipe.penalty_scope == "segment" for broken in malformed]
    source = next(k for k in range(t + 1, len(gains)) if shared[k] or gains[k] is not None)
    turn, what, paid = f"turn {source + 1}", "gain", gains[source]
    words = f"This search led to the visit in {turn} and is paid the same gain."
    if shared[source]:
        what, paid = "penalty", -penalty
        words = f"The penalty of {turn} is shared with the searches before it."
    return Step("reward", "shared reward", value, f"r = {what} of {turn} [P, browse-aware]", words, [(turn, paid)])


def why_no_reward(a: Arithmetic, t: int) -> str:
    if not a.recipe.use_gain:
        return "Only the last turn is paid in GRPO; this turn shares its result."
    if a.measured.kinds[t] != "search":
        return "This turn has no gain. Absent is not zero: it enters no statistics."
    if a.recipe.browse == "segment":
        return "The gain stays on the visit; this search shares the visit's return."
    return "No visit follows this search, so there is no gain to share."


def outcome_step(a: Arithmetic) -> Step:
    value, score = a.numbers["outcome"], a.measured.outcome
    if a.measured.malformed[-1]:
        words = "The last turn breaks a rule of the format: whatever it answered, the penalty replaces it."
        inputs = [("λ", a.recipe.format_penalty), ("outcome without the penalty", score)]
        return Step("reward", "outcome", value, "r = −λ, instead of the outcome [P eq.4]", words, inputs)
    return Step("reward", "outcome", value, "r = score of the answer",
                "1 for a right answer, 0 for a wrong one; F1 gives what lies between.", [("score", score)])


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
        words = f"Scales turn rewards to the mean size of the outcomes, over the whole batch: {a.batch}."
        inputs = [("M_O = mean |z| of the outcomes", n["m_outcome"]),
                  ("M_IG = mean |z| of the turn rewards", n["m_gain"])]
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
        Step("mean", "group mean", mean, f"μ = mean of the group's {what} [P eq.5]",
             f"Over all rollouts of this question: {len(listed)} in number.", listed),
        Step("std", "group std", std, "σ = √( mean (r − μ)² + 1e-8 ) [P eq.5]", spread, [("μ", mean), *listed]),
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


def advantage_step(a: Arithmetic, t: int) -> Step:
    terms, advantages, gamma = a.numbers["terms"], a.numbers["advantages"], ("γ", a.recipe.gamma)
    term = terms[t]
    if t == len(terms) - 1:
        formula, words = "A = z", "Nothing follows the last turn: its advantage is its normalised outcome."
        inputs = [("z", term)]
    elif a.recipe.discount_over == "turns":
        formula = "A = r̃ + γ · A of the next turn   ( = Σ γ^(k−t) r̃ )"
        words = "What the turn earned itself, and what it made possible: every later turn counts, γ less per turn."
        inputs = [("r̃", term), gamma, (f"A of turn {t + 2}", advantages[t + 1])]
        if term is None:
            formula, inputs = "A = γ · A of the next turn", inputs[1:]
    elif term is None:
        start = return_start(a, t)
        formula = f"A = A of turn {start + 1}"
        words = "The turn has no reward of its own and shares the return of the next rewarded turn."
        inputs = [(f"A of turn {start + 1}", advantages[start])]
    else:
        following = next(k for k in range(t + 1, len(terms)) if terms[k] is not None)
        formula = "A = r̃ + γ · A of the next rewarded turn"
        words = "What the turn earned itself, and what it made possible; only rewarded turns cost a factor γ."
        inputs = [("r̃", term), gamma, (f"A of turn {following + 1}", advantages[following])]
    largest = sorted(contributions(a, t), key=lambda part: -abs(part[1] * part[2]))[:MOST_PARTS]
    return Step("advantage", "advantage A", advantages[t], f"{formula} [P eq.9]", words, inputs, sorted(largest))


def contributions(a: Arithmetic, t: int) -> list[tuple[int, float, float]]:
    """(turn, factor, term) of each term from turn t on: the products add up to its advantage."""
    terms, over_turns = a.numbers["terms"], a.recipe.discount_over == "turns"
    found, power = [], 0
    for k in range(t if over_turns else return_start(a, t), len(terms)):
        if terms[k] is not None:
            found.append((k + 1, a.recipe.gamma ** power, terms[k]))
        power += over_turns or terms[k] is not None
    return found


def return_start(a: Arithmetic, t: int) -> int:
    """Over rewards, the turn whose return turn t has: its own, or that of the next rewarded turn, past
    penalties that are not shared."""
    terms, penalties = a.numbers["terms"], [*a.numbers["penalties"], False]
    passed = [penalty and a.recipe.penalty_scope == "turn" for penalty in penalties]
    following = (k for k in range(t + 1, len(terms)) if terms[k] is not None and not passed[k])
    return next(following) if terms[t] is None else t
