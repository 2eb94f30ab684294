"""The scheduler: which sequences run in the next step, with how many tokens. Pure Python over the page pool, no
tensors.

Every running sequence that only waits for its next token gets one (decode), and up to `step_tokens` further tokens
are prefilled. The sequence that was prefilled least recently comes first, so a long prompt is cut into chunks and no
other sequence waits for longer than one of them.

When the pages run out, the youngest sequence is preempted: it loses its pages, keeps its tokens, and is computed
again when there is room. A running sequence never loses its pages to a younger one; an idle one (between two turns)
may lose them to any other. So the oldest running sequence can take every page, and the work always goes on: the
engine checks at its start that it fits alone.
"""

from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from minvenus.engine.pages import BlockTable, OutOfPages, PagePool
from minvenus.engine.sequence import Generation, Prefill, Scoring, Sequence

by_age = attrgetter("number")


@dataclass
class Counters:
    """The work of an engine since the last reset, in tokens."""

    prefilled: int = 0                 # computed because they were given, or computed again after a preemption
    decoded: int = 0                   # computed one by one, to draw the next token
    scored: int = 0                    # computed to score continuations
    shared: int = 0                    # not computed, because their pages were there
    preemptions: int = 0
    pages_used: int = 0
    pages_peak: int = 0

    def add(self, sequence: Sequence, new: int) -> None:
        if sequence.decoding:
            self.decoded += new
        elif type(sequence.job) is Scoring:
            self.scored += new
        else:
            self.prefilled += new


class Work(NamedTuple):
    """Compute the next `new` tokens of a sequence, after copying these (from, to) pages."""

    sequence: Sequence
    new: int
    copies: list[tuple[int, int]]


class Scheduler:
    def __init__(self, pool: PagePool, step_tokens: int):
        if step_tokens < 1:
            raise ValueError(f"step_tokens must be at least 1, got {step_tokens}")
        self.pool, self.step_tokens = pool, step_tokens
        self.sequences: set[Sequence] = set()          # all that are open
        self.running: set[Sequence] = set()            # those with a job
        self.counters = Counters()
        self._step = 0

    def run(self, sequence: Sequence, job: Generation | Scoring | Prefill, goal: int, output_from: int) -> None:
        """From the next step on: compute tokens up to the goal and give the job the hidden states from `output_from`
        on."""
        sequence.job, sequence.goal, sequence.output_from = job, goal, output_from
        self.running.add(sequence)

    def end(self, sequence: Sequence) -> None:
        """Its job is done or given up."""
        sequence.job = None
        self.running.discard(sequence)

    def free(self, sequence: Sequence) -> None:
        """Give its pages back; its tokens stay."""
        if sequence.block_table:
            self.pool.free(sequence.block_table)
            sequence.block_table = None

    def schedule(self) -> list[Work]:
        """The next step of the running sequences, of which there must be one. At least one of them gets work."""
        self._step += 1
        plan: dict[Sequence, Work] = {}
        running, prefills = sorted(self.running, key=by_age), []
        for sequence in running:
            if sequence.decoding:
                self._place(sequence, 1, plan)
            else:
                prefills.append(sequence)
        prefills.sort(key=attrgetter("prefilled_at", "number"))
        self._place_prefills(prefills, running[0], plan)
        for sequence, new, _ in plan.values():
            self.counters.add(sequence, new)
        return list(plan.values())

    def _place_prefills(self, prefills: list[Sequence], oldest: Sequence, plan: dict[Sequence, Work]) -> None:
        budget, room = self.step_tokens, True
        for sequence in prefills:
            if budget == 0:
                break
            if sequence.block_table is None:
                must_run = sequence is oldest or not plan
                if not room and not must_run:
                    continue
                room = self._admit(sequence, must_run)
                if not room:
                    continue
            budget -= self._place(sequence, min(sequence.goal - sequence.num_computed, budget), plan)
            sequence.prefilled_at = self._step

    def _admit(self, sequence: Sequence, must_run: bool) -> bool:
        """Give the sequence a block table if all pages that it needs are free: a start that is soon preempted is lost
        work. A sequence that must run does not wait for that."""
        table = self._known_prefix(sequence)
        needed = self.pool.pages_for(sequence.goal) - len(table.pages) + (table.num_computed % self.pool.page_size > 0)
        if needed > self.pool.available and not must_run:
            self.pool.free(table)
            return False
        sequence.block_table = table
        self.counters.shared += table.num_computed
        return True

    def _known_prefix(self, sequence: Sequence) -> BlockTable:
        """What the cache has of the sequence. At least the last token before the goal is left to run."""
        job, length = sequence.job, min(sequence.output_from, sequence.goal - 1)
        if type(job) is Scoring and job.source.block_table and job.source.num_computed >= length:
            return self.pool.fork(job.source.block_table, length)
        return self.pool.open(sequence.tokens[:length + 1])

    def _place(self, sequence: Sequence, count: int, plan: dict[Sequence, Work]) -> int:
        """Put the sequence into the plan and preempt the youngest ones if need be; returns 0 if it has to wait
        itself."""
        while True:
            try:
                plan[sequence] = Work(sequence, count, self.pool.extend(sequence.block_table, count))
                return count
            except OutOfPages:
                victim = self._victim(sequence)
                if victim is None:
                    return 0
                plan.pop(victim, None)
                self.preempt(victim)

    def _victim(self, sequence: Sequence) -> Sequence | None:
        """The youngest sequence with pages that is idle, or younger than this one."""
        holders = [s for s in self.sequences if s is not sequence and s.block_table and s.block_table.pages]
        return max((s for s in holders if s.job is None or s.number > sequence.number), key=by_age, default=None)

    def preempt(self, sequence: Sequence) -> None:
        """Take its pages. Its job stays; what a Scoring has so far is computed again, so it is dropped."""
        self.free(sequence)
        if type(sequence.job) is Scoring:
            sequence.job.logprobs.clear()
        self.counters.preemptions += 1
