"""What the model refuses, with the numbers in the message."""


def check_packed(config, tokens, cu_seqlens, lengths):
    """Token ids are checked on a CPU only: a GPU would have to wait for them."""
    flat = tokens.dim() == 1 and sum(lengths) == len(tokens)
    shortest = min(lengths, default=0)
    if not flat or shortest < 1 or cu_seqlens[0] != 0:
        raise ValueError("need flat tokens [N] and cu_seqlens [S + 1] that rise from 0 to N; "
                         f"got {list(tokens.shape)} and {cu_seqlens.tolist()}")

    longest = max(lengths)
    limit = config.max_position_embeddings
    if longest > limit:
        raise ValueError(f"a sequence has {longest} tokens, the model has "
                         f"max_position_embeddings {limit}: shorten it")
    if tokens.device.type == "cpu":
        lowest, highest = map(int, tokens.aminmax())
        most = config.vocab_size - 1
        if lowest < 0 or highest > most:
            raise ValueError(f"token ids must lie in 0 to {most}, got {lowest} to {highest}")
