"""Evaluations as text: one alone, and two side by side. Shares in percent, with 95 % intervals."""

from minvenus.console import table

SHOWN = 5                                 # problems that are named in the report; report.json has all of them


def report(summary: dict) -> str:
    """Everything about one evaluation."""
    problems = summary["problems"]
    rows = list(numbers(summary).items())
    rows += [("problem", plain(line)[:200]) for line in problems[:SHOWN]]
    if len(problems) > SHOWN:
        rows.append(("", f"and {len(problems) - SHOWN} more in report.json"))
    return table(rows, left=True)


def comparison(found: dict, names: tuple[str, str]) -> str:
    """The numbers of both side by side, and their difference in words."""
    a, b = numbers(found["a"]), numbers(found["b"])
    rows = [(name, a.get(name, "–"), b.get(name, "–")) for name in {**a, **b}]
    return f"{table([('', *names), *rows], left=True)}\n\n{difference(found)}"


def numbers(summary: dict) -> dict[str, str]:
    ended, means = summary["terminations"], summary["means"]
    unfinished = summary["runs"] - sum(ended[name] for name in ended if name.startswith("answered"))
    rows = {"graded by": summary["graded_by"], "accuracy": share(**summary["accuracy"])}
    for number, (source, part) in enumerate(summary["by_source"].items(), start=1):
        name = f"  {plain(source)[:40]}"
        rows[f"{name} ({number})" if name in rows else name] = share(**part)
    rows |= {f"pass@{k}": share(**part) for k, part in summary["pass_at_k"].items() if k > 1}
    rows["ended"] = counted(ended)
    if unfinished:
        rows["unfinished"] = f"{unfinished} without an answer, counted as wrong"
    rows |= {"mean F1": "{f1:.3f}, of the answer's words".format(**means),
             "turns": "{turns:.1f} per run: {searches:.1f} searches, {visits:.1f} visits".format(**means),
             "format errors": f"{percent(summary['malformed'])} of all turns",
             "tool errors": counted(summary["tool_errors"]) or "none",
             "tokens": "{tokens:,.0f} per run, {written:,.0f} of them written by the model".format(**means),
             "seconds": "{seconds:.2f} per run, while other runs share the machine".format(**means)}
    for name, ratio in summary["browse"].items():
        rows[f"browse, {name}"] = f"{percent(ratio)} of a run's calls are visits"
    return rows


def difference(found: dict) -> str:
    unpaired, unknown = found["unpaired"], found["unknown"]
    left_out = f"; {unpaired} questions only in one of them" if unpaired else ""
    left_out += f"; {unknown} without a verdict in one of them" if unknown else ""
    if not found["questions"]:
        return f"B - A: no question has a verdict in both{left_out}"
    if found["low"] is None:
        return f"B - A: {100 * found['difference']:+.1f} points, one question: no interval{left_out}"
    points, low, high = (100 * found[name] for name in ("difference", "low", "high"))
    clear = "" if low > 0 or high < 0 else ": no clear difference"
    paired = "paired over {questions} questions, {better} better and {worse} worse".format(**found)
    return f"B - A: {points:+.1f} points, 95 % interval {low:+.1f} to {high:+.1f}{clear}\n{paired}{left_out}"


def share(value, low, high, counted, unknown, worst, best) -> str:
    text = percent(value)
    if value is not None:
        text += f" [{100 * low:.1f}, {100 * high:.1f}] of {counted}"
    if unknown:
        text += f", {unknown} unknown"
    if worst != best:
        text += f"; unknown verdicts all wrong {percent(worst)}, all right {percent(best)}"
    return text


def counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def plain(text: str) -> str:
    """One line without control characters: question files, endpoints and judges may write anything."""
    return "".join(char if char.isprintable() else " " for char in text)
