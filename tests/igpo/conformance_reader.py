"""A second implementation of IGPO's rewards, advantages and loss, to check the page by using it.

Written from docs/conformance/README.md alone, without a look at the code of this project and with
nothing but the standard library: where it reproduces the cases of igpo.json, the page says enough.
The numbers in the docstrings are those of the page's rules.
"""

import math


def mean(values):
    return sum(values) / len(values)


def credit(rollouts, recipe):
    """One object for each rollout of the batch, with the names of the cases."""
    results = [rewards(rollout, recipe) for rollout in rollouts]
    for group in {rollout["group"] for rollout in rollouts}:
        pairs = zip(results, rollouts, strict=True)
        normalise([r for r, rollout in pairs if rollout["group"] == group], recipe)
    scale_batch(results, recipe)
    for result in results:
        result["terms"] = terms(result, recipe)
        result["advantages"] = returns(result["terms"], result["penalties"], recipe)
    return results


def rewards(rollout, recipe):
    """Rules 1 and 2: gains, rewards with penalties and copies, and the outcome."""
    kinds, last = rollout["kinds"], len(rollout["kinds"]) - 1
    penalty = recipe["format_penalty"]
    malformed = rollout.get("malformed") or [False] * len(kinds)
    if penalty is None:
        malformed = [False] * len(kinds)
    gains = measured_gains(rollout, recipe)
    turn_rewards, penalties = gains[:last], [False] * last

    def penalise():
        for t in range(last):
            if malformed[t] and recipe["use_gain"]:
                turn_rewards[t], penalties[t] = -penalty, True

    def copy():
        for t in reversed(range(last - 1)):
            if recipe["browse"] == "replicate" and kinds[t] == "search" and turn_rewards[t] is None:
                following = (u for u in range(t + 1, last) if turn_rewards[u] is not None)
                source = next(following, None)
                if source is not None:
                    turn_rewards[t], penalties[t] = turn_rewards[source], penalties[source]

    for step in (copy, penalise) if recipe["penalty_scope"] == "turn" else (penalise, copy):
        step()
    outcome = -penalty if malformed[last] else rollout["outcome"]
    return {"gains": gains, "turn_rewards": turn_rewards, "penalties": penalties,
            "outcome": outcome}


def measured_gains(rollout, recipe):
    """Rule 1: a gain for each turn, null where there is none."""
    kinds = rollout["kinds"]
    gains = [None] * len(kinds)
    if not recipe["use_gain"]:
        return gains
    turns = [t for t, kind in enumerate(kinds[:-1]) if recipe["browse"] == "off" or kind == "visit"]
    if "gains" in rollout:
        first = 0
        for t in turns:
            gains[t] = sum(gain or 0.0 for gain in rollout["gains"][first:t + 1])
            first = t + 1
        return gains
    previous = belief(rollout["logprobs"][0], recipe)
    for t in turns:
        after = belief(rollout["logprobs"][t + 1], recipe)
        gains[t] = after - previous
        previous = after
    return gains


def belief(logprobs, recipe):
    value = mean(logprobs) if isinstance(logprobs, list) else logprobs
    return math.exp(value) if recipe["gain"] == "prob" else value


def normalise(group, recipe):
    """Rule 4: z-scores among the rollouts of a group."""
    gains = [r for result in group for r in result["turn_rewards"] if r is not None]
    outcomes = [result["outcome"] for result in group]
    joint = recipe["normalize"] == "joint"
    values = gains + outcomes if joint else gains
    gain_mean, gain_spread = statistics(values)
    outcome_mean, outcome_spread = statistics(values if joint else outcomes)
    if recipe["spread"] == "rms" and values:
        gain_spread = math.sqrt(mean([value ** 2 for value in values]) + 1e-8)
    if recipe["spread"] == "one":
        gain_spread = 1.0
    stats = {"turn_reward_mean": gain_mean, "turn_reward_spread": gain_spread,
             "outcome_mean": outcome_mean, "outcome_std": outcome_spread}
    centre = gain_mean if recipe["center_gain"] else 0.0

    def score(value, middle, spread):
        if value is None or recipe["normalize"] == "none":
            return value
        return (value - middle) / (spread + 1e-6)

    for result in group:
        result["turn_z"] = [score(r, centre, gain_spread) for r in result["turn_rewards"]]
        result["outcome_z"] = score(result["outcome"], outcome_mean, outcome_spread)
        result["group_stats"] = stats


def statistics(values):
    """Mean and standard deviation; the latter is 1 of a single value and of none."""
    if not values:
        return 0.0, 1.0
    middle = mean(values)
    if len(values) == 1:
        return middle, 1.0
    return middle, math.sqrt(mean([(value - middle) ** 2 for value in values]) + 1e-8)


def scale_batch(results, recipe):
    """Rule 5: the factor that brings turn rewards to the size of outcomes, one for the batch."""
    sizes = [abs(z) for result in results for z in result["turn_z"] if z is not None]
    outcome_size = mean([abs(result["outcome_z"]) for result in results])
    turn_reward_size = mean(sizes) if sizes else 1.0
    scale = 1.0
    if recipe["normalize"] == "scaled":
        scale = min(max(outcome_size, 0.3) / (turn_reward_size + 1e-6), 10.0)
    for result in results:
        result.update(scale=scale, outcome_size=outcome_size, turn_reward_size=turn_reward_size)


def terms(result, recipe):
    """Rule 5: what each turn adds to the returns."""
    factor = result["scale"] * recipe["ig_weight"]
    extra = result["outcome_z"] if recipe["outcome_on"] == "every" else 0.0
    turns = [None if z is None else factor * z + extra for z in result["turn_z"]]
    return [*turns, result["outcome_z"]]


def returns(values, penalties, recipe):
    """Rule 6: the discounted sums of the terms, from the last turn back."""
    gamma = recipe["gamma"]
    advantages, total, shared = [], 0.0, 0.0
    for t in reversed(range(len(values))):
        if recipe["discount_over"] == "turns":
            total = (values[t] or 0.0) + gamma * total
            advantages.append(total)
            continue
        if values[t] is not None:
            total = values[t] + gamma * total
            is_penalty = t < len(penalties) and penalties[t]
            if not (is_penalty and recipe["penalty_scope"] == "turn"):
                shared = total
        advantages.append(shared if values[t] is None else total)
    return advantages[::-1]


def clamp(value, low, high):
    return max(low, min(value, high))


def loss(tokens, settings):
    """Rule 7: the clipped loss of each token, its distance to the reference, and their sums."""
    low, high = 1 - settings["clip_low"], 1 + settings["clip_high"]
    owners = tokens["rollout"]
    columns = {"ratios": [], "losses": [], "k3": [], "weights": []}
    for new, old, reference, advantage, owner in zip(
        tokens["logprobs"], tokens["old_logprobs"], tokens["ref_logprobs"], tokens["advantages"],
        owners, strict=True,
    ):
        ratio = math.exp(clamp(new - old, -20.0, 20.0))
        value = max(-advantage * ratio, -advantage * clamp(ratio, low, high))
        if settings["dual_clip"] is not None and advantage < 0:
            value = min(value, -advantage * settings["dual_clip"])
        x = clamp(reference - new, -20.0, 20.0)
        columns["ratios"].append(ratio)
        columns["losses"].append(value)
        columns["k3"].append(min(math.exp(x) - x - 1, 10.0))
        columns["weights"].append({
            "seq-mean-token-mean": 1 / (len(set(owners)) * owners.count(owner)),
            "token-mean": 1 / len(owners),
            "seq-mean-token-sum": 1 / len(set(owners)),
        }[settings["aggregate"]])
    weights = columns["weights"]
    policy_loss = sum(w * value for w, value in zip(weights, columns["losses"], strict=True))
    kl = sum(w * value for w, value in zip(weights, columns["k3"], strict=True))
    return {**columns, "policy_loss": policy_loss, "kl": kl,
            "loss": policy_loss + settings["kl_coef"] * kl}
