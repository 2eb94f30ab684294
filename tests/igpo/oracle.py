"""The IGPO mathematics written a second time, straight from the definitions: plain Python loops
over plain lists.

It shares no code with the package (no torch, no numpy, no helper of minvenus), so that an error has
to be made twice to go unnoticed. Rewards are any objects with `turns`, `outcome` and `penalties`; a
recipe is only read. Speed is of no concern.

    gains       r_b = V_b - V_(previous b)
    rewards     -penalty replaces the reward of a malformed turn
    statistics  sigma = sqrt(population variance + 1e-8), z = (v - mu) / (sigma + 1e-6)
    IG-Scale    s = min(max(M_O, 0.3) / (M_IG + 1e-6), 10) over the whole batch
    returns     R_k = r_k + gamma R_(next rewarded), or sum of gamma^(k-t) r_k over turns
    loss        clipped ratio, dual clip, k3
"""

import math

# -------------------------------------------------------------------------------- gains and rewards


def belief(logprobs, kind):
    mean = math.fsum(logprobs) / len(logprobs)
    return mean if kind == "log_prob" else math.exp(mean)


def measured_turns(kinds, recipe):
    """The turns that end a stretch whose gain is measured: visits, or with browse="off" every turn
    but the last."""
    if not recipe.use_gain:
        return []
    return [t for t in range(len(kinds) - 1) if recipe.browse == "off" or kinds[t] == "visit"]


def scored_turns(kinds, recipe):
    ends = measured_turns(kinds, recipe)
    return [0] + [t + 1 for t in ends] if ends else []


def segment_gains(values, kinds, recipe):
    """`values[t]` is the value before turn t, so a turn's observation is seen by `values[t +
    1]`."""
    gains = [None] * len(kinds)
    before = values[0]
    for t in measured_turns(kinds, recipe):
        gains[t] = values[t + 1] - before
        before = values[t + 1]
    return gains


def turn_rewards(kinds, gains, malformed, outcome, recipe):
    """(turns, outcome, which turns hold a penalty)."""
    last = len(kinds) - 1
    malformed = [broken and recipe.format_penalty is not None for broken in malformed]
    turns, penalties = [None] * last, [False] * last
    for t in range(last):
        if not recipe.use_gain:
            continue
        source = reward_source(t, kinds, malformed, recipe)
        if (
            source is not None
            and malformed[source]
            and (source == t or recipe.penalty_scope == "segment")
        ):
            turns[t], penalties[t] = -recipe.format_penalty, True
        elif source is not None:
            turns[t] = gains[source]
    if malformed[last]:
        outcome = -recipe.format_penalty
    return turns, outcome, penalties


def reward_source(t, kinds, malformed, recipe):
    """The turn whose reward turn t takes: its own, except that a replicating recipe hands a
    well-formed search what ends its segment: the next visit, or with penalty_scope="segment" a
    malformed turn before that. None when nothing ends it."""
    if malformed[t] or recipe.browse != "replicate" or kinds[t] != "search":
        return t
    for later in range(t + 1, len(kinds) - 1):
        if kinds[later] == "visit" or (malformed[later] and recipe.penalty_scope == "segment"):
            return later
    return None


# --------------------------------------------------------------------------------------- advantages


def stats(values):
    """(mu, sigma) of a set; one value has sigma 1, none has mu 0 and sigma 1."""
    n = len(values)
    if n == 0:
        return 0.0, 1.0
    mean = math.fsum(values) / n
    if n == 1:
        return values[0], 1.0
    return mean, math.sqrt(math.fsum((v - mean) * (v - mean) for v in values) / n + 1e-8)


def divisor(gains, recipe):
    """What the gains of a group are divided by, before the outer epsilon."""
    if recipe.spread == "one":
        return 1.0
    if recipe.spread == "rms":
        return math.sqrt(sum(v**2 for v in gains) / len(gains) + 1e-8) if gains else 1.0
    return stats(gains)[1]


def group_sets(rewards, groups, group):
    """The outcomes of a group, and all its present turn rewards (penalties among them)."""
    members = [r for r, g in zip(rewards, groups, strict=True) if g == group]
    return [r.outcome for r in members], [v for r in members for v in r.turns if v is not None]


def z_scores(rewards, groups, recipe):
    """Per rollout (z of every turn, None where absent; z of the outcome)."""
    scores = []
    for r, group in zip(rewards, groups, strict=True):
        if recipe.normalize == "none":
            scores.append((list(r.turns), r.outcome))
            continue
        outcomes, gains = group_sets(rewards, groups, group)
        if recipe.normalize == "joint":
            outcomes = gains = outcomes + gains
        mu_o, sigma_o = stats(outcomes)
        mu_g, sigma_g = stats(gains)[0], divisor(gains, recipe)
        centre = mu_g if recipe.center_gain else 0.0
        turns = [None if v is None else (v - centre) / (sigma_g + 1e-6) for v in r.turns]
        scores.append((turns, (r.outcome - mu_o) / (sigma_o + 1e-6)))
    return scores


def ig_scale(scores):
    """(s, M_O, M_IG) over the whole batch; an empty set has mean 1."""
    outcomes = [abs(z) for _, z in scores]
    gains = [abs(z) for turns, _ in scores for z in turns if z is not None]
    m_outcome = math.fsum(outcomes) / len(outcomes) if outcomes else 1.0
    m_gain = math.fsum(gains) / len(gains) if gains else 1.0
    return min(max(m_outcome, 0.3) / (m_gain + 1e-6), 10.0), m_outcome, m_gain


def reward_terms(rewards, groups, recipe):
    """The normalised, scaled and weighted reward of every turn, the outcome last; None where
    absent."""
    scores = z_scores(rewards, groups, recipe)
    factor = recipe.ig_weight * (ig_scale(scores)[0] if recipe.normalize == "scaled" else 1.0)
    terms = []
    for turns, outcome in scores:
        more = outcome if recipe.outcome_on == "every" else 0.0
        terms.append([None if z is None else factor * z + more for z in turns] + [outcome])
    return terms


def returns(terms, penalties, recipe):
    if recipe.discount_over == "turns":
        return [
            math.fsum(
                recipe.gamma ** (k - t) * terms[k]
                for k in range(t, len(terms))
                if terms[k] is not None
            )
            for t in range(len(terms))
        ]
    rewarded = [t for t in range(len(terms)) if terms[t] is not None]
    total = {}
    for i in reversed(range(len(rewarded))):
        later = recipe.gamma * total[rewarded[i + 1]] if i + 1 < len(rewarded) else 0.0
        total[rewarded[i]] = terms[rewarded[i]] + later
    # A turn without a reward takes the return of the next rewarded one. With penalty_scope="turn" a
    # penalty is no such target: the searches before a malformed turn keep belonging to the next
    # visit or to the answer.
    local = (recipe.penalty_scope == "turn" and penalties) or []
    shared = [t for t in rewarded if not (t < len(local) and local[t])]
    return [
        total[t] if t in total else total[min(k for k in shared if k > t)]
        for t in range(len(terms))
    ]


def advantages(rewards, groups, recipe):
    terms = reward_terms(rewards, groups, recipe)
    return [returns(row, r.penalties, recipe) for row, r in zip(terms, rewards, strict=True)]


# --------------------------------------------------------------------------------------------- loss


def clamp(x, low, high):
    return min(max(x, low), high)


def token_loss(logp, old, advantage, clip_low, clip_high, dual_clip):
    ratio = math.exp(clamp(logp - old, -20.0, 20.0))
    loss = max(-advantage * ratio, -advantage * clamp(ratio, 1.0 - clip_low, 1.0 + clip_high))
    if dual_clip is not None and advantage < 0:
        loss = min(loss, -advantage * dual_clip)
    return loss


def token_kl(logp, ref):
    x = clamp(ref - logp, -20.0, 20.0)
    return clamp(math.exp(x) - x - 1.0, -10.0, 10.0)


def aggregated(rows, how):
    """One number from the values of the tokens of each rollout."""
    if how == "token-mean":
        return math.fsum(v for row in rows for v in row) / sum(len(row) for row in rows)
    if how == "seq-mean-token-sum":
        return math.fsum(math.fsum(row) for row in rows) / len(rows)
    return math.fsum(math.fsum(row) / len(row) for row in rows) / len(rows)


def loss(batch, *, clip_low, clip_high, dual_clip, kl_coef, aggregate):
    """(loss, policy part, KL part) of a batch with a list of numbers for each rollout."""
    policy, kl = [], []
    for logp, old, ref, advantages in zip(
        batch.logp, batch.old, batch.ref, batch.advantages, strict=True
    ):
        tokens = range(len(logp))
        policy.append(
            [
                token_loss(logp[k], old[k], advantages[k], clip_low, clip_high, dual_clip)
                for k in tokens
            ]
        )
        kl.append([token_kl(logp[k], ref[k]) if kl_coef else 0.0 for k in tokens])
    policy_part, kl_part = aggregated(policy, aggregate), aggregated(kl, aggregate)
    return policy_part + kl_coef * kl_part, policy_part, kl_part
