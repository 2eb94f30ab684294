"""A machine that drives one engine through everything it can do, with a pool that is too small
for it, against the model alone.

After every step the pool's invariants hold; every token that a turn gave is checked by a forward
without a cache: greedy tokens are the most probable ones at their place, log-probs agree to 1e-5.
At the end no page is held.
"""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from minvenus.engine import Engine, Sampling
from tests.engine.models import check_engine, is_greedy, naive_scores, poisoned, sharp_model

WEIGHTS = [sharp_model(seed).state_dict() for seed in (0, 1)]
PAGES, PAGE_SIZE = 24, 3  # 72 tokens in all
LONGEST = 40  # of one sequence: two do not fit
tokens = st.lists(st.integers(0, 39), min_size=1, max_size=12)
samplings = st.builds(
    Sampling,
    max_tokens=st.integers(1, 6),
    temperature=st.sampled_from([0.0, 0.0, 0.7, 1.0]),
    top_p=st.sampled_from([0.8, 1.0]),
    stop_ids=st.sampled_from([(), (3, 5, 7)]),
)


class EngineMachine(RuleBasedStateMachine):
    sequences = Bundle("sequences")

    def __init__(self):
        super().__init__()
        self.model = sharp_model()
        self.engine = poisoned(Engine(self.model, pages=PAGES, page_size=PAGE_SIZE, step_tokens=7))
        self.expected = {}  # sequence -> tokens that it must have when idle
        self.started = {}  # sequence -> sampling of the turn that runs
        self.count = 0

    def added(self, sequence, ids):
        self.expected[sequence] = list(ids)
        return sequence

    def idle(self, sequence):
        return sequence in self.expected and sequence not in self.started

    def verify(self, sequence):
        """A turn has ended: hold its tokens against the model."""
        before, sampling = self.expected[sequence], self.started.pop(sequence)
        turn = sequence.tokens[len(before) :]
        assert sequence.tokens == before + turn and 1 <= len(turn) <= sampling.max_tokens
        assert turn[-1] in sampling.stop_ids or len(turn) == sampling.max_tokens
        assert not set(turn[:-1]) & set(sampling.stop_ids)
        expected = naive_scores(self.model, before, turn, sampling.plain_temperature)
        assert sequence.logprobs[-len(turn) :] == pytest.approx(expected, abs=1e-5)
        if sampling.temperature == 0:
            assert is_greedy(self.model, before, turn)
        self.expected[sequence] = list(sequence.tokens)

    @rule(target=sequences, ids=tokens)
    def open(self, ids):
        self.count += 1
        return self.added(self.engine.open(list(ids), question=self.count), ids)

    @rule(target=sequences, ids=tokens, n=st.integers(2, 3))
    def open_group(self, ids, n):
        self.count += 1
        group = self.engine.open_group([list(ids) for _ in range(n)], self.count)
        self.collect()
        return multiple(*(self.added(s, ids) for s in group))

    @rule(sequence=sequences, ids=tokens)
    def append(self, sequence, ids):
        if self.idle(sequence) and len(sequence.tokens) + len(ids) <= LONGEST:
            sequence.tokens += ids
            self.expected[sequence] += ids

    @rule(sequence=sequences, sampling=samplings)
    def start(self, sequence, sampling):
        if self.idle(sequence) and len(sequence.tokens) + sampling.max_tokens <= LONGEST:
            self.engine.start(sequence, sampling)
            self.started[sequence] = sampling

    @rule(times=st.integers(1, 8))
    def step(self, times):
        for _ in range(times):
            self.engine.step()
            self.collect()
            check_engine(self.engine)

    def collect(self):
        """Turns may end in any call that runs steps."""
        for sequence in [s for s in self.started if not s.job]:
            self.verify(sequence)

    @rule(chosen=st.lists(sequences, min_size=1, max_size=5, unique=True), sampling=samplings)
    def turn(self, chosen, sampling):
        chosen = [
            s for s in chosen if self.idle(s) and len(s.tokens) + sampling.max_tokens <= LONGEST
        ]
        self.started.update(dict.fromkeys(chosen, sampling))
        completions = self.engine.turn(chosen, sampling)
        for sequence, completion in zip(chosen, completions, strict=True):
            assert completion.tokens == sequence.tokens[-len(completion.tokens) :]
        self.collect()

    @rule(
        chosen=st.lists(sequences, min_size=1, max_size=3),
        shares=st.lists(st.floats(0, 1), min_size=1, max_size=4),
        continuation=st.lists(st.integers(0, 39), min_size=1, max_size=6),
        as_tokens=st.booleans(),
    )
    def score(self, chosen, shares, continuation, as_tokens):
        requests = []
        for sequence in (s for s in chosen if self.idle(s)):
            lengths = [max(1, round(share * len(sequence.tokens))) for share in shares]
            requests.append(
                (list(sequence.tokens) if as_tokens else sequence, lengths, continuation)
            )
        for (prefix, lengths, _), scores in zip(
            requests, self.engine.score_many(requests, 0.9), strict=True
        ):
            ids = prefix if as_tokens else prefix.tokens
            for n, got in zip(lengths, scores, strict=True):
                assert got == pytest.approx(
                    naive_scores(self.model, ids[:n], continuation, 0.9), abs=1e-5
                )
        self.collect()

    @rule(sequence=consumes(sequences))
    def close(self, sequence):
        self.engine.close(sequence)
        self.expected.pop(sequence)
        self.started.pop(sequence, None)

    @rule(which=st.integers(0, 1))
    def weights_change(self, which):
        if self.started:
            return
        self.model.load_state_dict(WEIGHTS[which])
        self.engine.load_weights(self.model)
        assert self.engine.pool.used == 0

    @invariant()
    def nothing_is_torn(self):
        check_engine(self.engine)
        for sequence, ids in self.expected.items():
            if sequence not in self.started:
                assert sequence.tokens == ids and sequence.job is None

    def teardown(self):
        for sequence in list(self.expected):
            self.engine.close(sequence)
        assert self.engine.pool.used == 0 and not self.engine.scheduler.sequences
        check_engine(self.engine)


EngineMachine.TestCase.settings = settings(stateful_step_count=40)
TestEngine = EngineMachine.TestCase
