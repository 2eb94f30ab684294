"""Evaluations as text: one alone, and two side by side. Shares in percent, with 95 % intervals."""

from minvenus.console import table
from minvenus.evaluation.aggregate import Share, Summary
from minvenus.evaluation.compare import Comparison

SHOWN = 5                                 # problems that are named in the report; report.json has all of them


def report(s: Summary) -> str:
    """Everything about one evaluation."""
    rows = list(numbers(s).items())
    rows += [("problem", plain(line)[:200]) for line in s.problems[:SHOWN]]
    if len(s.problems) > SHOWN:
        rows.append(("", f"and {len(s.problems) - SHOWN} more in report.json"))
    return table(rows, left=True)


def comparison(found: Comparison, names: tuple[str, str]) -> str:
    """The numbers of both side by side, and their difference in words."""
    a, b = numbers(found.a), numbers(found.b)
    rows = [(name, a.get(name, "–"), b.get(name, "–")) for name in {**a, **b}]
    return f"{table([('', *names), *rows], left=True)}\n\n{difference(found)}"


def numbers(s: Summary) -> dict[str, str]:
    rows = {"graded by": s.graded_by, "accuracy": share(s.accuracy)}
    rows |= {f"  {plain(source)[:40]}": share(part) for source, part in s.by_source.items()}
    rows |= {f"pass@{k}": share(found) for k, found in s.pass_at_k.items() if k > 1}
    rows["ended"] = ", ".join(f"{count} {name}" for name, count in s.terminations.items())
    unfinished = s.runs - sum(count for name, count in s.terminations.items() if name.startswith("answered"))
    if unfinished:
        rows["unfinished"] = f"{unfinished} without an answer, counted as wrong"
    m = s.means
    rows |= {"mean F1": f"{m['f1']:.3f}, of the answer's words",
             "turns": f"{m['turns']:.1f} per run: {m['searches']:.1f} searches, {m['visits']:.1f} visits",
             "format errors": f"{percent(s.malformed)} of all turns",
             "tool errors": ", ".join(f"{count} {kind}" for kind, count in s.tool_errors.items()) or "none",
             "tokens": f"{m['tokens']:,.0f} per run, {m['written']:,.0f} of them written by the model",
             "seconds": f"{m['seconds']:.2f} per run, while other runs share the machine"}
    rows |= {f"browse, {name}": f"{percent(ratio)} of a run's calls are visits" for name, ratio in s.browse.items()}
    return rows


def difference(d: Comparison) -> str:
    left_out = f"; {d.unpaired} questions only in one of them" if d.unpaired else ""
    left_out += f"; {d.unknown} without a verdict in one of them" if d.unknown else ""
    if d.difference is None or d.low is None or d.high is None:
        return f"B - A: no question has a verdict in both{left_out}"
    clear = "" if d.low > 0 or d.high < 0 else ": no clear difference"
    return (f"B - A: {100 * d.difference:+.1f} points, 95 % interval {100 * d.low:+.1f} to {100 * d.high:+.1f}{clear}\n"
            f"paired over {d.questions} questions, {d.better} better and {d.worse} worse{left_out}")


def plain(text: str) -> str:
    """One line without control characters: question files, endpoints and judges may write anything."""
    return "".join(char if char.isprintable() else " " for char in text)


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def share(found: Share) -> str:
    text = percent(found.value)
    if found.low is not None and found.high is not None:
        text += f" [{100 * found.low:.1f}, {100 * found.high:.1f}] of {found.counted}"
    if found.unknown:
        text += f", {found.unknown} unknown"
    if found.worst != found.best:
        text += f"; unknown verdicts all wrong {percent(found.worst)}, all right {percent(found.best)}"
    return text
