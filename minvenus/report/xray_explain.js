// Every number of a turn's reward: its formula, the equation it comes from, and the numbers that it was made of.
//
// steps(rollout, t, recipe) lists them in the order of the computation. `again` is the number computed once more from the listed
// inputs; a page whose `again` differs from `value` says so in red. P is the DR-Venus paper, I the IGPO paper.

const GAMMA = "\u03b3", SIGMA = "\u03c3", MU = "\u03bc", MINUS = "\u2212", TIMES = "\u00d7", TILDE = "r\u0303";

function steps(rollout, t, recipe) {
  const a = arithmetic(rollout, recipe.name), last = t === rollout.turns.length - 1;
  if (!a) return [];
  const list = last ? [] : valueSteps(rollout, t, recipe, a);
  const reward = last ? outcomeStep(rollout, recipe, a) : rewardStep(rollout, t, recipe, a);
  if (reward) list.push(reward);
  if (!a.advantages) return list;
  if (reward && reward.value !== null) list.push(...normalSteps(rollout, t, recipe, a, last));
  list.push(returnStep(t, recipe, a, last));
  return list;
}

function step(id, label, value, formula, tag, words, inputs, again, signed) {
  return { id, label, value, formula, tag, words, inputs, again, signed };
}

function afterTurn(t) {
  return t === 0 ? "reading the question alone" : "turn " + t;
}

// values[p] is the value before turn p (0-based), which is after turn p counted from 1.
function valueSteps(rollout, t, recipe, a) {
  if (a.gains[t] === null) return [];
  let before = t;
  while (a.values[before] === null) before -= 1;
  return [
    valueStep("value-before", "log P before", rollout, before, recipe, a), valueStep("value", "log P after", rollout, t + 1, recipe, a),
    step("gain", "gain", a.gains[t], "IG = V after " + MINUS + " V before", "P eq.3",
      before === t || recipe.fields.browse === "off" ? "How much this turn raised the probability of the true answer."
        : "How much the probability of the true answer rose since " + (before ? "the last visit (turn " + before + ")" : "the question") +
          ": a visit's gain covers the searches that led to it.",
      [["V after turn " + (t + 1), a.values[t + 1]], [before ? "V after turn " + before : "V of the question", a.values[before]]],
      a.values[t + 1] - a.values[before], true),
  ];
}

function valueStep(id, label, rollout, p, recipe, a) {
  const logprobs = rollout.logprobs[p], mean = logprobs.reduce((x, y) => x + y, 0) / logprobs.length;
  const prob = recipe.fields.gain === "prob";
  return step(id, prob ? label.replace("log P", "P") : label, a.values[p],
    (prob ? "V = exp( " : "V = ") + "1/L \u00b7 \u03a3 log \u03c0(answer token)" + (prob ? " )" : ""), prob ? "I v1" : "P eq.2",
    "How probable the model found the true answer after " + afterTurn(p) + ", had it been asked right then: the mean log-probability of " +
      "the answer's " + count(logprobs.length, "token") + ", " + percent(Math.exp(mean)) + " per token.",
    logprobs.map((x, j) => ["token " + (j + 1), x]), prob ? Math.exp(mean) : mean, false);
}

function rewardStep(rollout, t, recipe, a) {
  const value = a.turn_rewards[t], turn = rollout.turns[t], fields = recipe.fields;
  if (value === null) {
    const why = !fields.use_gain ? "Only the last turn is paid in GRPO; this turn shares its result."
      : turn.kind === "search" && fields.browse === "segment" ? "The gain stays on the visit; this search shares the visit's return."
        : turn.kind === "search" ? "No visit follows this search, so there is no gain to share."
          : "This turn has no gain. Absent is not zero: it enters no statistics.";
    return step("reward", "reward", null, "no reward of its own", "", why, [], null, true);
  }
  if (a.penalties[t] && turn.malformed) {
    return step("reward", "reward", value, "r = " + MINUS + "\u03bb, instead of any gain", "P eq.4",
      "The turn breaks a rule of the format: the penalty replaces what it would have earned.", [["\u03bb", fields.format_penalty]],
      -fields.format_penalty, true);
  }
  if (a.gains[t] === null) {
    const shared = (k) => fields.penalty_scope === "segment" && rollout.turns[k].malformed;      // a penalty that is passed on
    let from = t + 1;
    while (a.gains[from] === null && !shared(from)) from += 1;
    const source = shared(from) ? -fields.format_penalty : a.gains[from];
    return step("reward", "reward", value, "r = " + (shared(from) ? "penalty" : "gain") + " of turn " + (from + 1), "P, browse-aware",
      shared(from) ? "The penalty of turn " + (from + 1) + " is shared with the searches before it."
        : "This search led to the visit in turn " + (from + 1) + " and is paid the same gain.",
      [["turn " + (from + 1), source]], source, true);
  }
  return step("reward", "reward", value, "r = gain", "P eq.3", "The turn is paid its gain.", [["gain", a.gains[t]]], a.gains[t], true);
}

function outcomeStep(rollout, recipe, a) {
  const turn = rollout.turns[rollout.turns.length - 1];
  if (a.outcome === undefined) return null;
  if (turn.malformed) {
    return step("reward", "outcome", a.outcome, "r = " + MINUS + "\u03bb, instead of the outcome", "P eq.4",
      "The last turn breaks a rule of the format: whatever it answered, the penalty replaces it.",
      [["\u03bb", recipe.fields.format_penalty], ["outcome without the penalty", rollout.outcome]], -recipe.fields.format_penalty, true);
  }
  return step("reward", "outcome", a.outcome, "r = score of the answer", "", "1 for a right answer, 0 for a wrong one; F1 gives what " +
    "lies between.", [["score", rollout.outcome]], rollout.outcome, true);
}

// The set of numbers that a reward is compared with.
function comparedWith(rollout, recipe, last) {
  const rewards = [], outcomes = [];
  for (const index of groupOf(data.rollouts.indexOf(rollout)).rollouts) {
    const other = arithmetic(data.rollouts[index], recipe.name);
    outcomes.push(["outcome of " + rolloutName(index), other.outcome]);
    other.turn_rewards.forEach((r, t) => r !== null && rewards.push([rolloutName(index) + ", turn " + (t + 1), r]));
  }
  if (recipe.fields.normalize === "joint") return { set: [...rewards, ...outcomes], what: "turn rewards and outcomes" };
  return last ? { set: outcomes, what: "outcomes" } : { set: rewards, what: "turn rewards" };
}

function normalSteps(rollout, t, recipe, a, last) {
  const fields = recipe.fields, stats = a.group_stats, r = last ? a.outcome : a.turn_rewards[t], z = last ? a.outcome_z : a.turn_z[t];
  const list = [];
  if (fields.normalize !== "none") {
    const { set, what } = comparedWith(rollout, recipe, last);
    const mean = last ? stats.outcome_mean : stats.gain_mean, std = last ? stats.outcome_std : stats.gain_std;
    const again = set.reduce((x, [, y]) => x + y, 0) / set.length, centred = last || fields.center_gain;
    const spread = set.length > 1 ? Math.sqrt(set.reduce((x, [, y]) => x + (y - mean) ** 2, 0) / set.length + 1e-8) : 1;
    list.push(
      step("mean", "group mean", mean, MU + " = mean of the group's " + what, "P eq.5", "Over the " + count(set.length, "number") +
        " that all rollouts of this question have.", set, again, true),
      step("std", "group std", std, SIGMA + " = \u221a( mean (r " + MINUS + " " + MU + ")\u00b2 + 1e-8 )", "P eq.5", set.length > 1
        ? "How far the group's " + what + " lie apart." : "A single number has no spread: \u03c3 is set to 1, and z becomes 0.",
        [[MU, mean], ...set], spread, false),
      step("z", "z", z, centred ? "z = (r " + MINUS + " " + MU + ") / (" + SIGMA + " + 1e-6)" : "z = r / (" + SIGMA + " + 1e-6)",
        "P eq.5", "How far this reward lies above or below what the group usually gets" +
        (centred ? "." : "; this recipe divides by the spread and does not subtract the mean."),
        [["r", r], ...(centred ? [[MU, mean]] : []), [SIGMA, std]], (r - (centred ? mean : 0)) / (std + 1e-6), true));
  }
  if (last) return list;
  if (fields.normalize === "scaled") list.push(scaleStep(recipe, a));
  const factor = a.scale * fields.ig_weight;
  list.push(step("term", "scaled " + TILDE, a.terms[t], TILDE + " = weight \u00b7 s \u00b7 z", "P eq.6-8",
    "The normalised reward of this turn, before anything that follows is added.",
    [["weight", fields.ig_weight], ["s", a.scale], ["z", z]], factor * z, true));
  return list;
}

function scaleStep(recipe, a) {
  const again = Math.min(Math.max(a.m_outcome, 0.3) / (a.m_gain + 1e-6), 10), batch = recipe.batch;
  return step("scale", "IG-Scale s", a.scale, "s = min( max(M_O, 0.3) / (M_IG + 1e-6), 10 )", "P eq.6-8",
    "Makes turn rewards as loud as outcomes, over the whole batch: " + count(batch.rollouts, "rollout") + " of " +
    count(batch.groups, "question") + ", " + count(batch.rewarded, "rewarded turn") + ".",
    [["M_O = mean |z| of the outcomes", a.m_outcome], ["M_IG = mean |z| of the turn rewards", a.m_gain]], again, false);
}

// Which later turns an advantage is made of: [turn, its term, the factor gamma it comes with].
function contributions(t, recipe, a) {
  const { gamma, discount_over: over } = recipe.fields, found = [];
  let power = 0;
  for (let k = over === "turns" ? t : startOfReturn(t, recipe, a); k < a.terms.length; k += 1) {
    if (a.terms[k] !== null) found.push([k, a.terms[k], gamma ** power]);
    if (over === "turns" || a.terms[k] !== null) power += 1;
  }
  return found;
}

// Over rewards, a turn without a reward takes the return of the next rewarded one, past penalties that are not shared.
function startOfReturn(t, recipe, a) {
  if (a.terms[t] !== null) return t;
  let k = t + 1;
  while (a.terms[k] === null || (a.penalties[k] && recipe.fields.penalty_scope === "turn")) k += 1;
  return k;
}

function returnStep(t, recipe, a, last) {
  const gamma = recipe.fields.gamma, value = a.advantages[t], term = a.terms[t];
  const made = step("advantage", "advantage A", value, "", "P eq.9", "", [], null, true);
  made.contributions = contributions(t, recipe, a);
  if (last) {
    made.formula = "A = z";
    made.words = "Nothing follows the last turn: its advantage is its normalised outcome.";
    Object.assign(made, { inputs: [["z", term]], again: term });
  } else if (recipe.fields.discount_over === "turns") {
    made.formula = "A = " + TILDE + " + " + GAMMA + " \u00b7 A of the next turn   ( = \u03a3 " + GAMMA + "^(k" + MINUS + "t) " + TILDE + " )";
    made.words = "What the turn earned itself, and what it made possible: every later turn counts, " + GAMMA + " less per turn.";
    made.inputs = [[TILDE, term], [GAMMA, gamma], ["A of turn " + (t + 2), a.advantages[t + 1]]];
    made.again = (term === null ? 0 : term) + gamma * a.advantages[t + 1];
  } else if (term === null) {
    const from = startOfReturn(t, recipe, a);
    made.formula = "A = A of turn " + (from + 1);
    made.words = "The turn has no reward of its own and shares the return of the next rewarded turn.";
    Object.assign(made, { inputs: [["A of turn " + (from + 1), a.advantages[from]]], again: a.advantages[from] });
  } else {
    let next = t + 1;
    while (a.terms[next] === null) next += 1;
    made.formula = "A = " + TILDE + " + " + GAMMA + " \u00b7 A of the next rewarded turn";
    made.words = "What the turn earned itself, and what it made possible; only rewarded turns cost a factor " + GAMMA + ".";
    made.inputs = [[TILDE, term], [GAMMA, gamma], ["A of turn " + (next + 1), a.advantages[next]]];
    made.again = term + gamma * a.advantages[next];
  }
  return made;
}

// Whether a number follows from its inputs, up to rounding.
function reproduced(made) {
  if (made.value === null || made.again === null) return true;
  const size = Math.max(1, Math.abs(made.value), ...made.inputs.map(([, x]) => Math.abs(x || 0)));
  return Math.abs(made.value - made.again) <= 1e-7 * size;
}
