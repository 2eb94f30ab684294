"""Let the agent answer a question: think, search, visit, answer.   python infer.py --help"""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from minvenus.agent.episode import Budget
from minvenus.agent.policy import EnginePolicy
from minvenus.agent.prompt import SYSTEM_PROMPT, Notices, read_prompt
from minvenus.agent.record import rollout_to_json, save_rollout
from minvenus.agent.remote import RemotePolicy
from minvenus.agent.rollout import rollouts
from minvenus.agent.show import Show
from minvenus.config import ConfigError, InferConfig, ModelConfig
from minvenus.engine import Engine, Sampling
from minvenus.flags import parse_flags, save_config
from minvenus.model import weights
from minvenus.model.qwen3 import Qwen3
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools import toyweb_teachers as toy
from minvenus.tools.base import ToolErrorRate
from minvenus.tools.make import make_tools
from minvenus.tools.toyweb import ToyWeb
from minvenus.train.checkpoint import latest
from minvenus.train.signals import stop_on_signals
from minvenus.types import Question, Rollout

PAGE_SIZE = 64
TOY_NOTICES = Notices(malformed=toy.NOT_READ, last_turn=None)        # what the tiny model has learned to read


def main(config: InferConfig) -> Rollout:
    """One rollout, printed while it is made, and saved with the resolved settings in the run's folder."""
    config = config.resolved()
    system, notices = words(config)
    question, tools, max_turns = prepare(config)
    policy, tokenizer, source = load(config)
    folder = save_config(config, config.out).parent
    context = config.max_context if policy.room is None else min(config.max_context, policy.room)
    budget = Budget(max_turns, context, config.max_new_tokens, config.max_observation_tokens,
                    config.time_limit, config.tool_seconds, tool_threads=0 if config.tools == "toyweb" else 1,
                    retries=config.retries)
    show = Show(None if config.json else sys.stdout)
    show.row("model", source)
    show.row("question", question.text)
    try:
        with stop_on_signals() as stop:
            [[rollout]] = rollouts(policy, tokenizer, [question], lambda _: tools, budget, system=system, notices=notices,
                                   watch=show.watch, stop=stop)
    finally:
        if hasattr(tools, "close"):
            tools.close()
    for path in filter(None, (folder / "trajectory.json", config.save)):
        save_rollout(rollout, path)
    if config.tools == "toyweb":
        show.row("expected", question.answers[0])
    if rollout.trainable:
        written, seconds = sum(rollout.sampled), sum(turn.seconds for turn in rollout.turns)
        show.row("speed", f"{written} tokens sampled in {seconds:.2f} s: {written / seconds:.0f} tokens/s")
    show.row("saved", str(config.save or folder / "trajectory.json"))
    if config.json:
        print(json.dumps(rollout_to_json(rollout), ensure_ascii=False))
    return rollout


def words(config: InferConfig) -> tuple[str, Notices]:
    """The system prompt and the notices: those of its lessons for the tiny model on the toy web."""
    learned = config.tiny and config.tools == "toyweb"
    own = toy.SYSTEM if learned else SYSTEM_PROMPT
    return read_prompt(config.system_prompt) if config.system_prompt else own, TOY_NOTICES if learned else Notices()


def prepare(config: InferConfig) -> tuple[Question, object, int]:
    """The question, the tools to answer it with, and how many turns it may take."""
    if config.tools == "toyweb":
        web, name = ToyWeb(config.seed), config.question or "test-1"
        try:
            question = web.case(name).question
        except KeyError:
            raise ConfigError(f"the toy web answers its own questions only, test-0 to test-{web.config.test - 1} and train-0 to "
                              f"train-{web.config.train - 1}, not {name!r}; for others choose --tools") from None
        return question, web.for_question(name), config.max_turns or web.max_turns(name)
    tools = make_tools(config.tools, config.seed)
    if config.question is None:
        raise ConfigError(f"--tools {config.tools} needs a --question")
    return Question("question", config.question, ["(unknown)"]), tools, config.max_turns or 200


# ------------------------------------------------------------------------------------------------------------------- the model


def load(config: InferConfig) -> tuple[EnginePolicy | RemotePolicy, Tokenizer, str]:
    """The policy, its tokenizer, and where it comes from in words."""
    sampling = Sampling(1, config.temperature, config.top_k or None, config.top_p, config.presence_penalty)
    if config.api_base is not None:
        own = config.model != "tiny"
        tokenizer = Tokenizer.from_file(config.model) if own else Tokenizer.tiny()
        policy = RemotePolicy(tokenizer, config.api_base, config.api_model, sampling, send_ids=own)
        return policy, tokenizer, f"{config.api_model} at {config.api_base}"
    model, tokenizer, source = load_local(config)
    if tokenizer.size > model.config.vocab_size:
        raise ConfigError(f"the tokenizer has {tokenizer.size} ids, the model only {model.config.vocab_size}: they do not belong "
                          "together")
    context = min(config.max_context, model.config.max_position_embeddings)
    engine = Engine(model, pages=-(-context // PAGE_SIZE), page_size=PAGE_SIZE, seed=config.seed, vocab_limit=tokenizer.size)
    sampling = replace(sampling, stop_ids=(tokenizer.tool_response,))       # only the environment writes what comes then
    return EnginePolicy(engine, tokenizer, sampling, show=sys.stdout.isatty() and not config.json), tokenizer, source


def load_local(config: InferConfig) -> tuple[Qwen3, Tokenizer, str]:
    device = ("cuda" if torch.cuda.is_available() else "cpu") if config.device == "auto" else config.device
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device cuda: torch sees no GPU here")
    dtype = torch.bfloat16 if device == "cuda" else torch.float32           # bfloat16 is slow on most CPUs
    start = time.perf_counter()
    folder = newest_model() if config.model == "tiny" else Path(config.model)
    if folder is None:
        model, tokenizer = Qwen3(ModelConfig.preset("tiny"), seed=config.seed).to(device, dtype), Tokenizer.tiny()
        source = "tiny, with random weights: it has not been trained, so its text means nothing"
    else:
        model, tokenizer, source = weights.load(folder, device, dtype), Tokenizer.from_file(folder), f"weights from {folder}"
    shape, count = model.config, sum(p.numel() for p in model.parameters())
    facts = (f"{count:,} parameters, {shape.num_hidden_layers} layers, hidden {shape.hidden_size}, "
             f"{shape.num_attention_heads} query and {shape.num_key_value_heads} kv heads of {shape.head_dim}; "
             f"{tokenizer.size:,} token ids")
    place = f"{str(dtype).removeprefix('torch.')} on {device}, loaded in {time.perf_counter() - start:.2f} s"
    return model, tokenizer, f"{source}\n{facts}\n{place}"


def newest_model(runs="runs") -> Path | None:
    """The model of the training run that saved a checkpoint last."""
    pointers = sorted(Path(runs).glob("*/latest"), key=lambda path: path.stat().st_mtime)
    newest = latest(pointers[-1].parent) if pointers else None
    return newest / "model" if newest else None


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
