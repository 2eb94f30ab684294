"""Every number of a turn's credit, with its formula, its equation and its inputs.

    under_recipes(samples, recipe)     samples under each of the recipes that a page compares
    belief_steps(credited)             the belief in the truth along the turns of a rollout
    turn_steps(credited, t)            the numbers of turn t in the order of the computation
    group_steps(group)                 what the rewards of a group are normalised with

The values are those of igpo/credit.py; a test computes each again from the inputs shown with it. In
equations P is the DR-Venus paper and I v1 the first version of the IGPO paper.
"""

from dataclasses import asdict, dataclass, replace

from minvenus.igpo.advantage import SCALE_CAP, SCALE_FLOOR
from minvenus.igpo.credit import RolloutCredit, assign_credit
from minvenus.igpo.recipes import RECIPE_WORDS, RECIPES, Recipe
from minvenus.types import Sample

STEPS = {                               # id of a number -> its name, and what it is
    "belief": ("V", "log P(answer): how probable the model found the true answer at that point, "
               "had it been asked then. It is the mean log-probability of the answer's tokens."),
    "gain": ("gain", "How much more probable the answer became. A visit's gain covers the "
             "searches that led to it."),
    "reward": ("reward r", "What the turn is paid: its gain, the answer's score, or the penalty λ. "
               "Absent is not zero: a turn without a reward enters no statistics."),
    "mean": ("mean μ", "Of the rewards of all rollouts of this question."),
    "std": ("std σ", "How far they lie apart. A single number has no spread: σ is set to 1, and "
            "its centred z is 0."),
    "z": ("z", "How far the reward lies above or below the group's mean, in standard deviations."),
    "scale": ("IG-Scale s", "Scales turn rewards to the mean size of the outcomes, in the batch."),
    "term": ("scaled r̃", "The normalised reward of this turn, before what follows is added."),
    "advantage": ("advantage A", "What the turn earned itself, and what it made possible: "
                  "Σ γ^(k−t) r̃, so the next advantage is a reward and what follows it."),
}
SPREADS = {                             # Recipe.spread -> formula of σ
    "std": "σ = √( mean (r − μ)² + 1e-8 ) [P eq.5]",
    "rms": "σ = √( mean r² + 1e-8 ): the root mean square instead",
    "one": "σ = 1: nothing is divided",
}

Formula = tuple[str, dict]              # and its inputs: name -> number


@dataclass(frozen=True)
class Step:
    """One number on the way from the measurements to an advantage."""

    id: str
    name: str
    value: float | None                 # None: there is no such number, and `formula` says why
    formula: str
    inputs: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Credited:
    """One rollout under one recipe."""

    recipe: Recipe
    sample: Sample
    numbers: RolloutCredit
    trained: bool                       # False: a lone trajectory, whose numbers end at gains


def under_recipes(samples: list[Sample], run: Recipe | None) -> list[dict[str, Credited]]:
    """Each sample under the run's own recipe, which comes first, and under the five named ones.

    The samples of a run are its whole batch: IG-Scale needs it. Where the run has no gains, no
    truth was scored, and recipes with gains are left out. Without a run the samples are
    trajectories without a group or an outcome: they have gains, and nothing that follows.
    """
    if run:
        recipes = {recipe_name(run): run} | RECIPES
    else:
        recipes = {"paper": Recipe.paper()}
        samples = [replace(sample, outcome=0.0) for sample in samples]           # is not shown

    under: list[dict[str, Credited]] = [{} for _ in samples]
    for name, recipe in recipes.items():
        if recipe.use_gain and run and not run.use_gain:
            continue
        credit = assign_credit(samples, recipe)
        for i, sample in enumerate(samples):
            numbers = credit.of_rollout(i, sample.group)
            under[i][name] = Credited(recipe, sample, numbers, run is not None)
    return under


def recipe_name(recipe: Recipe) -> str:
    for name, named in RECIPES.items():
        if not changes(recipe, named):
            return name
    return "this run"


def recipe_words(name: str, recipe: Recipe) -> str:
    changed = changes(recipe, Recipe.paper())
    return RECIPE_WORDS.get(name) or f"The paper's recipe with {', '.join(changed)}."


def changes(recipe: Recipe, other: Recipe) -> list[str]:
    """The fields in which a recipe differs from another, except those of the scored text, which
    change no formula."""
    fields = asdict(recipe)
    del fields["lead_in"], fields["newlines_after_think"]
    return [f"{name} {value}" for name, value in fields.items() if value != getattr(other, name)]


# ------------------------------------------------------------------ numbers of a rollout's turns


def step(key: str, value: float | None, formula: str, inputs: dict, of: str = "") -> Step:
    return Step(key, STEPS[key][0] + of, value, formula, tuple(inputs.items()))


def after_turn(t: int) -> str:
    """Pages count turns from 1, so beliefs[t] is that after turn t."""
    return f" after turn {t}" if t else " of the question"


def belief_steps(c: Credited) -> list[Step]:
    formula = "V = 1/L · Σ log π(answer token) [P eq.2]"
    if c.recipe.gain == "prob":
        formula = "V = exp( 1/L · Σ log π(answer token) ) [I v1]"
    steps = []
    for t, belief in enumerate(c.numbers.beliefs):
        if belief is not None:
            logprobs = c.sample.truth_logprobs[t] or []
            inputs = {f"token {j}": logprob for j, logprob in enumerate(logprobs, 1)}
            steps.append(step("belief", belief, formula, inputs, after_turn(t)))
    return steps


def turn_steps(c: Credited, t: int) -> list[Step]:
    """The numbers of a turn: gain, reward, z, term, advantage."""
    n = c.numbers
    steps = []
    if n.gains[t] is not None:
        steps.append(step("gain", n.gains[t], *gain_formula(c, t)))
    if not c.trained:
        return steps
    reward = [*n.turn_rewards, n.outcome][t]
    steps.append(step("reward", reward, *reward_formula(c, t, reward)))
    if reward is not None and c.recipe.normalize != "none":
        z = [*n.turn_z, n.outcome_z][t]
        steps.append(step("z", z, *z_formula(c, t, reward)))
    if reward is not None and t < len(n.turn_z):
        steps.append(step("term", n.terms[t], *term_formula(c, t)))
    return [*steps, step("advantage", n.advantages[t], *advantage_formula(c, t))]


def gain_formula(c: Credited, t: int) -> Formula:
    beliefs = c.numbers.beliefs
    before = max(k for k in range(t + 1) if beliefs[k] is not None)
    inputs = {f"V{after_turn(k)}": beliefs[k] for k in (t + 1, before)}
    return "IG = V after − V before [P eq.3]", inputs


def reward_formula(c: Credited, t: int, reward: float | None) -> Formula:
    malformed, gains = c.sample.rollout.malformed, c.numbers.gains
    last = t == len(gains) - 1
    if reward is None:
        return "no reward", {}
    if malformed[t] and c.recipe.format_penalty is not None:
        what = "answer" if last else "turn"
        return f"r = −λ: the {what} is malformed [P eq.4]", {"λ": c.recipe.format_penalty}
    if last:
        return "r = score of the answer", {"score": reward}
    if gains[t] is not None:
        return "r = gain [P eq.3]", {"gain": gains[t]}

    # a search has a copy of the next gain, or of a penalty before that
    copied = "gain"
    sources = [gain is not None for gain in gains]
    if c.numbers.penalties[t]:
        copied = "penalty"
        sources = malformed
    source = f"{copied} of turn {sources.index(True, t) + 1}"
    formula = f"r = {source}, shared with the searches that led to it [P, browse-aware]"
    return formula, {source: reward}


def z_formula(c: Credited, t: int, reward: float) -> Formula:
    """The reward compared with its group."""
    stats = c.numbers.group_stats
    formula = "z = (r − μ) / (σ + 1e-6) [P eq.5]"
    if t == len(c.numbers.turn_z):
        return formula, {"r": reward, "μ": stats.outcome_mean, "σ": stats.outcome_std}
    inputs = {"r": reward, "μ": stats.turn_reward_mean, "σ": stats.turn_reward_spread}
    if not c.recipe.center_gain:
        del inputs["μ"]
        formula = "z = r / (σ + 1e-6), not centred [P eq.5]"
    return formula, inputs


def term_formula(c: Credited, t: int) -> Formula:
    """z scaled to the size of the outcomes."""
    n = c.numbers
    inputs = {"weight": c.recipe.ig_weight, "s": n.scale, "z": n.turn_z[t]}
    if c.recipe.outcome_on == "every":
        inputs["z of the outcome"] = n.outcome_z
        return "r̃ = weight · s · z + z of the outcome", inputs
    return "r̃ = weight · s · z [P eq.6-8]", inputs


def advantage_formula(c: Credited, t: int) -> Formula:
    term = c.numbers.terms[t]
    if t == len(c.numbers.terms) - 1:
        return "A = z: nothing follows [P eq.9]", {"z": term}
    k = next_turn(c, t)
    later = f"A of turn {k + 1}"
    inputs = {later: c.numbers.advantages[k]}
    if term is None and c.recipe.discount_over == "rewards":
        return f"A = {later}, the next rewarded turn, whose return is shared [P eq.9]", inputs

    inputs["γ"] = c.recipe.gamma
    if term is None:
        return f"A = γ · {later}: it earned nothing itself [P eq.9]", inputs
    return f"A = r̃ + γ · {later} [P eq.9]", {"r̃": term} | inputs


def next_turn(c: Credited, t: int) -> int:
    """The turn that the advantage of turn t builds on.

    Over rewards, a turn with a reward builds on the next one with a reward; a turn without one
    passes over penalties that are not shared.
    """
    if c.recipe.discount_over == "turns":
        return t + 1
    terms = c.numbers.terms
    passes = terms[t] is None and c.recipe.penalty_scope == "turn"
    for k in range(t + 1, len(terms) - 1):
        if terms[k] is not None and not (passes and c.numbers.penalties[k]):
            return k
    return len(terms) - 1


# ---------------------------------------------------------------------------- numbers of a group


def group_steps(group: list[Credited]) -> list[Step]:
    """Mean and spread of the rewards that are normalised together, and the scale of the batch."""
    recipe, numbers = group[0].recipe, group[0].numbers
    stats = numbers.group_stats
    if recipe.normalize == "none":
        return []
    turns = {}
    outcomes = {}
    for i, c in enumerate(group, 1):
        outcomes[f"outcome of rollout {i}"] = c.numbers.outcome
        for t, reward in enumerate(c.numbers.turn_rewards, 1):
            if reward is not None:
                turns[f"rollout {i}, turn {t}"] = reward
    if recipe.normalize == "joint":
        turns = outcomes = turns | outcomes

    steps = []
    if turns:
        steps += mean_and_spread(stats.turn_reward_mean, stats.turn_reward_spread,
                                 SPREADS[recipe.spread], turns, " of turn rewards")
    steps += mean_and_spread(stats.outcome_mean, stats.outcome_std,
                             SPREADS["std"], outcomes, " of outcomes")
    if recipe.normalize == "scaled" and turns:
        formula = f"s = min( max(M_O, {SCALE_FLOOR}) / (M_IG + 1e-6), {SCALE_CAP:g} ) [P eq.6-8]"
        sizes = {
            "M_O = mean |z| of outcomes": numbers.outcome_size,
            "M_IG = mean |z| of turn rewards": numbers.turn_reward_size,
        }
        steps.append(step("scale", numbers.scale, formula, sizes))
    return steps


def mean_and_spread(mean: float, spread: float, formula: str, rewards: dict, of: str) -> list[Step]:
    return [
        step("mean", mean, "μ = mean r [P eq.5]", rewards, of),
        step("std", spread, formula, {"μ": mean} | rewards, of),
    ]
