"""What the engine refuses, with the numbers in the message: what could never run, or not now."""

from minvenus.engine.scheduler import Sequence


def check_request(engine, prefix: Sequence | list[int], lengths: list[int],
                  continuation: list[int]) -> None:
    """The continuation is to be scored after these lengths of the prefix."""
    computed = 0
    if isinstance(prefix, Sequence):
        check_idle(engine, prefix)
        computed = prefix.num_computed
        prefix = prefix.tokens
    check_tokens(engine, continuation)
    check_tokens(engine, prefix[computed:] + continuation)
    if not lengths or not 1 <= min(lengths) <= max(lengths) <= len(prefix):
        raise ValueError(f"lengths of prefixes must lie in 1 to {len(prefix)}, the number of "
                         f"tokens; got {lengths}")
    check_room(engine, max(lengths), len(continuation))


def check_idle(engine, sequence: Sequence) -> None:
    if sequence not in engine.scheduler.sequences:
        raise ValueError(f"sequence {sequence.number} is closed")
    if sequence.job:
        raise ValueError(f"sequence {sequence.number} is running: wait until its turn ends")


def check_tokens(engine, tokens: list[int]) -> None:
    """On the host: on a GPU an id outside of the vocabulary would end the process."""
    if not isinstance(tokens, list | tuple) or not {*map(type, tokens)} <= {int}:
        raise ValueError(f"need a list of token ids, got {tokens!r:.80}: encode text with the "
                         "model's tokenizer")
    size = engine.config.vocab_size
    if not tokens or min(tokens) < 0 or max(tokens) >= size:
        raise ValueError(f"need at least one token, all in 0 to {size - 1}; got {len(tokens)}, "
                         f"from {min(tokens, default=None)} to {max(tokens, default=None)}")


def check_room(engine, length: int, more: int) -> None:
    """Refuse what could never run, not even alone."""
    limit = engine.config.max_position_embeddings
    if length + more > limit:
        raise ValueError(f"{length} tokens and up to {more} more are {length + more}, the "
                         f"model has room for {limit} (max_position_embeddings): lower "
                         "max_tokens or shorten the sequence")
    needed = engine.pool.pages_for(length + more - 1)  # the last token is never run
    if needed > engine.pool.count:
        raise ValueError(f"need {needed} pages of {engine.pool.page_size} for {length} tokens "
                         f"and up to {more} more, the pool has {engine.pool.count}: raise pages "
                         "or lower max_tokens")
