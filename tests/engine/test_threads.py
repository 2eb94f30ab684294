"""Threads on a CPU: a small model's numbers do not depend on how many there are, it has one while
other processes want the cores, and torch keeps the number that it had."""

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


@pytest.mark.parametrize("shared", [False, True])
def test_a_small_models_numbers_are_those_of_one_thread_to_the_last_bit(
    shared, threads, monkeypatch
):
    threads(1)
    alone = results(monkeypatch)
    monkeypatch.setattr(runner.Cores, "are_shared", lambda cores: shared)
    for count in (2, 3):
        threads(count)
        assert results(monkeypatch) == alone
        assert torch.get_num_threads() == count


@pytest.mark.parametrize(
    ("small", "shared", "used"), [(True, True, {1}), (True, False, {1, 3}), (False, True, {3})]
)
def test_a_small_model_decodes_in_one_thread_while_others_want_the_cores(
    small, shared, used, threads, monkeypatch
):
    """And reads prompts in operations of one thread each."""
    seen = set()
    real = torch.nn.functional.silu

    def watched(x, **options):
        assert not small or len(x) <= 21 or torch.get_num_threads() == 1, "more rows than sequences"
        seen.add(torch.get_num_threads())
        return real(x, **options)

    monkeypatch.setattr(torch.nn.functional, "silu", watched)
    monkeypatch.setattr(runner.Cores, "are_shared", lambda cores: shared)
    if not small:
        monkeypatch.setattr(decode, "SMALL", 0)
    threads(3)
    results(monkeypatch)
    assert seen == used


def test_cores_are_shared_for_two_seconds_after_threads_have_waited_for_them(monkeypatch):
    """Seconds, what our threads have waited until then, and the answer."""
    day = [
        (100.00, 7.0, False),  # whatever was before
        (100.03, 7.005, False),  # .005 of .03 seconds
        (100.04, 7.03, False),  # not looked at: too early
        (100.06, 7.03, True),  # .025 of .03
        (102.0, 9.0, True),  # for two seconds
        (102.1, 9.0, False),  # another trial
        (102.2, 9.0, False),
        (102.3, 9.03, True),
    ]
    cores = runner.Cores()
    for now, waited, shared in day:
        monkeypatch.setattr(runner.time, "monotonic", lambda now=now: now)
        monkeypatch.setattr(runner, "seconds_waited", lambda waited=waited: waited)
        assert cores.are_shared() == shared, now


def test_the_waiting_of_all_threads_is_added(tmp_path, monkeypatch):
    for thread, line in (("7", "5 2000000000 1\n"), ("8", "9 500000000 3\n"), ("9", None)):
        (tmp_path / thread).mkdir()
        if line:
            (tmp_path / thread / "schedstat").write_text(line)
    monkeypatch.setattr(runner, "TASKS", tmp_path)
    assert runner.seconds_waited() == 2.5
    monkeypatch.setattr(runner, "TASKS", tmp_path / "no Linux")
    assert runner.seconds_waited() == 0


def test_an_error_in_a_step_leaves_torch_its_threads(threads, monkeypatch):
    threads(2)
    engine = Engine(MODEL, pages=40, page_size=4)
    monkeypatch.setattr(runner.Cores, "are_shared", lambda cores: True)
    monkeypatch.setattr(engine.runner, "run", lambda work: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        engine.generate([[1, 2]], Sampling(3))
    assert torch.get_num_threads() == 2
