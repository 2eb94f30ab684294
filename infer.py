"""Let the agent answer a question: think, search, visit, answer."""

import json
from dataclasses import replace

from minvenus.agent.load import load_loop, resolved
from minvenus.agent.record import rollout_to_json
from minvenus.agent.show import row, show
from minvenus.config import ConfigError
from minvenus.console import one_line_errors, stop_on_signals
from minvenus.files import claimed, refuse_training_run, write_text
from minvenus.flags import parse_flags, save_config
from minvenus.settings import InferConfig
from minvenus.tools.toyweb import ToyWeb
from minvenus.tools.toyweb_words import with_words
from minvenus.tools.web import make_tools
from minvenus.types import UNKNOWN, Question, Rollout


def main(config: InferConfig) -> Rollout:
    """One rollout, printed turn by turn. It is saved with the settings in the run's folder, however
    it ends."""
    agent = resolved(config.agent)
    config = replace(config, agent=agent)
    question, tools, max_turns = question_and_tools(config)
    refuse_training_run(config.out)
    with claimed(config.out, "answering"):
        loop, description = load_loop(agent)
        if not config.json:
            loop.watch = show
        with loop, stop_on_signals(once_more=False) as stop:
            save_config(config, config.out)
            [episode] = loop.add(question, lambda question: tools, max_turns=max_turns)
            try:
                if not config.json:
                    introduce(config, description, question)
                for _ in loop.run(stop):
                    pass
            except BaseException as error:
                # the output may be what failed, because its reader is gone
                loop.watch = lambda event, episode: None
                loop.cut_all(str(error) or type(error).__name__)
                raise
            finally:
                if episode.rollout:
                    record = json.dumps(rollout_to_json(episode.rollout), ensure_ascii=False)
                    write_text(f"{config.out}/trajectory.json", record + "\n")

    if config.json:
        print(record, flush=True)
    else:
        if agent.tools == "toyweb":
            row("expected", with_words(question.answers[0]))
        row("saved", f"{config.out}/trajectory.json")
    error = episode.rollout.error
    if error == "stopped by the user":
        raise KeyboardInterrupt(error)
    if error is not None:
        raise ConfigError(error)
    return episode.rollout


def introduce(config: InferConfig, description: str, question: Question) -> None:
    row("model", description)
    row("question", with_words(question.text))
    if config.question is None:
        row("", f"({question.id} of the toy web, since no --question was given)")


def question_and_tools(config: InferConfig) -> tuple[Question, object, int | None]:
    """The question, the tools to answer it with, and how many turns it may take if it has a limit
    of its own."""
    agent = config.agent
    if agent.tools == "toyweb":
        return toyweb_question(config)
    tools = make_tools(agent.tools)
    if config.question is None:
        raise ConfigError(f"--tools {agent.tools} needs a --question")
    return Question("question", config.question, [UNKNOWN]), tools, None


def toyweb_question(config: InferConfig) -> tuple[Question, object, int]:
    web = ToyWeb(config.agent.web_seed, asks=config.agent.asks)
    name = config.question or "test-1"
    try:
        question = web.case(name).question
    except KeyError:
        raise ConfigError(f"the toy web answers its own questions only, from test-0 to test-"
                          f"{web.size['test'] - 1}, not {name!r}; for others choose --tools"
                          ) from None
    return question, web.for_question(name), config.agent.max_turns or web.max_turns(name)


if __name__ == "__main__":
    with one_line_errors("infer.py"):
        main(parse_flags(InferConfig, description=__doc__))
