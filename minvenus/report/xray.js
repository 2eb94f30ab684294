// Draws an X-ray from the data that content.py wrote. Text only ever enters as text: nothing here parses HTML.
(function () {
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const has = (condition) => data.conditions.includes(condition);
const KINDS = {
  search: { letter: "S", name: "search", words: "looked for pages" },
  visit: { letter: "V", name: "visit", words: "read a page" },
  answer: { letter: "A", name: "answer", words: "gave its answer" },
  none: { letter: "?", name: "no action", words: "wrote nothing that could be run" },
};
const OPTION = 80;                                   // letters of a question in the list of groups
const MOST_INPUTS = 24;                              // of a number
const CLAMPED = 700;                                 // letters beyond which a thought shows its beginning first
let chosen = 0, recipe = null;                       // what is shown: a rollout, paid by a recipe

// -------------------------------------------------------------------------------------------- elements and numbers

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "click") node.addEventListener("click", value);
    else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : String(value));
  }
  // a string becomes a text node
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

function table(head, rows, attributes, caption) {
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "table" }, el("table", attributes,
    caption && el("caption", {}, caption),
    el("thead", {}, el("tr", {}, head.map((name) => el("th", { scope: "col" }, name)))), el("tbody", {}, rows)));
}

// Three digits after the point, fewer of large numbers; powers of ten where that would show nothing.
function number(x, signed) {
  if (x === null) return "none";
  const size = Math.abs(x);
  let text = size >= 1e5 ? size.toExponential(2) : size.toFixed(size >= 1000 ? 1 : size >= 100 ? 2 : 3);
  if (size !== 0 && size < 0.0005) text = size.toExponential(1);
  return (x < 0 ? "−" : signed && x > 0 ? "+" : "") + text;
}

function exact(x) {
  return String(x).replace("-", "−");
}

function percent(x) {
  const p = 100 * x, few = Number(p.toPrecision(2)).toString();
  return (p >= 10 || p === 0 ? p.toFixed(0) : p >= 0.001 ? few : p.toExponential(0)) + "\u00a0%";
}

// Blue for more of it, orange for less, as strong as it is large. The number or its sign always stands there too.
function shade(node, value, largest) {
  if (value === null || !largest) return node;
  if (Math.abs(value) > 1e-9) node.classList.add("shade", value > 0 ? "plus" : "minus");
  node.style.setProperty("--strength", (12 + 50 * Math.min(1, Math.abs(value) / largest)).toFixed(1) + "%");
  return node;
}

function badge(kind) {
  return el("span", { class: "badge kind-" + kind, title: KINDS[kind].words }, KINDS[kind].name);
}

// ------------------------------------------------------------------------------------------------ what is in the data

function rollout() {
  return data.rollouts[chosen];
}

function group() {
  return data.groups.find((one) => one.rollouts.includes(chosen));
}

function creditOf(index) {
  return data.rollouts[index].credit[recipe] || null;
}

function advantage(t) {
  const credit = creditOf(chosen);
  return credit && credit.advantages ? credit.advantages[t] : null;
}

// The strongest colour stands for the largest number that any recipe gives any turn of the group.
function largest(key) {
  const credits = group().rollouts.flatMap((index) => Object.values(data.rollouts[index].credit));
  return Math.max(0, ...credits.flatMap((credit) => (credit[key] || []).map((value) => Math.abs(value || 0))));
}

// [turn, log P(answer) after it], turn 0 for the question alone
function points(index) {
  return data.rollouts[index].measured.map((value, t) => [t, value]).filter(([, value]) => value !== null);
}

// ------------------------------------------------------------------------------------------------ the list of rollouts

function drawPicker() {
  const question = group().question, several = data.groups.length > 1;
  const inTitle = question === document.querySelector("h1").textContent || (several && question.length <= OPTION);
  const options = data.groups.map((one, i) => el("option", { value: i, selected: one === group() },
    one.name + ": " + (one.question.length > OPTION ? one.question.slice(0, OPTION) + " ..." : one.question)));
  const values = group().rollouts.flatMap((index) => points(index).map(([, value]) => value));
  const range = [Math.min(...values), Math.max(...values)], head = ["rollout", "outcome", "advantage of each turn",
    "answer given", "turns", "log P(answer)"];
  draw("picker",
    several && el("p", {}, el("label", { for: "group" }, "Question "), el("select", { id: "group" }, options)),
    !inTitle && el("p", { class: "question" }, question),
    has("several") && table(head, group().rollouts.map((index) => pickerRow(index, range)), { class: "picker" }),
    group().remark && el("p", { class: "remark" }, group().remark));
}

function pickerRow(index, range) {
  const one = data.rollouts[index], credit = creditOf(index), most = largest("advantages");
  const signs = ((credit && credit.advantages) || []).map((value, t) => shade(el("i",
    { title: `turn ${t + 1}, ${KINDS[one.turns[t].kind].name}: ${number(value, true)}` },
    value > 1e-9 ? "+" : value < -1e-9 ? "−" : "0"), value, most));
  const button = el("button", { type: "button", "data-rollout": index, "aria-pressed": String(index === chosen),
    click: () => pick(index) }, one.name);
  return el("tr", { class: index === chosen ? "chosen" : null }, el("th", { scope: "row" }, button),
    el("td", {}, one.outcome), el("td", {}, el("span", { class: "strip" }, signs)),
    el("td", { class: "given" }, one.prediction || el("span", { class: "soft" }, "none")),
    el("td", {}, one.turns.length), el("td", {}, sparkline(index, range)));
}

function sparkline(index, [low, high]) {
  const line = points(index), last = line[line.length - 1], turns = data.rollouts[index].turns.length;
  if (line.length < 2) return el("span", { class: "soft" }, "not scored");
  const x = (turn) => 3 + 86 * turn / Math.max(1, turns - 1), y = (value) => 20 - 16 * (value - low) / (high - low || 1);
  const title = `log P(answer) from ${number(line[0][1])} to ${number(last[1])}`;
  return svg("svg", { width: 92, height: 24, class: "spark", role: "img", "aria-label": title },
    svg("polyline", { points: line.map(([turn, value]) => `${x(turn)},${y(value)}`).join(" "), class: "line" }),
    svg("circle", { cx: x(last[0]), cy: y(last[1]), r: 2.5, class: "point" }));
}

function drawFacts() {
  const facts = [["answer given", rollout().prediction || "none"], ["outcome", rollout().outcome], ...rollout().facts];
  draw("facts", el("dl", { class: "facts boxed" }, facts.map(([name, value]) =>
    el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
  rollout().error && el("p", { class: "warning" }, rollout().error));
}

// -------------------------------------------------------- log P(answer) as a line, advantages as bars, on one axis of turns

function drawChart() {
  const box = draw("chart", el("figure", { class: "chart-box" })).firstChild, turns = rollout().turns;
  const left = 58, right = 66, width = box.clientWidth - 28;
  const slot = Math.max(9, (width - left - right) / (turns.length + 1)), full = left + right + slot * (turns.length + 1);
  const frame = { slot, left, right: full - right, x: (turn) => left + slot * (turn + 0.5) };
  const lineHeight = points(chosen).length ? 190 : 0, bars = turns.map((turn, t) => advantage(t)), most = largest("advantages");
  const room = (sign) => bars[0] === null ? 0 : 22 + 50 * Math.max(0, ...bars.map((a) => sign * a)) / (most || 1);
  const middle = lineHeight + (slot < 14 ? 46 : 34) + room(1), height = middle + room(-1);
  const title = "log P(answer) after each turn, and the advantage of each turn";
  const chart = svg("svg", { width: full, height, viewBox: `0 0 ${full} ${height}`, role: "group", "aria-label": title,
    class: "chart" }, lineHeight && linePanel(frame, 14, lineHeight), turns.map((turn, t) => turnMark(frame, t, lineHeight + 6)),
  slot >= 40 && svg("text", { x: frame.x(0), y: lineHeight + 19, "text-anchor": "middle", class: "soft" },
    slot >= 60 ? "question" : "Q"),
  bars[0] !== null && barPanel(frame, bars, middle, 50 / (most || 1)));
  box.append(el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "chart" }, chart), legend());
}

function ticks(low, high, about) {
  const rough = (high - low) / about, power = 10 ** Math.floor(Math.log10(rough));
  const unit = [1, 2, 5, 10].map((m) => m * power).find((m) => m >= rough * 0.999);
  const found = [];
  for (let k = Math.ceil(low / unit - 1e-9); k * unit <= high + 1e-9 * unit; k += 1) found.push(k * unit);
  return found;
}

function linePanel({ x, left, right, slot }, top, bottom) {
  const own = points(chosen), gains = creditOf(chosen) ? creditOf(chosen).gains : [], far = right - slot * 0.25;
  const others = group().rollouts.filter((index) => index !== chosen).map(points);
  const values = [...own, ...others.flat()].map(([, value]) => value), low = Math.min(...values), high = Math.max(...values);
  const air = high - low > 1e-9 ? 0.12 * (high - low) : 0.5;
  const y = (value) => bottom - (value - low + air) / (high - low + 2 * air) * (bottom - top);
  const line = (some, name) => svg("polyline", { class: name, points: some.filter(([turn]) => x(turn) <= far)
    .map(([turn, value]) => `${x(turn)},${y(value)}`).join(" ") });
  const grid = ticks(low - air, high + air, 5).map((value) => [
    svg("path", { d: `M${left} ${y(value)}H${right}`, class: "grid" }),
    svg("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, exact(Number(value.toFixed(6)))),
    svg("text", { x: right + 8, y: y(value) + 4, class: "soft" }, percent(Math.exp(value)))]);
  const marks = own.map(([turn, value], i) => {
    const gain = turn > 0 && gains.length ? gains[turn - 1] : null, where = turn ? "after turn " + turn : "question alone";
    const about = `${where}: log P(answer) ${number(value)}` + (gain === null ? "" : `, gain ${number(gain, true)}`);
    const above = gain !== null && value >= own[i - 1][1];
    return [svg("circle", { cx: x(turn), cy: y(value), r: slot < 14 ? 3 : 4.5, class: "point" }, svg("title", {}, about)),
      gain !== null && slot >= 34 && svg("text", { x: x(turn), y: y(value) + (above ? -10 : 20), "text-anchor": "middle",
        class: gain >= 0 ? "up" : "down" }, number(gain, true))];
  });
  return [grid, svg("text", { x: 6, y: 10, class: "soft" }, "log P"),
    svg("text", { x: right + 8, y: 10, class: "soft" }, "per token"),
    others.map((some) => line(some, "other")), line(own, "line"), marks];
}

function turnMark({ x, slot }, t, top) {
  const turn = rollout().turns[t], { letter, name, words } = KINDS[turn.kind], wide = Math.min(slot, 22) - 1;
  const numbered = (t + 1) % 5 === 0 || t === rollout().turns.length - 1;
  return svg("a", { href: "#turn-" + (t + 1), "aria-label": `turn ${t + 1}, ${name}` },
    svg("title", {}, `turn ${t + 1}: ${words}` + (turn.malformed ? ", malformed" : "")),
    svg("rect", { x: x(t + 1) - wide / 2, y: top, width: wide, height: 18, rx: 3,
      class: `mark kind-${turn.kind}` + (turn.malformed ? " broken" : "") }),
    slot >= 14 && svg("text", { x: x(t + 1), y: top + 13, "text-anchor": "middle", class: "letter" }, letter),
    slot < 14 && numbered && svg("text", { x: x(t + 1), y: top + 32, "text-anchor": "middle", class: "soft small" }, t + 1));
}

function barPanel({ x, left, right, slot }, bars, middle, scale) {
  const columns = bars.map((value, t) => {
    const size = Math.max(1, Math.abs(value) * scale), wide = Math.min(slot * 0.7, 34), up = value > 0;
    return [svg("rect", { x: x(t + 1) - wide / 2, y: up ? middle - size : middle, width: wide, height: size,
      class: "column " + (up ? "plus" : "minus") }, svg("title", {}, `turn ${t + 1}: advantage ${number(value, true)}`)),
    slot >= 40 && svg("text", { x: x(t + 1), y: up ? middle - size - 4 : middle + size + 12, "text-anchor": "middle" },
      number(value, true))];
  });
  return [svg("path", { d: `M${left} ${middle}H${right}`, class: "axis" }),
    svg("text", { x: left - 8, y: middle + 4, "text-anchor": "end" }, "A = 0"), columns];
}

function legend() {
  return el("figcaption", { class: "legend" },
    Object.entries(KINDS).map(([kind, about]) => el("span", {}, el("i", { class: "key kind-" + kind }, about.letter), about.name)),
    el("span", {}, el("i", { class: "key broken" }), "malformed"),
    has("trained") && el("span", {}, el("i", { class: "scale" }), "less · advantage · more"));
}

// ------------------------------------------------------------------------------------------------------------- the turns

function turnCard(turn, t) {
  const title = "turn-title-" + (t + 1), part = (name, content) => el("div", { class: "part" }, el("p", { class: "name" }, name), content);
  const value = advantage(t), chip = el("span", { class: "chip", title: "advantage under " + recipe }, "A ", number(value, true));
  const card = el("article", { class: "turn", id: "turn-" + (t + 1), tabindex: "-1", "aria-labelledby": title },
    el("header", {}, el("h3", { id: title }, "Turn " + (t + 1)), badge(turn.kind),
      turn.malformed ? el("span", { class: "verdict bad" }, "✗ malformed: ", turn.rule)
        : el("span", { class: "verdict good" }, "✓ well formed"),
      value !== null && shade(chip, value, largest("advantages"))),
    turn.remarks.length > 0 && el("ul", { class: "remarks" }, turn.remarks.map((text) => el("li", {}, text))),
    turn.thought && part("thought", thought(turn.thought)),
    turn.call !== null && part(turn.tool, el("ul", { class: "call" }, turn.call.split("\n").map((line) => el("li", {}, line)))),
    turn.answer !== null && part("answer", el("p", { class: "said answer" }, turn.answer)),
    turn.raw !== null && el("details", { class: "raw" }, el("summary", {}, "what it wrote, letter by letter"), el("pre", {}, turn.raw)),
    turn.observation !== null && el("details", { class: "observation" },
      el("summary", {}, "what came back ", el("span", { class: "soft" }, `(${turn.came_back})`)), el("pre", {}, turn.observation)),
    creditOf(chosen) && arithmetic(t));
  return shade(card, value, largest("advantages"));
}

function thought(text) {
  const words = el("p", { class: "said" }, text);
  if (text.length < CLAMPED) return words;
  words.classList.add("clamped");
  const button = el("button", { type: "button", class: "more", "aria-expanded": "false", click: () => {
    const short = words.classList.toggle("clamped");
    button.setAttribute("aria-expanded", String(!short));
    button.textContent = short ? "Show all of it" : "Show less";
  } }, "Show all of it");
  return el("div", {}, words, button);
}

// A row of numbers, each a button; the one that is pressed shows below how it came about.
function arithmetic(t) {
  const panel = el("div", { class: "panel", id: "how-" + (t + 1), hidden: true });
  const buttons = creditOf(chosen).steps[t].map((place) => {
    const [about, value, inputs, parts] = data.steps[place], { id, label, formula, words } = data.explanations[about];
    const button = el("button", { type: "button", class: "step", "data-step": id, "data-turn": t + 1, "data-value": value,
      "aria-expanded": "false", "aria-controls": panel.id, title: formula, click: () => {
        const open = button.getAttribute("aria-expanded") === "true";
        for (const other of buttons) other.setAttribute("aria-expanded", "false");
        button.setAttribute("aria-expanded", String(!open));
        panel.hidden = open;
        panel.replaceChildren(...explanation(formula, words, inputs, parts, value));
      } },
    el("span", { class: "step-name" }, label), " ",
    el("span", { class: "step-value" }, number(value, !/^(value|std|scale)/.test(id))));
    return button;
  });
  const arrow = () => el("span", { class: "arrow", "aria-hidden": "true" }, "›");
  return buttons.length > 0 && el("div", { class: "arithmetic", role: "group", "aria-label": `how turn ${t + 1} is paid` },
    buttons.map((button, i) => [i > 0 && arrow(), button]), panel);
}

function explanation(formula, words, inputs, parts, value) {
  const more = inputs.length - MOST_INPUTS;
  const listed = inputs.slice(0, MOST_INPUTS).map(([name, x]) => el("div", {}, el("dt", {}, name), el("dd", {}, exact(x))));
  const sums = parts.map(([turn, factor, term]) => el("li", {}, `turn ${turn}: ${number(factor)} × ${number(term, true)} = `,
    el("b", {}, number(factor * term, true))));
  const [before, equation] = formula.split(" [");
  return [el("p", { class: "formula" }, before, equation && el("span", { class: "tag soft" }, "[" + equation)),
    el("p", {}, words), el("dl", { class: "inputs" }, listed),
    more > 0 && el("p", { class: "soft" }, `and ${more} more`),
    parts.length > 1 && el("div", {}, el("p", {}, "Its largest parts:"), el("ul", { class: "from" }, sums)),
    value !== null && el("p", {}, "Exactly: ", el("b", {}, exact(value)))].filter(Boolean);
}

// ---------------------------------------------------------------------------------------------------------- side by side

function drawCompare() {
  const cards = data.recipes.map((one) => el("div", { class: "recipe" }, el("h3", {}, one.label), el("p", {}, one.words),
    one.missing ? el("p", { class: "bad" }, one.missing)
      : el("p", { class: "teaches" }, rollout().credit[one.name].teaches)));
  const labels = data.recipes.map((one) => one.label);
  const rows = rollout().turns.map((turn, t) => el("tr", {}, el("th", { scope: "row" }, el("a", { href: "#turn-" + (t + 1) }, t + 1), " ",
    badge(turn.kind), turn.malformed && el("span", { class: "bad", title: turn.rule }, " ✗")),
  data.recipes.map((one) => compareCell(rollout().credit[one.name], one.name, t))));
  const caption = has("trained") ? "Advantage of every turn; after it the reward that the turn itself has, if it has one."
    : "Reward of every turn, where it has one.";
  const different = Object.keys(data.recipes[0].settings)
    .filter((name) => new Set(data.recipes.map((one) => one.settings[name])).size > 1)
    .map((name) => el("tr", {}, el("th", { scope: "row" }, name), data.recipes.map((one) => el("td", {}, one.settings[name]))));
  draw("compare", el("div", { class: "recipes" }, cards), table(["turn", ...labels], rows, { class: "compare" }, caption),
    el("details", {}, el("summary", {}, "In which settings the recipes differ"), table(["setting", ...labels], different, {})));
}

function compareCell(credit, name, t) {
  if (!credit) return el("td", { class: "soft" }, "not scored");
  const reward = credit.rewards[t], paid = reward === null ? "" : number(reward, true);
  if (!credit.advantages) return shade(el("td", {}, paid), reward, largest("rewards"));
  return shade(el("td", { "data-recipe": name, "data-turn": t + 1, "data-value": credit.advantages[t] },
    number(credit.advantages[t], true), el("span", { class: "soft reward" }, paid && "r " + paid)),
  credit.advantages[t], largest("advantages"));
}

// ------------------------------------------------------------------------------------------------------------ the tokens

function drawTokens() {
  const turns = rollout().turns, gap = (what, count) => el("p", { class: "gap" },
    what + (count === null ? "" : `, ${count.toLocaleString("en")} tokens`) + ": read, never trained");
  const size = (turn) => turn.tokens ? turn.tokens.length : (turn.thought.length + (turn.call || turn.answer || "").length) / 4;
  const few = turns.reduce((sum, turn) => sum + size(turn), 0) < 1500;
  draw("token-list", gap("system prompt and question", turns[0].span && turns[0].span[0]), turns.map((turn, t) => {
    const value = advantage(t), next = turns[t + 1];
    const box = el("details", { class: "tokens" }, el("summary", {}, `turn ${t + 1} `, badge(turn.kind), " ",
      value !== null && el("span", { class: "soft" }, "A " + number(value, true))));
    box.addEventListener("toggle", () => {
      if (box.open && box.children.length === 1) box.append(tokenText(turn, value));
    });
    box.open = few;
    return [box, turn.observation !== null && gap("what came back", turn.span && next ? next.span[0] - turn.span[1] : null)];
  }));
}

function tokenText(turn, value) {
  const whole = turn.raw || [turn.thought, turn.call, turn.answer].filter(Boolean).join("\n"), most = largest("advantages");
  return el("pre", { class: "token-text" }, (turn.tokens || [[whole, undefined]]).map(([text, logprob]) => {
    const about = logprob === null ? "not sampled, never trained" : logprob === undefined ? "the turn as a whole"
      : `sampled with log-prob ${number(logprob)}` + (value === null ? "" : `, advantage ${number(value, true)}`);
    const token = el("span", { class: "token " + (logprob === null ? "masked" : "trained"), title: about },
      text.replaceAll("\n", "↵\n"));
    return logprob === null ? token : shade(token, value, most);
  }));
}

// ----------------------------------------------------------------------------------------------------------- the controls

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

function changed({ target }) {
  if (target.id === "group") pick(data.groups[target.value].rollouts[0]);
  if (target.name === "recipe") {
    recipe = target.value;
    redraw();
  }
  if (target.name === "colour") document.getElementById("token-list").className = "colour-" + target.value;
}

function moveByKey(event) {
  if (event.altKey || event.ctrlKey || event.metaKey || /^(input|select|textarea)$/i.test(event.target.tagName)) return;
  const step = { j: 1, k: -1 }[event.key], cards = [...document.querySelectorAll("article.turn")];
  if (!step) return;
  const at = cards.findIndex((card) => card.contains(document.activeElement));
  const next = cards[at < 0 ? 0 : Math.min(cards.length - 1, Math.max(0, at + step))];
  next.focus();
  next.scrollIntoView({ block: "start" });
}

for (const node of document.querySelectorAll("[data-if]")) if (!has(node.dataset.if)) node.remove();
if (has("recipes")) {
  recipe = (data.recipes.find((one) => one.trained && !one.missing) || data.recipes.find((one) => !one.missing)).name;
  document.getElementById("recipe-switch").append(...data.recipes.map((one) => el("label", { title: one.missing || one.words },
    el("input", { type: "radio", name: "recipe", value: one.name, checked: one.name === recipe, disabled: one.missing !== null }),
    el("span", {}, one.label))));
}
document.getElementById("token-list").className = has("trained") ? "colour-advantage" : "colour-mask";
for (const [id, open] of [["open-all", true], ["close-all", false]]) {
  document.getElementById(id).addEventListener("click", () => {
    document.querySelectorAll("details.observation").forEach((box) => { box.open = open; });
  });
}
document.addEventListener("change", changed);
document.addEventListener("keydown", moveByKey);
window.addEventListener("resize", drawChart);
redraw();
})();
