"""What a comparison fixed before its first run, and what was changed afterwards: OUT/plan.json

    {"plan": the settings and the metric, "runs_before": [...], "changes": [{"runs": 12, "settings": {...}}, ...]}

The file is written before the first run. Every later start with other settings adds what differs, and how many runs had
begun by then; nothing is ever taken out. The page and the terminal say so.
"""

from pathlib import Path

from minvenus.config import read_json
from minvenus.files import write_json


def register(folder: Path, settings: dict, begun: list[str]) -> list[str]:
    """Write the plan, or what differs from it; `begun` names the runs that there are already. Returns what a reader
    must know, in sentences."""
    path = folder / "plan.json"
    if not path.is_file():
        write_json(path, {"plan": settings, "runs_before": begun, "changes": []})
    saved = read_json(path)
    latest = saved["plan"]
    for change in saved["changes"]:
        latest = latest | {key: new for key, (_, new) in change["settings"].items()}
    changed = {key: [latest.get(key), value] for key, value in settings.items() if latest.get(key) != value}
    if changed:
        saved["changes"].append({"runs": len(begun), "settings": changed})
        write_json(path, saved)
    found = []
    if saved["runs_before"]:
        found.append(f"The plan is not from before the first run: {len(saved['runs_before'])} runs had begun.")
    for change in saved["changes"]:
        listed = ", ".join(f"{key} from {old} to {new}" for key, (old, new) in change["settings"].items())
        found.append(f"Changed after the plan was written, when {change['runs']} runs had begun: {listed}.")
    return found or ["Metric, step, seeds and all other settings were fixed before the first run and not changed."]
