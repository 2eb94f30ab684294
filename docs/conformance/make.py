"""The conformance vectors: small named cases of rewards, advantages and loss with every number.

    python -m docs.conformance.make          writes docs/conformance/igpo.json

README.md beside this file says how another implementation uses them. A test holds the file to what
the code computes.
"""

import json
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import torch

from minvenus.experiments.calculator import CreditConfig, main
from minvenus.igpo.loss import LossConfig, igpo_loss, k3, log_ratios, policy_losses, token_weights
from minvenus.igpo.recipes import RECIPES, Recipe

FILE = Path(__file__).with_name("igpo.json")
S, V, N, A = "search", "visit", "none", "answer"


def rollout(kinds: list[str], gains: list, outcome: float, malformed=(), group=0) -> dict:
    """A rollout as the calculator reads it; `malformed` lists the numbers of turns."""
    record = {"kinds": kinds, "gains": gains, "outcome": outcome, "group": group}
    if malformed:
        record["malformed"] = [t in malformed for t in range(len(kinds))]
    return record


def scored(kinds: list[str], beliefs: list, outcome: float, group=0) -> dict:
    """The same with the belief before each turn, in place of gains."""
    return {"kinds": kinds, "logprobs": beliefs, "outcome": outcome, "group": group}


# Situations that every recipe is shown: name -> (what happens, rollouts).
SITUATIONS: dict[str, tuple[str, list[dict]]] = {
    "one visit each": (
        "a search and a visit each; the better gain belongs to the wrong answer",
        [rollout([S, V, A], [None, 0.9], 0), rollout([S, V, A], [None, 0.3], 1)]),
    "two searches share a visit": (
        "two searches lead to one visit: its gain is copied to both, or stays on the visit",
        [rollout([S, S, V, A], [None, None, 0.6], 1), rollout([S, V, A], [None, 0.2], 0)]),
    "front-loaded gains": (
        "the first visit gains much, the second little, in both rollouts",
        [rollout([S, V, S, V, A], [None, 1.4, None, 0.1], 0),
         rollout([S, V, S, V, A], [None, 1.4, None, 0.1], 1)]),
    "equal gains": (
        "every visit gains the same: the standard deviation of the group is 1e-4, not 0",
        [rollout([V, V, A], [0.5, 0.5], 1), rollout([V, A], [0.5], 0)]),
    "nearly equal gains": (
        "gains that differ by .001: not centred they are 980 times their std, and 1 of their rms",
        [rollout([V, A], [0.5], 0), rollout([V, A], [0.501], 0)]),
    "a gain of exactly 0": (
        "a gain of 0 is a reward like any other: it is in the mean and in the count",
        [rollout([V, V, A], [0.0, 0.4], 1), rollout([V, A], [0.2], 0)]),
    "no visit at all": (
        "a rollout that answers at once has no gain: absent, in no mean, and not 0",
        [rollout([A], [], 0), rollout([S, V, A], [None, 0.7], 1), rollout([V, A], [0.1], 0)]),
    "searches after the last visit": (
        "a search after the last visit has no reward, because no visit follows it",
        [rollout([S, V, S, A], [None, 0.5, None], 1), rollout([V, S, S, A], [0.1, None, None], 0)]),
    "a turn without action": (
        "a turn of kind none gets no copy: only searches do",
        [rollout([S, N, V, A], [None, None, 0.8], 1), rollout([N, V, A], [None, -0.2], 0)]),
    "a negative gain": (
        "a visit that lowered the belief is punished, and so are the searches that copy it",
        [rollout([S, V, A], [None, -0.6], 0), rollout([S, V, A], [None, 0.2], 1)]),
    "one rollout alone": (
        "a group of one: the spread is 1 by definition, centred z-scores are 0",
        [rollout([S, V, A], [None, 0.7], 1)]),
    "one gain in the group": (
        "a single gain is its own mean: centred it is 0, and mean |z_IG| is 0",
        [rollout([V, A], [0.7], 1), rollout([A], [], 0)]),
    "all answers wrong": (
        "no outcome signal: z_O is 0, the floor of IG-Scale keeps the gains at a mean size of .3",
        [rollout([V, A], [0.9], 0), rollout([V, A], [0.1], 0)]),
    "a malformed search": (
        "its reward is -1 in place of the copied gain; scope turn or segment decides who shares it",
        [rollout([S, S, V, A], [None, None, 0.5], 1, [1]), rollout([S, V, A], [None, 0.3], 0)]),
    "a malformed visit": (
        "-1 replaces the gain of the visit; its searches keep the copy, or get the penalty",
        [rollout([S, V, S, V, A], [None, 0.5, None, 0.2], 1, [1]),
         rollout([S, V, A], [None, 0.3], 0)]),
    "a malformed answer": (
        "-1 replaces the outcome of a right answer",
        [rollout([V, A], [0.4], 1, [1]), rollout([V, A], [0.2], 0)]),
    "two groups": (
        "statistics are of a group, IG-Scale is of the batch",
        [rollout([V, A], [0.2], 0), rollout([V, A], [0.8], 1),
         rollout([V, A], [3.0], 0, group=1), rollout([V, V, A], [5.0, -1.0], 0, group=1)]),
}

# name -> (reason, recipe's name, changed fields, rollouts)
DENSE = [rollout([S, V, S, S, V, A], [None, 0.8, None, None, 0.2], 1),
         rollout([S, V, V, A], [None, -0.1, 0.5], 0)]
EVERY = [scored([S, V, S, A], [-3.0, -2.8, -2.0, -2.1], 1), scored([V, A], [-3.0, -2.5], 0)]
PAIR = [rollout([V, V, A], [1.0, 3.0], 0), rollout([V, A], [2.0], 1)]
MALFORMED = [rollout([S, S, V, S, V, A], [None, None, 0.5, None, 0.1], 1, [1]),
             rollout([S, V, A], [None, 0.3], 0, [1])]
SINGLES: dict[str, tuple[str, str, dict, list[dict]]] = {
    "two rollouts by hand": (
        "gains 1 3 | 2: mean 2, std sqrt(2/3); outcomes 0 | 1: z = -1, 1 up to 1e-6",
        "paper", {"gamma": 0.5}, PAIR),
    "beliefs, not gains": (
        "a visit's gain is its belief less that at the visit before it; searches in between count",
        "paper", {}, EVERY),
    "belief of several tokens": (
        "a belief is the mean of the log-probs of the truth's tokens, so length does not matter",
        "paper", {}, [scored([V, A], [[-4.0, -2.0], [-1.0, -1.0, -4.0]], 1),
                      scored([V, A], [[-3.0], [-2.5]], 0)]),
    "gain in probability": (
        "prob: the rise of exp(mean log-prob), small while the truth is improbable",
        "paper", {"gain": "prob"}, EVERY),
    "a gain for every turn": (
        "browse off: every turn but the last has a gain of its own",
        "paper", {"browse": "off"}, EVERY),
    "a gain at a search": (
        "gains are steps between beliefs: what a search gained counts at the visit after it",
        "paper", {}, [rollout([S, V, A], [0.3, 0.5], 1), rollout([V, A], [0.2], 0)]),
    "a gain for every turn, one not measured": (
        "browse off: null is a step of 0, and a reward of 0",
        "paper", {"browse": "off"},
        [rollout([S, V, A], [None, 0.5], 1), rollout([V, A], [0.2], 0)]),
    "joint, rms, a group without turn rewards": (
        "the root mean square is that of the outcomes then",
        "paper", {"normalize": "joint", "spread": "rms"},
        [rollout([A], [], 1), rollout([A], [], 0)]),
    "joint, not centred": (
        "the mean of the joint set is subtracted from outcomes only",
        "paper", {"normalize": "joint", "center_gain": False}, DENSE),
    "a malformed answer, discount over rewards": (
        "the -1 of a last turn is no penalty that a search could skip: it shares the return",
        "released", {"penalty_scope": "turn"},
        [rollout([V, S, A], [0.4, None], 1, [2]), rollout([V, A], [0.2], 0)]),
    "gamma 0": ("nothing of later turns is added", "paper", {"gamma": 0.0}, DENSE),
    "gamma 1": ("nothing is discounted", "paper", {"gamma": 1.0}, DENSE),
    "discount over turns, searches without a reward": (
        "segment: a search has no reward of its own, and costs a factor gamma all the same",
        "paper", {"browse": "segment", "gamma": 0.5}, DENSE),
    "discount over rewards": (
        "a search costs no factor and takes the return of the next rewarded turn",
        "released", {"gamma": 0.5}, DENSE),
    "discount over rewards, copies": (
        "replicate: copies are rewards and cost a factor each",
        "released", {"gamma": 0.5, "browse": "replicate"}, DENSE),
    "no IG-Scale": ("separate: z-scores as they are", "paper", {"normalize": "separate"}, DENSE),
    "joint z-scores": (
        "gains and outcomes have one mean and one spread, and there is no scale",
        "paper", {"normalize": "joint"}, DENSE),
    "raw rewards": ("none: no z-score and no scale", "paper", {"normalize": "none"}, DENSE),
    "raw rewards, discounted by .5": (
        "the first visit earns .8 + .125 x .2 + .0625 x 1",
        "paper", {"normalize": "none", "gamma": 0.5, "browse": "segment"}, DENSE),
    "not centred, std": (
        "the mean is not subtracted; the std about the mean divides",
        "uncentred", {"spread": "std"}, DENSE),
    "not centred, not divided": (
        "spread one: only IG-Scale brings gains to the size of outcomes",
        "uncentred", {"spread": "one"}, DENSE),
    "centred, rms": ("the root mean square divides centred gains", "paper", {"spread": "rms"},
                     DENSE),
    "rms of a single gain": (
        "rms is of a single value, too: z = .7 / (.7 + 1e-6), not .7",
        "uncentred", {}, [rollout([V, A], [0.7], 1), rollout([A], [], 0)]),
    "rms of equal gains": (
        "equal gains divided by their rms are about 1; divided by their std they are thousands",
        "uncentred", {}, [rollout([V, V, A], [0.5, 0.5], 0), rollout([V, A], [0.5], 0)]),
    "half the weight of gains": (
        "ig_weight is a factor on the turn rewards after the scale, outcomes keep theirs",
        "paper", {"ig_weight": 0.5}, DENSE),
    "the cap of the scale": (
        "mean |z_IG| is near 0 in a batch of single gains: s stops at 10",
        "paper", {}, [rollout([V, A], [0.2], 1), rollout([A], [], 0)]),
    "the floor of the scale": (
        "all outcomes equal, so mean |z_O| is 0: s = .3 / mean |z_IG|",
        "paper", {}, [rollout([V, A], [0.2], 1), rollout([V, A], [0.6], 1)]),
    "scale below 1": (
        "one rollout of four is right: mean |z_O| is .866, mean |z_IG| about 1",
        "paper", {}, [rollout([V, A], [g], o) for g, o in ((1, 1), (-1, 0), (1, 0), (-1, 0))]),
    "penalty of a search, scope turn": (
        "the malformed turn alone is paid -1; the search before it keeps its copy",
        "paper", {}, MALFORMED),
    "penalty of a search, scope segment": (
        "copies are made after the penalty, so the search before a malformed one copies the -1",
        "paper", {"penalty_scope": "segment"}, MALFORMED),
    "penalty without copies, scope turn": (
        "the return of a penalty is not shared with the searches before it",
        "released", {"penalty_scope": "turn"}, MALFORMED),
    "penalty without copies, scope segment": (
        "the return of a penalty is shared with the searches before it",
        "released", {}, MALFORMED),
    "no penalty": (
        "none: a malformed turn keeps its gain, a malformed answer its outcome",
        "paper", {"format_penalty": None}, MALFORMED),
    "a penalty of 0": (
        "0 is a reward: the malformed turn's gain is replaced by 0, not left out",
        "paper", {"format_penalty": 0.0}, MALFORMED),
    "a penalty of 2": ("-2 in place of the gain", "paper", {"format_penalty": 2.0}, MALFORMED),
    "grpo with a penalty": (
        "without gains only a malformed last turn is paid -1; malformed searches cost nothing",
        "grpo", {"format_penalty": 1.0},
        [rollout([S, V, A], [None, 0.5], 0, [0]), rollout([V, A], [0.1], 0, [1])]),
    "grpo, discounted": (
        "gamma .95 without gains: early turns get less of the outcome",
        "grpo", {"gamma": 0.95}, DENSE),
    "raw_ig, all gains equal": (
        "divided by a std of 1e-4: the terms explode, and no scale brings them back",
        "raw_ig", {}, [rollout([V, A], [0.5], 1), rollout([V, A], [0.5], 0)]),
    "raw_ig / rms, all gains equal": (
        "divided by the root mean square they are 1",
        "raw_ig", {"spread": "rms"}, [rollout([V, A], [0.5], 1), rollout([V, A], [0.5], 0)]),
    "outcome on every rewarded turn": (
        "z_O is added to each rewarded turn, and not to a search without a reward",
        "paper", {"outcome_on": "every", "browse": "segment", "gamma": 0.0}, DENSE),
}

# Tokens of two rollouts, three and one, with the ratios .5, 1, 1.5 and 1.1.
TOKENS = {
    "old_logprobs": [-1.0, -2.0, -0.5, -1.5],
    "logprobs": [-1.6931471805599454, -2.0, -0.09453489189183562, -1.404689820195675],
    "ref_logprobs": [-1.2, -2.0, -0.4, -3.4],
    "advantages": [1.0, -2.0, 0.5, -1.0],
    "rollout": [0, 0, 0, 1],
}
EXTREME = {
    "old_logprobs": [-30.0, -0.1, -1.0],
    "logprobs": [-0.1, -40.0, -1.0],
    "ref_logprobs": [-40.0, -0.1, -1.0],
    "advantages": [1.0, -1.0, 0.0],
    "rollout": [0, 1, 1],
}
LOSSES: dict[str, tuple[str, dict, dict]] = {     # name -> (reason, settings, tokens)
    "mean over rollouts of token means": (
        "each rollout weighs the same: weights 1/6 1/6 1/6 1/2", {"kl_coef": 0.0}, TOKENS),
    "mean over tokens": (
        "each token weighs the same: 1/4", {"kl_coef": 0.0, "aggregate": "token-mean"}, TOKENS),
    "mean over rollouts of token sums": (
        "long rollouts weigh more: 1/2 a token",
        {"kl_coef": 0.0, "aggregate": "seq-mean-token-sum"}, TOKENS),
    "wider clip above": (
        "the ratio 1.5 of a good token is clipped at 1.6: not at all",
        {"kl_coef": 0.0, "clip_high": 0.6}, TOKENS),
    "tight clip below": (
        "clip_low acts where the advantage is negative only: the ratio .5 has a positive one",
        {"kl_coef": 0.0, "clip_low": 0.0}, TOKENS),
    "dual clip": (
        "a bad token's loss is capped at -A times 1.05: its ratio is 1.1",
        {"kl_coef": 0.0, "dual_clip": 1.05}, TOKENS),
    "with a KL term": ("k3 = exp(x) - x - 1 of x = log pi_ref - log pi", {"kl_coef": 0.1}, TOKENS),
    "a KL term and token means": (
        "the KL term has the weights of the policy loss",
        {"kl_coef": 0.1, "aggregate": "token-mean"}, TOKENS),
    "a KL term and token sums": (
        "the same, with 1/2 a token", {"kl_coef": 0.1, "aggregate": "seq-mean-token-sum"}, TOKENS),
    "extreme log-probs": (
        "log ratios and x are clamped to 20 in size, k3 to 10", {"kl_coef": 0.1}, EXTREME),
    "extreme log-probs, dual clip": (
        "a ratio of exp(20) with A = -1 would lose 4.9e8: the cap makes it 3",
        {"kl_coef": 0.1, "dual_clip": 3.0}, EXTREME | {"advantages": [-1.0, -1.0, 0.0]}),
}
for name, advantages in (("good", [1.0] * 4), ("bad", [-1.0] * 4)):
    LOSSES[f"all {name} tokens"] = (
        f"every advantage is {advantages[0]:+g}: which side of the clip acts", {"kl_coef": 0.0},
        TOKENS | {"advantages": advantages})


def credit_case(name: str, reason: str, base: str, changes: dict, rollouts: list[dict]) -> dict:
    """What the calculator prints of a file with these rollouts."""
    recipe = replace(RECIPES[base], **changes)
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.write("".join(json.dumps(record) + "\n" for record in rollouts))
        file.flush()
        credit = json.loads(main(CreditConfig(file=file.name, recipe=recipe, json=True)))
    return {"name": name, "reason": reason, "recipe": arithmetic(recipe), "rollouts": rollouts,
            "credit": credit}


def arithmetic(recipe: Recipe) -> dict:
    """The fields that decide numbers, not the text that is scored."""
    return {name: value for name, value in asdict(recipe).items()
            if name not in ("newlines_after_think", "lead_in")}


def loss_case(name: str, reason: str, settings: dict, tokens: dict) -> dict:
    config = LossConfig(**settings)
    columns = {}
    for column in ("logprobs", "old_logprobs", "ref_logprobs", "advantages"):
        columns[column] = torch.tensor(tokens[column], dtype=torch.float64)
    logprobs, old_logprobs, ref_logprobs, advantages = columns.values()
    segments = torch.tensor(tokens["rollout"])
    weights = token_weights(segments, config.aggregate, int(segments.max()) + 1, len(segments))
    losses = policy_losses(logprobs, old_logprobs, advantages, config)
    kl = k3(logprobs, ref_logprobs)
    return {
        "name": name, "reason": reason, "settings": asdict(config), "tokens": tokens,
        "ratios": rounded(log_ratios(logprobs, old_logprobs).exp()),
        "losses": rounded(losses), "k3": rounded(kl), "weights": rounded(weights),
        "policy_loss": rounded((weights * losses).sum()), "kl": rounded((weights * kl).sum()),
        "loss": rounded(igpo_loss(logprobs, old_logprobs, ref_logprobs, advantages, weights,
                                  config)),
    }


def rounded(numbers: torch.Tensor) -> float | list[float]:
    """To 12 significant digits."""
    return json.loads(json.dumps(numbers.tolist()), parse_float=lambda x: float(f"{float(x):.12g}"))


def vectors() -> dict:
    credit = []
    for situation, (reason, rollouts) in SITUATIONS.items():
        for recipe in RECIPES:
            credit.append(credit_case(f"{situation}, {recipe}", reason, recipe, {}, rollouts))
    for name, case in SINGLES.items():
        credit.append(credit_case(name, *case))
    loss = [loss_case(name, *case) for name, case in LOSSES.items()]
    return {"credit": credit, "loss": loss}


def text() -> str:
    """A case on each line."""
    parts = []
    for part, cases in vectors().items():
        lines = ",\n".join(json.dumps(case) for case in cases)
        parts.append(f'"{part}": [\n{lines}\n]')
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    print(f"{FILE.name}: {len(vectors()['credit'])} cases of credit, {len(LOSSES)} of the loss")
