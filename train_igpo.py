"""Stage two: reinforcement learning with IGPO.

A step samples `group` rollouts of each of its questions and scores the truth before their turns
(the gains), grades the final answers (the outcomes), turns both into advantages (igpo/) and updates
the policy. Under torchrun every process, a rank, rolls out its share of the questions; all compute
the same credit, and each runs its share of the update (train/parallel.py).
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from minvenus.agent.episode import Episode
from minvenus.agent.policy import LocalWriter
from minvenus.agent.prompt import AgentFormat, read_format
from minvenus.agent.protocol import final_answer
from minvenus.agent.rollout import RolloutLoop
from minvenus.config import ConfigError
from minvenus.console import one_line_errors
from minvenus.engine import Engine, Sampling
from minvenus.evaluation.judge import Judge, WordGrader, make_grader
from minvenus.evaluation.questions import QuestionSource, open_questions
from minvenus.files import digest, read_jsonl
from minvenus.flags import parse_flags
from minvenus.igpo.credit import Credit, assign_credit
from minvenus.igpo.gain import scored_lengths, truth_logprobs, wrap_truth
from minvenus.model.lora import base_of
from minvenus.model.precision import engine_model
from minvenus.model.qwen3 import Qwen3
from minvenus.model.weights import start_folder
from minvenus.report.run_page import write_run_page
from minvenus.report.saved import SavedBatch, save_batch
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools.base import FailureGuard
from minvenus.train.batch import Batch, behaviour, failed, health, make_batch, mean
from minvenus.train.checkpoint import load_reference, load_start
from minvenus.train.optim import adamw
from minvenus.train.parallel import everywhere, gather, on_rank_0, processes, share, size
from minvenus.train.plan import plan_table
from minvenus.train.presets import IGPO_PRESETS
from minvenus.train.run import MAY_CHANGE, Run, open_run
from minvenus.train.settings import PAGE_SIZE, IGPOConfig
from minvenus.train.update import igpo_update
from minvenus.types import Rollout, Sample

TOOL_THREADS = 16


def main(config: IGPOConfig) -> Path:
    """Train, and return the folder of the trained model."""
    config, prompt_format = with_prompt_format(config)
    # the learning rate is constant, so a resumed run may have more steps
    with (open_run("igpo", config, MAY_CHANGE | {"steps"}) as run,
          closing(question_source(config)) as questions,
          closing(grader_of(config)) as grader):
        policy, tokenizer = load_start(config)
        reference = load_reference(config, policy)
        optimizer = adamw(policy, (0.9, 0.999), config.weight_decay)
        engine, scorer = load_engines(policy, reference, tokenizer, config)
        loop = rollout_loop(config, prompt_format, questions, engine, tokenizer)
        check_questions(loop, questions, config)
        files = tokenizer.files | prompt_format.files
        data = digest([questions.fingerprint, prompt_format.prompt, grader.name])

        for step in run.steps(policy, optimizer, files, data):       # resumes; stops on signals
            evaluation = {}
            if step == 1:
                evaluation = evaluate(run, loop, policy, questions, "before_test_")

            # 1. roll out, and score the truth while its context is still in the cache
            engine.load_weights(policy)
            samples: list[Sample] = []
            with run.apart("rollout"):
                for episodes in rollouts(loop, questions, step, config.group):
                    with run.phase("scoring"):
                        samples += score_truth(scorer, episodes, tokenizer, config)
            work = free_pages(engine, scorer)

            # 2. grade; failed and ungraded rollouts, and those left alone, are dropped and counted
            batch = grade(gather(samples), grader)

            # 3. gains -> rewards -> advantages
            credit = assign_credit(batch.samples, config.recipe)

            # 4. update
            with run.update():
                stats = igpo_update(policy, optimizer, batch, credit, reference, config, step)

            # 5. report
            if run.is_due(config.rollouts_every) or step == 1:
                save_rollouts(run, step, batch, credit)
            if run.is_due(config.evaluate_every):
                evaluation |= evaluate(run, loop, policy, questions, "test_")
            numbers = health(batch, credit, *questions.visits(batch.rollouts))
            run.log(step, numbers | work | stats | evaluation)
            if step % config.save_every == 0:
                run.save()
    return run.model_folder


# ----------------------------------------------------------------- the parts of a step, in order


def rollouts(loop: RolloutLoop, source: QuestionSource, step: int,
             group_size: int) -> Iterator[list[Episode]]:
    """`group_size` rollouts of each question; under torchrun, of this rank's share of them.

    Yields ended episodes that are still open: their pages are valid until the next iteration.
    """
    with loop:
        for group, (name, question) in share(list(enumerate(source.of_step(step)))):
            # random streams count steps from 0
            episodes = loop.add(question, source.tools_for, group_size, name=name, step=step - 1,
                                max_turns=source.max_turns(question))
            for episode in episodes:
                episode.group = group
        yield from loop.run()


def score_truth(scorer: Engine, episodes: list[Episode], tokenizer: Tokenizer,
                config: IGPOConfig) -> list[Sample]:
    """The rollouts with the log-probs of the truth's tokens before each turn that needs them.

    The current policy scores on the open sequences, so it computes only the truth. The frozen start
    checkpoint has an engine of its own, which first computes the whole rollouts.
    """
    truths = {}
    requests = {}
    for episode in episodes:
        truths[episode] = wrap_truth(episode.question.answers[0], tokenizer, config.recipe)
        context = episode.sequence if config.gain_policy == "current" else episode.rollout.tokens
        lengths = scored_lengths(episode.rollout, config.recipe)
        if lengths:
            requests[episode] = context, lengths, truths[episode].ids

    scores = scorer.score_many([*requests.values()], config.temperature)
    scores_of = dict(zip(requests, scores, strict=True))
    samples = []
    for episode, truth in truths.items():
        logprobs = truth_logprobs(
            episode.rollout, truth, scores_of.get(episode, []), config.recipe
        )
        samples.append(Sample(episode.rollout, logprobs, None, episode.group, episode.number))
    return samples


def grade(samples: list[Sample], grader: Judge | WordGrader) -> Batch:
    """The samples with their outcomes, in the order of groups and rollouts.

    Rollouts that failed are not graded. Penalties come later (igpo/rewards.py).
    """
    samples = sorted(samples, key=lambda sample: (sample.group, sample.number))
    finished = [sample for sample in samples if not failed(sample.rollout)]
    outcomes = on_rank_0(grades, [sample.rollout for sample in finished], grader)
    graded = [replace(sample, outcome=outcome)
              for sample, outcome in zip(finished, outcomes, strict=True)]
    return make_batch(samples, graded)


def grades(ended: list[Rollout], grader: Judge | WordGrader) -> list[float | None]:
    questions = [rollout.question for rollout in ended]
    return grader.grade(questions, [final_answer(rollout.turns) for rollout in ended])


def evaluate(run: Run, loop: RolloutLoop, policy: Qwen3, source: QuestionSource,
             prefix: str) -> dict[str, float]:
    """Metrics of one sampled rollout of every held-out question; {} where none is held out.

    Answers are compared by exact match, with --judge too: evaluation should be cheap.
    """
    loop.writer.engine.load_weights(policy)
    episodes: list[Episode] = []
    with run.apart("evaluation"), loop:
        for question in share(source.held_out):
            max_turns = source.max_turns(question)
            episodes += loop.add(question, source.tools_for, max_turns=max_turns)
        list(loop.run())                            # to their end; no truth is scored

    ended = gather([episode.rollout for episode in episodes])
    exact_match = mean(grades(ended, WordGrader("em")))
    numbers = {"exact_match": exact_match, **behaviour(ended, *source.visits(ended))}
    return {prefix + name: number for name, number in numbers.items() if number is not None}


def save_rollouts(run: Run, step: int, batch: Batch, credit: Credit) -> None:
    """For the X-ray: the rollouts of a step with the arithmetic of their credit."""
    config = run.config
    if batch.samples:
        saved = SavedBatch(step, config.gain_policy, config.recipe, batch.samples, credit)
        on_rank_0(save_batch, run.folder, saved)


def free_pages(engine: Engine, scorer: Engine) -> dict[str, int]:
    """Leave the pages' memory to the update; returns their peak and the tokens of rollouts."""
    counters = everywhere(engine.counters())
    engine.free_pages()
    scorer.free_pages()
    return {
        "pages_peak": max(rank_counters.pages_peak for rank_counters in counters),
        "rollout_tokens": sum(rank_counters.rolled_out for rank_counters in counters),
    }


# -------------------------------------------------------------------- what the steps are made of


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
        max_turns=config.max_turns or 200,
        max_context=config.max_context,
        max_new_tokens=config.max_turn_tokens,
        retries=0,
        max_observation_tokens=config.max_observation_tokens,
    )
    sampling = Sampling(config.max_turn_tokens, config.temperature, top_p=config.top_p)
    writer = LocalWriter(engine, tokenizer, sampling, config.expected_context)
    threads = None if source.immediate else TOOL_THREADS
    return RolloutLoop(writer, limits, tool_seconds=config.tool_seconds,
                       tool_threads=threads, guard=FailureGuard())


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


if __name__ == "__main__":
    with one_line_errors("train_igpo.py"), processes():
        settings = parse_flags(IGPOConfig, description=__doc__, presets=IGPO_PRESETS)
        if settings.plan:
            print(plan_table(settings, size()))
        else:
            print(f"model: {main(settings)}")
            # no metrics: stopped before the first step
            if on_rank_0(read_jsonl, Path(settings.out) / "metrics.jsonl"):
                print(f"report: {on_rank_0(write_run_page, settings.out)}")
