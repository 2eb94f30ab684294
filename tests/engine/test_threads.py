"""Threads on a CPU: a small model's numbers do not depend on how many there are, and torch keeps
the number that it had."""

import pytest
import torch

from minvenus.engine import Engine, Sampling, decode, runner
from tests.engine.models import sharp_model

MODEL = sharp_model()
PROMPTS = [[(5 * i + j) % 40 for j in range(2 + 9 * i)] for i in range(7)]


@pytest.fixture
def threads():
    """torch's number of threads, to set; put back afterwards."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def results(monkeypatch):
    """Turns and scores, of groups and of one sequence; steps are cut into parts of about 30
    tokens."""
    monkeypatch.setattr(runner, "PART", 30)
    engine = Engine(MODEL, pages=400, page_size=4)
    turns = engine.generate(PROMPTS, Sampling(12, presence_penalty=1.0), n=3)
    turns += engine.generate(PROMPTS[3:4], Sampling(12))
    requests = [(prompt, [1, len(prompt)], [3, 1, 4]) for prompt in PROMPTS]
    return [(c.tokens, c.logprobs) for group in turns for c in group], engine.score_many(requests)


def test_a_small_models_numbers_are_those_of_one_thread_to_the_last_bit(threads, monkeypatch):
    threads(1)
    alone = results(monkeypatch)
    for count in (2, 3):
        threads(count)
        assert results(monkeypatch) == alone
        assert torch.get_num_threads() == count


@pytest.mark.parametrize(("small", "used"), [(True, {1}), (False, {3})])
def test_operations_of_a_small_model_run_in_one_thread_each(small, used, threads, monkeypatch):
    seen = set()
    real = torch.nn.functional.silu
    watched = lambda *x, **o: seen.add(torch.get_num_threads()) or real(*x, **o)  # noqa: E731
    monkeypatch.setattr(torch.nn.functional, "silu", watched)
    if not small:
        monkeypatch.setattr(decode, "SMALL", 0)
    threads(3)
    results(monkeypatch)
    assert seen == used


def test_an_error_in_a_step_leaves_torch_its_threads(threads, monkeypatch):
    threads(2)
    engine = Engine(MODEL, pages=40, page_size=4)
    monkeypatch.setattr(engine.runner, "run", lambda work: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        engine.generate([[1, 2]], Sampling(3))
    assert torch.get_num_threads() == 2
