"""Who runs in the next step, with how many tokens. Pure Python over the page pool: no tensors, no model.

Every running sequence that waits for its next token gets one (decode), and up to `step_tokens` further tokens are prefilled. The
sequence that was prefilled least recently comes first, so a long prompt is cut into chunks and nobody waits behind it for longer
than one of them.

When the pages run out, the youngest sequence is preempted: it loses its pages, keeps its tokens, and is computed again when there
is room. A running sequence never loses its pages to a younger one, and an idle one (between two turns) may lose them to anybody.
The oldest running sequence can therefore take every page, so the work always goes on; that it fits alone is checked at its start.
"""

from operator import attrgetter
from typing import NamedTuple

from minvenus.engine.pages import OutOfPages, PagePool
from minvenus.engine.sequence import Scoring, Sequence

by_age = attrgetter("number")


class Work(NamedTuple):
    """Run the `new` tokens behind those that are computed; copy these pages first."""

    sequence: Sequence
    new: int
    copies: list[tuple[int, int]]


class Scheduler:
    def __init__(self, pool: PagePool, step_tokens: int):
        if step_tokens < 1:
            raise ValueError(f"step_tokens must be at least 1, got {step_tokens}")
        self.pool, self.step_tokens = pool, step_tokens
        self.sequences: set[Sequence] = set()          # all that are open
        self.running: set[Sequence] = set()            # those that have a job
        self.preemptions = 0
        self.shared = 0                                # tokens that were found or forked instead of computed
        self._step = 0

    def schedule(self) -> list[Work]:
        """The next step; empty only when nobody has a job."""
        self._step += 1
        waiting = sorted(self.running, key=by_age)
        plan: dict[Sequence, Work] = {}
        others = []
        for sequence in waiting:
            if sequence.table and sequence.table.length + 1 == sequence.goal:
                self._place(sequence, 1, plan)
            else:
                others.append(sequence)
        budget, full = self.step_tokens, False
        for sequence in sorted(others, key=attrgetter("served", "number")):
            if not budget:
                break
            if not sequence.table:
                oldest = sequence is waiting[0]
                full = not self._admit(sequence, oldest or not plan) if oldest or not full else full
                if not sequence.table:
                    continue
            if budget < sequence.pending <= self.step_tokens:
                break                                  # whole in the next step, as the first: one call of attention, not two
            budget -= self._place(sequence, min(sequence.pending, budget), plan)
            sequence.served = self._step
        return list(plan.values())

    def _admit(self, sequence: Sequence, at_any_cost: bool) -> bool:
        """Give a sequence without pages its table, if all that it needs is free: a start that is soon preempted is lost work.
        The oldest does not wait for that, and somebody always runs."""
        table = self._known_prefix(sequence)
        needed = self.pool.pages_for(sequence.goal) - len(table.pages) + (table.length % self.pool.page_size > 0)
        if needed > self.pool.available and not at_any_cost:
            self.pool.free(table)
            return False
        sequence.table = table
        self.shared += table.length
        return True

    def _known_prefix(self, sequence: Sequence):
        job = sequence.job
        if isinstance(job, Scoring) and job.source.table and job.source.table.length >= job.first:
            return self.pool.fork(job.source.table, job.first)
        return self.pool.open(sequence.tokens[:sequence.reusable + 1])

    def _place(self, sequence: Sequence, count: int, plan: dict[Sequence, Work]) -> int:
        """Put the sequence into the plan, at the cost of the youngest ones if need be; 0 if it has to wait itself."""
        while True:
            try:
                plan[sequence] = Work(sequence, count, self.pool.extend(sequence.table, count))
                return count
            except OutOfPages:
                victim = self._victim(sequence)
                if victim is None:
                    return 0
                plan.pop(victim, None)
                self.preempt(victim)

    def _victim(self, sequence: Sequence) -> Sequence | None:
        """The youngest holder of pages that is idle, or younger than the sequence."""
        holders = (s for s in self.sequences if s.table and s.table.pages and s is not sequence)
        return max((s for s in holders if s.job is None or s.number > sequence.number), key=by_age, default=None)

    def preempt(self, sequence: Sequence) -> None:
        """Take its pages; what it was and what it wants stay, and what it has scored so far comes anew."""
        self.pool.free(sequence.table)
        sequence.table = None
        if isinstance(sequence.job, Scoring):
            sequence.job.logprobs.clear()
        self.preemptions += 1
