"""Evaluations as text: one alone, two side by side, and the published numbers. Shares in percent, 95 % intervals."""

from minvenus.console import table
from minvenus.evaluation.aggregate import BrowseRatio, Share, Summary
from minvenus.evaluation.compare import Comparison

SHOWN = 5                                 # runs that are named in the report; report.json has all of them

# Published accuracies (%), made with other judges, tools and dates than yours. Those of GAIA and xBench look like
# avg@3. None = not reported.
BENCHMARKS = ("BrowseComp", "BrowseComp-ZH", "GAIA", "xBench-DS-2505", "xBench-DS-2510", "DeepSearchQA")
PUBLISHED: dict[str, tuple[float | None, ...]] = {
    "DeepDive-9B-SFT": (5.6, 15.7, None, 35.0, None, None),
    "DeepDive-9B-RL": (6.3, 15.1, None, 38.0, None, None),
    "WebSailor-7B": (6.7, 14.2, 37.9, 34.3, None, None),
    "OffSeeker-8B-SFT": (10.6, 24.2, 47.6, 48.0, None, None),
    "OffSeeker-8B-DPO": (12.8, 26.6, 51.5, 49.0, None, None),
    "WebExplorer-8B-RL": (15.7, 32.0, 50.0, 53.7, 23.0, 17.8),
    "AgentCPM-Explore-4B": (24.1, 29.1, 63.9, 70.0, 34.0, 32.8),
    "DR-Venus-4B-SFT": (26.8, 35.7, 65.4, 69.0, 35.3, 37.7),
    "DR-Venus-4B-RL": (29.1, 37.7, 64.4, 74.7, 40.7, 39.6),
}


def report(s: Summary) -> str:
    """Everything about one evaluation."""
    return table([*numbers(s).items(), *problems(s)], left=True)


def comparison(found: Comparison, names: tuple[str, str] = ("A", "B")) -> str:
    """The numbers of both side by side, and their difference in words."""
    a, b = numbers(found.a), numbers(found.b)
    rows = [(name, a.get(name, "–"), b.get(name, "–")) for name in {**a, **b}]
    return f"{table([('', *names), *rows], left=True)}\n\n{difference(found)}"


def numbers(s: Summary) -> dict[str, str]:
    rows = {"graded by": s.graded_by or "–", "accuracy": share(s.accuracy)}
    rows |= {f"  {hops} hop{'s' * (hops != 1)}": share(part) for hops, part in s.by_hops.items()}
    rows |= {f"  {plain(str(source))[:40]}": share(part) for source, part in s.by_source.items()}
    if s.k > 1:
        best = max((one.value for one in s.each_run if one.value is not None), default=None)
        rows[f"avg@{s.k}"] = f"{percent(s.avg)}, the best run {percent(best)}"
        rows |= {f"pass@{k} any": share(found) for k, found in s.pass_any.items() if k > 1}
        rows |= {f"pass@{k} unbiased": share(found) for k, found in s.pass_unbiased.items() if k > 1}
    rows["ended"] = ", ".join(f"{count} {name}" for name, count in s.terminations.items()) or "no run yet"
    if s.runs:
        m = s.means
        kinds = ", ".join(f"{count} {kind}" for kind, count in s.tool_errors.items())
        rows |= {"mean F1": f"{m['f1']:.3f}, of the answer's words",
                 "turns": f"{m['turns']:.1f} per run: {m['searches']:.1f} searches, {m['visits']:.1f} visits",
                 "format errors": f"{percent(s.malformed)} of all turns, {m['malformed']:.2f} per run",
                 "tool errors": f"{m['tool_errors']:.2f} per run" + (f": {kinds}" if kinds else ""),
                 "tokens": f"{m['tokens']:,.0f} per run, {m['written']:,.0f} of them written by the model",
                 "seconds": f"{m['seconds']:.2f} per run, while other runs share the machine"}
    rows |= {f"browse, {name}": browse(ratio) for name, ratio in s.browse.items() if ratio.runs}
    return rows


def problems(s: Summary) -> list[tuple[str, str]]:
    rows = []
    for name, some, words in (("unfinished", s.unfinished, "without an answer, counted as wrong"),
                              ("failed", s.failed, "ended in an error, counted as wrong"),
                              ("no verdict", s.unknown, "answered, in no accuracy above")):
        if some:
            rows.append((name, f"{len(some)} {words}"))
        rows += [("", plain(f"{r.question} run {r.run}: {r.note[:200] or r.termination}")) for r in some[:SHOWN]]
        if len(some) > SHOWN:
            rows.append(("", f"and {len(some) - SHOWN} more"))
    return rows


def difference(found: Comparison) -> str:
    d = found.difference
    left_out = f"; {d.unpaired} questions only in one of them" if d.unpaired else ""
    left_out += f"; {d.unknown} without a verdict in one of them" if d.unknown else ""
    if d.value is None or d.low is None or d.high is None:
        return f"B - A: no question has a verdict in both{left_out}"
    clear = "" if d.low > 0 or d.high < 0 else ": no clear difference"
    return (f"B - A: {100 * d.value:+.1f} points, 95 % interval {100 * d.low:+.1f} to {100 * d.high:+.1f}{clear}\n"
            f"paired over {d.questions} questions, {d.better} better and {d.worse} worse{left_out}")


def published() -> str:
    rows: list[tuple[str, ...]] = [("", *BENCHMARKS)]
    for model, values in PUBLISHED.items():
        rows.append((model, *("–" if value is None else f"{value:.1f}" for value in values)))
    return table(rows)


# ------------------------------------------------------------------------------------------------------------ cells


def plain(text: str) -> str:
    """One line without control characters: question files, endpoints and judges may write anything."""
    return "".join(char if char.isprintable() else " " for char in text)


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def share(found: Share) -> str:
    if found.value is None or found.low is None or found.high is None:
        text = "–"
    else:
        text = f"{percent(found.value)} [{100 * found.low:.1f}, {100 * found.high:.1f}] of {found.counted}"
    if found.unknown:
        text += f", {found.unknown} unknown"
    if found.worst != found.best:
        text += f"; unknown verdicts all wrong {percent(found.worst)}, all right {percent(found.best)}"
    return text


def browse(ratio: BrowseRatio) -> str:
    """Visits / (searches + visits)."""
    skipped = f", {ratio.skipped} made none" if ratio.skipped else ""
    return f"{ratio.macro:.3f} mean, {ratio.pooled:.3f} pooled, of {ratio.runs} runs with a call{skipped}"
