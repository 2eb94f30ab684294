"""What a training run asks: questions of the toy web, or a file of them with any other tool set; one form for both.

Which pages are right is known on the toy web only. How many questions a step takes and what becomes of their rollouts is not
known here.
"""

from collections.abc import Callable
from dataclasses import dataclass

from minvenus.config import ConfigError
from minvenus.evaluation.config import EvalConfig
from minvenus.evaluation.task import make_task
from minvenus.tools.toyweb import ToyWeb
from minvenus.tools.toyweb_visits import visit_labels
from minvenus.types import Question, Rollout


@dataclass(frozen=True)
class Asked:
    training: list[Question]
    held_out: list[Question]                                # may be empty: then nothing is evaluated
    tools_for: Callable[[Question], object]                 # a rollout's own tools
    max_turns: Callable[[Question], int]
    # what the pages of each turn were ("right", "wrong", ...), and how many right ones the question has, None if nobody knows
    pages: Callable[[Rollout], tuple[list[list[str]], int | None]]
    fingerprint: str | None = None                          # of a file's questions: a run that goes on must have the same
    close: Callable[[], None] = lambda: None                # of the tools

    def visits(self, done: list[Rollout]) -> tuple[list[list[list[str]]], list[int | None]]:
        """Both things that `pages` says, of all rollouts."""
        found = [self.pages(rollout) for rollout in done]
        return [labels for labels, _ in found], [right for _, right in found]


def toy_questions(web: ToyWeb) -> Asked:
    def pages(rollout: Rollout) -> tuple[list[list[str]], int]:
        labels: list[list[str]] = [[label.kind for label in turn] for turn in visit_labels(web, rollout)]
        return labels, web.case(rollout.question.id).hops

    return Asked(web.questions("train"), web.questions("test"), lambda question: web.for_question(question.id),
                 lambda question: web.max_turns(question.id), pages)


def file_questions(config: EvalConfig, held_out: int, step: int) -> Asked:
    """The file's first `held_out` questions are held out, and so is the same text wherever it stands again. At least `step` must
    be left, so that none comes twice before the others came once."""
    task = make_task(config)
    every = [entry.question for entry in task.entries]
    texts = {question.text for question in every[:held_out]}
    training = [question for question in every if question.text not in texts]
    if len(every) < held_out or len(training) < step:
        task.close()
        raise ConfigError(f"{config.questions} has {len(every)} questions: {held_out} are held out, {len(training)} others are "
                          f"left to train on, and a step takes {step}: lower --questions or --evaluate-questions")
    return Asked(training, every[:held_out], task.tools_for, task.max_turns, lambda rollout: ([[] for _ in rollout.turns], None),
                 task.fingerprint, task.close)


def names_of(questions: list[Question], step: int) -> list[str]:
    """Of the questions of a step; they decide the sampling. Where an epoch ends within a step, a question may come twice."""
    ids = [question.id for question in questions]
    return [f"{step} again {name}" if name in ids[:i] else f"{step} {name}" for i, name in enumerate(ids)]
