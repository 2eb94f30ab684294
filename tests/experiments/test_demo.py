"""The demo: every script of it runs, in order, and what it promises is there."""

import json

import pytest

from minvenus.config import ConfigError
from minvenus.experiments import demo
from minvenus.experiments.demo import DemoConfig
from minvenus.files import read_jsonl
from minvenus.flags import parse_flags
from minvenus.settings import EvalConfig, IGPOConfig, InferConfig, SFTConfig


def test_base_sft_igpo_evaluation_audit_live_question_and_report_in_a_few_steps_each(tmp_path, capfd):
    config = DemoConfig(out=str(tmp_path), sft_steps=3, igpo_steps=2, batch=1, questions=4)
    last = demo.main(config)
    shown = capfd.readouterr().out
    assert len(read_jsonl(tmp_path / "sft" / "metrics.jsonl")) == 3
    rows = read_jsonl(tmp_path / "igpo" / "metrics.jsonl")
    assert len(rows) == 2 and "before_test_exact_match" in rows[0] and "test_exact_match" in rows[-1]
    for name in ("SFT", "IGPO"):
        assert len((tmp_path / "eval" / name / "results.jsonl").read_text().splitlines()) == 4
        assert json.loads((tmp_path / "eval" / name / "report.json").read_text())["runs"] == 4
    assert "format errors" in shown and "browse, wrong" in shown             # the table of before and after
    assert "right visits gain" in shown or "too few visits" in shown         # the audit, at the first and last step
    assert "step 1:" in shown and "step 2:" in shown
    page = tmp_path / "igpo" / "report.html"
    assert str(page) in last and page.stat().st_size > 10_000


@pytest.mark.parametrize("wrong", ({"questions": 0}, {"questions": 257}, {"sft_steps": 0}, {"igpo_steps": 0},
                                   {"batch": 0}))
def test_what_the_demo_cannot_do_is_refused_before_it_trains_anything(wrong):
    with pytest.raises(ConfigError, match="must be at least 1, questions from 1 to 256"):
        DemoConfig(**wrong)


def test_a_change_is_named_only_where_the_intervals_of_before_and_after_lie_apart():
    def report(malformed, **shares):
        by_hops = {hops: {"value": v, "low": v - 0.1, "high": v + 0.1} for hops, v in shares.items()}
        return {"by_hops": by_hops, "malformed": malformed}

    words = demo.changes(report(0.01, h1=0.5, h2=0.2, h3=0.5), report(0.05, h1=0.2, h2=0.8, h3=0.6)).splitlines()
    assert words[:4] == ["better: h2-hop questions 20% -> 80%", "worse: h1-hop questions 50% -> 20%",
                         "not clearly different: h3-hop questions 50% -> 60%", "format errors 1.0% -> 5.0% of turns"]


def test_every_command_of_the_demo_is_understood_and_goes_from_stage_to_stage(monkeypatch, tmp_path):
    """Each flag is read by the script's own settings; each stage starts from the model of the one before."""
    configs = {"train_sft.py": SFTConfig, "train_igpo.py": IGPOConfig, "eval.py": EvalConfig, "infer.py": InferConfig}
    seen = []

    def run(script, *flags, quiet=False):
        seen.append((script, parse_flags(configs[script], [str(flag) for flag in flags])))

    def train(script, out, steps, *flags):
        run(script, "--out", out, "--steps", steps, *flags)
        (out / "model").mkdir(parents=True)
        (out / "model" / "config.json").write_text("{}")
        return out / "model"

    for name, stand_in in (("run", run), ("train", train), ("write_run_page", lambda folder: folder / "report.html")):
        monkeypatch.setattr(demo, name, stand_in)
    monkeypatch.setattr(demo.audit, "main", lambda config: seen.append(("audit", config)))
    for name in ("SFT", "IGPO"):                                   # what eval.py would have written
        (tmp_path / "eval" / name).mkdir(parents=True)
        (tmp_path / "eval" / name / "report.json").write_text('{"by_hops": {}, "malformed": 0.0}')
    told = demo.main(DemoConfig(out=str(tmp_path), sft_steps=5, igpo_steps=3, questions=7))
    assert [script for script, _ in seen] == ["train_sft.py", "train_igpo.py", *["eval.py"] * 3, "audit", "infer.py"]
    sft, igpo, before, after, compared, audited, asked = (config for _, config in seen)
    assert sft.model == "tiny-base" and sft.steps == 5 and igpo.steps == 3
    assert igpo.model == before.agent.model == f"{sft.out}/model"
    assert after.agent.model == asked.agent.model == f"{igpo.out}/model"
    assert audited.run == igpo.out and str(igpo.out) in told
    assert (before.limit, before.agent.seed, before.slack) == (after.limit, after.agent.seed, after.slack) == (7, 1, 0)
    assert igpo.hops is None and not igpo.recipe.center_gain
    assert igpo.seed != sft.seed, "other questions than were demonstrated"
    assert before.agent.temperature == after.agent.temperature == 1.0
    assert list(compared.compare) == [before.out, after.out] and before.out != after.out
