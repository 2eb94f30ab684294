"""Who writes the turns. The loop knows a policy only by five methods, so a local engine and a remote endpoint share it:

    open(prompts_Q, n, names_Q)             n handles for each prompt
    start(handle, ids, max_tokens, post)    begin a turn behind `ids`, the whole stream so far. Where it does not reach the end of
                                            the handle's last turn, that turn was thrown away and is written anew
    step()                                  do some work; False if there is none to do in this thread
    cut(handle)                             end its turn now; returns what there is of it
    close(handle)                           give back what it holds

`post` may be called from any thread: with a str (a piece of the turn as it comes, to look at only), with a `Written` (the turn
has ended), or with an exception (the run must stop). `room` is the most tokens that a sequence may have, None if unknown;
`check_trainable` raises where log-probs would be missing or would not be those of a policy that can be trained.

Log-probs: `logprobs` are under the plain softmax at the sampling temperature over the whole vocabulary, which is what a trainer
computes again, whatever was cut off when the token was drawn.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from minvenus.config import ConfigError
from minvenus.engine import Engine, Sampling, Sequence
from minvenus.engine.sequence import Turn
from minvenus.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Written:
    """A turn as the policy gave it. Without log-probs the ids were made from text and count as unsampled."""

    tokens: list[int]
    logprobs: list[float] | None = None
    error: str | None = None                    # the turn could not be written (to its end): the rollout is over


Post = Callable[["str | Written | BaseException"], None]


@dataclass(eq=False)
class Handle:
    """One rollout in the engine."""

    sequence: Sequence
    name: str
    rollout: int
    attempts: int = 0                           # turns thrown away so far


@dataclass(eq=False)
class Writing:
    """A turn that is being written."""

    post: Post
    shown: int = 0                              # tokens that were posted as text


class EnginePolicy:
    """Turns from the local engine.

    sampling      its max_tokens is replaced turn by turn; its stop_ids come on top of the tokenizer's
    show          post the text of turns while they are written
    """

    def __init__(self, engine: Engine, tokenizer: Tokenizer, sampling: Sampling, show: bool = False):
        self.engine, self.tokenizer, self.sampling, self.show = engine, tokenizer, sampling, show
        self.stop_ids = (*tokenizer.stop_ids, *sampling.stop_ids)
        self.room = min(engine.config.max_position_embeddings, engine.pool.count * engine.pool.page_size)
        self._writing: dict[Sequence, Writing] = {}

    def open(self, prompts_Q: list[list[int]], n: int, names_Q: list[str]) -> list[list[Handle]]:
        """The prompt is computed once for its n rollouts. (engine seed, name, rollout) decide what is sampled."""
        groups = self.engine.open_groups(prompts_Q, n, [*names_Q])
        return [[Handle(s, name, i) for i, s in enumerate(group)] for name, group in zip(names_Q, groups, strict=True)]

    def start(self, handle: Handle, ids: list[int], max_tokens: int, post: Post) -> None:
        if len(ids) < len(handle.sequence.tokens):
            handle.attempts += 1                # other noise, or the same turn would come again
            self._reopen(handle, ids)
        elif len(ids) > len(handle.sequence.tokens):
            self.engine.append(handle.sequence, ids[len(handle.sequence.tokens):])
        self.engine.start(handle.sequence, replace(self.sampling, max_tokens=max_tokens, stop_ids=self.stop_ids))
        self._writing[handle.sequence] = Writing(post)

    def step(self) -> bool:
        for sequence in self.engine.step():
            turn, done = self._writing.pop(sequence), sequence.completion
            assert done is not None
            self._show(turn, done.tokens, whole=True)
            turn.post(Written(done.tokens, done.logprobs))
        for sequence, turn in self._writing.items() if self.show else ():
            assert isinstance(sequence.job, Turn)
            self._show(turn, sequence.job.tokens)
        return bool(self._writing)

    def cut(self, handle: Handle) -> Written:
        del self._writing[handle.sequence]
        turn = handle.sequence.job
        assert isinstance(turn, Turn)
        written = Written(list(turn.tokens), list(turn.logprobs))
        self._reopen(handle, list(handle.sequence.tokens))
        return written

    def close(self, handle: Handle) -> None:
        self._writing.pop(handle.sequence, None)
        self.engine.close(handle.sequence)

    def check_trainable(self) -> None:
        s = self.sampling
        wrong = [f"{name} {value}" for name, value, plain in (
            ("top_k", s.top_k, None), ("presence_penalty", s.presence_penalty, 0.0),
            ("stop_ids", s.stop_ids, ())) if value != plain]
        if s.temperature == 0:
            wrong.append("temperature 0")
        if wrong:
            raise ConfigError(f"{', '.join(wrong)}: for inference only, because the log-probs of such turns are not those of the "
                              "policy that is trained")

    def _reopen(self, handle: Handle, ids: list[int]) -> None:
        """A fresh sequence with these tokens; it finds its full pages again."""
        self.engine.close(handle.sequence)
        handle.sequence = self.engine.open(ids, f"{handle.name} attempt {handle.attempts}", handle.rollout)

    def _show(self, turn: Writing, tokens: list[int], whole: bool = False) -> None:
        """Post the text of the new tokens; what ends in half a character waits for the next one."""
        if self.show and turn.shown < len(tokens):
            tail = tokens[turn.shown:]
            text = self.tokenizer.decode([i for i in tail if i not in self.tokenizer.stop_ids])
            if whole or not text.endswith("\ufffd") or len(tail) > 4:
                turn.shown = len(tokens)
                turn.post(text)
