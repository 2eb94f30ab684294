// The token stream: what the policy chose, coloured by the advantage that training puts on it, or by whether it is trained at all.

function drawTokens(index, recipe) {
  const rollout = data.rollouts[index], a = recipe && arithmetic(rollout, recipe.name), largest = largestAdvantage(groupOf(index));
  const size = (turn) => turn.tokens ? turn.tokens.text.length : (turn.thought.length + (turn.call || turn.answer || "").length) / 4;
  const few = rollout.turns.reduce((sum, turn) => sum + size(turn), 0) < 1500;
  const first = rollout.turns[0].span ? rollout.turns[0].span[0] : null;
  const parts = [gap("system prompt and question", first)];
  rollout.turns.forEach((turn, t) => {
    const value = a && a.advantages ? a.advantages[t] : null, next = rollout.turns[t + 1];
    const box = el("details", { class: "tokens" }, el("summary", {}, "turn " + (t + 1) + " ", kindBadge(turn.kind), " ",
      value === null ? "" : el("span", { class: "soft" }, "A " + number(value, true))));
    box.addEventListener("toggle", () => {
      if (box.open && box.children.length === 1) box.append(tokenText(turn, value, largest));
    });
    box.open = few;
    parts.push(box);
    if (turn.observation !== null) {
      parts.push(gap("what came back", turn.span && next && next.span ? next.span[0] - turn.span[1] : null));
    }
  });
  return el("div", { class: "stream colour-" + state.colour }, parts);
}

function gap(what, tokens) {
  return el("p", { class: "gap" }, what + (tokens === null ? "" : ", " + count(tokens, "token")) + ": read, never trained");
}

function tokenText(turn, value, largest) {
  const box = el("pre", { class: "token-text" });
  if (!turn.tokens) {
    const text = [turn.thought, turn.call, turn.answer].filter(Boolean).join("\n");
    box.append(paint(el("span", { class: "token trained", title: "the turn as a whole" }, turn.raw || text), value, largest));
    return box;
  }
  turn.tokens.text.forEach((text, i) => {
    const chosen = !turn.tokens.sampled || turn.tokens.sampled[i] === 1, logprob = turn.tokens.logprob[i];
    const about = (chosen ? "sampled with log-prob " + number(logprob) : "not sampled, never trained")
      + (chosen && value !== null ? ", advantage " + number(value, true) : "");
    const token = el("span", { class: "token " + (chosen ? "trained" : "masked"), title: about }, text.replaceAll("\n", "\u21b5\n"));
    box.append(chosen ? paint(token, value, largest) : token);
  });
  return box;
}

function paint(token, value, largest) {
  return value === null ? token : shade(token, value, largest);
}
