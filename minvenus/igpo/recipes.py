"""A recipe is every setting that turns log-probs of the truth and outcomes into advantages. Five
recipes have names.

Flags, pages, the comparison, the lab and the documents take their names, words and numbers from
here. The other files of igpo/ write a field as name="value"; docs/recipes.md shows what each does.
"""

from dataclasses import dataclass, replace
from typing import Literal

from minvenus.setting import check_settings, setting


@dataclass(frozen=True)
class Recipe:
    """How measurements become advantages. The defaults are those of `paper`."""

    # gain.py: what a gain is, and which turns have one
    use_gain: bool = setting(True, "reward gains; off: only the last turn is rewarded, as in GRPO")
    gain: Literal["log_prob", "prob"] = setting(
        "log_prob", "belief in the truth: its mean log-prob, or the exponential of that")
    browse: Literal["replicate", "segment", "off"] = setting(
        "replicate", "gains: of visits, copied to searches; segment: of visits; off: of every turn")
    # The text that is scored; no flags. 2 newlines as the template renders it, 1 as released.
    # lead_in is the thought before the truth: training takes the one of the model's agent.json.
    newlines_after_think: Literal[1, 2] = 2
    lead_in: str = "Now there's enough information to answer"

    # rewards.py: the reward of a malformed turn
    format_penalty: float | None = setting(
        1.0, "reward of a malformed turn is minus this; none: it keeps its reward", least=0)
    penalty_scope: Literal["turn", "segment"] = setting(
        "turn", "penalise a malformed turn only, or the searches before it too")

    # advantage.py: how rewards are compared, and what a turn gets of later ones
    normalize: Literal["scaled", "separate", "joint", "none"] = setting(
        "scaled", "z-scores: scaled by IG-Scale, separate, joint with outcomes; none: raw rewards")
    center_gain: bool = setting(
        True, "subtract the group's mean from turn rewards; from outcomes always")
    spread: Literal["std", "rms", "one"] = setting(
        "std", "what divides turn rewards: std; rms, their root mean square; one: nothing")
    ig_weight: float = setting(1.0, "factor on the z-scores of turn rewards")
    outcome_on: Literal["last", "every"] = setting(
        "last", "the z-score of the outcome counts on the last turn, or on every rewarded turn")
    gamma: float = setting(0.95, "discount", least=0, most=1)
    discount_over: Literal["turns", "rewards"] = setting(
        "turns", "a factor gamma for every turn, or for rewarded turns only")

    def __post_init__(self):
        check_settings(self)

    @classmethod
    def paper(cls, **changes) -> "Recipe":
        return cls(**changes)

    @classmethod
    def released(cls, **changes) -> "Recipe":
        """Gains stay on visits, the searches before a visit share its return, and a penalty is
        also given to the searches before it.

        Only rewards and advantages: what else the script does differently is in docs/recipes.md.
        """
        released = cls(
            browse="segment",
            discount_over="rewards",
            penalty_scope="segment",
            newlines_after_think=1,
        )
        return replace(released, **changes)

    @classmethod
    def raw_ig(cls, **changes) -> "Recipe":
        """Gains are divided by their std and not centred, every rewarded turn also gets the
        normalised outcome, and no reward of a later turn is added: gamma is 0.

        A group whose turn rewards are all equal is divided by 1e-4, so its terms explode. A gain
        of exactly 0 is a reward, as in the released pipeline, which stores 1e-10 in its place;
        the released function alone would drop it.
        """
        raw_ig = cls.released(
            normalize="separate", center_gain=False, outcome_on="every", gamma=0.0)
        return replace(raw_ig, **changes)


RECIPES = {
    # the released code checks the format only where gains are used: its GRPO has no penalty
    "grpo": Recipe.paper(use_gain=False, gamma=1.0, format_penalty=None),
    "paper": Recipe.paper(),
    "released": Recipe.released(),
    "raw_ig": Recipe.raw_ig(),
    # Not centring is raw_ig's idea. Ours: discounted returns, and the root mean square, which is
    # not near 0 where all gains are equal, as their std is.
    "uncentred": Recipe.paper(center_gain=False, spread="rms"),
}
RECIPE_WORDS = {
    "grpo": "The baseline: only the answer is rewarded, every turn of a rollout gets the same "
            "number, and a group whose rollouts all failed teaches nothing.",
    "paper": "The DR-Venus paper: a visit is paid the gain in log P(answer) since the last visit, "
             "and so is every search that led to it. Every turn costs a factor gamma.",
    "released": "The released code: the gain stays on the visit and the searches before it share "
                "its return. Only rewarded turns cost a factor gamma, and a malformed turn's "
                "penalty is shared by the searches before it.",
    "raw_ig": "The released code's mode against short rollouts: gains are divided and not "
              "centred, every rewarded turn also gets the answer's z-score, and nothing of later "
              "turns is added.",
    "uncentred": "Ours: the paper's, but gains are not compared with the group's mean. A gain "
                 "above 0 is a reward above 0, and a further turn costs only the factor gamma.",
}
