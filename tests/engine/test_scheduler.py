"""The scheduler without a model: who runs, in which chunks, and who gives way when pages run out."""

from minvenus.engine.pages import PagePool
from minvenus.engine.sampler import Noise, Sampling
from minvenus.engine.scheduler import Scheduler
from minvenus.engine.sequence import Sequence, Turn


def scheduler(pages=100, page_size=4, step_tokens=8):
    return Scheduler(PagePool(pages, page_size), step_tokens)


def running(scheduler, length):
    """A sequence of `length` tokens, different from all others, that wants its next token."""
    number = len(scheduler.sequences)
    tokens = [1000 * number + i for i in range(length)]
    sequence = Sequence(number, tokens, Noise(0, 0, number), job=Turn(Sampling(99)), goal=length)
    scheduler.sequences.add(sequence)
    scheduler.running.add(sequence)
    return sequence


def step(scheduler):
    """Run what is scheduled: every sequence whose tokens are all computed gets one more. Returns {number: tokens run}."""
    work = scheduler.schedule()
    for sequence, count, _ in work:
        scheduler.pool.commit(sequence.table, sequence.tokens, count)
        if sequence.table.length == sequence.goal:
            sequence.tokens.append(-sequence.goal)
            sequence.goal += 1
    scheduler.pool.check()
    return {s.number: count for s, count, _ in work}


def finish(scheduler, sequence):
    scheduler.running.remove(sequence)
    sequence.job = None


def test_a_long_prompt_is_cut_into_chunks_and_decoding_goes_on_beside_it():
    s = scheduler()
    running(s, 3)
    assert step(s) == {0: 3}
    running(s, 20)
    assert [step(s) for _ in range(4)] == [{0: 1, 1: 8}, {0: 1, 1: 8}, {0: 1, 1: 4}, {0: 1, 1: 1}]


def test_a_short_prompt_does_not_wait_behind_a_long_one_for_more_than_a_chunk():
    s = scheduler()
    running(s, 80)
    step(s)
    running(s, 3)
    assert step(s) == {1: 3, 0: 5}
    assert step(s) == {1: 1, 0: 8}


def test_prompts_that_fit_a_step_are_not_cut():
    s = scheduler()
    for _ in range(3):
        running(s, 5)
    assert [step(s) for _ in range(3)] == [{0: 5}, {0: 1, 1: 5}, {0: 1, 1: 1, 2: 5}]


def test_the_youngest_gives_way_and_comes_back_when_there_is_room():
    s = scheduler(pages=4, page_size=4)
    old, young = running(s, 7), running(s, 7)
    assert step(s) == {0: 7} and step(s) == {0: 1, 1: 7}                  # two pages each: all four
    assert step(s) == {0: 1}                                              # the ninth token of the old one needs a page
    assert young.table is None and s.preemptions == 1 and len(young.tokens) == 8
    while len(old.tokens) < 16:
        assert step(s) == {0: 1}                                          # two pages are needed, one is free: no start
    finish(s, old)
    assert step(s) == {1: 8}                                              # an idle one gives way to a running one, younger or not
    assert old.table is None and s.preemptions == 2 and step(s) == {1: 1}


def test_the_oldest_running_sequence_is_never_preempted_and_always_runs():
    s = scheduler(pages=5, page_size=2, step_tokens=4)
    sequences = [running(s, 4) for _ in range(4)]
    for _ in range(40):
        oldest = min(s.running, key=lambda x: x.number)
        waiting, before = oldest.served, oldest.table
        ran = step(s)
        assert ran, "somebody always runs"
        assert before is None or oldest.table is before
        assert oldest.number in ran or oldest.served == waiting
        if len(oldest.tokens) == 9:
            finish(s, oldest)
            s.pool.free(oldest.table)
            oldest.table = None
        if not s.running:
            break
    assert not s.running and s.preemptions > 0 and all(len(x.tokens) == 9 for x in sequences)
    assert s.pool.used == 0


def test_a_victim_that_was_planned_already_leaves_the_plan_with_its_copies():
    """The young one decodes into a shared page, so a copy is planned; then the old one's prompt takes its pages."""
    s = scheduler(pages=4, page_size=4, step_tokens=16)
    old, young = running(s, 14), running(s, 5)
    s.running.remove(old)
    step(s)
    twin = Sequence(2, list(young.tokens), table=s.pool.fork(young.table))
    s.sequences.add(twin)
    s.running.add(old)
    work = s.schedule()
    assert [(w.sequence, w.new, w.copies) for w in work] == [(old, 14, [])]
    assert young.table is None and twin.table is None
    s.pool.check()
