"""The demo in miniature: its commands one after the other, each from the model before."""

import importlib
from dataclasses import replace
from pathlib import Path

import pytest

from minvenus.experiments import compare, demo
from minvenus.experiments.compare import flags_of, trained
from minvenus.experiments.demo import DemoConfig
from minvenus.flags import parse_flags
from minvenus.igpo.recipes import RECIPES
from minvenus.settings import EvalConfig, InferConfig
from minvenus.train.settings import IGPOConfig, SFTConfig

CONFIGS = dict(train_sft=SFTConfig, train_igpo=IGPOConfig, eval=EvalConfig, infer=InferConfig)


@pytest.fixture
def commands(monkeypatch):
    """Scripts run in this process, which saves an import of torch each. Gives the commands."""
    seen = []

    def run(script, **settings):
        name = Path(script).stem
        config = parse_flags(CONFIGS[name], flags_of(settings))
        seen.append((name, config))
        importlib.import_module(name).main(config)

    monkeypatch.setattr(compare, "run", run)
    monkeypatch.setattr(demo, "run", run)
    return seen


def test_sft_igpo_evaluation_audit_live_question_and_report_in_a_few_steps_each(
    tmp_path, commands, capsys
):
    config = DemoConfig(out=str(tmp_path), sft_steps=3, igpo_steps=2, batch=1, questions=4)
    printed = demo.main(config)
    names, configs = zip(*commands, strict=True)
    assert names == ("train_sft", "train_igpo", "eval", "eval", "eval", "infer")
    sft, igpo, before, after, compared, asked = configs
    assert sft.model == "tiny-base" and sft.steps == 3 and igpo.steps == 2
    assert igpo.model == before.agent.model == str(trained(sft.out, 3))
    assert after.agent.model == asked.agent.model == str(trained(igpo.out, 2))
    for evaluated in (before, after):
        assert (evaluated.limit, evaluated.agent.seed, evaluated.slack) == (4, 1, 0)
        assert evaluated.agent.temperature == 1.0
    assert igpo.hops is None and igpo.recipe == replace(RECIPES["uncentred"], format_penalty=None)
    assert (igpo.questions, igpo.evaluate_every, igpo.evaluate_questions) == (1, 2, 4)
    assert igpo.learning_rate == 9e-4 and asked.question == "test-3"
    assert igpo.seed != sft.seed, "other questions than were demonstrated"
    assert list(compared.compare) == [before.out, after.out] and before.out != after.out

    shown = capsys.readouterr().out
    assert "recipe uncentred, without the penalty for malformed turns" in shown
    assert "format errors" in shown and "browse, wrong" in shown  # the table of before and after
    assert "step 1:" in shown and "step 2:" in shown  # the audit, at the first and last step
    page = Path(igpo.out) / "report.html"
    assert str(page) in printed and page.stat().st_size > 10_000

    default = DemoConfig()
    assert (default.igpo_steps, default.batch, default.questions) == (60, 8, 256), "of the README"

    files = [*tmp_path.rglob("metrics.jsonl"), *tmp_path.rglob("results.jsonl")]
    contents = [file.read_bytes() for file in files]
    demo.main(config)
    assert f"{tmp_path} exists: what is finished there is shown again" in capsys.readouterr().out
    assert len(files) == 4, "nothing is trained or asked twice"
    assert [file.read_bytes() for file in files] == contents
