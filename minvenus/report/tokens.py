"""The tokens of a turn as text, for the view that colours them. Ids are what was sampled; nothing is encoded again.

A page may be made from a file alone, and a file names no tokenizer. So whoever calls offers some, and one is used only if it
writes every turn's recorded text from its ids: with a wrong one the page says less, never something wrong.
"""

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from minvenus.text.tokenizer import Tokenizer, TokenizerError
from minvenus.types import Rollout

BEFORE = "<think>\n"               # the end of the generation prompt, which a turn's text begins with


def fitting(rollouts: list[Rollout], candidates: Iterable[Tokenizer]) -> Tokenizer | None:
    """The first tokenizer that gives the text of all turns back."""
    return next((t for t in candidates if rollouts and all(writes(t, rollout) for rollout in rollouts)), None)


def writes(tokenizer: Tokenizer, rollout: Rollout) -> bool:
    for turn in rollout.turns:
        own = [i for i in rollout.tokens[turn.start:turn.end] if i not in tokenizer.stop_ids]
        try:
            if BEFORE + tokenizer.decode(own) != turn.text:
                return False
        except TokenizerError:
            return False
    return True


def candidates(source: Path) -> Iterable[Tokenizer]:
    """Those of the run that a file belongs to (RUN/rollouts/step-*.jsonl), newest first, and the tiny one."""
    files = sorted(source.resolve().parent.parent.glob("checkpoints/*/model/tokenizer.json"), reverse=True)
    for path in files[:1]:
        try:
            yield Tokenizer.from_file(path)
        except TokenizerError:
            continue
    yield Tokenizer.tiny()


def pieces(ids: list[int], tokenizer: Tokenizer) -> list[tuple[str, int]]:
    """Text and how many ids it takes: several where a character's bytes are spread over them."""
    result: list[tuple[str, int]] = []
    held: list[int] = []
    for i in ids:
        held.append(i)
        text = tokenizer.decode(held)
        if "\ufffd" not in text or len(held) > 6:          # no character has more than four bytes: these are none
            result.append((text, len(held)))
            held = []
    return [*result, (tokenizer.decode(held), len(held))] if held else result


def turn_tokens(rollout: Rollout, start: int, end: int, tokenizer: Tokenizer) -> dict:
    """The pieces of tokens[start:end] with how many ids each takes, whether the policy chose it, and its log-prob when it did.
    None for `count` and `sampled` stands for all ones."""
    listed = []
    for first, last in cuts(rollout.sampled, start, end):
        listed += pieces(rollout.tokens[first:last], tokenizer)
    sampled, logprobs, at = [], [], start
    for _, count in listed:
        logps = rollout.logprobs[at:at + count]
        sampled.append(int(rollout.sampled[at]))
        logprobs.append(None if logps[0] is None else round(sum(x for x in logps if x is not None), 3))
        at += count
    counts = [count for _, count in listed]
    return {"text": [text for text, _ in listed], "count": None if set(counts) == {1} else counts,
            "sampled": None if all(sampled) else sampled, "logprob": logprobs}


def cuts(sampled: list[bool], start: int, end: int) -> list[tuple[int, int]]:
    """start:end in parts that are sampled as a whole or not at all, so that no piece mixes the two."""
    borders = [start, *(i for i in range(start + 1, end) if sampled[i] != sampled[i - 1]), end]
    return list(pairwise(borders))
