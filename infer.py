"""Let the agent answer a question: think, search, visit, answer.   python infer.py --help"""

import json
import sys
from dataclasses import replace

from minvenus.agent.episode import Limits
from minvenus.agent.policy import load_policy, prompt_and_notices
from minvenus.agent.record import rollout_to_json, save_rollout
from minvenus.agent.rollout import RolloutLoop
from minvenus.agent.show import Show
from minvenus.config import ConfigError
from minvenus.flags import parse_flags, save_config
from minvenus.settings import InferConfig
from minvenus.tools.base import ToolErrorRate
from minvenus.tools.toyweb import ToyWeb
from minvenus.tools.web import make_tools
from minvenus.train.signals import stop_on_signals
from minvenus.types import Question, Rollout


def main(config: InferConfig) -> Rollout:
    """One rollout, printed while it is made, and saved with the resolved settings in the run's folder."""
    agent = config.agent.resolved()
    config = replace(config, agent=agent)
    system, notices = prompt_and_notices(agent)
    question, tools, max_turns = prepare(config)
    policy, tokenizer, source = load_policy(agent)
    folder = save_config(config, config.out).parent
    context = min(agent.max_context, policy.max_context or agent.max_context)
    limits = Limits(max_turns, context, agent.max_new_tokens, agent.max_observation_tokens,
                    agent.time_limit, agent.tool_seconds, tool_threads=None if agent.tools == "toyweb" else 1,
                    retries=agent.retries)
    show = Show(None if config.json else sys.stdout)
    show.row("model", source)
    show.row("question", question.text)
    try:
        with stop_on_signals() as stop:
            with RolloutLoop(policy, tokenizer, limits, system=system, notices=notices, watch=show.watch) as loop:
                [episode] = loop.add(question, lambda _: tools)
                loop.run(stop)
                rollout = episode.rollout
    finally:
        if hasattr(tools, "close"):
            tools.close()
    for path in filter(None, (folder / "trajectory.json", config.save)):
        save_rollout(rollout, path)
    if agent.tools == "toyweb":
        show.row("expected", question.answers[0])
    if rollout.trainable:
        written, seconds = sum(rollout.sampled), sum(turn.seconds for turn in rollout.turns)
        show.row("speed", f"{written} tokens sampled in {seconds:.2f} s: {written / seconds:.0f} tokens/s")
    show.row("saved", str(config.save or folder / "trajectory.json"))
    if config.json:
        print(json.dumps(rollout_to_json(rollout), ensure_ascii=False))
    return rollout


def prepare(config: InferConfig) -> tuple[Question, object, int]:
    """The question, the tools to answer it with, and how many turns it may take."""
    agent = config.agent
    if agent.tools == "toyweb":
        web, name = ToyWeb(agent.seed), config.question or "test-1"
        try:
            question = web.case(name).question
        except KeyError:
            raise ConfigError(f"the toy web answers its own questions only, test-0 to test-{web.config.test - 1} and train-0 to "
                              f"train-{web.config.train - 1}, not {name!r}; for others choose --tools") from None
        return question, web.for_question(name), agent.max_turns or web.max_turns(name)
    tools = make_tools(agent.tools, agent.seed)
    if config.question is None:
        raise ConfigError(f"--tools {agent.tools} needs a --question")
    return Question("question", config.question, ["(unknown)"]), tools, agent.max_turns or 200


def run(argv: list[str] | None = None) -> int:
    """The exit code: 0, 130 after Ctrl-C, 2 with one line that says what is wrong."""
    try:
        rollout = main(parse_flags(InferConfig, argv, description=__doc__))
    except KeyboardInterrupt:
        return 130
    except (ValueError, OSError, ToolErrorRate) as error:         # a checkpoint, a file or a tool that cannot be used
        print(f"infer.py: {error}", file=sys.stderr)
        return 2
    if rollout.error == "stopped by the user":
        return 130
    if rollout.error:
        print(f"infer.py: {rollout.error}", file=sys.stderr)
    return 2 if rollout.error else 0


if __name__ == "__main__":
    sys.exit(run())
