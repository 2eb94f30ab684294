// log P(answer) after every turn as a line, and the advantage of every turn as a bar below it, on one axis of turns.

function ticks(low, high, about) {
  const rough = (high - low) / about, power = 10 ** Math.floor(Math.log10(rough));
  const unit = [1, 2, 5, 10].map((m) => m * power).find((m) => m >= rough * 0.999);
  const found = [];
  for (let k = Math.ceil(low / unit - 1e-9); k * unit <= high + 1e-9 * unit; k += 1) found.push(k * unit);
  return found;
}

function widened(values) {
  const low = Math.min(...values), high = Math.max(...values), air = high - low > 1e-9 ? 0.12 * (high - low) : 0.5;
  return [low - air, high + air];
}

// The points of a rollout: [turn, value] with turn 0 for the question alone.
function measuredPoints(rollout) {
  return rollout.measured.map((value, t) => [t, value]).filter(([, value]) => value !== null);
}

function drawChart(index, recipe, width) {
  const rollout = data.rollouts[index], group = groupOf(index), turns = rollout.turns.length;
  const points = measuredPoints(rollout), a = recipe && arithmetic(rollout, recipe.name), bars = a && a.advantages;
  const left = 58, right = 66, slot = Math.max(9, (width - left - right) / (turns + 1)), full = left + right + slot * (turns + 1);
  const x = (turn) => left + slot * (turn + 0.5);
  const lineHeight = points.length ? 190 : 0, barTop = lineHeight + (slot < 14 ? 46 : 34), largest = largestAdvantage(group);
  const rise = (sign) => bars ? Math.max(0, ...bars.map((v) => sign * v)) / (largest || 1) * 50 + 22 : 0;       // room of the bars
  const height = barTop + rise(1) + rise(-1);
  const parts = [];
  if (points.length) parts.push(...linePanel(index, group, points, x, left, full - right, 14, lineHeight, a, slot));
  parts.push(...turnMarks(rollout, x, lineHeight + 6, slot));
  if (bars) parts.push(...barPanel(bars, x, left, full - right, barTop + rise(1), 50 / (largest || 1), slot));
  const title = "log P(answer) after each turn" + (bars ? ", and the advantage of each turn under " + recipe.name : "");
  return svg("svg", { viewBox: `0 0 ${full} ${height}`, width: full, height, role: "group", "aria-label": title, class: "chart" }, parts);
}

function linePanel(index, group, points, x, left, right, top, bottom, a, slot) {
  const others = group.rollouts.filter((i) => i !== index).map((i) => measuredPoints(data.rollouts[i])).filter((p) => p.length > 1);
  const [low, high] = widened([...points, ...others.flat()].map(([, value]) => value));
  const y = (value) => bottom - (value - low) / (high - low) * (bottom - top);
  const parts = ticks(low, high, 5).map((value) => svg("g", {},
    svg("path", { d: `M${left} ${y(value)}H${right}`, class: "grid" }),
    svg("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, Number(value.toFixed(6)).toString().replace("-", "\u2212")),
    svg("text", { x: right + 8, y: y(value) + 4, class: "soft" }, percent(Math.exp(value)))));
  parts.push(svg("text", { x: 6, y: 10, class: "soft" }, "log P"), svg("text", { x: right + 8, y: 10, class: "soft" }, "per token"));
  const far = right - slot * 0.25;
  for (const other of others) {
    const shown = other.filter(([turn]) => x(turn) <= far);
    parts.push(svg("polyline", { points: shown.map(([turn, value]) => `${x(turn)},${y(value)}`).join(" "), class: "other" }));
  }
  parts.push(svg("polyline", { points: points.map(([turn, value]) => `${x(turn)},${y(value)}`).join(" "), class: "line" }));
  points.forEach(([turn, value], i) => {
    const gain = a && turn > 0 ? a.gains[turn - 1] : null, where = turn ? "after turn " + turn : "question alone";
    const mark = svg("circle", { cx: x(turn), cy: y(value), r: slot < 14 ? 3 : 4.5, class: "point" },
      svg("title", {}, `${where}: log P(answer) ${number(value)}` + (gain !== null ? `, gain ${number(gain, true)}` : "")));
    parts.push(mark);
    if (gain !== null && slot >= 34) {
      const above = value >= points[i - 1][1];
      parts.push(svg("text", { x: x(turn), y: y(value) + (above ? -10 : 20), "text-anchor": "middle", class: gain >= 0 ? "up" : "down" },
        number(gain, true)));
    }
  });
  return parts;
}

function turnMarks(rollout, x, top, slot) {
  const every = slot >= 16 ? 1 : 5;
  const marks = rollout.turns.map((turn, t) => {
    const shown = (t + 1) % every === 0 || t === rollout.turns.length - 1 || every === 1;
    return svg("a", { href: "#turn-" + (t + 1), "aria-label": `turn ${t + 1}, ${KINDS[turn.kind].name}` },
      svg("title", {}, `turn ${t + 1}: ${KINDS[turn.kind].words}` + (turn.malformed ? ", malformed" : "")),
      svg("rect", { x: x(t + 1) - Math.min(slot, 22) / 2 + 0.5, y: top, width: Math.min(slot, 22) - 1, height: 18, rx: 3,
        class: "mark kind-" + turn.kind + (turn.malformed ? " broken" : "") }),
      slot >= 14 && svg("text", { x: x(t + 1), y: top + 13, "text-anchor": "middle", class: "letter" }, KINDS[turn.kind].letter),
      slot < 14 && shown && svg("text", { x: x(t + 1), y: top + 32, "text-anchor": "middle", class: "soft small" }, String(t + 1)));
  });
  return [slot >= 40 ? svg("text", { x: x(0), y: top + 13, "text-anchor": "middle", class: "soft" }, slot >= 60 ? "question" : "Q") : null,
    ...marks];
}

function barPanel(bars, x, left, right, middle, scale, slot) {
  const parts = [svg("path", { d: `M${left} ${middle}H${right}`, class: "axis" }),
    svg("text", { x: left - 8, y: middle + 4, "text-anchor": "end" }, "A = 0")];
  bars.forEach((value, t) => {
    const size = Math.max(1, Math.abs(value) * scale), wide = Math.min(slot * 0.7, 34);
    parts.push(svg("rect", { x: x(t + 1) - wide / 2, y: value > 0 ? middle - size : middle, width: wide, height: size,
      class: "column " + (value > 0 ? "plus" : "minus") }, svg("title", {}, `turn ${t + 1}: advantage ${number(value, true)}`)));
    if (slot >= 40) {
      parts.push(svg("text", { x: x(t + 1), y: value > 0 ? middle - size - 4 : middle + size + 12, "text-anchor": "middle" },
        number(value, true)));
    }
  });
  return parts;
}

// A small line without axes, for the list of rollouts.
function sparkline(rollout, low, high) {
  const points = measuredPoints(rollout), width = 92, height = 24;
  if (points.length < 2) return el("span", { class: "soft" }, "not scored");
  const x = (turn) => 3 + turn / Math.max(1, rollout.turns.length - 1) * (width - 6);
  const y = (value) => height - 4 - (value - low) / (high - low || 1) * (height - 8);
  const [turn, value] = points[points.length - 1];
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, class: "spark", role: "img",
    "aria-label": `log P(answer) from ${number(points[0][1])} to ${number(value)}` },
    svg("polyline", { points: points.map(([t, v]) => `${x(t)},${y(v)}`).join(" "), class: "line" }),
    svg("circle", { cx: x(turn), cy: y(value), r: 2.5, class: "point" }));
}
