import pytest

from tests.train.runs import one_thread


@pytest.fixture(scope="package", autouse=True)
def single_thread():
    with one_thread():
        yield
