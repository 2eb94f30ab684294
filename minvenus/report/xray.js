// The page: the list of rollouts, the switch of recipes, and the sections below them, drawn anew when either changes.

const app = document.getElementById("app");
const OPTION = 80;                                 // letters of a question in the list of groups
const places = {};                                 // element that a part of the page is drawn into, by name

function place(name) {
  places[name] = el("div", { id: "place-" + name });
  return places[name];
}

function build() {
  const scored = data.recipes.length > 0;
  if (scored) state.recipe = (data.recipes.find((r) => r.trained && !r.missing) || data.recipes.find((r) => !r.missing)).name;
  app.append(howToRead(), ...warnings(), bar(scored), section("rollouts", data.rollouts.length > 1 ? "The rollouts" : "The rollout",
    data.rollouts.length > 1 ? "Several tries at the same question are a group: each is paid by how it compares with the others. " +
      "Choose one to see its turns below." : null, place("picker"), place("facts")));
  const measured = data.rollouts.some((rollout) => measuredPoints(rollout).length > 0);
  app.append(section("line", measured ? "What made the answer more probable" : "The turns at a glance", null, place("chart")));
  app.append(section("turns", "Turn by turn", scored ? "Press a number to see where it comes from. Observations are folded: press to open." :
    "Observations are folded: press to open.", place("fold"), place("turns")));
  if (scored) {
    app.append(section("recipes", "Side by side: what each recipe would teach", "The same rollouts and the same measurements, paid by " +
      "different rules. " + (data.trained ? "Blue: training makes these tokens more probable. Orange: less."
      : "Blue: the turn is paid. Orange: it is charged."), place("compare")));
  }
  app.append(section("tokens", "The tokens", "Training touches only what the model itself wrote, each token with its turn's advantage. " +
    "Prompts and observations are read but never trained." + (data.rollouts[0].tokens === null ? " This file has texts but no tokens, so " +
    "turns are shown as a whole." : ""), place("colour"), place("tokens")), symbols());
  drawFold();
  drawColour();
  redraw();
  window.addEventListener("resize", drawLine);
  document.addEventListener("keydown", moveByKey);
}

function redraw() {
  const recipe = recipeNamed(state.recipe);
  drawPicker();
  drawFacts();
  drawLine();
  places.turns.replaceChildren(...drawTurns(state.rollout, recipe));
  if (places.compare) places.compare.replaceChildren(...drawCompare(state.rollout));
  places.tokens.replaceChildren(drawTokens(state.rollout, recipe));
}

// ------------------------------------------------------------------------------------------------------------ above the turns

function howToRead() {
  const lines = [
    "The agent answers a question in turns: it thinks, then searches, visits a page, or answers.",
    "IGPO asks after a visit: how probable would the true answer be if the model had to give it now? The rise is the turn's gain, and the " +
      "turn is paid for it. GRPO pays only for the final answer.",
    "Rewards are compared within the group of rollouts of the same question (z), gains are brought to the loudness of outcomes (IG-Scale), " +
      "and each turn also gets a discounted share of what follows. The sum is its advantage A: positive makes its tokens more probable, " +
      "negative less.",
    "Keys: j and k go to the next and the previous turn; Tab, Enter and the arrow keys reach everything else. Printing shows what is open.",
  ];
  return el("details", { class: "how" }, el("summary", {}, "How to read this page"), el("ul", {}, lines.map((text) => el("li", {}, text))));
}

function warnings() {
  const found = [];
  if (data.trained && !data.scored_by) {
    found.push("Nothing was scored in this run (GRPO needs no values), so there is no log P(answer), no gain, and neither paper nor " +
      "released can be shown beside it.");
  }
  if (!data.trained && data.scored_by) {
    found.push("This is a trajectory on its own: there is no group to compare it with, so the arithmetic ends at the rewards.");
  }
  if (data.cut) found.push(count(data.cut, "long text") + " shortened to keep this page small; the file has all of it.");
  return found.map((text) => el("p", { class: "remark" }, text));
}

function bar(scored) {
  const links = [["rollouts", "rollouts"], ["turns", "turns"], ...(scored ? [["recipes", "side by side"]] : []), ["tokens", "tokens"],
    ["symbols", "symbols"]];
  return el("nav", { class: "bar", "aria-label": "recipe and sections" },
    scored && el("fieldset", { class: "switch" }, el("legend", {}, "paid by"), data.recipes.map((recipe) => el("label",
      { title: recipe.missing || recipe.words }, el("input", { type: "radio", name: "recipe", value: recipe.name,
        checked: recipe.name === state.recipe, disabled: recipe.missing !== null,
        on: { change: () => { state.recipe = recipe.name; redraw(); } } }), el("span", {}, recipeLabel(recipe))))),
    el("span", { class: "jump" }, links.map(([id, text]) => el("a", { href: "#" + id }, text))));
}

function drawPicker() {
  const question = groupOf(state.rollout).question, title = document.querySelector("h1").textContent;
  const seen = question === title || (data.groups.length > 1 && question.length <= OPTION);
  const whole = seen ? null : el("p", { class: "question" }, question);
  if (data.rollouts.length === 1) {
    places.picker.replaceChildren(...[whole].filter(Boolean));
    return;
  }
  const group = groupOf(state.rollout), largest = largestAdvantage(group), several = data.groups.length > 1;
  const values = group.rollouts.flatMap((i) => measuredPoints(data.rollouts[i]).map(([, value]) => value));
  const low = Math.min(...values), high = Math.max(...values);
  const choose = el("select", { id: "group", on: { change: (event) => pick(data.groups[event.target.value].rollouts[0]) } },
    data.groups.map((g, i) => el("option", { value: i, selected: g === group }, (data.trained ? "group " : "") + g.name + ": " +
      (g.question.length > OPTION ? g.question.slice(0, OPTION) + " ..." : g.question))));
  places.picker.replaceChildren(...[
    several && el("p", {}, el("label", { for: "group" }, "Question "), choose),
    whole, el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "table" }, el("table", { class: "picker" },
      el("thead", {}, el("tr", {}, ["rollout", "outcome", "advantage of each turn", "answer given", "turns", "log P(answer)"]
        .map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, group.rollouts.map((index) => pickerRow(index, low, high, largest))))),
    sameOutcome(group)].filter(Boolean));
}

function pickerRow(index, low, high, largest) {
  const rollout = data.rollouts[index], a = arithmetic(rollout, state.recipe), chosen = index === state.rollout;
  const strip = el("span", { class: "strip" }, ((a && a.advantages) || []).map((value, t) => shade(el("i",
    { title: `turn ${t + 1}, ${KINDS[rollout.turns[t].kind].name}: ${number(value, true)}` }, value > 1e-9 ? "+" : value < -1e-9 ? "\u2212" : "0"),
  value, largest)));
  return el("tr", { class: chosen ? "chosen" : null }, el("th", { scope: "row" }, el("button", { type: "button", "data-rollout": index,
    "aria-pressed": chosen ? "true" : "false", on: { click: () => pick(index) } }, rolloutName(index))),
  el("td", {}, outcomeText(rollout)), el("td", {}, strip),
  el("td", { class: "given" }, rollout.prediction === null ? el("span", { class: "soft" }, "none") : rollout.prediction),
  el("td", {}, String(rollout.turns.length)), el("td", {}, sparkline(rollout, low, high)));
}

function outcomeText(rollout) {
  if (rollout.outcome !== null) return String(Number(rollout.outcome.toFixed(3)));
  return rollout.verdict === true ? "right" : rollout.verdict === false ? "wrong" : "unknown";
}

function sameOutcome(group) {
  const paid = group.rollouts.map((i) => arithmetic(data.rollouts[i], state.recipe)).filter((a) => a && a.advantages).map((a) => a.outcome);
  if (paid.length < 2 || new Set(paid).size > 1) return null;
  return el("p", { class: "remark" }, `All ${paid.length} rollouts have the same outcome, ${number(paid[0])}: their final answers say nothing ` +
    "about what was better. GRPO learns nothing here; IGPO still does where gains differ.");
}

function pick(index) {
  state.rollout = index;
  redraw();
  const button = document.querySelector(`[data-rollout="${index}"]`);
  if (button) button.focus();
}

function drawFacts() {
  const rollout = data.rollouts[state.rollout], group = groupOf(state.rollout), broken = rollout.turns.filter((t) => t.malformed).length;
  const again = rollout.turns.filter((t) => t.repeats !== null).length;
  const facts = [["true answer", group.answers.length ? group.answers.join(" / ") : "not known"], ["answer given", rollout.prediction || "none"],
    [rollout.outcome === null ? "verdict" : "outcome", rollout.outcome === null && rollout.verdict === null ? null : outcomeText(rollout)],
    ["ended as", rollout.termination],
    ["turns", String(rollout.turns.length)], ["searches, visits", rollout.searches + ", " + rollout.visits],
    ["browse ratio", rollout.browse_ratio === null ? "no calls" : percent(rollout.browse_ratio)],
    ["malformed turns", String(broken)], ["repeated calls", String(again)],
    ["tokens", rollout.tokens === null ? null : rollout.tokens.toLocaleString("en") + ", " + rollout.sampled.toLocaleString("en") + " sampled"]];
  places.facts.replaceChildren(el("dl", { class: "facts boxed" }, facts.filter(([, value]) => value !== null)
    .map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
  ...(rollout.error ? [el("p", { class: "warning" }, rollout.error)] : []));
}

function drawLine() {
  const rollout = data.rollouts[state.rollout], recipe = recipeNamed(state.recipe), points = measuredPoints(rollout);
  const box = el("figure", { class: "chart-box" });
  places.chart.replaceChildren(el("p", { class: "intro" }, points.length
    ? "The line is the model's own log-probability of the true answer, had it been asked right after that turn (right scale: the same as " +
      "a probability per token). A step up is a gain." + (data.trained ? " Grey: the other rollouts of the group. The bars are the advantages " +
      "that come of it." : "")
    : data.scored_by ? "log P(answer) was not measured in this rollout: it has no visit." : "Nobody asked a model for log P(answer) of this " +
      "rollout."), box);
  box.append(el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "chart" }, drawChart(state.rollout, recipe, box.clientWidth - 28)), legend());
}

function legend() {
  return el("figcaption", { class: "legend" }, Object.entries(KINDS).map(([kind, about]) => el("span", {}, el("i", { class: "key kind-" + kind },
    about.letter), about.name)), el("span", {}, el("i", { class: "key broken" }, ""), "malformed"),
  el("span", {}, el("i", { class: "scale" }), "less \u00b7 advantage \u00b7 more"));
}

// ------------------------------------------------------------------------------------------------------------ below the turns

function drawFold() {
  const all = (open) => () => document.querySelectorAll("#turns details.observation").forEach((box) => { box.open = open; });
  places.fold.replaceChildren(el("p", { class: "buttons" }, el("button", { type: "button", id: "open-all", on: { click: all(true) } },
    "Open all observations"), el("button", { type: "button", id: "close-all", on: { click: all(false) } }, "Close all")));
}

function drawColour() {
  if (!data.trained) state.colour = "mask";                    // without advantages there is nothing else to colour by
  const choices = [["advantage", "by advantage"], ["mask", "by mask: trained or not"]];
  places.colour.replaceChildren(data.trained ? el("fieldset", { class: "switch" }, el("legend", {}, "coloured"), choices.map(([value, text]) =>
    el("label", {}, el("input", { type: "radio", name: "colour", value, checked: value === state.colour,
      on: { change: () => { state.colour = value; places.tokens.firstChild.className = "stream colour-" + value; } } }), el("span", {}, text)))) : "",
  el("p", { class: "legend" }, data.trained ? el("span", {}, el("i", { class: "scale" }), "less \u00b7 advantage \u00b7 more") : "",
    el("span", {}, el("i", { class: "key trained" }, "ab"), "what the model wrote: trained"),
    el("span", {}, el("i", { class: "key masked" }, "ab"), "not trained")));
}

function symbols() {
  const rows = [
    ["V", "log P(answer): mean log-probability of the true answer's tokens, asked for at this point", "P eq.2"],
    ["IG", "gain: the rise of V, since the last visit where gains are browse-aware", "P eq.3"],
    ["r", "reward: the gain, minus \u03bb for a malformed turn, or the outcome on the last turn", "P eq.4"],
    ["\u03bc, \u03c3", "mean and standard deviation of the group's rewards, outcomes apart from turn rewards", "P eq.5"],
    ["z", "the reward, compared with its group", "P eq.5"],
    ["s, M_O, M_IG", "IG-Scale and the mean sizes of the batch that it is made of", "P eq.6-8"],
    [TILDE, "normalised reward: weight \u00b7 s \u00b7 z before the last turn, z on it", "P eq.6-8"],
    ["A", "advantage: discounted sum of the normalised rewards from this turn on", "P eq.9"],
  ];
  return section("symbols", "Symbols and equations", "P is the DR-Venus paper (arXiv 2604.19859), I the IGPO paper (arXiv 2510.14967 v2). The " +
    "equation numbers come from public study notes that agree with each other, not from the papers themselves.",
  el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "table" }, el("table", { class: "symbols" }, el("tbody", {}, rows.map(([name, words, tag]) => el("tr", {},
    el("th", { scope: "row" }, name), el("td", {}, words), el("td", {}, "[" + tag + "]")))))));
}

function moveByKey(event) {
  if (event.altKey || event.ctrlKey || event.metaKey || /^(input|select|textarea)$/i.test(event.target.tagName)) return;
  const step = event.key === "j" ? 1 : event.key === "k" ? -1 : 0;
  if (!step) return;
  const cards = [...document.querySelectorAll("article.turn")], at = cards.findIndex((card) => card.contains(document.activeElement));
  const next = cards[at < 0 ? 0 : Math.min(cards.length - 1, Math.max(0, at + step))];
  next.focus();
  next.scrollIntoView({ block: "start" });
}

build();
