"""The page of a comparison: what of the runs it shows, and what it leaves out."""

from minvenus.experiments import compare_page
from minvenus.experiments.compare_page import gains_by_hop
from minvenus.experiments.results import Outcome


def folder_with(tmp_path, files: dict[str, dict], monkeypatch):
    """Runs with saved rollouts; the gains in them are given, not measured."""
    for path in files:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("")
    monkeypatch.setattr(compare_page, "run_gains", lambda file: files[str(file.relative_to(tmp_path))])
    return tmp_path


def test_gains_by_hop_are_means_over_seeds_of_right_visits_only_at_the_first_and_the_last_saved_step(tmp_path, monkeypatch):
    folder = folder_with(tmp_path, {
        "paper-1/rollouts/step-000000.jsonl": {("right", 1): [0.1, 0.3], ("wrong", 1): [-9.0], ("repeated", 2): [7.0]},
        "paper-1/rollouts/step-000020.jsonl": {("right", 1): [50.0]},                                   # neither first nor last
        "paper-1/rollouts/step-000039.jsonl": {("right", 2): [0.5]},
        "paper-2/rollouts/step-000000.jsonl": {("right", 1): [0.8], ("right", 4): [-0.25]},
        "paper-2/rollouts/step-000039.jsonl": {("failed", 3): [1.0]},
    }, monkeypatch)
    runs = [Outcome(seed, {}, 0.0, 0.0, 0.0, {}) for seed in (1, 2)]
    [shown] = gains_by_hop(folder, {"grpo": runs, "paper": runs})
    cells = [cell.strip() for cell in shown.replace("</td>", "|").replace("<td>", "|").split("|")]
    assert "grpo" not in shown                                                                          # it has saved none
    assert "+0.40" in cells and "-0.25" in cells and "+0.50" in cells
    assert not any(text in shown for text in ("9.0", "7.0", "50.0", "+1.00"))


def test_runs_without_saved_rollouts_have_no_section(tmp_path):
    assert gains_by_hop(tmp_path, {"paper": [Outcome(1, {}, 0.0, 0.0, 0.0, {})]}) == []
