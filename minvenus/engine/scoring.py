"""Scoring continuations on an engine: which sequence holds a prefix, what runs, and what need not run twice.

log P(c_1 .. c_R | x_1 .. x_n) is a sequence x_1 .. x_n c_1 .. c_R whose first n - 1 tokens come from the prefix's pages; the R
tokens x_n c_1 .. c_{R-1} run, and each gives the log-prob of the one behind it.
"""

from minvenus.engine.pages import PagePool
from minvenus.engine.sequence import Scoring, Sequence

# (a sequence or the tokens of a prefix, lengths of prefixes of it, continuation)
ScoreRequest = tuple[Sequence | list[int], list[int], list[int]]


def score_requests(engine, requests: list[ScoreRequest], temperature: float) -> list[list[list[float]]]:
    opened: list[Sequence] = []                                        # for the time of the call
    try:
        sources = find_sources(engine, requests, opened)
        engine.prefill_to([(s, max(lengths) - 1) for s, (_, lengths, _) in zip(sources, requests, strict=True)])
        jobs: dict[tuple, Scoring] = {}
        keys = []
        for source, (_, lengths, continuation) in zip(sources, requests, strict=True):
            keys.append([score_key(engine.pool, source, n, continuation) for n in lengths])
            for n, key in zip(lengths, keys[-1], strict=True):
                if key not in jobs:
                    opened.append(start_scoring(engine, source, n, continuation, temperature))
                    jobs[key] = opened[-1].job
        engine.advance_until_done(opened)
        return [[list(jobs[key].logprobs) for key in group] for group in keys]
    finally:
        for sequence in opened:
            engine.close(sequence)


def find_sources(engine, requests: list[ScoreRequest], opened: list[Sequence]) -> list[Sequence]:
    """The sequence that holds each prefix; prefixes that are only tokens get one."""
    known: dict[tuple[int, ...], Sequence] = {}
    sources = []
    for prefix, lengths, continuation in requests:
        tokens = prefix.tokens if isinstance(prefix, Sequence) else prefix
        if not lengths or not 1 <= min(lengths) <= max(lengths) <= len(tokens):
            raise ValueError(f"lengths of prefixes must lie in 1 to {len(tokens)}, the number of tokens; got {lengths}")
        engine.check_tokens(continuation)
        engine.check_room(max(lengths), len(continuation))
        if isinstance(prefix, Sequence):
            engine.check_idle(prefix)
            sources.append(prefix)
            continue
        engine.check_tokens(prefix)
        key = tuple(prefix)
        if key not in known:
            known[key] = engine.add(list(prefix))
            opened.append(known[key])
        sources.append(known[key])
    return sources


def score_key(pool: PagePool, source: Sequence, length: int, continuation: list[int]) -> tuple:
    """Equal only where prefix and continuation are, without a look at every token: full pages are known by their content."""
    pages = (length - 1) // pool.page_size
    if not source.table or source.table.length < pages * pool.page_size:
        return source, length, tuple(continuation)                     # it has lost its pages to others in the meantime
    tail = tuple(source.tokens[pages * pool.page_size:length])
    return pool.content(source.table, pages), tail, tuple(continuation)


def start_scoring(engine, source: Sequence, length: int, continuation: list[int], temperature: float) -> Sequence:
    sequence = engine.add(source.tokens[:length] + continuation)
    engine.run_job(sequence, Scoring(length - 1, temperature, source), len(sequence.tokens) - 1)
    return sequence
