"""The whole tiny pipeline in miniature: every script of the demo runs, in order, and what it promises is there."""

import json

import pytest

from minvenus.config import ConfigError
from minvenus.experiments import demo
from minvenus.train.metrics import read


def test_base_sft_igpo_evaluation_audit_live_question_and_report_in_ten_steps_each(tmp_path, capfd):
    config = demo.DemoConfig(out=str(tmp_path), sft_steps=10, igpo_steps=10, batch=2, questions=8)
    last = demo.main(config)
    shown = capfd.readouterr().out
    assert len(read(tmp_path / "sft" / "metrics.jsonl")) == 10
    rows = read(tmp_path / "igpo" / "metrics.jsonl")
    assert len(rows) == 10 and "before_test_exact_match" in rows[0] and "test_exact_match" in rows[-1]
    for name in ("SFT", "IGPO"):
        assert len((tmp_path / "eval" / name / "results.jsonl").read_text().splitlines()) == 8
        assert json.loads((tmp_path / "eval" / name / "report.json").read_text())["runs"] == 8
    assert "format errors" in shown and "browse, wrong" in shown             # the table of before and after
    assert "visit      hop   count" in shown                                 # the audit, at the first and at the last step
    assert "step 1:" in shown and "step 10:" in shown
    assert str(tmp_path / "igpo" / "report.html") in last and (tmp_path / "igpo" / "report.html").stat().st_size > 10_000


@pytest.mark.parametrize("wrong", ({"questions": 0}, {"questions": 257}, {"sft_steps": 0}, {"igpo_steps": 0}, {"batch": 0}))
def test_what_the_demo_cannot_do_is_refused_before_it_trains_anything(wrong):
    with pytest.raises(ConfigError, match="must be at least 1, questions from 1 to 256"):
        demo.DemoConfig(**wrong)


def test_a_change_is_named_only_where_the_intervals_of_before_and_after_lie_apart():
    def report(malformed, **shares):
        by_hops = {hops: {"value": v, "low": v - 0.1, "high": v + 0.1} for hops, v in shares.items()}
        return {"by_hops": by_hops, "malformed": malformed}

    words = demo.changes(report(0.01, h1=0.5, h2=0.2, h3=0.5), report(0.05, h1=0.2, h2=0.8, h3=0.6)).splitlines()
    assert words[:4] == ["better: h2-hop questions 20% -> 80%", "worse: h1-hop questions 50% -> 20%",
                         "not clearly different: h3-hop questions 50% -> 60%", "format errors 1.0% -> 5.0% of turns"]
