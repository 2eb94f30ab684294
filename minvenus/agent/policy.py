"""Writers: a writer samples the turns of episodes from a policy, which is a model.

LocalWriter runs the model in our own engine; RemoteWriter (remote.py) asks a completion endpoint.
The turn loop uses these methods of both:

    fitting(group, opened, length)   how many episodes of a group may be opened beside those that
                                     are open; none of them grows to more than so many tokens
    open(group)                      begin episodes of one group, which share their prompt
    start(episode, max_tokens)       begin a turn after the tokens of episode.stream
    step() -> bool                   do some work; False if there was none to do in this thread
    finished(episode) -> bool        whether its turn has ended; its tokens are in episode.stream
                                     then. Raises a ToolError if the turn cannot be written
    discard(episode)                 throw its turn away; the next attempt has other random numbers
    cut(episode)                     end its turn now, with what is written of it
    close(episode)                   free what it holds
    tokenizer                        of the model
    samples                          whether a turn's ids are those that the policy sampled
    max_context                      the most tokens that an episode may have, None if unknown

Log-probs are under the plain softmax at the sampling temperature, which is what a trainer computes
again. With top-p below 1 tokens are drawn from another distribution, so what is trained is not
quite what was sampled from; their log-probs are still the plain ones.
"""

from dataclasses import replace

from minvenus.agent.episode import Episode
from minvenus.engine import Engine, Sampling
from minvenus.text.tokenizer import Tokenizer


class LocalWriter:
    """Turns from our own engine. The tokenizer's stop ids are added to those of the sampling."""

    samples = True

    def __init__(self, engine: Engine, tokenizer: Tokenizer, sampling: Sampling,
                 expected_context: int | None = None):
        self.engine = engine
        self.expected_context = expected_context
        self.tokenizer = tokenizer
        self.sampling = replace(sampling, stop_ids=(*tokenizer.stop_ids, *sampling.stop_ids))
        room = engine.pool.count * engine.pool.page_size
        self.max_context = min(engine.config.max_position_embeddings, room)

    def fitting(self, group: list[Episode], opened: list[Episode], length: int) -> int:
        """How many of the group fit beside `opened` if all grow to the expected length, which is at
        most `length`; at least one if nothing is open.

        Those that are longer already count as they are. Rollouts of one group share the full pages
        of their prompt, but for its last token: each of them computes that itself.
        """
        pool = self.engine.pool
        length = min(length, self.expected_context or length)
        pages = 0
        names = set()                                 # of groups
        for place, episode in enumerate(opened + group):
            stream = episode.stream
            pages += pool.pages_for(max(length, len(stream.ids)))
            if episode.name in names:
                pages -= (stream.prompt_length - 1) // pool.page_size
            names.add(episode.name)
            if pages > pool.count and place > 0:      # one alone always fits
                return max(0, place - len(opened))
        return len(group)

    def open(self, group: list[Episode]) -> None:
        """Open a sequence for each episode. The engine appends sampled ids and log-probs to the
        lists of its stream, which are the same objects."""
        first = group[0]
        prompts = [episode.stream.ids for episode in group]
        sequences = self.engine.open_group(prompts, first.name, first.number, first.step)
        for episode, sequence in zip(group, sequences, strict=True):
            sequence.logprobs = episode.stream.logprobs
            episode.sequence = sequence

    def start(self, episode: Episode, max_tokens: int) -> None:
        self.engine.start(episode.sequence, replace(self.sampling, max_tokens=max_tokens))

    def step(self) -> bool:
        busy = bool(self.engine.scheduler.running())
        self.engine.step()
        return busy

    def finished(self, episode: Episode) -> bool:
        return episode.sequence.job is None

    def discard(self, episode: Episode) -> None:
        """Go on with a new sequence: the cache still has its full pages, and the other name
        gives other random numbers."""
        old, stream = episode.sequence, episode.stream
        self.engine.close(old)
        stream.discard_turn()
        sequence = self.engine.open(stream.ids, f"{old.question} again", old.rollout, old.step)
        sequence.logprobs = stream.logprobs
        episode.sequence = sequence

    def cut(self, episode: Episode) -> None:
        episode.sequence.job = None                   # tokens sampled so far stay

    def close(self, episode: Episode) -> None:
        self.engine.close(episode.sequence)
