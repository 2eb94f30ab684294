"""Evaluate a policy on many questions: accuracy, pass@k, how the runs end.   python eval.py --help"""

import json
import sys
from collections import deque
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

import torch

from minvenus.agent.episode import Episode
from minvenus.agent.policy import PAGE_SIZE, limits_of, load_policy, model_folder, prompt_and_notices
from minvenus.agent.rollout import RolloutLoop
from minvenus.config import ConfigError, Recipe
from minvenus.console import Progress, stop_on_signals
from minvenus.engine import Engine
from minvenus.evaluation import tables
from minvenus.evaluation.aggregate import Summary, accuracy, summarise
from minvenus.evaluation.compare import Comparison, compare
from minvenus.evaluation.judge import Grader, GradeItem, Judge
from minvenus.evaluation.questions import Entry, QuestionSource, open_questions
from minvenus.evaluation.results import ResultsFile, answer_of, default_folder, model_fingerprint, read_both
from minvenus.files import digest, write_json
from minvenus.flags import parse_flags
from minvenus.model import weights
from minvenus.report.source import Scorer
from minvenus.report.xray import write_page
from minvenus.settings import EvalConfig
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools.base import FailureGuard, TooManyFailures
from minvenus.tools.toyweb_lessons import LEAD_IN

FAILURES = 5              # the evaluation stops after so many runs in a row that ended in an error


class PolicyFails(TooManyFailures):
    """Run after run ended in an error."""


def main(config: EvalConfig) -> Summary | Comparison | Path:
    if config.compare is not None:
        found = compare(*read_both(*config.compare), config.compare)
        show(config, found, tables.comparison(found, (f"A {config.compare[0]}", f"B {config.compare[1]}")))
        return found
    if config.xray is not None:
        return xray(config, config.xray)
    return evaluate(resolved(config))


def resolved(config: EvalConfig) -> EvalConfig:
    """The settings with what depends on the machine and the model: the folder of the newest model, device, sampling, sizes."""
    agent = config.agent
    if agent.api_base is None:
        agent = replace(agent, model=str(model_folder(agent) or "tiny"), device=weights.device_of(agent.device))
    agent = agent.resolved()
    if config.runs > 1 and agent.temperature == 0:
        raise ConfigError(f"{config.runs} runs with temperature 0 would all be the same: give a --temperature")
    return replace(config, agent=agent, limit=config.limit or (128 if agent.tools == "toyweb" else None),
                   concurrency=config.concurrency or (64 if agent.tiny else 8))


def evaluate(config: EvalConfig) -> Summary:
    """Make the runs that the folder does not have yet, and summarise all that are wanted."""
    agent = config.agent
    system, notices = prompt_and_notices(agent)
    with ExitStack() as stack:
        source = open_questions(config.questions, agent.tools, agent.seed, hops=config.hops, slack=config.slack,
                                max_turns=agent.max_turns, limit=config.limit)
        stack.callback(source.close)
        fingerprints = {"questions": source.fingerprint, "system_prompt": digest(system), "model": model_fingerprint(agent.model)}
        folder = Path(config.out) if config.out else default_folder(config, fingerprints)
        grader = Grader(config.score, config.f1_at_least, open_judge(folder, stack) if config.judge else None)
        results = stack.enter_context(ResultsFile(folder, config, fingerprints, grader.graded_by))
        if config.redo_failed:
            results.remove_failed()
        results.set_verdicts(grader.grade_all(results.ungraded(everything=config.regrade)))

        wanted = [(entry, run) for run in range(config.runs) for entry in source.entries]      # all first runs, then all second
        missing = [(entry, run) for entry, run in wanted if (entry.question.id, run) not in results.results]
        say(config, "folder", f"{folder}, {len(wanted) - len(missing)} of {len(wanted)} runs there already")
        if missing:
            loop = open_loop(config, source, system, notices)
            with loop, stop_on_signals() as stop:
                collect(loop, source, missing, config.concurrency, results, grader, stop)
            if stop:
                raise KeyboardInterrupt(f"stopped: {len(results.results)} of {len(wanted)} runs are in {results.path}; the same "
                                        "command goes on from there")
        summary = summarise([results.results[entry.question.id, run] for entry, run in wanted])
    write_json(folder / "report.json", asdict(summary))
    show(config, summary, f"{summary.questions} questions, {config.runs} run{'s' * (config.runs > 1)} each\n\n"
                          f"{tables.report(summary)}\n\nreport and runs in {folder}")
    return summary


def open_judge(folder: Path, stack: ExitStack) -> Judge:
    folder.mkdir(parents=True, exist_ok=True)
    judge = Judge(folder / "judge.sqlite")
    stack.callback(judge.close)
    return judge


def open_loop(config: EvalConfig, source: QuestionSource, system: str, notices) -> RolloutLoop:
    agent = config.agent
    policy, tokenizer, description = load_policy(agent, config.concurrency, config.pages)
    say(config, "model", description)
    say(config, "questions", f"{len(source.entries)}, {agent.tools}")
    limits = limits_of(agent, policy, None if source.immediate else config.concurrency)
    return RolloutLoop(policy, tokenizer, limits, system=system, notices=notices)


def collect(loop: RolloutLoop, source: QuestionSource, missing: list[tuple[Entry, int]], concurrency: int, results: ResultsFile,
            grader: Grader, stop: object) -> None:
    """Run, grade and save. Whatever ends this early, every run that has ended is saved."""
    waiting, running = deque(missing), dict[Episode, tuple[Entry, int]]()
    guard = FailureGuard("runs", FAILURES, 1 - 1 / FAILURES, PolicyFails)
    done = list(results.results.values())
    progress = Progress("eval", len(done), len(done) + len(missing))

    def save(graded) -> None:
        for (entry, run, rollout), verdict in graded:
            done.append(results.add(entry, run, rollout, verdict))
            found = accuracy(done)
            unknown = {"unknown": float(found.unknown)} if found.unknown else {}
            progress.show(len(done), unknown if found.value is None else {"accuracy": found.value} | unknown)

    try:
        while (waiting or running or grader.pending) and not (stop or grader.failure):
            while waiting and len(running) < concurrency:
                entry, run = waiting.popleft()
                name = entry.question.id if run == 0 else f"{entry.question.id} run {run}"      # run 0 samples as infer.py does
                [episode] = loop.add(entry.question, source.tools_for, name=name, max_turns=source.max_turns(entry.question))
                running[episode] = entry, run
            ended = loop.step() if running else []
            for episode in ended:
                rollout = episode.rollout
                grader.add((*running.pop(episode), rollout), GradeItem(rollout.question, answer_of(rollout)))
            save(grader.ready(0.0 if running else 1.0))
            for episode in ended:
                guard.add(episode.rollout.error)
    finally:
        save(grader.give_up())
        progress.end()
    if grader.failure:
        raise grader.failure


def xray(config: EvalConfig, source: str) -> Path:
    """Write the X-ray page of a file; with a model, it also shows how probable the answer was before every turn."""
    scored = config.answer is not None or config.agent.model != "tiny"
    folder = model_folder(config.agent) if scored else None
    if scored and folder is None:
        raise ConfigError("--answer needs a --model that says how probable it is: no model has been trained under runs/ yet")
    recipe = Recipe(lead_in=LEAD_IN) if config.agent.tiny else None        # as the tiny model has learned to answer
    scorer = load_scorer(folder) if folder is not None else None
    page = write_page(source, config.out or Path(source).with_suffix(".html"), config.group, scorer, config.answer, recipe)
    print(json.dumps({"page": str(page)}) if config.json else f"X-ray of {source}: {page}, {page.stat().st_size / 1000:,.0f} kB")
    return page


def load_scorer(folder: Path) -> Scorer:
    """The model of a folder, to score answers on an X-ray."""
    device = weights.device_of("auto")
    model = weights.load(folder, device, torch.bfloat16 if device == "cuda" else torch.float32)

    def score(tokens: list[int], lengths: list[int], continuation: list[int]) -> list[list[float]]:
        pages = -(-len(tokens) // PAGE_SIZE) + len(lengths) * (len(continuation) // PAGE_SIZE + 2)
        return Engine(model, pages, PAGE_SIZE).score_many([(tokens, lengths, continuation)])[0]

    return Scorer(str(folder), Tokenizer.from_file(folder), score, model.config.max_position_embeddings)


def say(config: EvalConfig, name: str, text: str) -> None:
    if not config.json:
        print(f"{name:<14}  " + text.replace("\n", "\n" + " " * 16), flush=True)


def show(config: EvalConfig, found: Summary | Comparison, text: str) -> None:
    if config.json:
        print(json.dumps(asdict(found)))
        return
    print(f"\n{text}")
    if config.published:
        print(f"\nPublished accuracies in percent, made with other judges, tools and dates than yours:\n{tables.published()}")


def run(argv: list[str] | None = None) -> int:
    """The exit code: 0, 130 after Ctrl-C, 2 with one line that says what is wrong. Other errors keep their traceback."""
    try:
        main(parse_flags(EvalConfig, argv, description=__doc__))
    except KeyboardInterrupt as stopped:
        print(f"eval.py: {stopped or 'stopped at once; the same command goes on from there'}", file=sys.stderr)
        return 130
    except (ConfigError, weights.WeightsError, TooManyFailures) as error:
        hint = ". The runs are kept as failed; --redo-failed makes them again" if isinstance(error, PolicyFails) else ""
        print(f"eval.py: {error}{hint}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(run())
