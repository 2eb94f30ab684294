"""Real trajectories: their counts, and what is repaired."""

import json
from pathlib import Path

import pytest

from minvenus.agent.protocol import is_well_formed
from minvenus.sft.__main__ import CleanConfig, run
from minvenus.sft.clean import clean

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "trajectories"
TURNS = {"sft_0000": 25, "sft_0001": 18, "sft_0007": 44}


def trajectory(name):
    path = DATA / f"{name}.json"
    if not path.exists():
        pytest.skip(f"the trajectory is not at {path}")
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("form", ["clean", "raw"])
@pytest.mark.parametrize("name", TURNS)
def test_real_trajectories_pass_with_all_their_turns_and_one_nested_answer_is_repaired(name, form):
    record = given = trajectory(name)
    if form == "raw":
        given = {"meta": {"question": record["question"], "answer": record["gt"]}, "messages": record["messages"][1:]}
    out, reason, counts = clean(given, prompt_mode="row")
    assert reason is None and counts["turns_in"] == counts["turns_kept"] == TURNS[name]
    assert out["messages"][1:-1] == record["messages"][1:-1]
    assert form == "raw" or out["messages"][0] == record["messages"][0], "the row's own prompt"
    last, final = record["messages"][-1]["content"], out["messages"][-1]["content"]
    assert counts["messages_repaired"] == (last != final) == (name == "sft_0001")
    if last != final:                                        # a summary that was in the thought already
        assert not is_well_formed(last, final=True) and is_well_formed(final, final=True)
        assert final.endswith(f"</think>\n<answer>\n**{record['gt']}**\n</answer>")
        assert final.split("</think>")[0].strip() == last.split("</think>")[0].strip()


def test_the_one_duplicate_call_of_a_rollout_is_found():
    messages = trajectory("rl_0008")["messages"]
    out, reason, counts = clean({"question": "Q", "messages": messages, "gt": "x"})
    assert reason is None and len(out["messages"]) == len(messages) - 2
    assert counts["duplicate_tool_turns_removed"] == counts["duplicate_tool_response_turns_removed"] == 1
    assert clean(trajectory("rl_0008"))[1] == "missing_question_or_gt"


def test_the_command_on_the_real_file(tmp_path):
    records = [trajectory(name) for name in TURNS]
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(record) + "\n" for record in records))
    stats = run(CleanConfig(str(source), str(tmp_path / "out.jsonl"), correct="exact_match"))
    assert stats["turns_in"] == stats["turns_kept"] == 87 and stats["messages_repaired"] == 1
    assert stats["tools_after_cleaning"] == {"search": 61, "visit": 23}
    assert stats["rows"]["stage2_valid"] == 3
    assert stats["drop_reasons"] == {"answer_not_correct": 1}           # sft_0007 answers in sentences
