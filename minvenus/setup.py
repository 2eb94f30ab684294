"""The parts of train_igpo.py, built from its settings: prompt, questions, grader, engines and turn
loop."""

from dataclasses import replace
from pathlib import Path

from minvenus.agent.policy import LocalWriter
from minvenus.agent.prompt import AgentFormat, read_format
from minvenus.agent.rollout import RolloutLoop
from minvenus.config import ConfigError
from minvenus.engine import Engine, Sampling
from minvenus.evaluation.answers import WordGrader
from minvenus.evaluation.judge import Judge, make_grader
from minvenus.evaluation.questions import QuestionSource, open_questions
from minvenus.igpo.gain import wrap_truth
from minvenus.model.lora import base_of
from minvenus.model.precision import engine_model
from minvenus.model.qwen3 import Qwen3
from minvenus.model.weights import start_folder
from minvenus.text.tokenizer import Tokenizer
from minvenus.train.settings import PAGE_SIZE, IGPOConfig

TOOL_THREADS = 16


def with_prompt_format(config: IGPOConfig) -> tuple[IGPOConfig, AgentFormat]:
    """The settings with the model's own lead-in, and the prompt and notices that it reads.

    The truth is scored after the thought that the model has learned to answer after.
    """
    prompt_format = read_format(start_folder(config.model), config.like, config.system_prompt)
    recipe = replace(config.recipe, lead_in=prompt_format.lead_in)
    return replace(config, recipe=recipe), prompt_format


def question_source(config: IGPOConfig) -> QuestionSource:
    source = open_questions(
        config.data,
        config.tools,
        config.web_seed,
        hops=config.hops,
        slack=config.slack,
        asks=config.asks,
        limit=config.evaluate_questions,
    )
    if config.questions > len(source.training):
        raise ConfigError(f"{config.data} has {len(source.training)} questions to train on, beside "
                          f"{config.evaluate_questions} to evaluate on, and a step takes "
                          f"{config.questions}: lower --questions or --evaluate-questions")
    return replace(source, per_step=config.questions, turn_limit=config.max_turns)


def grader_of(config: IGPOConfig) -> Judge | WordGrader:
    return make_grader("judge" if config.judge else config.outcome, Path(config.out))


def load_engines(policy: Qwen3, reference: Qwen3 | None, tokenizer: Tokenizer,
                 config: IGPOConfig) -> tuple[Engine, Engine]:
    """The engine that samples turns, and the one that scores truths: the same, or one with the
    start checkpoint."""
    engine = Engine(engine_model(policy), config.pages, PAGE_SIZE, config.seed,
                    vocab_limit=tokenizer.size)
    if config.gain_policy == "current":
        return engine, engine
    assert reference is not None
    return engine, Engine(engine_model(base_of(reference)), config.pages, PAGE_SIZE)


def rollout_loop(config: IGPOConfig, prompt_format: AgentFormat, source: QuestionSource,
                 engine: Engine, tokenizer: Tokenizer) -> RolloutLoop:
    """The loop of training and evaluation: both have the same sampling, prompt and guard.

    Every turn is trained as it was sampled: none is thrown away. Tools that may hang run in
    threads. The format's answer_from, last_turn_tokens and time_limit are for inference.
    """
    limits = AgentFormat(
        prompt_format.prompt,
        prompt_format.notices,
        max_context=config.max_context,
        max_new_tokens=config.max_turn_tokens,
        retries=0,
        max_observation_tokens=config.max_observation_tokens,
    )
    sampling = Sampling(config.max_turn_tokens, config.temperature, top_p=config.top_p)
    writer = LocalWriter(engine, tokenizer, sampling, config.expected_context)
    threads = None if source.immediate else TOOL_THREADS
    loop = RolloutLoop(writer, limits, tool_threads=threads, tool_seconds=config.tool_seconds)
    check_questions(loop, source, config)
    return loop


def check_questions(loop: RolloutLoop, source: QuestionSource, config: IGPOConfig) -> None:
    """Refuse a question of a file that does not fit, now and not in the step that takes it."""
    if config.data == "toyweb":
        return
    questions = [*source.training, *source.held_out]
    print(f"questions   {len(questions):,}, each checked for room", flush=True)
    for question in questions:
        loop.limits.check_room(question, source.max_turns(question))
        truth = len(wrap_truth(question.answers[0], loop.tokenizer, config.recipe).ids)
        context = config.max_context - loop.limits.last_tokens       # the longest scored one
        room = loop.writer.max_context
        if config.recipe.use_gain and context + truth > room:
            raise ConfigError(f"question {question.id!r}: its answer of {truth} tokens is scored "
                              f"after up to {context} others, and there is room for {room}: raise "
                              "--pages or lower --max-context")
