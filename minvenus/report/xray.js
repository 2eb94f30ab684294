// Draws an X-ray from the data of xray.py into the elements of xray.html.
// Text only ever enters as text: nothing here parses HTML.
(function () {
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const KINDS = { search: "search", visit: "visit", answer: "answer", none: "no action" };
const MOST_INPUTS = 24;                 // of a number
let chosen = 0, recipe = null;          // what is shown: the place of a rollout, and the name of a recipe

// ------------------------------------------------------------------------------------------ elements and numbers

// Children may be lists; null, undefined and false are left out, and a string becomes a text node.
function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "click") node.addEventListener("click", value);
    else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
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

function pairs(name, listed) {
  return el("dl", { class: name }, listed.map(([key, value]) => el("div", {}, el("dt", {}, key), el("dd", {}, value))));
}

// Three digits after the point; powers of ten where that would show nothing, or too much.
function number(x, signed) {
  if (x === null) return "none";
  const size = Math.abs(x), sign = x < 0 ? "−" : signed && x > 0 ? "+" : "";
  return sign + (size !== 0 && (size < 0.0005 || size >= 1e5) ? size.toExponential(1) : size.toFixed(3));
}

function badge(kind) {
  return el("span", { class: "badge kind-" + kind }, KINDS[kind]);
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

// ------------------------------------------------------------------------------------------- the list of rollouts

function drawPicker() {
  const options = data.groups.map((one, i) =>
    el("option", { value: i, selected: one === group() }, `${one.name}: ${one.question.slice(0, 80)}`));
  const head = ["rollout", "outcome", "advantage of each turn", "answer given", "turns"].map((text) =>
    el("th", { scope: "col" }, text));
  draw("picker",
    options.length > 1 && [el("p", {}, el("label", { for: "group" }, "Group "), el("select", { id: "group" }, options)),
      el("p", {}, group().question)],
    has("several") && scrolling("rollouts of the group", el("table", { class: "picker" },
      el("thead", {}, el("tr", {}, head)), el("tbody", {}, group().rollouts.map(pickerRow)))),
    group().remark && el("p", { class: "remark" }, group().remark));
}

function pickerRow(index) {
  const one = data.rollouts[index], pressed = index === chosen;
  const signs = advantages(index).map((value, t) => shade(el("i",
    { title: `turn ${t + 1}, ${KINDS[one.turns[t].kind]}: ${number(value, true)}` },
    value > 1e-9 ? "+" : value < -1e-9 ? "−" : "0"), value));
  return el("tr", { class: pressed && "chosen" },
    el("th", { scope: "row" }, el("button", { type: "button", "data-rollout": index, "aria-pressed": String(pressed),
      click: () => pick(index) }, one.name)),
    el("td", {}, one.outcome), el("td", {}, el("span", { class: "strip" }, signs)),
    el("td", { class: "given" }, one.prediction || el("span", { class: "soft" }, "none")),
    el("td", {}, one.turns.length));
}

function drawFacts() {
  const { facts, error } = rollout();
  draw("facts", pairs("facts boxed", facts), error && el("p", { class: "warning" }, error));
}

// ------------------------------------------------- log P(answer) as a line, advantages as bars, on one axis of turns

// [turn, log P(answer) after it], turn 0 for the question alone
function points(index) {
  return data.rollouts[index].measured.map((value, t) => [t, value]).filter(([, value]) => value !== null);
}

function label(x, y, text, name, anchor) {
  return svg("text", { x, y, "text-anchor": anchor || "middle", class: name || null }, text);
}

function drawChart() {
  const box = draw("chart", el("figure", {})).firstChild, turns = rollout().turns, bars = advantages(chosen);
  const left = 58, right = 66, most = group().largest || 1;
  const slot = Math.max(50, (box.clientWidth - 30 - left - right) / (turns.length + 1));
  const width = left + right + slot * (turns.length + 1), end = width - right;
  const x = (turn) => left + slot * (turn + 0.5);
  const lineHeight = has("scored") ? 190 : 0;
  const room = (sign) => bars.length && 22 + 50 * Math.max(0, ...bars.map((value) => sign * value)) / most;
  const middle = lineHeight + 34 + room(1), height = middle + room(-1);
  const chart = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, class: "chart", role: "group",
    "aria-label": "log P(answer) after each turn, and the advantage of each turn" },
  has("scored") && linePanel(x, left, end, 14, lineHeight),
  label(x(0), lineHeight + 19, "start", "soft"),
  turns.map((turn, t) => turnMark(x(t + 1), turn, t + 1, lineHeight + 6)),
  bars.length > 0 && barPanel(x, left, end, bars, middle, 50 / most));
  const kinds = Object.entries(KINDS).map(([kind, name]) =>
    el("span", {}, el("i", { class: "key kind-" + kind }, name[0].toUpperCase()), name));
  box.append(scrolling("chart", chart), el("figcaption", { class: "legend" }, kinds,
    el("span", {}, el("i", { class: "key broken" }), "malformed"),
    has("trained") && el("span", {}, el("i", { class: "scale" }), "less · advantage · more")));
}

function linePanel(x, left, end, top, bottom) {
  const own = points(chosen), others = group().rollouts.filter((index) => index !== chosen).map(points);
  const [low, high] = group().range;
  const y = (value) => bottom - (value - low) / (high - low) * (bottom - top);
  const inside = ([turn]) => x(turn) < end;                                // another rollout may be longer
  const line = (some, name) => svg("polyline", { class: name,
    points: some.filter(inside).map(([turn, value]) => `${x(turn)},${y(value)}`).join(" ") });
  const grid = group().ticks.map((value) => [
    svg("path", { d: `M${left} ${y(value)}H${end}`, class: "grid" }),
    label(left - 8, y(value) + 4, String(Number(value.toFixed(6))).replace("-", "−"), "", "end"),
    label(end + 8, y(value) + 4, Number((100 * Math.exp(value)).toPrecision(2)) + "\u00a0%", "soft", "start")]);
  return [grid, label(6, 10, "log P", "soft", "start"), label(end + 8, 10, "per token", "soft", "start"),
    others.map((some) => line(some, "other")), line(own, "line"),
    own.map(([turn, value]) => pointMark(x(turn), y(value), turn, value))];
}

function pointMark(x, y, turn, value) {
  const credit = rollout().credit[recipe], gain = credit && turn > 0 ? credit.gains[turn - 1] : null;
  const title = `${turn ? "after turn " + turn : "question alone"}: log P(answer) ${number(value)}`
    + (gain === null ? "" : `, gain ${number(gain, true)}`);
  return [svg("circle", { cx: x, cy: y, r: 4.5, class: "point" }, svg("title", {}, title)),
    gain !== null && label(x, y + (gain >= 0 ? -10 : 20), number(gain, true), gain >= 0 ? "up" : "down")];
}

function turnMark(x, turn, place, top) {
  const title = `turn ${place}, ${KINDS[turn.kind]}` + (turn.malformed ? ", malformed" : "");
  return svg("a", { href: "#turn-" + place, "aria-label": title }, svg("title", {}, title),
    svg("rect", { x: x - 11, y: top, width: 22, height: 18, rx: 3,
      class: `mark kind-${turn.kind}` + (turn.malformed ? " broken" : "") }),
    label(x, top + 13, KINDS[turn.kind][0].toUpperCase(), "letter"));
}

function barPanel(x, left, end, bars, middle, scale) {
  const columns = bars.map((value, t) => {
    const size = Math.max(1, Math.abs(value) * scale), up = value > 0;
    return [svg("rect", { x: x(t + 1) - 16, y: up ? middle - size : middle, width: 32, height: size,
      class: "column " + (up ? "plus" : "minus") },
    svg("title", {}, `turn ${t + 1}: advantage ${number(value, true)}`)),
    label(x(t + 1), up ? middle - size - 4 : middle + size + 12, number(value, true))];
  });
  return [svg("path", { d: `M${left} ${middle}H${end}`, class: "axis" }),
    label(left - 8, middle + 4, "A = 0", "", "end"), columns];
}

// ------------------------------------------------------------------------------------------------------ the turns

function turnCard(turn, t) {
  const place = t + 1, title = "turn-title-" + place, credit = rollout().credit[recipe];
  const advantage = credit && credit.advantages ? credit.advantages[t] : null;
  const part = (name, text, style) =>
    text && el("div", { class: "part" }, el("p", { class: "name" }, name), el("p", { class: style }, text));
  const folded = (name, summary, text) =>
    el("details", { class: name }, el("summary", {}, summary), el("pre", {}, text));
  const chip = el("span", { class: "chip", title: "advantage under " + recipe }, "A ", number(advantage, true));
  const verdict = turn.malformed ? el("span", { class: "verdict bad" }, "✗ malformed: ", turn.rule)
    : el("span", { class: "verdict good" }, "✓ well formed");
  const card = el("article", { class: "turn", id: "turn-" + place, tabindex: "-1", "aria-labelledby": title },
    el("header", {}, el("h3", { id: title }, "Turn " + place), badge(turn.kind), verdict,
      advantage !== null && shade(chip, advantage)),
    el("ul", { class: "remarks" }, turn.remarks.map((text) => el("li", {}, text))),
    part("thought", turn.thought, "said"), part(turn.tool, turn.call, "call"),
    part("answer", turn.answer, "said answer"),
    turn.raw !== null && folded("raw", "what it wrote, letter by letter", turn.raw),
    turn.observation !== null && folded("observation",
      `what came back (${turn.length.toLocaleString("en")} characters)`, turn.observation),
    credit && arithmetic(credit.steps[t], place));
  return shade(card, advantage);
}

// A row of numbers, each a button; the one that is pressed shows below how it came about.
function arithmetic(places, turn) {
  const panel = el("div", { class: "panel", id: "how-" + turn, hidden: true });
  const buttons = places.map((place) => {
    const [about, value, inputs] = data.steps[place], { id, name, formula, words } = data.explanations[about];
    const press = () => {
      const open = button.getAttribute("aria-expanded") === "true";
      for (const other of buttons) other.setAttribute("aria-expanded", "false");
      button.setAttribute("aria-expanded", String(!open));
      panel.hidden = open;
      panel.replaceChildren(explanation(formula, words, inputs, value));
    };
    const button = el("button", { type: "button", class: "step", title: formula, click: press,
      "data-step": id, "data-turn": turn, "data-value": value, "aria-expanded": "false", "aria-controls": panel.id },
    el("span", { class: "step-name" }, name), " ",
    el("span", { class: "step-value" }, number(value, !/^(value|std|scale)/.test(id))));
    return button;
  });
  const arrow = () => el("span", { class: "soft", "aria-hidden": "true" }, "›");
  return el("div", { class: "arithmetic", role: "group", "aria-label": `how turn ${turn} is paid` },
    buttons.map((button, i) => [i > 0 && arrow(), button]), panel);
}

function explanation(formula, words, inputs, value) {
  const more = inputs.length - MOST_INPUTS;
  return el("div", {}, el("p", { class: "formula" }, formula), el("p", {}, words),
    pairs("inputs", inputs.slice(0, MOST_INPUTS).map(([name, x]) => [name, x])),
    more > 0 && el("p", { class: "soft" }, `and ${more} more`),
    value !== null && el("p", {}, "Exactly: ", el("b", {}, value)));
}

// ------------------------------------------------------------------------------------------------------ the tokens

function drawTokens() {
  const turns = rollout().turns, bars = advantages(chosen);
  const gap = (what) => el("p", { class: "gap" }, what + ": read, never trained");
  draw("token-list", gap("system prompt and question"), turns.map((turn, t) => {
    const advantage = bars.length ? bars[t] : null;
    const box = el("details", { class: "tokens" }, el("summary", {}, `turn ${t + 1} `, badge(turn.kind), " ",
      advantage !== null && el("span", { class: "soft" }, "A " + number(advantage, true))));
    box.addEventListener("toggle", () => {                                 // a long rollout has very many tokens
      if (box.open && box.children.length === 1) box.append(tokenText(turn.tokens, advantage));
    });
    box.open = turns.length <= 10;
    return [box, turn.observation !== null && gap("what came back")];
  }));
}

// Tokens are [text, log-prob], null for a token that was not sampled.
function tokenText(tokens, advantage) {
  return el("pre", { class: "token-text" }, tokens.map(([text, logprob]) => {
    const trained = logprob !== null, paid = advantage === null ? "" : `, advantage ${number(advantage, true)}`;
    const title = trained ? `sampled with log-prob ${number(logprob)}` + paid : "not sampled, never trained";
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
  if (has("recipes")) draw("words", recipe, ": ", data.recipes.find((one) => one.name === recipe).words);
  draw("turn-list", rollout().turns.map(turnCard));
  if (has("tokens")) drawTokens();
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
  recipe = (data.recipes.find((one) => one.trained) || data.recipes[0]).name;
  const radio = (one) => el("input", { type: "radio", name: "recipe", value: one.name, checked: one.name === recipe,
    disabled: one.missing });
  document.getElementById("recipe-switch").append(...data.recipes.map((one) =>
    el("label", { title: one.words }, radio(one), el("span", {}, one.name + (one.trained ? " (trained)" : "")))));
}
document.addEventListener("change", change);
document.addEventListener("keydown", moveByKey);
window.addEventListener("resize", drawChart);
redraw();
})();
