// The turns of a rollout: what the agent thought, did and saw, the verdict on its format, and the arithmetic of its reward.

function drawTurns(index, recipe) {
  const rollout = data.rollouts[index], largest = largestAdvantage(groupOf(index));
  return rollout.turns.map((turn, t) => turnCard(rollout, turn, t, recipe, largest));
}

function turnCard(rollout, turn, t, recipe, largest) {
  const a = recipe && arithmetic(rollout, recipe.name), advantage = a && a.advantages ? a.advantages[t] : null;
  const chip = advantage === null ? null
    : shade(el("span", { class: "chip", title: "advantage under " + recipe.name }, "A ", number(advantage, true)), advantage, largest);
  const card = el("article", { class: "turn", id: "turn-" + (t + 1), tabindex: "-1", "aria-labelledby": "turn-title-" + (t + 1) },
    el("header", {}, el("h3", { id: "turn-title-" + (t + 1) }, "Turn " + (t + 1) + " "), kindBadge(turn.kind), verdict(turn), chip),
    remarks(turn),
    turn.thought && el("div", { class: "part" }, el("p", { class: "name" }, "thought"), said(turn.thought)),
    turn.call !== null && el("div", { class: "part" }, el("p", { class: "name" }, turn.tool),
      el("ul", { class: "call" }, turn.call.split("\n").map((line) => el("li", {}, line)))),
    turn.answer !== null && el("div", { class: "part" }, el("p", { class: "name" }, "answer"), el("p", { class: "said answer" }, turn.answer)),
    turn.raw !== null && el("details", { class: "raw" }, el("summary", {}, "what it wrote, letter by letter"), el("pre", {}, turn.raw)),
    observation(turn),
    a && arithmeticRow(rollout, t, recipe));
  if (advantage !== null) shade(card, advantage, largest);
  return card;
}

// Long thoughts show their beginning first.
function said(text) {
  const words = el("p", { class: "said" }, text);
  if (text.length < 700) return words;
  words.classList.add("clamped");
  const button = el("button", { type: "button", class: "more", "aria-expanded": "false" }, "Show all of it");
  button.addEventListener("click", () => {
    const open = words.classList.toggle("clamped");
    button.setAttribute("aria-expanded", String(!open));
    button.textContent = open ? "Show all of it" : "Show less";
  });
  return el("div", {}, words, button);
}

function verdict(turn) {
  if (!turn.malformed) return el("span", { class: "verdict good" }, "\u2713 well formed");
  return el("span", { class: "verdict bad" }, "\u2717 malformed: ", turn.rule || "recorded as malformed when it was sampled");
}

function remarks(turn) {
  const found = [];
  if (turn.repeats !== null) found.push("the very same call as in turn " + (turn.repeats + 1));
  if (turn.unread && turn.tool) found.push("call not run: " + turn.unread);
  else if (turn.kind === "none" && turn.call !== null) found.push("the call came too late to be run");
  if (turn.tool_error) found.push("the tool reported an error: " + turn.tool_error);
  if (turn.discarded.length) found.push(count(turn.discarded.length, "attempt") + " thrown away: " + turn.discarded.join(", "));
  return found.length ? el("ul", { class: "remarks" }, found.map((text) => el("li", {}, text))) : null;
}

function observation(turn) {
  if (turn.observation === null) return null;
  const cost = turn.tool_seconds >= 0.05 ? ", " + turn.tool_seconds.toFixed(1) + "\u00a0s" : "";
  return el("details", { class: "observation" },
    el("summary", {}, "what came back ", el("span", { class: "soft" }, "(" + count(turn.observation.length, "character") + cost + ")")),
    el("pre", {}, turn.observation));
}

// A row of numbers, each a button; the one that is pressed shows below how it came about.
function arithmeticRow(rollout, t, recipe) {
  const made = steps(rollout, t, recipe), panel = el("div", { class: "panel", id: `how-${t + 1}`, hidden: true });
  const buttons = made.map((one) => {
    const button = el("button", { type: "button", class: "step", "data-step": one.id, "data-turn": t + 1, "aria-expanded": "false",
      "aria-controls": panel.id, "data-value": one.value, title: one.formula + (one.tag ? "   [" + one.tag + "]" : "") },
    el("span", { class: "step-name" }, one.label), " ", el("span", { class: "step-value" }, number(one.value, one.signed)));
    if (!reproduced(one)) button.classList.add("mismatch");
    button.addEventListener("click", () => {
      const open = button.getAttribute("aria-expanded") === "true";
      for (const other of buttons) other.setAttribute("aria-expanded", "false");
      panel.hidden = open;
      if (!open) {
        button.setAttribute("aria-expanded", "true");
        panel.replaceChildren(...explanation(one));
      }
    });
    return button;
  });
  if (!buttons.length) return null;
  return el("div", { class: "arithmetic", role: "group", "aria-label": `how turn ${t + 1} is paid under ${recipe.name}` },
    buttons.map((button, i) => [i ? el("span", { class: "arrow", "aria-hidden": "true" }, "\u203a") : null, button]), panel);
}

function explanation(made) {
  const most = 24, inputs = made.inputs.slice(0, most);
  return [
    el("p", { class: "formula" }, made.formula, made.tag ? el("span", { class: "tag" }, "[" + made.tag + "]") : null),
    el("p", {}, made.words),
    inputs.length > 0 && el("dl", { class: "inputs" }, inputs.map(([name, value]) => el("div", {}, el("dt", {}, name),
      el("dd", {}, value === null ? "none" : String(value).replace("-", "\u2212"))))),
    made.inputs.length > most && el("p", { class: "soft" }, "and " + (made.inputs.length - most) + " more"),
    made.contributions && made.contributions.length > 1 && contributionList(made.contributions),
    made.value !== null && el("p", {}, "Exactly: ", el("b", {}, String(made.value).replace("-", "\u2212")), reproduced(made) ? ""
      : el("b", { class: "bad" }, "  but the inputs give " + made.again)),
  ].filter(Boolean);
}

function contributionList(contributions) {
  const sizes = contributions.map(([k, term, factor]) => [k, term, factor, term * factor]);
  const shown = [...sizes].sort((p, q) => Math.abs(q[3]) - Math.abs(p[3])).slice(0, 8).sort((p, q) => p[0] - q[0]);
  return el("div", {}, el("p", {}, shown.length < sizes.length ? "Most of it comes from" : "It comes from"),
    el("ul", { class: "from" }, shown.map(([k, term, factor, size]) => el("li", {},
      `turn ${k + 1}: ${number(factor)} \u00d7 ${number(term, true)} = `, el("b", {}, number(size, true))))));
}
