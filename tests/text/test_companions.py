"""The files beside saved weights: the chat template renders the stream, a turn ends where the
stream's does, and the files of a start checkpoint stay. Set MINVENUS_TRANSFORMERS_PYTHON to a
python that has transformers, and it loads our folders, too."""

import json
import os
import re
import subprocess
from pathlib import Path

import jinja2.sandbox
import pytest
from hypothesis import given

from minvenus.agent.prompt import TOYWEB
from minvenus.engine import Engine, Sampling
from minvenus.model import weights
from minvenus.model.weights import TINY_BASE
from minvenus.text.chat import prompt_ids, stream
from minvenus.text.companions import CHAT_TEMPLATE
from minvenus.text.tokenizer import TINY, Tokenizer
from minvenus.tools.toyweb import ToyWeb
from minvenus.tools.toyweb_lessons import Teacher, demonstrations
from tests.text.test_chat import conversation, conversations, words


def refuse(words):
    raise jinja2.TemplateError(words)


def render(messages, **options) -> str:
    """As transformers and vLLM do it."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = refuse
    return environment.from_string(CHAT_TEMPLATE).render(messages=messages, **options)


# -------------------------------------------------------------------------------- the chat template


@given(conversations(others=words))
def test_the_rendering_of_messages_encoded_in_one_go_is_their_stream(tiny, parts):
    messages = conversation(*parts)
    ids, _, spans = stream(messages, tiny)
    assert render(messages) == tiny.decode(ids)
    cut_after_thought = re.search(r"<think>\n\s*[\r\n]", render(messages))  # of chat.py
    assert cut_after_thought or tiny.encode(render(messages)) == ids
    for turn, (start, _) in enumerate(spans):
        context = render(messages[: 2 + 2 * turn], add_generation_prompt=True)
        assert context == tiny.decode(ids[:start]), "and so is the context of every turn"


@pytest.mark.parametrize(
    ("messages", "tools"),
    [
        ([{"role": "tool", "content": "a"}], None),
        ([{"role": "user", "content": "a"}], [{"name": "search"}]),
        ([{"role": "assistant", "content": "", "tool_calls": [{"name": "search"}]}], None),
    ],
)
def test_tools_calls_and_results_outside_the_text_are_refused(messages, tools):
    with pytest.raises(
        jinja2.TemplateError, match="must be text of system, assistant and user messages"
    ):
        render(messages, tools=tools)


# ---------------------------------------------------------------------------------- the other files


def test_a_new_folder_has_the_special_tokens_and_the_ends_of_its_vocabulary(tiny):
    """Served without them the tiny model never stopped: all of its answers were wrong."""
    settings, generation = tiny.files["tokenizer_config.json"], tiny.files["generation_config.json"]
    assert (settings["eos_token"], settings["pad_token"]) == ("<|im_end|>", "<|endoftext|>")
    special = set(settings["additional_special_tokens"])
    assert {"<|im_start|>", "<|im_end|>", "<|endoftext|>"} <= special
    assert "<think>" not in special, "a tag is part of the text"
    assert generation["eos_token_id"] == [tiny.im_end, tiny.end_of_text] == [728, 726]
    sampling = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20}
    assert generation.items() >= sampling.items()
    assert generation["pad_token_id"] == tiny.end_of_text
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert not settings["add_bos_token"] and not settings["clean_up_tokenization_spaces"]


@pytest.mark.parametrize(
    ("own", "stops"),
    [
        ({"eos_token_id": 726}, [728, 726]),
        ({"eos_token_id": [5, 728]}, [728, 726, 5]),
        ({}, [728, 726]),
        ({"eos_token_id": None}, [728, 726]),
    ],
)
def test_a_start_checkpoint_s_own_files_stay_but_for_end_and_template(tmp_path, own, stops):
    settings = {"tokenizer_class": "Qwen2Tokenizer", "errors": "replace"}
    theirs = {"eos_token": "<|endoftext|>", "chat_template": "{{ other }}"}
    files = {
        "tokenizer.json": TINY.read_text(),
        "merges.txt": "a b",
        "vocab.json": "{}",
        "special_tokens_map.json": "{}",
        "added_tokens.json": "{}",
        "chat_template.jinja": "{{ other }}",
        "tokenizer_config.json": json.dumps(settings | theirs),
        "generation_config.json": json.dumps({"temperature": 0.3} | own),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    kept = Tokenizer.from_file(tmp_path).files
    assert kept.keys() == files.keys() - {"chat_template.jinja"}
    for name in ("merges.txt", "vocab.json", "special_tokens_map.json", "added_tokens.json"):
        assert kept[name] == tmp_path / name
    generation = {"temperature": 0.3, "eos_token_id": stops}
    assert kept["generation_config.json"] == generation
    ours = {"eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE}
    assert kept["tokenizer_config.json"] == settings | ours


# ------------------------------------------------------------------------------ transformers itself

THEIRS = """
import json, sys
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, conversations, limit = sys.argv[1], json.load(open(sys.argv[2])), int(sys.argv[3])
tokenizer = AutoTokenizer.from_pretrained(folder)
shown = tokenizer.encode("<think>a</think><|im_end|>")
found = {"whole": [tokenizer.apply_chat_template(c, return_dict=False) for c in conversations],
         "written": [], "ends": [tokenizer.eos_token_id, tokenizer.pad_token_id],
         "shown": tokenizer.decode(shown, skip_special_tokens=True)}
if limit:
    model = AutoModelForCausalLM.from_pretrained(folder)
    for c in conversations:
        prompt = tokenizer.apply_chat_template(c[:2], add_generation_prompt=True,
                                               return_tensors="pt", return_dict=True)
        out = model.generate(**prompt, do_sample=False, max_new_tokens=limit)[0]
        found["written"].append(out[prompt["input_ids"].shape[1]:].tolist())
print(json.dumps(found))
"""
PEER = os.environ.get("MINVENUS_TRANSFORMERS_PYTHON")
with_transformers = pytest.mark.skipif(
    PEER is None, reason="set MINVENUS_TRANSFORMERS_PYTHON to a python that has transformers"
)


def in_transformers(folder: Path, conversations: list, limit: int) -> dict:
    (folder.parent / "conversations.json").write_text(json.dumps(conversations))
    done = subprocess.run(
        [PEER, "-c", THEIRS, folder, folder.parent / "conversations.json", str(limit)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": ""},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@with_transformers
def test_transformers_renders_encodes_and_generates_as_we_do_with_no_argument_by_hand(
    tmp_path, tiny
):
    model = weights.load(TINY_BASE)
    weights.save(model, tmp_path / "model", Tokenizer.from_file(TINY_BASE).files | TOYWEB.files)
    taught = demonstrations(ToyWeb(0), 8, Teacher(wrong_result=0.5, wrong_relation=0.3))
    theirs = in_transformers(tmp_path / "model", taught, limit=64)
    assert theirs["whole"] == [stream(messages, tiny)[0] for messages in taught]
    assert theirs["ends"] == list(tiny.stop_ids) and theirs["shown"] == "<think>a</think>"
    engine = Engine(model, 200, 16)
    prompts = [
        prompt_ids(tiny, *(message["content"] for message in messages[:2])) for messages in taught
    ]
    ours = engine.generate(prompts, Sampling(64, temperature=0.0, stop_ids=tiny.stop_ids))
    assert theirs["written"] == [completions[0].tokens for completions in ours]
    assert all(written[-1] == tiny.im_end for written in theirs["written"]), (
        "every turn ends by itself"
    )
