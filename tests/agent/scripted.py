"""For the tests of the loop: the real engine with a real (random) model, made to draw the tokens
of a script.

Only the draw is replaced. Prefill, cache, scheduling, log-probs and everything of the loop are the
shipped code.
"""

import threading
import time
from itertools import chain

import torch

from minvenus.agent.policy import LocalWriter
from minvenus.agent.prompt import AgentFormat, Notices
from minvenus.agent.rollout import RolloutLoop
from minvenus.config import ModelConfig
from minvenus.engine import Engine, Sampling
from minvenus.model.qwen3 import Qwen3
from minvenus.text.chat import observation_ids, prompt_ids
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools.base import Text
from minvenus.types import Question

TOKENIZER = Tokenizer.tiny()
CONFIG = ModelConfig(
    16,
    24,
    1,
    2,
    1,
    head_dim=8,
    vocab_size=TOKENIZER.size + 3,
    rope_theta=100.0,
    max_position_embeddings=40_000,
)
MODEL = Qwen3(CONFIG, seed=0).requires_grad_(False)
SYSTEM = "Search and visit."
QUESTION = Question("q", "Pet of Bob?", ["cat"])
PROMPT = len(prompt_ids(TOKENIZER, SYSTEM, QUESTION.text))  # tokens
BROKEN = 'Start.\n</think>\n\n<tool_call>\n{"name":\n</tool_call>'
QUIET = Notices(malformed="ERROR: cannot read the call.")


def search(query="Bob", thought="Start."):
    call = f'{{"name":"search","arguments":{{"query":["{query}"]}}}}'
    return f"{thought}\n</think>\n\n<tool_call>\n{call}\n</tool_call>"


def visit(url="Bob", thought="Open.", goal="pet"):
    call = f'{{"name":"visit","arguments":{{"url":["{url}"],"goal":"{goal}"}}}}'
    return f"{thought}\n</think>\n\n<tool_call>\n{call}\n</tool_call>"


def answer(text="cat", thought="Answer."):
    return f"{thought}\n</think>\n\n<answer>\n{text}\n</answer>"


def ids_of(turn) -> list[int]:
    """The ids of a scripted turn: a text ends with im_end, a list is taken as it is."""
    return turn if isinstance(turn, list) else [*TOKENIZER.encode_tagged(turn), TOKENIZER.im_end]


def size(observation: str) -> int:
    return len(observation_ids(TOKENIZER, observation))


def engine_for(script, pages=1200, page_size=32, model=MODEL, **options) -> Engine:
    """An engine that writes script(name, turn, attempt) as turn number `turn` of the rollout
    `name` ("0/q/0": a run's number, question, rollout). Where a script ends early, its last
    token is repeated."""
    wanted, attempts = {}, {}

    def draw(sequences, logits):
        tokens = []
        for sequence in sequences:
            done = sequence.written
            if not done:
                question = sequence.question.replace(" again", "")
                if sequence.step is not None:
                    question = f"{sequence.step} {question}"
                name = f"0/{question}/{sequence.rollout}"
                number = (sequence.tokens.count(TOKENIZER.im_start) - 3) // 2
                attempts[name, number] = attempts.get((name, number), -1) + 1
                wanted[sequence] = ids_of(script(name, number, attempts[name, number]))
            turn = wanted[sequence]
            tokens.append(turn[min(len(done), len(turn) - 1)])
        return torch.tensor(tokens)

    engine = Engine(model, pages=pages, page_size=page_size, vocab_limit=TOKENIZER.size, **options)
    engine.sampler.tokens = draw
    return engine


def policy_for(script, sampling=None, **options) -> LocalWriter:
    """`script` may also be the list of turns of every rollout."""
    turns = (
        script
        if callable(script)
        else lambda name, turn, attempt: script[min(turn, len(script) - 1)]
    )
    return LocalWriter(engine_for(turns, **options), TOKENIZER, sampling or Sampling(1))


class Tools:
    """Answers by function; `seen` has every call."""

    def __init__(self, search=lambda query: "Bob sings", visit=lambda url, goal: "Bob\ncat."):
        self._search, self._visit, self.seen = search, visit, []

    def search(self, query, deadline):
        self.seen.append(("search", query))
        return self._content(self._search(query))

    def visit(self, url, goal, deadline):
        self.seen.append(("visit", url, goal))
        return self._content(self._visit(url, goal))

    def _content(self, value):
        return Text(value) if isinstance(value, str) else value


def all_threads_end() -> bool:
    """Whether the threads of tools and remote turns all end within some seconds."""
    until = time.monotonic() + 10
    while agent_threads() and time.monotonic() < until:
        time.sleep(0.005)
    return not agent_threads()


def agent_threads() -> list[threading.Thread]:
    return [
        thread
        for thread in threading.enumerate()
        if thread.name.startswith(("tool ", "completion"))
    ]


def budget(
    max_turns=8, max_context=1500, max_new_tokens=60, retries=0, tool_threads=None, **more
) -> dict:
    """Limits of a loop."""
    return {
        "max_turns": max_turns,
        "max_context": max_context,
        "max_new_tokens": max_new_tokens,
        "retries": retries,
        "tool_threads": tool_threads,
        **more,
    }


def loop_for(
    policy, limits=None, notices=None, system=SYSTEM, watch=None, **options
) -> RolloutLoop:
    """`policy` may be a script."""
    policy = policy if hasattr(policy, "start") else policy_for(policy)
    limits = limits or budget()
    told = {
        name: value for name, value in limits.items() if name in AgentFormat.__dataclass_fields__
    }
    others = {name: value for name, value in limits.items() if name not in told}
    agent = AgentFormat(system, notices or Notices(), **told)
    loop = RolloutLoop(policy, agent, **others, **options)
    loop.watch = watch or loop.watch
    return loop


def run_groups(
    policy,
    limits=None,
    tools=None,
    questions=(QUESTION,),
    n=1,
    max_turns=None,
    stop=False,
    **options,
):
    """Rollouts of all questions, each a sound stream, and nothing stays open. `tools` is one
    tool set for all, or a function."""
    policy = policy if hasattr(policy, "start") else policy_for(policy)
    tools = tools or Tools()
    tools_for = tools if callable(tools) else lambda question: tools
    with loop_for(policy, limits, **options) as loop:
        groups = [loop.add(question, tools_for, n, max_turns=max_turns) for question in questions]
        for _ in loop.run(stop):
            pass
    rollouts = [[episode.rollout for episode in group] for group in groups]
    for rollout in chain(*rollouts):
        check_stream(rollout)
    if isinstance(policy, LocalWriter):
        assert policy.engine.pool.used == 0 and not policy.engine.scheduler.sequences
    return rollouts


def run(policy, limits=None, tools=None, **options):
    """One rollout of QUESTION. `policy` may be a script."""
    [[rollout]] = run_groups(policy, limits, tools, **options)
    return rollout


def random_policy(sampling=None, seed=0) -> LocalWriter:
    """The engine as it is: real draws from a model that knows nothing."""
    engine = Engine(MODEL, pages=60, page_size=32, vocab_limit=TOKENIZER.size, seed=seed)
    return LocalWriter(engine, TOKENIZER, sampling or Sampling(1))


def check_stream(rollout):
    """What the ids, the mask and the turns of a rollout must be, whatever happened."""
    stops = TOKENIZER.stop_ids
    expected = prompt_ids(TOKENIZER, rollout.system, rollout.question.text)
    for turn in rollout.turns:
        ids = rollout.tokens[turn.start : turn.end]
        assert ids[-1] == TOKENIZER.im_end and not set(stops) & set(ids[:-2])
        assert turn.text == "<think>\n" + TOKENIZER.decode([i for i in ids if i not in stops])
        *sampled, _ = rollout.sampled[turn.start : turn.end]
        if any(rollout.sampled):  # else it is an endpoint's; only an end that was added is not
            assert all(sampled)
        assert turn.start == len(expected)
        expected += ids
        assert (turn.observation is None) == (turn is rollout.turns[-1])
        if turn.observation is not None:
            expected += observation_ids(TOKENIZER, turn.observation)
    assert rollout.tokens == expected
