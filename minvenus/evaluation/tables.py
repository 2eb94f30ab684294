"""The summary of an evaluation, and the comparison of two (aggregate.py), as tables of text."""

from minvenus.console import table

PROBLEMS = 5                          # that are shown; report.json has all of them
MEANS = {
    "mean F1": "{f1:.3f}, of the answer's words",
    "turns": "{turns:.1f} per run: {searches:.1f} searches, {visits:.1f} visits",
    "tokens": "{tokens:,.0f} per run",
    "seconds": "{seconds:.2f} per run, while other runs share the machine"}

PAIRS = ("paired over {questions} questions, {better} better and {worse} worse; beside them "
         "{unpaired} only in one of the two, {unknown} without a verdict in one")


def report_text(summary: dict) -> str:
    """Everything about one evaluation."""
    rows = list(named_numbers(summary).items())
    problems = summary["problems"]
    for line in problems[:PROBLEMS]:
        rows.append(("problem", plain(line)[:200]))
    if len(problems) > PROBLEMS:
        rows.append(("", f"and {len(problems) - PROBLEMS} more in report.json"))
    return table(rows, left=True)


def comparison_text(comparison: dict, names: tuple[str, str]) -> str:
    """The numbers of both side by side, and their difference in words."""
    a = named_numbers(comparison["a"])
    b = named_numbers(comparison["b"])
    rows = [("", *names)]
    for name in a | b:
        rows.append((name, a.get(name, "–"), b.get(name, "–")))

    points, low, high = (100 * comparison[name] for name in ("difference", "low", "high"))
    difference = f"B - A: {points:+.1f} points, 95 % interval {low:+.1f} to {high:+.1f}"
    if low <= 0 <= high:
        difference += ": no clear difference"

    pairs = PAIRS.format(**comparison)
    return f"{table(rows, left=True)}\n\n{difference}\n{pairs}"


def named_numbers(summary: dict) -> dict[str, str]:
    """Shares in percent, with 95 % intervals."""
    rows = {"graded by": summary["graded_by"], "accuracy": share_text(summary["accuracy"])}
    for source, part in summary["by_source"].items():
        rows[f"  {plain(source)}"] = share_text(part)
    for k, part in summary["pass_at_k"].items():
        rows[f"pass@{k}"] = share_text(part)

    rows["ended"] = counted(summary["terminations"])
    for label, words in MEANS.items():
        rows[label] = words.format(**summary["means"])
    if "right_pages" in summary["means"]:
        rows["right pages"] = f"{percent(summary['means']['right_pages'])} of the path visited"
    rows["format errors"] = f"{percent(summary['malformed'])} of all turns"
    rows["tool errors"] = counted(summary["tool_errors"]) or "none"
    for name, ratio in summary["browse"].items():
        if ratio is not None:
            rows[f"browse, {name}"] = f"{percent(ratio)} of a run's calls are visits"
    return rows


def share_text(part: dict) -> str:
    text = "–"
    if part["value"] is not None:
        low, high = 100 * part["low"], 100 * part["high"]
        text = f"{percent(part['value'])} [{low:.1f}, {high:.1f}] of {part['counted']}"
    if part["unknown"]:
        text += f", {part['unknown']} unknown"
    return text


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def plain(text: str) -> str:
    """One line without control characters: question files, endpoints and judges may write
    anything."""
    return "".join(char if char.isprintable() else " " for char in text)
