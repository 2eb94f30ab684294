"""A summary as lines of text, alone or beside others. Shares are printed in percent with their 95 % intervals."""

from collections.abc import Sequence

from minvenus.evaluation.aggregate import BrowseRatio, Share
from minvenus.evaluation.compare import Difference
from minvenus.evaluation.summary import Listed, Summary

NAME = 16                                 # columns of a row's name
SHOWN = 5                                 # runs that are named; all of them are in the JSON


def report(summary: Summary) -> str:
    """Everything about one evaluation."""
    s, m = summary, summary.means
    rows = [("accuracy", share(s.accuracy)), *parts(s), *several(s)]
    rows += [("mean F1", f"{m['f1']:.3f}, of the answer's words")] if "f1" in m else []
    rows += trouble(s)
    if s.runs:
        rows += [("turns", f"{m['turns']:.1f} per run: {m['searches']:.1f} searches, {m['visits']:.1f} visits"),
                 ("format errors", f"{percent(s.malformed)} of all turns, {m['malformed']:.2f} per run"),
                 ("tool errors", f"{m['tool_errors']:.2f} per run" + kinds(s.tool_errors)),
                 ("browse ratio", f"visits / (searches + visits), {browse(s.browse['all'])}")]
        rows += [(f"  {name}", browse(s.browse[name])) for name in ("correct", "wrong", "unknown") if s.browse[name].runs]
        per_question = s.runs / s.questions
        rows += [("tokens", f"{m['tokens']:,.0f} per run, {m['written']:,.0f} of them written by the model; "
                            f"{m['tokens'] * per_question:,.0f} per question"),
                 ("seconds", f"{m['seconds']:.2f} per run, other runs' work in between included; "
                             f"{m['seconds'] * per_question:.2f} per question")]
    return lines(rows)


def several(s: Summary) -> list[tuple[str, str]]:
    """What only several runs of a question have."""
    if s.k < 2:
        return []
    rows = [(f"avg@{s.k}", f"{percent(s.averages.avg)}   mean of the runs' accuracies; the best one: {percent(s.averages.best)}")]
    rows += [(f"pass@{k} any", share(found)) for k, found in s.pass_any.items() if k > 1]
    return rows + [(f"pass@{k} unbiased", share(found)) for k, found in s.pass_unbiased.items() if k > 1]


def parts(s: Summary) -> list[tuple[str, str]]:
    rows = [(f"  {hops} hop{'s' * (hops != 1)}", share(part)) for hops, part in s.by_hops.items()]
    return rows + [(f"  {plain(str(source))[:40]}", share(part)) for source, part in s.by_source.items()]


def trouble(s: Summary) -> list[tuple[str, str]]:
    rows = [("ended", ", ".join(f"{count} {name}" for name, count in s.terminations.items()) or "no run yet")]
    if s.unfinished:
        rows.append(("unfinished", f"{len(s.unfinished)} without an answer, counted as wrong" + names(s.unfinished)))
    if s.failed:
        rows.append(("failed", f"{len(s.failed)} ended in an error, counted as wrong" + names(s.failed)))
    if s.unknown:
        a = s.accuracy
        rows.append(("no verdict", f"{len(s.unknown)} answers, in no accuracy above; with all of them wrong {percent(a.worst)}, "
                                   f"right {percent(a.best)}" + names(s.unknown)))
    return rows


def names(some: Sequence[Listed]) -> str:
    """A few of them."""
    shown = [plain(f"{one.question} run {one.run}: {one.note[:200] or one.termination}") for one in some[:SHOWN]]
    return "".join(f"\n{line}" for line in shown) + (f"\nand {len(some) - SHOWN} more" if len(some) > SHOWN else "")


# ------------------------------------------------------------------------------------------------------------ side by side


def side_by_side(summaries: dict[str, Summary]) -> str:
    """The same few numbers of several evaluations, a column each."""
    some = list(summaries.values())
    hops = sorted({hops for s in some for hops in s.by_hops}, key=str)
    rows = [("accuracy", [share(s.accuracy, count=False) for s in some])]
    rows += [(f"  {h} hop{'s' * (h != 1)}", [share(s.by_hops.get(h), count=False) for s in some]) for h in hops]
    if any(s.k > 1 for s in some):
        rows.append(("pass@k any", [f"{share(s.pass_any.get(s.k), count=False)}, k = {s.k}" for s in some]))
    rows += [("runs", [f"{s.runs}" for s in some]), ("no verdict", [f"{len(s.unknown)}" for s in some]),
             ("unfinished", [f"{len(s.unfinished)}, {len(s.failed)} failed" for s in some]),
             ("turns", [mean(s, "turns") for s in some]),
             ("format errors", [percent(s.malformed) + " of turns" for s in some]),
             ("tool errors", [mean(s, "tool_errors", 2) + " per run" for s in some])]
    rows += [(f"browse, {name}", [number(s.browse[name].macro) for s in some]) for name in ("correct", "wrong")]
    rows += [("tokens", [mean(s, "tokens", 0) + " per run" for s in some])]
    widths = [max(len(name), *(len(cells[i]) for _, cells in rows)) for i, name in enumerate(summaries)]
    listed = [("", list(summaries)), *rows]
    return "\n".join(f"{name:<{NAME}}" + "  ".join(f"{cell:<{w}}" for cell, w in zip(cells, widths, strict=True)).rstrip()
                     for name, cells in listed)


def difference(found: Difference, a: str = "A", b: str = "B") -> str:
    """B minus A in words."""
    left_out = f"; {found.unpaired} questions only in one of them" if found.unpaired else ""
    left_out += f"; {found.unknown} without a verdict in one of them" if found.unknown else ""
    if found.value is None or found.low is None or found.high is None:
        return f"{b} - {a}: no question has a verdict in both{left_out}"
    points = [100 * x for x in (found.value, found.low, found.high)]
    sure = "" if found.low > 0 or found.high < 0 else ": no clear difference"
    return (f"{b} - {a}: {points[0]:+.1f} points, 95 % interval {points[1]:+.1f} to {points[2]:+.1f}{sure}\n"
            f"paired over {found.questions} questions, {found.better} better and {found.worse} worse{left_out}")


# ------------------------------------------------------------------------------------------------------------------- cells


def lines(rows: Sequence[tuple[str, str]]) -> str:
    """Name and text; further lines of a text stand below its first."""
    width = max(NAME, *(len(name) + 2 for name, _ in rows))
    return "\n".join(f"{name:<{width}}" + text.replace("\n", "\n" + " " * width) for name, text in rows)


def plain(text: str) -> str:
    """One line without control characters: question files, endpoints and judges may write anything."""
    return "".join(char if char.isprintable() else " " for char in text)


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def mean(s: Summary, name: str, digits: int = 1) -> str:
    return f"{s.means[name]:,.{digits}f}" if name in s.means else "–"


def share(found: Share | None, count: bool = True) -> str:
    if found is None or found.value is None or found.low is None or found.high is None:
        return "–" + (f"   {found.unknown} without a verdict" if found and found.unknown else "")
    text = f"{percent(found.value)} [{100 * found.low:.1f}, {100 * found.high:.1f}]"
    if count:
        text += f"   of {found.counted}"
        text += f", {found.unknown} without a verdict" if found.unknown else ""
        text += f", {found.short} with fewer runs" if found.short else ""
    return text


def browse(ratio: BrowseRatio) -> str:
    skipped = f", {ratio.skipped} made none" if ratio.skipped else ""
    return f"{number(ratio.macro)} mean, {number(ratio.pooled)} pooled   of {ratio.runs} runs with a call{skipped}"


def kinds(errors: dict[str, int]) -> str:
    return ": " + ", ".join(f"{count} {kind}" for kind, count in errors.items()) if errors else ""
