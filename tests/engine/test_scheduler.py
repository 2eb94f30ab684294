"""Scheduling as the engine shows it: who gets a token in a step, and who gives way when pages run
out."""

import itertools

from minvenus.engine import Engine, Sampling
from tests.engine.models import FixedLogits, check_engine

MODEL = FixedLogits([0.0] * 40)
NUMBERS = itertools.count()


def an_engine(pages=100, page_size=4, step_tokens=8):
    return Engine(MODEL, pages=pages, page_size=page_size, step_tokens=step_tokens)


def started(engine, length, max_tokens=99):
    """A running sequence of `length` tokens that no other sequence begins with."""
    number = next(NUMBERS)
    sequence = engine.open([number % 40] * length, number)
    engine.start(sequence, Sampling(max_tokens))
    return sequence


def drawn(engine, sequences, steps):
    """For each step, how many tokens each sequence has drawn in it."""
    table = []
    for _ in range(steps):
        before = [len(s.tokens) for s in sequences]
        engine.step()
        check_engine(engine)
        table.append([len(s.tokens) - count for s, count in zip(sequences, before, strict=True)])
    return table


def test_a_long_prompt_is_cut_into_chunks_and_decoding_goes_on_beside_it():
    engine = an_engine()
    first = started(engine, 3)
    engine.step()
    second = started(engine, 20)  # chunks of 8, 8 and 4
    assert drawn(engine, [first, second], 5) == [[1, 0], [1, 0], [1, 1], [1, 1], [1, 1]]


def test_a_short_prompt_waits_for_one_chunk_of_a_long_one_at_most():
    engine = an_engine()
    long = started(engine, 80)
    engine.step()
    short = started(engine, 3)
    assert drawn(engine, [long, short], 2) == [[0, 1], [0, 1]]


def test_prompts_share_the_tokens_of_a_step():
    engine = an_engine()
    sequences = [started(engine, 5) for _ in range(3)]  # 15 tokens: two steps of 8
    assert drawn(engine, sequences, 3) == [[1, 0, 0], [1, 1, 1], [1, 1, 1]]


def test_the_youngest_gives_way_and_comes_back_when_there_is_room():
    engine = an_engine(pages=4, step_tokens=16)
    old, young = started(engine, 7, max_tokens=9), started(engine, 7, max_tokens=9)
    assert drawn(engine, [old, young], 2) == [[1, 1], [1, 1]]  # two pages each: all four
    assert (
        drawn(engine, [old, young], 7) == [[1, 0]] * 7
    )  # the ninth token of the old one needs a page
    assert engine.counters().preemptions == 1 and not old.job and young.job
    assert (
        drawn(engine, [old, young], 7) == [[0, 1]] * 7
    )  # the old one is idle now, so it gives way
    assert engine.counters().preemptions == 2 and len(young.tokens) == 7 + 9


def test_the_oldest_running_sequence_gets_a_token_in_every_step():
    engine = an_engine(pages=5, page_size=2, step_tokens=40)
    sequences = [started(engine, 4, max_tokens=5) for _ in range(4)]
    while engine.scheduler.running():
        oldest = engine.scheduler.running()[0]
        assert drawn(engine, [oldest], 1) == [[1]]
        if not oldest.job:
            engine.close(oldest)
    assert all(len(s.tokens) == 4 + 5 for s in sequences)
    assert engine.counters().preemptions > 0 and engine.pool.used == 0


def test_a_sequence_that_waits_for_room_does_not_stop_one_that_runs():
    """The second needs all five pages, so it waits until the first has ended; the third is not let
    in before it."""
    engine = an_engine(pages=5, step_tokens=40)
    first = started(engine, 4, max_tokens=3)
    engine.step()
    second, third = started(engine, 18, max_tokens=1), started(engine, 3, max_tokens=1)
    assert drawn(engine, [first, second, third], 2) == [[1, 0, 0], [1, 0, 0]]
    engine.close(first)
    assert drawn(engine, [second, third], 2) == [[1, 0], [0, 1]]


def test_of_two_idle_sequences_the_younger_gives_way():
    engine = an_engine(pages=5, step_tokens=40)
    older, younger = started(engine, 8, max_tokens=1), started(engine, 8, max_tokens=1)
    engine.step()
    started(engine, 8, max_tokens=1)  # needs two pages, one is free
    engine.step()
    assert (older.num_computed, younger.num_computed) == (8, 0)
    assert engine.counters().preemptions == 1


def test_forks_wait_for_the_page_of_their_copy_and_take_none_from_their_source():
    """A prefix of six tokens in two pages, and one page more: the forks run one after the other."""
    engine = an_engine(pages=3, step_tokens=40)
    prefix = engine.open([1, 2, 3, 4, 5, 6])
    engine.score(prefix, [[7], [8], [9]])
    counters = engine.counters()
    assert (counters.prefilled, counters.scored, counters.preemptions) == (5, 3, 0)


def test_tokens_that_are_found_in_the_cache_are_counted():
    engine = an_engine()
    for shared in (0, 8):  # two full pages of nine tokens
        engine.generate([list(range(9))], Sampling(1))
        assert engine.counters().shared == shared


def test_the_peak_is_the_most_pages_of_any_step_and_not_those_of_the_last():
    engine = an_engine(step_tokens=40)
    for length, peak in ((17, 5), (3, 5), (25, 7)):
        engine.generate([[length] * length], Sampling(1))
        assert engine.counters().pages_peak == peak


def test_counters_that_were_read_stay_as_they_were():
    engine = an_engine()
    before = engine.counters()
    engine.generate([[1, 2, 3]], Sampling(2))
    done = engine.counters()
    assert (before.prefilled, before.decoded) == (0, 0)
    assert (done.prefilled, done.decoded) == (3, 1)
