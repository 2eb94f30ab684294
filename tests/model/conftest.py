import pytest

from minvenus.model.qwen3 import Qwen3
from minvenus.model.weights import save
from tests.model.checkpoints import TIED


@pytest.fixture
def single(tmp_path):
    save(Qwen3(TIED), tmp_path / "single")
    return tmp_path / "single"


@pytest.fixture
def sharded(tmp_path):
    save(Qwen3(TIED), tmp_path / "sharded", shard_bytes=8_000)
    return tmp_path / "sharded"
