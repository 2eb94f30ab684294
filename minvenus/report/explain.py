"""Where every number of a turn's reward comes from: its formula, its equation and its inputs.

    under_recipes(measured, recipe)     a batch under each of the recipes that a page compares
    value_steps(credited)               log P(answer) along the turns of a rollout
    turn_steps(credited, t)             the numbers of turn t in the order of the computation
    group_steps(group)                  what the rewards of a group are normalised with

The values are those of igpo/credit.py. A test computes each of them again from the inputs that are shown
with it. In equations P is the DR-Venus paper and I v1 the first version of the IGPO paper.
"""

from dataclasses import asdict, dataclass

from minvenus.igpo.advantage import SCALE_CAP, SCALE_FLOOR
from minvenus.igpo.credit import assign_credit
from minvenus.igpo.gain import scored_turns
from minvenus.igpo.recipes import RECIPES, Recipe
from minvenus.types import Sample

RECIPE_WORDS = {
    "paper": "A visit is paid the gain in log P(answer) since the last visit, and so is every search that led to it. "
             "Every turn costs a factor gamma.",
    "released": "The gain stays on the visit; the searches before it share its return. Only rewarded turns cost a "
                "factor gamma, and a malformed turn's penalty is shared by the searches before it.",
    "grpo": "Only the final answer is paid: every turn of a rollout gets the same number, and a group whose rollouts "
            "all failed teaches nothing.",
    "uncentred": "As the paper's, but gains are not compared with the group's mean: whatever helped is paid.",
    "raw_ig": "As released, but gains are not centred, every rewarded turn is also paid the answer's z-score, and "
              "nothing of later turns is added.",
}
STEPS = {                               # id of a number -> its name, and what it is
    "value": ("V", "log P(answer): how probable the model found the true answer at that point, had it been asked then. "
                   "It is the mean log-probability of the answer's tokens."),
    "gain": ("gain", "How much more probable the answer became. A visit's gain covers the searches that led to it."),
    "reward": ("reward r", "What the turn is paid: its gain, the answer's score, or the penalty λ. Absent is not zero: "
                           "a turn without a reward enters no statistics."),
    "mean": ("mean μ", "Of the rewards of all rollouts of this question."),
    "std": ("std σ", "How far they lie apart. A single number has no spread: σ is set to 1, and its centred z is 0."),
    "z": ("z", "How far the reward lies above or below the group's mean, in standard deviations."),
    "scale": ("IG-Scale s", "Scales turn rewards to the mean size of the outcomes, over all rollouts of the batch."),
    "term": ("scaled r̃", "The normalised reward of this turn, before anything that follows is added."),
    "later": ("later turns", "What the turn made possible: the next advantage is a reward and what follows it."),
    "advantage": ("advantage A", "What the turn earned itself, and what it made possible: Σ γ^(k−t) r̃."),
}
SPREADS = {"std": "σ = √( mean (r − μ)² + 1e-8 ) [P eq.5]",               # Recipe.spread -> formula of σ
           "rms": "σ = √( mean r² + 1e-8 ): the root mean square instead", "one": "σ = 1: nothing is divided"}


SPREAD_OF = {"turn_reward": "turn_reward_spread", "outcome": "outcome_std"}


@dataclass(frozen=True)
class Step:
    """One number on the way from the measurements to an advantage."""

    id: str
    name: str
    value: float | None                 # None: there is none, and the formula says so
    formula: str
    inputs: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Credited:
    """One rollout under one recipe."""

    recipe: Recipe
    sample: Sample
    numbers: dict                       # Credit.arithmetic
    grouped: bool                       # False: a lone trajectory, which has no numbers beyond its rewards


def under_recipes(samples: list[Sample], run: Recipe | None) -> dict[str, list[Credited]]:
    """A whole training batch (IG-Scale needs it) under the run's own recipe, which comes first, and under those to
    compare it with. A recipe that needs what was not measured is left out: no zeros are filled in. Without a run,
    each rollout is a trajectory without group or outcome: GRPO is left out."""
    names = RECIPES if run else ["paper", "released"]
    recipes = ({recipe_name(run): run} if run else {}) | {name: RECIPES[name] for name in names}
    under = {}
    for name, recipe in recipes.items():
        if all(m.truth_logprobs[t] is not None for m in samples for t in scored_turns(m.rollout.kinds, recipe)):
            whole = assign_credit(samples, recipe)
            under[name] = [Credited(recipe, m, whole.arithmetic(i, m.group), run is not None)
                           for i, m in enumerate(samples)]
    return under


def recipe_name(recipe: Recipe) -> str:
    return next((name for name, other in RECIPES.items() if arithmetic(other) == arithmetic(recipe)), "this run")


def recipe_words(name: str, recipe: Recipe) -> str:
    paper = arithmetic(Recipe.paper())
    changed = ", ".join(f"{key} {value}" for key, value in arithmetic(recipe).items() if value != paper[key])
    return RECIPE_WORDS.get(name) or f"The paper's recipe with {changed}."


def arithmetic(recipe: Recipe) -> dict:
    """The fields of a recipe without its words for asking the model, which change no number."""
    return {name: value for name, value in asdict(recipe).items() if name not in ("lead_in", "newlines_after_think")}


# ---------------------------------------------------------------------------- numbers of a rollout and its turns


def step(key: str, formula: str, value: float | None, *inputs: tuple[str, float], of: str = "") -> Step:
    return Step(key, STEPS[key][0] + of, value, formula, inputs)


def value_steps(c: Credited) -> list[Step]:
    formula = "V = 1/L · Σ log π(answer token) [P eq.2]"
    if c.recipe.gain == "prob":
        formula = "V = exp( 1/L · Σ log π(answer token) ) [I v1]"
    found = []
    for p, value in enumerate(c.numbers["beliefs"]):
        if value is not None:
            inputs = [(f"token {j}", logprob) for j, logprob in enumerate(c.sample.truth_logprobs[p] or [], 1)]
            found.append(step("value", formula, value, *inputs, of=after_turn(p)))
    return found


def after_turn(p: int) -> str:
    """Turns are counted from 1, so values[p] is that after turn p."""
    return f" after turn {p}" if p else " of the question"


def turn_steps(c: Credited, t: int) -> list[Step]:
    if not c.grouped and t == len(c.sample.rollout.kinds) - 1:
        return []                                        # there is no outcome
    found = reward_steps(c, t)
    return [*found, *advantage_steps(c, t, found[-1].value)] if c.grouped else found


def reward_steps(c: Credited, t: int) -> list[Step]:
    n, values, gains = c.numbers, c.numbers["beliefs"], c.numbers["gains"]
    penalty = ("λ", c.recipe.format_penalty or 0.0)
    malformed = [broken and c.recipe.format_penalty is not None for broken in c.sample.rollout.malformed]
    if t == len(malformed) - 1:
        formula, score = "r = score of the answer", ("score", c.sample.outcome or 0.0)
        if malformed[t]:
            formula, score = "r = −λ: the answer is malformed [P eq.4]", penalty
        return [step("reward", formula, n["outcome"], score)]
    reward = n["turn_rewards"][t]
    found = []
    if gains[t] is not None:
        p = max(p for p in range(t + 1) if values[p] is not None)
        inputs = [(f"V{after_turn(k)}", values[k]) for k in (t + 1, p)]
        found = [step("gain", "IG = V after − V before [P eq.3]", gains[t], *inputs)]
    if reward is None:
        return [*found, step("reward", "no reward", None)]
    if n["penalties"][t] and malformed[t]:
        return [*found, step("reward", "r = −λ: the turn is malformed [P eq.4]", reward, penalty)]
    if gains[t] is not None:
        return [*found, step("reward", "r = gain [P eq.3]", reward, ("gain", gains[t]))]
    shared = [broken and c.recipe.penalty_scope == "segment" for broken in malformed]
    k = next(k for k in range(t + 1, len(gains)) if shared[k] or gains[k] is not None)
    what, paid = ("penalty", -penalty[1]) if shared[k] else ("gain", gains[k])
    formula = f"r = {what} of turn {k + 1}, shared with the searches that led to it [P, browse-aware]"
    return [step("reward", formula, reward, (f"{what} of turn {k + 1}", paid))]


def advantage_steps(c: Credited, t: int, reward: float | None) -> list[Step]:
    """The reward compared with its group, scaled to the size of the outcomes, what later turns add, and the sum."""
    n, term, advantage = c.numbers, c.numbers["terms"][t], c.numbers["advantages"][t]
    last = t == len(n["terms"]) - 1
    half, z = ("outcome", n["outcome_z"]) if last else ("turn_reward", n["turn_z"][t])
    found = []
    if reward is not None and c.recipe.normalize != "none":
        r, mean, std = ("r", reward), ("μ", n["group_stats"][f"{half}_mean"]), ("σ", n["group_stats"][SPREAD_OF[half]])
        if last or c.recipe.center_gain:
            found.append(step("z", "z = (r − μ) / (σ + 1e-6) [P eq.5]", z, r, mean, std))
        else:
            found.append(step("z", "z = r / (σ + 1e-6), not centred [P eq.5]", z, r, std))
    if last:
        return [*found, step("advantage", "A = z: nothing follows [P eq.9]", advantage, ("z", term))]
    if reward is not None:
        factors = [("weight", c.recipe.ig_weight), ("s", n["scale"]), ("z", z)]
        formula = "r̃ = weight · s · z [P eq.6-8]"
        if c.recipe.outcome_on == "every":
            formula = "r̃ = weight · s · z + z of the outcome"
            factors.append(("z of the outcome", n["outcome_z"]))
        found.append(step("term", formula, term, *factors))
    k = next_turn(c, t)
    following = (f"A of turn {k + 1}", n["advantages"][k])
    if term is None and c.recipe.discount_over == "rewards":
        formula = f"A = A of turn {k + 1}, the next rewarded turn, whose return is shared [P eq.9]"
        return [*found, step("advantage", formula, advantage, following)]
    rest = ("later turns", c.recipe.gamma * following[1])
    found.append(step("later", f"γ · A of turn {k + 1} [P eq.9]", rest[1], ("γ", c.recipe.gamma), following))
    if term is None:
        return [*found, step("advantage", "A = later turns: it earned nothing itself [P eq.9]", advantage, rest)]
    return [*found, step("advantage", "A = r̃ + later turns [P eq.9]", advantage, ("r̃", term), rest)]


def next_turn(c: Credited, t: int) -> int:
    """The turn that the advantage of turn t builds on. Over rewards, a turn with a reward builds on the next one with a
    reward; a turn without passes over penalties that are not shared."""
    terms, penalties = c.numbers["terms"], c.numbers["penalties"]
    if c.recipe.discount_over == "turns":
        return t + 1
    rewarded = [k for k in range(t + 1, len(terms)) if terms[k] is not None]
    if terms[t] is None and c.recipe.penalty_scope == "turn":
        rewarded = [k for k in rewarded if k == len(penalties) or not penalties[k]]
    return rewarded[0]


# ------------------------------------------------------------------------------------------ numbers of a group


def group_steps(group: list[Credited]) -> list[Step]:
    """Mean and standard deviation of the rewards that are normalised together, and the scale of the batch."""
    mode, numbers = group[0].recipe.normalize, group[0].numbers
    rewards, outcomes = [], []
    for i, c in enumerate(group, 1):
        outcomes.append((f"outcome of rollout {i}", c.numbers["outcome"]))
        turns = enumerate(c.numbers["turn_rewards"], 1)
        rewards += [(f"rollout {i}, turn {t}", reward) for t, reward in turns if reward is not None]
    sets = {"turn rewards": ("turn_reward", rewards), "outcomes": ("outcome", outcomes)}
    if mode == "joint":
        sets = {"turn rewards and outcomes": ("outcome", rewards + outcomes)}
        if group[0].recipe.spread != "std":
            sets["turn rewards and outcomes, for turn rewards"] = ("turn_reward", rewards + outcomes)
    found = []
    for what, (half, listed) in sets.items():
        if listed and mode != "none":
            mean, std = (numbers["group_stats"][name] for name in (f"{half}_mean", SPREAD_OF[half]))
            found.append(step("mean", "μ = mean r [P eq.5]", mean, *listed, of=f" of {what}"))
            kind = group[0].recipe.spread if half == "turn_reward" else "std"
            found.append(step("std", SPREADS[kind], std, ("μ", mean), *listed, of=f" of {what}"))
    if mode == "scaled" and rewards:
        formula = f"s = min( max(M_O, {SCALE_FLOOR}) / (M_IG + 1e-6), {SCALE_CAP:g} ) [P eq.6-8]"
        found.append(step("scale", formula, numbers["scale"], ("M_O = mean |z| of outcomes", numbers["outcome_size"]),
                          ("M_IG = mean |z| of turn rewards", numbers["turn_reward_size"])))
    return found
