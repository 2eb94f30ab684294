"""The real Qwen3 tokenizer and five real trajectories; tests skip where they are absent."""

import functools
import json
from pathlib import Path

import pytest
import tokenizers

from minvenus.text.tokenizer import Tokenizer

SHARED = Path(__file__).resolve().parents[2].parent / "shared"


@pytest.fixture(scope="session")
def qwen():
    """The tokenizer of Qwen3-4B-Thinking-2507."""
    folder = SHARED / "data" / "tokenizers" / "qwen3"
    if not folder.exists():
        pytest.skip(f"the Qwen3 tokenizer is not at {folder}")
    return Tokenizer.from_file(folder)


@pytest.fixture(scope="session")
def tiny():
    return Tokenizer.tiny()


@pytest.fixture(scope="session", params=["tiny", "qwen"])
def tokenizer(request):
    return request.getfixturevalue(request.param)


@functools.cache
def library(tokenizer) -> tokenizers.Tokenizer:
    """The tokenizers library on the same file: one-shot encoding, which knows nothing of trust."""
    return tokenizers.Tokenizer.from_file(str(tokenizer.files["tokenizer.json"]))


def real_messages(name: str) -> list[dict]:
    """The messages of a released trajectory."""
    path = SHARED / "data" / "trajectories" / f"{name}.json"
    if not path.exists():
        pytest.skip(f"the trajectory is not at {path}")
    return json.loads(path.read_text(encoding="utf-8"))["messages"]


@pytest.fixture(scope="session", params=["sft_0000", "sft_0001", "sft_0007", "rl_0000", "rl_0008"])
def trajectory(request):
    return real_messages(request.param)
