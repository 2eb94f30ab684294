// Making elements, and showing numbers. Text only ever enters as text: nothing here, or in the other scripts, parses HTML.

const data = JSON.parse(document.getElementById("data").textContent);
const state = { rollout: 0, recipe: null, colour: "advantage" };

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "on") for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) node.append(child);      // a string becomes a text node
  }
  return node;
}

function el(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function section(id, title, intro, ...children) {
  return el("section", { id, "aria-labelledby": id + "-title" }, el("h2", { id: id + "-title" }, title),
    intro && el("p", { class: "intro" }, intro), ...children);
}

// Three digits behind the point, fewer of large numbers; powers of ten where that would show nothing.
function number(x, signed) {
  if (x === null || x === undefined) return "none";
  const size = Math.abs(x);
  let text = size >= 1e5 ? size.toExponential(2) : size.toFixed(size >= 1000 ? 1 : size >= 100 ? 2 : 3);
  if (size !== 0 && size < 0.0005) text = size.toExponential(1);
  return (x < 0 ? "\u2212" : signed && x > 0 ? "+" : "") + text;
}

function percent(x) {
  const p = 100 * x;
  return (p >= 10 || p === 0 ? p.toFixed(0) : p >= 0.001 ? Number(p.toPrecision(2)).toString() : p.toExponential(0)) + "\u00a0%";
}

function count(n, one, many) {
  return n.toLocaleString("en") + "\u00a0" + (n === 1 ? one : many || one + "s");
}

// Blue for more of it, orange for less; how strong says how much. The number or its sign always stands there too.
function shade(node, value, largest) {
  if (value === null || value === undefined || !largest) return node;
  const strength = Math.min(1, Math.abs(value) / largest);
  if (Math.abs(value) > 1e-9) node.classList.add("shade", value > 0 ? "plus" : "minus");
  node.style.setProperty("--strength", (12 + 50 * strength).toFixed(1) + "%");
  return node;
}

const KINDS = {
  search: { letter: "S", name: "search", words: "looked for pages" },
  visit: { letter: "V", name: "visit", words: "read a page" },
  answer: { letter: "A", name: "answer", words: "gave its answer" },
  none: { letter: "?", name: "no action", words: "wrote nothing that could be run" },
};

function kindBadge(kind) {
  return el("span", { class: "badge kind-" + kind, title: KINDS[kind].words }, KINDS[kind].name);
}

function recipeNamed(name) {
  return data.recipes.find((recipe) => recipe.name === name);
}

function recipeLabel(recipe) {
  return recipe.name + (recipe.trained && recipe.name !== "this run" ? " (this run)" : "");
}

function arithmetic(rollout, recipeName) {
  return rollout.arithmetic[recipeName] || null;
}

function groupOf(index) {
  return data.groups.find((group) => group.rollouts.includes(index));
}

// The strongest colour stands for the largest advantage that any recipe gives any turn of the group: colours can be compared.
function largestAdvantage(group) {
  let largest = 0;
  for (const index of group.rollouts) {
    for (const a of Object.values(data.rollouts[index].arithmetic)) {
      for (const value of a.advantages || []) largest = Math.max(largest, Math.abs(value));
    }
  }
  return largest;
}

function rolloutName(index) {
  const rollout = data.rollouts[index], group = groupOf(index);
  return rollout.label || "rollout " + (group.rollouts.indexOf(index) + 1);
}
