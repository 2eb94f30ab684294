"""The real Qwen3 tokenizer and five real trajectories; tests that need them skip where they are absent."""

import json
from pathlib import Path

import pytest

from minvenus.text.tokenizer import Tokenizer

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"


@pytest.fixture(scope="session")
def qwen():
    """The tokenizer of Qwen3-4B-Thinking-2507."""
    folder = DATA / "tokenizers" / "qwen3"
    if not folder.exists():
        pytest.skip(f"the Qwen3 tokenizer is not at {folder}")
    return Tokenizer.from_file(folder)


@pytest.fixture(scope="session")
def tiny():
    return Tokenizer.tiny()


@pytest.fixture(scope="session", params=["sft_0000", "sft_0001", "sft_0007", "rl_0000", "rl_0008"])
def trajectory(request):
    """The messages of one real trajectory."""
    path = DATA / "trajectories" / f"{request.param}.json"
    if not path.exists():
        pytest.skip(f"the trajectory is not at {path}")
    return json.loads(path.read_text(encoding="utf-8"))["messages"]
