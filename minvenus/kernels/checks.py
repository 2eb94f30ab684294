"""What the kernels refuse, with the shapes in the message. Letters as in the kernels' files."""

import torch


def check_attention(q, k, v, cu_seqlens):
    """Shapes only: values would have to be fetched from the device."""
    tokens, heads, channels = q.shape
    kv_heads = k.shape[1]
    k_fits = k.shape == (tokens, kv_heads, channels) and heads % kv_heads == 0
    if not k_fits or v.shape != k.shape or cu_seqlens.dim() != 1:
        shapes = f"{list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"
        raise ValueError(
            "need q [N, H, D], k and v [N, K, D] with H a multiple of K, cu_seqlens [S + 1]; "
            f"got {shapes}, cu_seqlens {list(cu_seqlens.shape)}")


def check_paged_attention(q, k_pages, v_pages, block_table, lengths, cu_queries):
    """Shapes everywhere; values on a CPU only, because a GPU would have to wait for them."""
    _, page, kv_heads, channels = k_pages.shape
    q_fits = q.shape[2] == channels and q.shape[1] % kv_heads == 0
    table_fits = block_table.shape[:1] == lengths.shape and cu_queries.shape == (len(lengths) + 1,)
    if not q_fits or not table_fits or v_pages.shape != k_pages.shape:
        inputs = q, k_pages, v_pages, block_table, lengths, cu_queries
        raise ValueError(
            "need q [N, H, D], k_pages and v_pages [P, page, K, D] with H a multiple of K, "
            "block_table [S, pages], lengths [S] and cu_queries [S + 1]; "
            f"got {[list(x.shape) for x in inputs]}")
    if q.is_cuda:
        return

    new, room = cu_queries.diff(), block_table.shape[1] * page
    bounds_fit = cu_queries[0] == 0 and cu_queries[-1] == len(q)
    lengths_fit = (new >= 0) & (new <= lengths) & (lengths <= room)
    if not bounds_fit or not lengths_fit.all():
        raise ValueError(
            f"cu_queries must rise from 0 to the number of queries, {len(q)}, and every length, "
            f"with its new tokens, must fit {room} slots; "
            f"got {cu_queries.tolist()}, lengths {lengths.tolist()}")


def check_logprobs(hidden, weight, targets, temperature):
    same_type = hidden.dtype == weight.dtype and targets.dtype == torch.int64
    weight_fits = hidden.dim() == 2 and weight.shape[1:] == hidden.shape[1:]
    if not same_type or not weight_fits or targets.shape != hidden.shape[:1]:
        inputs = ", ".join(f"{list(x.shape)} {x.dtype}" for x in (hidden, weight, targets))
        raise ValueError("need hidden [N, d] and weight [V, d] of one dtype, targets [N] int64; "
                         f"got {inputs}")
    if not temperature > 0:
        raise ValueError(f"temperature must be > 0, got {temperature}; "
                         "greedy decoding has no log-probs to train on")
