"""Token streams: what is trained, and trajectories that are too long."""

import pytest
import torch

from minvenus.config import ConfigError
from minvenus.files import read_records
from minvenus.sft.dataset import Example, encode, encode_pieces, load
from minvenus.text.tokenizer import Tokenizer
from tests.sft.conversations import conversation, of_turns

TINY = Tokenizer.tiny()


def test_what_is_trained_is_the_agents_text_and_nothing_else():
    one = encode(of_turns(2), TINY)
    call = '<tool_call>\n{"name": "search", "arguments": {"query": ["Where? 0"]}}\n</tool_call>'
    answer = "<answer>\nRome\n</answer>"
    assert TINY.decode(one.tokens[one.sampled].tolist()) == (
        f"I look.\n</think>\n\n{call}<|im_end|>Enough.\n</think>\n\n{answer}<|im_end|>"
    )
    context = TINY.decode(one.tokens[~one.sampled].tolist())
    assert "something" in context and "Where?" in context and "Rome" not in context


def test_the_flags_of_pieces_become_those_of_their_tokens():
    one = encode_pieces([("page Bob own", False), (" cat", True), (".\n", False)], TINY)
    assert TINY.decode(one.tokens.tolist()) == "page Bob own cat.\n"
    assert TINY.decode(one.tokens[one.sampled].tolist()) == " cat"


def test_a_record_that_is_not_clean_is_refused_with_what_to_do():
    refusal = r"trajectory 1 is not clean, run python -m minvenus\.sft"
    with pytest.raises(ConfigError, match=refusal):
        load([of_turns(1), conversation("Where?", "no thought")], TINY, 1000)
    with pytest.raises(ConfigError, match="trajectory 0 is not clean"):
        load([{"messages": None}], TINY, 1000)


def test_lines_are_read_one_by_one_and_a_broken_one_is_named(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n\n{"b"\n')
    lines = read_records(path)
    assert next(lines) == (f"{path}, line 1", {"a": 1})
    with pytest.raises(ConfigError, match="line 3: not JSON"):
        next(lines)


def test_the_too_long_are_dropped_whole_and_counted():
    rows = [of_turns(n) for n in (1, 6, 2)]
    short, _, medium = [len(encode(row, TINY)) for row in rows]
    rows[1]["messages"][0]["content"] = "?"
    prompts = set()
    examples, dropped = load(rows, TINY, max_tokens=medium, prompts=prompts)
    assert [len(one) for one in examples] == [short, medium] and dropped == 1
    assert prompts == {"Be good."}, "what is dropped is not learned, nor its prompt"
    refusal = f"all 3 .* than 5 tokens, the shortest has {short}: raise --max-tokens"
    with pytest.raises(ConfigError, match=refusal):
        load(rows, TINY, max_tokens=5)
    assert load([], TINY, max_tokens=5) == ([], 0)


@pytest.mark.parametrize("sampled", [[True, True], [False, False]])
def test_an_example_needs_something_to_learn_and_something_before_it(sampled):
    with pytest.raises(ValueError, match="first token"):
        Example(torch.zeros(2, dtype=torch.int32), torch.tensor(sampled))
