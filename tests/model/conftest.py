import pytest

from minvenus.model.qwen3 import Qwen3
from minvenus.model.weights import save
from tests.model.checkpoints import TIED, split_files


@pytest.fixture
def single(tmp_path):
    save(Qwen3(TIED), tmp_path / "single")
    return tmp_path / "single"


@pytest.fixture
def sharded(tmp_path):
    save(Qwen3(TIED), tmp_path / "sharded")
    return split_files(tmp_path / "sharded")
