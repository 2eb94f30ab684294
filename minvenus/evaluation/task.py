"""What is asked, and with which tools: the toy web's own questions, or a file with any other tool set."""

from collections.abc import Callable
from dataclasses import asdict, dataclass

from minvenus.config import ConfigError
from minvenus.evaluation.config import EvalConfig, digest
from minvenus.evaluation.questions import Entry, read_entries
from minvenus.tools.make import make_tools
from minvenus.tools.toyweb import ToyWeb
from minvenus.types import Question

IN_THE_LOOP = ("toyweb", "folder", "replay")       # tools that cannot hang and need no thread: such runs are reproducible


@dataclass(frozen=True)
class Task:
    entries: list[Entry]                           # those that are asked
    fingerprint: str                               # of all that could be asked
    tools_for: Callable[[Question], object]        # a run's own tools
    max_turns: Callable[[Question], int]
    close: Callable[[], None]                      # of the tools


@dataclass(frozen=True)
class Job:
    """One run of one question."""

    entry: Entry
    run: int

    @property
    def key(self) -> tuple[str, int]:
        return self.entry.question.id, self.run

    @property
    def name(self) -> str:
        """Decides the sampling, with the seed. The first run of a question is what infer.py gives."""
        return self.entry.question.id if self.run == 0 else f"{self.entry.question.id} run {self.run}"


def make_task(config: EvalConfig) -> Task:
    """`config` is resolved."""
    if config.tools == "toyweb":
        return toy_task(config)
    assert config.questions is not None
    entries = read_entries(config.questions)
    tools = make_tools(config.tools, config.seed)
    return Task(entries[:config.limit], fingerprint(entries), lambda question: tools, lambda question: config.max_turns or 200,
                getattr(tools, "close", lambda: None))


def toy_task(config: EvalConfig) -> Task:
    web = ToyWeb.of(config.seed, config.hops, config.slack)
    questions = web.questions("test")
    if config.limit is not None and config.limit > len(questions):
        raise ConfigError(f"the toy web has {len(questions)} test questions, not {config.limit}: lower --limit")
    entries = [Entry(question, hops=web.case(question.id).hops) for question in questions]
    return Task(entries[:config.limit], fingerprint(entries), lambda question: web.for_question(question.id),
                lambda question: config.max_turns or web.max_turns(question.id), lambda: None)


def fingerprint(entries: list[Entry]) -> str:
    return digest([asdict(entry) for entry in entries])


def jobs(entries: list[Entry], runs: int) -> list[Job]:
    """All first runs, then all second ones: whatever is there early is about all questions alike."""
    return [Job(entry, run) for run in range(runs) for entry in entries]
