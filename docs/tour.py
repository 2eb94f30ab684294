"""Runs the cells of docs/tour.ipynb without any notebook software, and stores their outputs.

    python -m docs.tour                           after a cell was edited, or the code has changed
    python -m docs.tour --data ROLLOUTS MODEL     first writes docs/tour.json, the tour's group: 3
                                                  of a saved batch, and its log-probs after one
                                                  update of the model that sampled it

A test runs the cells in the same way and compares the outputs.
"""

import ast
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

from minvenus.agent.record import rollout_to_json
from minvenus.igpo.credit import assign_credit
from minvenus.igpo.loss import LossConfig
from minvenus.igpo.recipes import RECIPES
from minvenus.model.weights import load
from minvenus.report.saved import load_batch
from minvenus.train.optim import adamw
from minvenus.train.pack import pack_logprobs, rank_packs
from minvenus.train.settings import IGPOConfig
from minvenus.train.update import make_row, train_on

DOCS = Path(__file__).parent
NOTEBOOK = DOCS / "tour.ipynb"
DATA = DOCS / "tour.json"
GROUP = 3


def read_notebook() -> dict:
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))


def run(notebook: dict, names: dict[str, Any]) -> dict:
    """The notebook with the outputs of its code cells, which run in order in the namespace."""
    cells = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            with contextlib.chdir(DOCS):
                cell = cell | {"outputs": run_cell("".join(cell["source"]), names)}
        cells.append(cell)
    return notebook | {"cells": cells}


def run_cell(text: str, names: dict[str, Any]) -> list[dict]:
    """Run a cell; returns what it printed, and the picture that its last line is, if it is one."""
    tree = ast.parse(text)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    picture = None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), names)
        if last is not None:
            picture = eval(compile(ast.Expression(last.value), "cell", "eval"), names)

    outputs: list[dict] = []
    if printed.getvalue():
        lines = printed.getvalue().splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": lines})
    if picture is not None:
        data = {"image/svg+xml": picture._repr_svg_(), "text/plain": "a picture"}
        outputs.append({"output_type": "display_data", "metadata": {}, "data": data})
    return outputs


def write_data(rollouts: str, model: str) -> None:
    samples = [sample for sample in load_batch(rollouts).samples if sample.group == GROUP]
    policy = load(model)
    rows = []
    credit = assign_credit(samples, RECIPES["paper"])
    for sample, advantages in zip(samples, credit.advantages, strict=True):
        rows.append(make_row(sample.rollout, advantages))
    config = IGPOConfig(learning_rate=9e-4, loss=LossConfig(kl_coef=0.0))
    optimizer = adamw(policy, (0.9, 0.999), config.weight_decay)
    train_on(rows, policy, optimizer, config, step=1)

    lines = []
    for sample, row in zip(samples, rows, strict=True):
        [pack] = rank_packs([row.example], config.pack_tokens)
        line = {
            "group": 0,
            "rollout": rollout_to_json(sample.rollout),
            "truth_logprobs": sample.truth_logprobs,
            "outcome": sample.outcome,
            "logprobs_after": pack_logprobs(policy, pack).tolist(),
        }
        lines.append(json.dumps(line))
    DATA.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--data"]:
        write_data(*sys.argv[2:4])
    results = run(read_notebook(), {})
    NOTEBOOK.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(f"{NOTEBOOK.name}: {len(results['cells'])} cells")
