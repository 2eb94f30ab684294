// The same rollout under every recipe, and in which settings the recipes differ.

function drawCompare(index) {
  const rollout = data.rollouts[index], largest = largestAdvantage(groupOf(index));
  const head = el("tr", {}, el("th", { scope: "col" }, "turn"), data.recipes.map((recipe) => el("th", { scope: "col" }, recipeLabel(recipe))));
  const rows = rollout.turns.map((turn, t) => el("tr", {},
    el("th", { scope: "row" }, el("a", { href: "#turn-" + (t + 1) }, String(t + 1)), " ", kindBadge(turn.kind),
      turn.malformed ? el("span", { class: "bad", title: turn.rule }, " \u2717") : null),
    data.recipes.map((recipe) => compareCell(rollout, t, recipe, largest))));
  const caption = data.trained ? "Advantage of every turn; behind it the reward that the turn itself has, if it has one."
    : "Reward of every turn, where it has one.";
  return [
    el("div", { class: "recipes" }, data.recipes.map((recipe) => recipeCard(rollout, recipe))),
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "table" }, el("table", { class: "compare" },
      el("caption", {}, caption),
      el("thead", {}, head), el("tbody", {}, rows))),
    differences(),
  ];
}

function compareCell(rollout, t, recipe, largest) {
  const a = arithmetic(rollout, recipe.name), last = t === rollout.turns.length - 1;
  if (!a) return el("td", { class: "soft" }, "not scored");
  const reward = last ? a.outcome : a.turn_rewards[t], value = a.advantages ? a.advantages[t] : null;
  const none = reward === null || reward === undefined;
  if (value === null) return none ? el("td", {}) : shade(el("td", {}, number(reward, true)), reward, largestReward(rollout));
  const shown = el("span", { class: "soft reward" }, none ? "" : "r " + number(reward, true));
  return shade(el("td", { "data-recipe": recipe.name, "data-turn": t + 1, "data-value": value }, number(value, true), shown), value, largest);
}

function largestReward(rollout) {
  return Math.max(0, ...Object.values(rollout.arithmetic).flatMap((a) => a.turn_rewards.map((r) => Math.abs(r || 0))));
}

function recipeCard(rollout, recipe) {
  const a = arithmetic(rollout, recipe.name);
  return el("div", { class: "recipe" }, el("h3", {}, recipeLabel(recipe)), el("p", {}, recipe.words),
    recipe.missing ? el("p", { class: "bad" }, recipe.missing) : a && a.advantages ? el("p", { class: "teaches" }, teaches(a.advantages)) : null);
}

function teaches(advantages) {
  const up = advantages.filter((x) => x > 1e-9).length, down = advantages.filter((x) => x < -1e-9).length;
  if (!up && !down) return "Teaches nothing here: every turn has advantage 0.";
  const same = advantages.every((x) => Math.abs(x - advantages[0]) < 1e-9);
  if (same) return (up ? "More of everything that it did: " : "Less of everything that it did: ") + number(advantages[0], true) + " on all turns.";
  const best = advantages.indexOf(Math.max(...advantages)), worst = advantages.indexOf(Math.min(...advantages));
  const parts = [up && count(up, "turn") + " up, most of all turn " + (best + 1), down && count(down, "turn") + " down, most of all turn " + (worst + 1)];
  return "Pushes " + parts.filter(Boolean).join("; ") + ".";
}

function differences() {
  const names = Object.keys(data.recipes[0].fields);
  const rows = names.filter((name) => new Set(data.recipes.map((recipe) => String(recipe.fields[name]))).size > 1);
  const spelled = (value) => value === true ? "yes" : value === false ? "no" : String(value);
  return el("details", {}, el("summary", {}, "In which settings the recipes differ"), el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "table" },
    el("table", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "setting"),
      data.recipes.map((recipe) => el("th", { scope: "col" }, recipeLabel(recipe))))),
    el("tbody", {}, rows.map((name) => el("tr", {}, el("th", { scope: "row" }, name),
      data.recipes.map((recipe) => el("td", {}, spelled(recipe.fields[name])))))))));
}
