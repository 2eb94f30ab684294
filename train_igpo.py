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
from minvenus.agent.protocol import final_answer
from minvenus.agent.rollout import RolloutLoop
from minvenus.console import one_line_errors
from minvenus.engine import Engine
from minvenus.evaluation.judge import Judge, WordGrader
from minvenus.evaluation.questions import QuestionSource
from minvenus.files import digest, read_jsonl
from minvenus.flags import parse_flags
from minvenus.igpo.credit import Credit, assign_credit
from minvenus.igpo.gain import scored_lengths, truth_logprobs, wrap_truth
from minvenus.model.qwen3 import Qwen3
from minvenus.report.run_page import write_run_page
from minvenus.report.saved import SavedBatch, save_batch
from minvenus.setup import (
    grader_of,
    load_engines,
    question_source,
    rollout_loop,
    with_prompt_format,
)
from minvenus.text.tokenizer import Tokenizer
from minvenus.train.batch import Batch, behaviour, failed, health, make_batch, mean
from minvenus.train.checkpoint import load_reference, load_start
from minvenus.train.optim import adamw
from minvenus.train.parallel import everywhere, gather, on_rank_0, processes, share, size
from minvenus.train.plan import plan_table
from minvenus.train.presets import IGPO_PRESETS
from minvenus.train.run import MAY_CHANGE, Run, open_run
from minvenus.train.settings import IGPOConfig
from minvenus.train.update import igpo_update
from minvenus.types import Rollout, Sample


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
