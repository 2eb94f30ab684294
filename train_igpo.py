"""Stage two: reinforcement learning with IGPO.

A step samples `group` rollouts of each of its questions, scores the true answer in the contexts before their turns
(which gives the gains), grades the final answers (the outcomes), turns both into advantages (igpo/) and updates the
policy.
"""
# Under torchrun each process, a rank, rolls out its share of the questions. `share`, `together`,
# `gather`, `on_rank_0` and `everywhere` are for that (train/parallel.py). A single process has all
# the questions and nothing to gather.

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from minvenus.agent.policy import LocalWriter
from minvenus.agent.prompt import AgentFormat, read_format
from minvenus.agent.protocol import final_answer
from minvenus.agent.rollout import Episode, RolloutLoop
from minvenus.config import ConfigError
from minvenus.console import one_line_errors
from minvenus.engine import Engine, Sampling
from minvenus.evaluation.judge import Judge, WordGrader, make_grader
from minvenus.evaluation.questions import QuestionSource, open_questions
from minvenus.files import digest, read_jsonl
from minvenus.flags import parse_flags
from minvenus.igpo.credit import assign_credit
from minvenus.igpo.gain import scored_lengths, truth_logprobs, wrap_truth
from minvenus.igpo.recipes import Recipe
from minvenus.model.lora import base_of
from minvenus.model.precision import engine_model
from minvenus.model.qwen3 import Qwen3
from minvenus.model.weights import start_folder
from minvenus.presets import IGPO_PRESETS
from minvenus.report.run_page import write_run_page
from minvenus.report.saved import SavedBatch, save_batch
from minvenus.settings import IGPOConfig
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools.base import FailureGuard
from minvenus.train.batch import behaviour, health, make_batch, mean
from minvenus.train.optim import adamw
from minvenus.train.parallel import everywhere, gather, on_rank_0, processes, share, size, together
from minvenus.train.plan import PAGE_SIZE, plan_table
from minvenus.train.run import MAY_CHANGE, load_reference, load_start, open_run
from minvenus.train.update import igpo_update, row_of
from minvenus.types import Rollout


TOOL_THREADS = 16                 # calls of live tools at once; other tools answer in order, reproducibly


def main(config: IGPOConfig) -> Path:
    """Train, and return the folder of the trained model."""
    config, agent = with_agent_format(config)
    # the learning rate is constant, so a resumed run may be given more steps
    with (open_run("igpo", config, MAY_CHANGE | {"steps"}) as run,
          closing(questions_of(config)) as source,
          closing(make_grader("judge" if config.judge else config.outcome, run.folder)) as grader):
        model, tokenizer = load_start(config)
        reference = load_reference(config, model)
        optimizer = adamw(model, (0.9, 0.999), config.weight_decay)
        engine = Engine(engine_model(model), config.pages, PAGE_SIZE, config.seed, vocab_limit=tokenizer.size)
        scorer = engine                                  # scores the true answers: the policy, or its start
        if config.gain_policy == "reference":
            scorer = Engine(engine_model(base_of(reference)), config.pages, PAGE_SIZE)
        new_loop = loop_maker(config, agent, source, engine, tokenizer)
        check_questions(new_loop(), source, tokenizer, config)
        score = run.phase("scoring")(partial(score_answers, scorer, tokenizer, config))       # the same, but timed
        grade = partial(on_rank_0, outcomes, grader=grader)
        test = partial(evaluate, model, new_loop, source, engine)
        data = digest([source.fingerprint, agent.prompt, grader.name])                       # compared on resume

        # run.steps resumes from the last checkpoint, evaluates, saves, stops on signals; run.phase measures the time;
        # source.visits says of every page that was visited whether it was the right one, where that is known
        for step in run.steps(model, optimizer, tokenizer.files | agent.files, data=data, evaluate=test):
            engine.load_weights(model)                                      # every cached page is stale now
            with new_loop() as loop, together(), run.phase("rollout"):
                episodes = add_questions(loop, source, step, config)        # under torchrun: this rank's questions
                for ended in loop.run():                                    # their pages are still there
                    score(ended)
            engine.free_pages()                                             # the update can use their memory
            scorer.free_pages()
            scored = gather([(own.rollout, own.answer_logprobs) for own in episodes], each=config.group)
            batch = make_batch(scored, config.group, grade)                 # drops and counts rollouts without outcome
            credited = assign_credit(batch.samples, config.recipe)          # igpo/credit.py: the same on every rank
            rows = list(map(row_of, batch.rollouts, credited.advantages))               # advantages of sampled tokens
            with run.phase("update"):
                stats = igpo_update(model, optimizer, rows, reference, config, step)
            if batch.rollouts and (step == 1 or run.is_due(config.rollouts_every)):               # for the X-ray
                saved = SavedBatch(step, config.gain_policy, config.recipe, batch.samples, credited)
                on_rank_0(save_batch, run.folder, saved)
            stats["pages_peak"] = max(everywhere(engine.counters().pages_peak))
            tokens = sum(everywhere(engine.counters().rolled_out)) + stats.pop("tokens")
            run.log(health(batch, credited, *source.visits(batch.rollouts)) | stats, tokens)
    return run.model_folder


# ---------------------------------------------------------------------------------------- the parts of a step, in order


def add_questions(loop: RolloutLoop, source: QuestionSource, step: int, config: IGPOConfig) -> list[Episode]:
    """`group` rollouts of each question of the step; under torchrun, of this rank's share of the
    questions. The name of a group and the step, counted from 0, decide its random numbers."""
    episodes: list[Episode] = []
    for name, question in share(source.of_step(step)):
        episodes += loop.add(question, source.tools_for, config.group, name=name, step=step - 1,
                             max_turns=source.max_turns(question))
    return episodes


def score_answers(scorer: Engine, tokenizer: Tokenizer, config: IGPOConfig, episodes: list[Episode]) -> None:
    """Give each rollout, for each turn, the log-probs of the true answer's tokens in the context before the turn; None
    where the recipe needs none. The current policy scores on the open sequences, so it computes only the answers; the
    frozen start checkpoint has an engine of its own and computes the rollouts, too."""
    wrapped, requests = {}, {}
    for episode in episodes:
        wrapped[episode] = wrap_truth(episode.rollout.question.answers[0], tokenizer, config.recipe)
        if lengths := scored_lengths(episode.rollout, config.recipe):
            prefix = episode.sequence if config.gain_policy == "current" else episode.rollout.tokens
            requests[episode] = (prefix, lengths, wrapped[episode].ids)
    scores = dict(zip(requests, scorer.score_many(list(requests.values()), config.temperature), strict=True))
    for episode in episodes:
        own = scores.get(episode, [])
        episode.answer_logprobs = truth_logprobs(episode.rollout, wrapped[episode], own, config.recipe)


def outcomes(rollouts: list[Rollout], grader: Judge | WordGrader) -> list[float | None]:
    """The outcome of every rollout, None where the judge gave no verdict. Penalties come later
    (igpo/rewards.py)."""
    questions = [rollout.question for rollout in rollouts]
    return grader.grade(questions, [final_answer(rollout.turns) for rollout in rollouts])


def evaluate(model: Qwen3, new_loop: Callable[[], RolloutLoop], source: QuestionSource, engine: Engine) -> dict:
    """Metrics of one sampled rollout of every held-out question; {} where no question is held out. Answers are compared
    by exact match, with --judge too: evaluation should be cheap."""
    engine.load_weights(model)
    episodes: list[Episode] = []
    with new_loop() as loop, together():
        for question in share(source.held_out):
            episodes += loop.add(question, source.tools_for, max_turns=source.max_turns(question))
        for _ in loop.run():
            pass
    done = gather([episode.rollout for episode in episodes])
    numbers = {"exact_match": mean(outcomes(done, WordGrader("em"))), **behaviour(done, *source.visits(done))}
    return {f"test_{name}": number for name, number in numbers.items() if number is not None}


# ------------------------------------------------------------------------------------------- what the steps are made of


def with_agent_format(config: IGPOConfig) -> tuple[IGPOConfig, AgentFormat]:
    """The settings, and the prompt and notices that the model reads. The scored answer follows the thought that the
    model has learned to answer after, unless --lead-in gives another."""
    agent = read_format(start_folder(config.model), config.like, config.system_prompt)
    if config.recipe.lead_in == Recipe.lead_in:
        config = replace(config, recipe=replace(config.recipe, lead_in=agent.lead_in))
    return config, replace(agent, lead_in=config.recipe.lead_in)


def questions_of(config: IGPOConfig) -> QuestionSource:
    return open_questions(config.data, config.tools, config.web_seed, hops=config.hops, slack=config.slack,
                          max_turns=config.max_turns, limit=config.evaluate_questions, per_step=config.questions)


def check_questions(loop: RolloutLoop, source: QuestionSource, tokenizer: Tokenizer, config: IGPOConfig) -> None:
    """Refuse a question of a file that does not fit, now and not in the step that takes it."""
    if config.data == "toyweb":
        return
    for question in [*source.training, *source.held_out]:
        loop.limits.check_room(question, source.max_turns(question))
        answer = len(wrap_truth(question.answers[0], tokenizer, config.recipe).ids)
        needed = config.max_context - loop.limits.last_tokens + answer             # the longest context that is scored
        if config.recipe.use_gain and needed > loop.writer.max_context:
            raise ConfigError(f"question {question.id!r}: its answer of {answer} tokens is scored after up to "
                              f"{needed - answer} others, and there is room for {loop.writer.max_context}: raise "
                              "--pages or lower --max-context")


def loop_maker(config: IGPOConfig, agent: AgentFormat, source: QuestionSource, engine: Engine,
               tokenizer: Tokenizer) -> partial[RolloutLoop]:
    """A function that makes rollout loops, for training and evaluation: both have the same sampling, prompt and guard.
    Every turn is trained as it was sampled: none is thrown away. Tools that may hang run in threads."""
    writer = LocalWriter(engine, tokenizer, Sampling(config.max_turn_tokens, config.temperature, top_p=config.top_p))
    run_as = AgentFormat(agent.prompt, agent.notices, max_turns=config.max_turns or 200, max_context=config.max_context,
                         max_new_tokens=config.max_turn_tokens, retries=0,
                         max_observation_tokens=config.max_observation_tokens)
    # the answer_from, last_turn_tokens and time_limit of the format are for inference
    return partial(RolloutLoop, writer, tokenizer, run_as, tool_seconds=config.tool_seconds, guard=FailureGuard(),
                   tool_threads=None if source.immediate else TOOL_THREADS)


if __name__ == "__main__":
    with one_line_errors("train_igpo.py"), processes():
        settings = parse_flags(IGPOConfig, description=__doc__, presets=IGPO_PRESETS)
        if settings.plan:
            print(plan_table(settings, size()))
        else:
            print(f"model: {main(settings)}")
            if on_rank_0(read_jsonl, Path(settings.out) / "metrics.jsonl"):          # not stopped before the first step
                print(f"report: {on_rank_0(write_run_page, settings.out)}")
