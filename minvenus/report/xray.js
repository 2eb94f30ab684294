// Draws an X-ray from the data of content.py into the elements of xray.html.
// Text only ever enters as text: nothing here parses HTML.
(function () {
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const KINDS = {
  search: { letter: "S", name: "search", words: "looked for pages" },
  visit: { letter: "V", name: "visit", words: "read a page" },
  answer: { letter: "A", name: "answer", words: "gave its answer" },
  none: { letter: "?", name: "no action", words: "wrote nothing that could be run" },
};
const OPTION = 80;                      // letters of a question in the list of groups
const MOST_INPUTS = 24;                 // of a number
const LONG_THOUGHT = 700;               // letters beyond which a thought shows its beginning first
const FEW_TOKENS = 1500;                // of a rollout whose tokens are unfolded at once
let chosen = 0, recipe = null;          // what is shown: the place of a rollout, and the name of a recipe

// ------------------------------------------------------------------------------------------ elements and numbers

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "click") node.addEventListener("click", value);
    else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : String(value));
  }
  const absent = (child) => child === null || child === undefined || child === false;
  node.append(...children.flat(Infinity).filter((child) => !absent(child)));        // a string becomes a text node
  return node;
}

function el(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function draw(id, ...children) {
  const place = document.getElementById(id);
  place.replaceChildren();
  return fill(place, {}, children);
}

function scrolling(name, ...children) {
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": name }, children);
}

function table(head, rows, name, caption) {
  return scrolling("table", el("table", { class: name }, caption && el("caption", {}, caption),
    el("thead", {}, el("tr", {}, head.map((text) => el("th", { scope: "col" }, text)))), el("tbody", {}, rows)));
}

// Three digits after the point, fewer of large numbers; powers of ten where that would show nothing.
function number(x, signed) {
  if (x === null) return "none";
  const size = Math.abs(x), sign = x < 0 ? "−" : signed && x > 0 ? "+" : "";
  if (size !== 0 && size < 0.0005) return sign + size.toExponential(1);
  return sign + (size >= 1e5 ? size.toExponential(2) : size.toFixed(size >= 1000 ? 1 : size >= 100 ? 2 : 3));
}

function exact(x) {
  return String(x).replace("-", "−");
}

function badge(kind) {
  return el("span", { class: "badge kind-" + kind, title: KINDS[kind].words }, KINDS[kind].name);
}

// -------------------------------------------------------------------------------------------------- what is shown

function has(condition) {
  return data.conditions.includes(condition);
}

function rollout() {
  return data.rollouts[chosen];
}

function group() {
  return data.groups.find((one) => one.rollouts.includes(chosen));
}

function advantages(index) {
  const credit = data.rollouts[index].credit[recipe];
  return (credit && credit.advantages) || [];
}

// Blue for more of it, orange for less. The strongest colour is that of the largest number in the group, under any
// recipe. The number or its sign always stands there too.
function shade(node, value) {
  if (value === null || Math.abs(value) < 1e-9) return node;
  node.classList.add("shade", value > 0 ? "plus" : "minus");
  node.style.setProperty("--strength", (12 + 50 * Math.abs(value) / group().largest).toFixed(1) + "%");
  return node;
}

// [turn, log P(answer) after it], turn 0 for the question alone
function points(index) {
  return data.rollouts[index].measured.map((value, t) => [t, value]).filter(([, value]) => value !== null);
}

// Where log P(answer) lies in the group's range, from 0 to 1
function height(value) {
  const [low, high] = group().range;
  return (value - low) / (high - low);
}

// ------------------------------------------------------------------------------------------- the list of rollouts

function drawPicker() {
  const question = group().question, several = data.groups.length > 1;
  const shown = question === document.querySelector("h1").textContent || (several && question.length <= OPTION);
  const options = data.groups.map((one, i) => el("option", { value: i, selected: one === group() },
    (has("trained") ? "group " : "") + one.name + ": " + one.question.slice(0, OPTION)
    + (one.question.length > OPTION ? " ..." : "")));
  const head = ["rollout", "outcome", "advantage of each turn", "answer given", "turns", "log P(answer)"];
  draw("picker",
    several && el("p", {}, el("label", { for: "group" }, "Question "), el("select", { id: "group" }, options)),
    !shown && el("p", { class: "question" }, question),
    has("several") && table(head, group().rollouts.map(pickerRow), "picker"),
    group().remark && el("p", { class: "remark" }, group().remark));
}

function pickerRow(index) {
  const one = data.rollouts[index], pressed = index === chosen;
  const signs = advantages(index).map((value, t) => shade(el("i",
    { title: `turn ${t + 1}, ${KINDS[one.turns[t].kind].name}: ${number(value, true)}` },
    value > 1e-9 ? "+" : value < -1e-9 ? "−" : "0"), value));
  return el("tr", { class: pressed && "chosen" },
    el("th", { scope: "row" }, el("button", { type: "button", "data-rollout": index, "aria-pressed": String(pressed),
      click: () => pick(index) }, one.name)),
    el("td", {}, one.outcome), el("td", {}, el("span", { class: "strip" }, signs)),
    el("td", { class: "given" }, one.prediction || el("span", { class: "soft" }, "none")),
    el("td", {}, one.turns.length), el("td", {}, sparkline(index)));
}

function sparkline(index) {
  const line = points(index), last = line[line.length - 1], turns = data.rollouts[index].turns.length;
  if (line.length < 2) return el("span", { class: "soft" }, "not scored");
  const x = (turn) => 3 + 86 * turn / Math.max(1, turns - 1), y = (value) => 22 - 20 * height(value);
  const title = `log P(answer) from ${number(line[0][1])} to ${number(last[1])}`;
  return svg("svg", { width: 92, height: 24, class: "spark", role: "img", "aria-label": title },
    svg("polyline", { points: line.map(([turn, value]) => `${x(turn)},${y(value)}`).join(" "), class: "line" }),
    svg("circle", { cx: x(last[0]), cy: y(last[1]), r: 2.5, class: "point" }));
}

function drawFacts() {
  draw("facts", el("dl", { class: "facts boxed" }, rollout().facts.map(([name, value]) =>
    el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
  rollout().error && el("p", { class: "warning" }, rollout().error));
}

// ------------------------------------------------- log P(answer) as a line, advantages as bars, on one axis of turns

function drawChart() {
  const box = draw("chart", el("figure", {})).firstChild, turns = rollout().turns, bars = advantages(chosen);
  const left = 58, right = 66, most = group().largest || 1;
  const slot = Math.max(9, (box.clientWidth - 30 - left - right) / (turns.length + 1));
  const width = left + right + slot * (turns.length + 1);
  const frame = { slot, left, right: width - right, x: (turn) => left + slot * (turn + 0.5) };
  const lineHeight = points(chosen).length ? 190 : 0;
  const room = (sign) => bars.length && 22 + 50 * Math.max(0, ...bars.map((value) => sign * value)) / most;
  const middle = lineHeight + (slot < 14 ? 46 : 34) + room(1), tall = middle + room(-1);
  const chart = svg("svg", { width, height: tall, viewBox: `0 0 ${width} ${tall}`, class: "chart", role: "group",
    "aria-label": "log P(answer) after each turn, and the advantage of each turn" },
  lineHeight > 0 && linePanel(frame, 14, lineHeight),
  slot >= 40 && label(frame.x(0), lineHeight + 19, slot >= 60 ? "question" : "Q", "soft"),
  turns.map((turn, t) => turnMark(frame, turn, t, lineHeight + 6)),
  bars.length > 0 && barPanel(frame, bars, middle, 50 / most));
  const kinds = Object.entries(KINDS).map(([kind, { letter, name }]) =>
    el("span", {}, el("i", { class: "key kind-" + kind }, letter), name));
  const legend = el("figcaption", { class: "legend" }, kinds,
    el("span", {}, el("i", { class: "key broken" }), "malformed"),
    has("trained") && el("span", {}, el("i", { class: "scale" }), "less · advantage · more"));
  box.append(scrolling("chart", chart), legend);
}

function label(x, y, text, name, anchor) {
  return svg("text", { x, y, "text-anchor": anchor || "middle", class: name || null }, text);
}

function linePanel({ x, left, right, slot }, top, bottom) {
  const own = points(chosen), others = group().rollouts.filter((index) => index !== chosen).map(points);
  const y = (value) => bottom - height(value) * (bottom - top);
  const inside = ([turn]) => x(turn) <= right - slot * 0.25;               // another rollout may be longer
  const line = (some, name) => svg("polyline", { class: name,
    points: some.filter(inside).map(([turn, value]) => `${x(turn)},${y(value)}`).join(" ") });
  const grid = group().ticks.map((value) => [
    svg("path", { d: `M${left} ${y(value)}H${right}`, class: "grid" }),
    label(left - 8, y(value) + 4, exact(Number(value.toFixed(6))), "", "end"),
    label(right + 8, y(value) + 4, Number((100 * Math.exp(value)).toPrecision(2)) + "\u00a0%", "soft", "start")]);
  return [grid, label(6, 10, "log P", "soft", "start"), label(right + 8, 10, "per token", "soft", "start"),
    others.map((some) => line(some, "other")), line(own, "line"),
    own.map(([turn, value], i) => pointMark(x(turn), y(value), slot, turn, value, i > 0 && value >= own[i - 1][1]))];
}

function pointMark(x, y, slot, turn, value, above) {
  const credit = rollout().credit[recipe], gain = credit && turn > 0 ? credit.gains[turn - 1] : null;
  const title = `${turn ? "after turn " + turn : "question alone"}: log P(answer) ${number(value)}`
    + (gain === null ? "" : `, gain ${number(gain, true)}`);
  return [svg("circle", { cx: x, cy: y, r: slot < 14 ? 3 : 4.5, class: "point" }, svg("title", {}, title)),
    gain !== null && slot >= 34 && label(x, y + (above ? -10 : 20), number(gain, true), gain >= 0 ? "up" : "down")];
}

function turnMark({ x, slot }, turn, t, top) {
  const { letter, name, words } = KINDS[turn.kind], wide = Math.min(slot, 22) - 1;
  const numbered = (t + 1) % 5 === 0 || t === rollout().turns.length - 1;
  return svg("a", { href: "#turn-" + (t + 1), "aria-label": `turn ${t + 1}, ${name}` },
    svg("title", {}, `turn ${t + 1}: ${words}` + (turn.malformed ? ", malformed" : "")),
    svg("rect", { x: x(t + 1) - wide / 2, y: top, width: wide, height: 18, rx: 3,
      class: `mark kind-${turn.kind}` + (turn.malformed ? " broken" : "") }),
    slot >= 14 && label(x(t + 1), top + 13, letter, "letter"),
    slot < 14 && numbered && label(x(t + 1), top + 32, t + 1, "soft small"));
}

function barPanel({ x, left, right, slot }, bars, middle, scale) {
  const columns = bars.map((value, t) => {
    const size = Math.max(1, Math.abs(value) * scale), wide = Math.min(slot * 0.7, 34), up = value > 0;
    return [svg("rect", { x: x(t + 1) - wide / 2, y: up ? middle - size : middle, width: wide, height: size,
      class: "column " + (up ? "plus" : "minus") },
    svg("title", {}, `turn ${t + 1}: advantage ${number(value, true)}`)),
    slot >= 40 && label(x(t + 1), up ? middle - size - 4 : middle + size + 12, number(value, true))];
  });
  return [svg("path", { d: `M${left} ${middle}H${right}`, class: "axis" }),
    label(left - 8, middle + 4, "A = 0", "", "end"), columns];
}

// ------------------------------------------------------------------------------------------------------ the turns

function turnCard(turn, t) {
  const place = t + 1, title = "turn-title-" + place, credit = rollout().credit[recipe];
  const advantage = credit && credit.advantages ? credit.advantages[t] : null;
  const part = (name, content) => el("div", { class: "part" }, el("p", { class: "name" }, name), content);
  const folded = (name, summary, text) =>
    el("details", { class: name }, el("summary", {}, summary), el("pre", {}, text));
  const chip = el("span", { class: "chip", title: "advantage under " + recipe }, "A ", number(advantage, true));
  const verdict = turn.malformed ? el("span", { class: "verdict bad" }, "✗ malformed: ", turn.rule)
    : el("span", { class: "verdict good" }, "✓ well formed");
  const card = el("article", { class: "turn", id: "turn-" + place, tabindex: "-1", "aria-labelledby": title },
    el("header", {}, el("h3", { id: title }, "Turn " + place), badge(turn.kind), verdict,
      advantage !== null && shade(chip, advantage)),
    turn.remarks.length > 0 && el("ul", { class: "remarks" }, turn.remarks.map((text) => el("li", {}, text))),
    turn.thought && part("thought", thought(turn.thought)),
    turn.call !== null && part(turn.tool, el("p", { class: "call" }, turn.call)),
    turn.answer !== null && part("answer", el("p", { class: "said answer" }, turn.answer)),
    turn.raw !== null && folded("raw", "what it wrote, letter by letter", turn.raw),
    turn.observation !== null && folded("observation",
      ["what came back ", el("span", { class: "soft" }, `(${turn.came_back})`)], turn.observation),
    credit && arithmetic(credit.steps[t], place));
  return shade(card, advantage);
}

function thought(text) {
  const words = el("p", { class: "said" }, text);
  if (text.length < LONG_THOUGHT) return words;
  words.classList.add("clamped");
  const button = el("button", { type: "button", class: "more", "aria-expanded": "false", click: () => {
    const short = words.classList.toggle("clamped");
    button.setAttribute("aria-expanded", String(!short));
    button.textContent = short ? "Show all of it" : "Show less";
  } }, "Show all of it");
  return el("div", {}, words, button);
}

// A row of numbers, each a button; the one that is pressed shows below how it came about.
function arithmetic(places, turn) {
  const panel = el("div", { class: "panel", id: "how-" + turn, hidden: true });
  const buttons = places.map((place) => {
    const [about, value, inputs, parts] = data.steps[place], { id, name, formula, words } = data.explanations[about];
    const press = () => {
      const open = button.getAttribute("aria-expanded") === "true";
      for (const other of buttons) other.setAttribute("aria-expanded", "false");
      button.setAttribute("aria-expanded", String(!open));
      panel.hidden = open;
      panel.replaceChildren(explanation(formula, words, inputs, parts, value));
    };
    const button = el("button", { type: "button", class: "step", title: formula, click: press,
      "data-step": id, "data-turn": turn, "data-value": value, "aria-expanded": "false", "aria-controls": panel.id },
    el("span", { class: "step-name" }, name), " ",
    el("span", { class: "step-value" }, number(value, !/^(value|std|scale)/.test(id))));
    return button;
  });
  const arrow = () => el("span", { class: "arrow", "aria-hidden": "true" }, "›");
  const title = `how turn ${turn} is paid`;
  return buttons.length > 0 && el("div", { class: "arithmetic", role: "group", "aria-label": title },
    buttons.map((button, i) => [i > 0 && arrow(), button]), panel);
}

function explanation(formula, words, inputs, parts, value) {
  const [before, equation] = formula.split(" ["), more = inputs.length - MOST_INPUTS;
  const listed = inputs.slice(0, MOST_INPUTS).map(([name, x]) =>
    el("div", {}, el("dt", {}, name), el("dd", {}, exact(x))));
  const products = parts.map(([turn, factor, term]) => el("li", {},
    `turn ${turn}: ${number(factor)} × ${number(term, true)} = `, el("b", {}, number(factor * term, true))));
  return el("div", {},
    el("p", { class: "formula" }, before, equation && el("span", { class: "tag soft" }, "[" + equation)),
    el("p", {}, words), el("dl", { class: "inputs" }, listed),
    more > 0 && el("p", { class: "soft" }, `and ${more} more`),
    parts.length > 1 && [el("p", {}, "Its largest parts:"), el("ul", { class: "from" }, products)],
    value !== null && el("p", {}, "Exactly: ", el("b", {}, exact(value))));
}

// ---------------------------------------------------------------------------------------------------- side by side

function drawCompare() {
  const all = data.recipes, labels = all.map((one) => one.label);
  const cards = all.map((one) => el("div", { class: "recipe" }, el("h3", {}, one.label), el("p", {}, one.words),
    one.missing ? el("p", { class: "bad" }, one.missing)
      : el("p", { class: "teaches" }, rollout().credit[one.name].teaches)));
  const rows = rollout().turns.map((turn, t) => el("tr", {},
    el("th", { scope: "row" }, el("a", { href: "#turn-" + (t + 1) }, t + 1), " ", badge(turn.kind),
      turn.malformed && el("span", { class: "bad", title: turn.rule }, " ✗")),
    all.map((one) => compareCell(rollout().credit[one.name], one.name, t))));
  const differ = (name) => new Set(all.map((one) => one.settings[name])).size > 1;
  const settings = Object.keys(all[0].settings).filter(differ).map((name) =>
    el("tr", {}, el("th", { scope: "row" }, name), all.map((one) => el("td", {}, one.settings[name]))));
  const caption = has("trained") ? "Advantage of every turn; after it the turn's own reward, if it has one."
    : "Reward of every turn, where it has one.";
  draw("compare", el("div", { class: "recipes" }, cards), table(["turn", ...labels], rows, "compare", caption),
    el("details", {}, el("summary", {}, "In which settings the recipes differ"),
      table(["setting", ...labels], settings, null)));
}

function compareCell(credit, name, t) {
  if (!credit) return el("td", { class: "soft" }, "not scored");
  const reward = credit.rewards[t], paid = reward === null ? "" : number(reward, true);
  if (!credit.advantages) return shade(el("td", {}, paid), reward);
  const advantage = credit.advantages[t];
  return shade(el("td", { "data-recipe": name, "data-turn": t + 1, "data-value": advantage },
    number(advantage, true), el("span", { class: "soft reward" }, paid && "r " + paid)), advantage);
}

// ------------------------------------------------------------------------------------------------------ the tokens

function drawTokens() {
  const turns = rollout().turns, bars = advantages(chosen);
  const few = turns.reduce((sum, turn) => sum + tokensOf(turn).length, 0) < FEW_TOKENS;
  const gap = (what, count) => el("p", { class: "gap" },
    what + (count === null ? "" : `, ${count.toLocaleString("en")} tokens`) + ": read, never trained");
  draw("token-list", gap("system prompt and question", turns[0].span && turns[0].span[0]), turns.map((turn, t) => {
    const advantage = bars.length ? bars[t] : null, next = turns[t + 1];
    const box = el("details", { class: "tokens" }, el("summary", {}, `turn ${t + 1} `, badge(turn.kind), " ",
      advantage !== null && el("span", { class: "soft" }, "A " + number(advantage, true))));
    box.addEventListener("toggle", () => {
      if (box.open && box.children.length === 1) box.append(tokenText(turn, advantage));
    });
    box.open = few;
    const count = turn.span && next ? next.span[0] - turn.span[1] : null;
    return [box, turn.observation !== null && gap("what came back", count)];
  }));
}

// [text, log-prob], null for a token that was not sampled; a file of texts has one piece per turn and no log-probs
function tokensOf(turn) {
  return turn.tokens || [[turn.raw || [turn.thought, turn.call, turn.answer].filter(Boolean).join("\n"), undefined]];
}

function tokenText(turn, advantage) {
  return el("pre", { class: "token-text" }, tokensOf(turn).map(([text, logprob]) => {
    const trained = logprob !== null, paid = advantage === null ? "" : `, advantage ${number(advantage, true)}`;
    const title = !trained ? "not sampled, never trained" : logprob === undefined ? "the turn as a whole"
      : `sampled with log-prob ${number(logprob)}` + paid;
    const name = "token " + (trained ? "trained" : "masked");
    const token = el("span", { class: name, title }, text.replaceAll("\n", "↵\n"));
    return trained ? shade(token, advantage) : token;
  }));
}

// ---------------------------------------------------------------------------------------------------- the controls

function redraw() {
  drawPicker();
  drawFacts();
  drawChart();
  draw("turn-list", rollout().turns.map(turnCard));
  if (has("recipes")) drawCompare();
  drawTokens();
}

function pick(index) {
  chosen = index;
  redraw();
  document.querySelector(`[data-rollout="${index}"]`).focus();
}

function change({ target }) {
  if (target.id === "group") pick(data.groups[target.value].rollouts[0]);
  if (target.name === "colour") document.getElementById("token-list").className = "colour-" + target.value;
  if (target.name === "recipe") {
    recipe = target.value;
    redraw();
  }
}

function moveByKey(event) {
  const step = { j: 1, k: -1 }[event.key];
  if (!step || event.altKey || event.ctrlKey || event.metaKey || /^(input|select)$/i.test(event.target.tagName)) return;
  const cards = [...document.querySelectorAll("article.turn")];
  const at = cards.findIndex((card) => card.contains(document.activeElement));
  const next = cards[at < 0 ? 0 : Math.min(cards.length - 1, Math.max(0, at + step))];
  next.focus();
  next.scrollIntoView({ block: "start" });
}

for (const node of document.querySelectorAll("[data-if]")) if (!has(node.dataset.if)) node.remove();
if (has("recipes")) {
  recipe = (data.recipes.find((one) => one.trained && !one.missing) || data.recipes.find((one) => !one.missing)).name;
  const radio = (one) => el("input", { type: "radio", name: "recipe", value: one.name, checked: one.name === recipe,
    disabled: one.missing !== null });
  document.getElementById("recipe-switch").append(...data.recipes.map((one) =>
    el("label", { title: one.missing || one.words }, radio(one), el("span", {}, one.label))));
}
document.getElementById("token-list").className = has("trained") ? "colour-advantage" : "colour-mask";
for (const [id, open] of [["open-all", true], ["close-all", false]]) {
  document.getElementById(id).addEventListener("click", () => {
    for (const box of document.querySelectorAll("details.observation")) box.open = open;
  });
}
document.addEventListener("change", change);
document.addEventListener("keydown", moveByKey);
window.addEventListener("resize", drawChart);
redraw();
})();
