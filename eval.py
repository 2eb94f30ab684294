"""Evaluate a policy on many questions: accuracy, pass@k, how the runs end."""

import json
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from minvenus.agent import load
from minvenus.agent.load import format_of, load_loop, load_scorer, model_folder
from minvenus.config import ConfigError
from minvenus.console import one_line_errors, stop_on_signals
from minvenus.evaluation.aggregate import compare, summarise
from minvenus.evaluation.judge import make_grader
from minvenus.evaluation.questions import QuestionSource, open_questions
from minvenus.evaluation.results import REPORT, graded, make_runs, open_results, read_report
from minvenus.evaluation.tables import comparison_text, report_text
from minvenus.files import digest, model_fingerprint, write_json
from minvenus.flags import parse_flags, save_config
from minvenus.igpo.recipes import Recipe
from minvenus.report.saved import Scorer
from minvenus.report.xray import default_page, write_page
from minvenus.settings import EvalConfig
from minvenus.tools.web import describe_tools


def main(config: EvalConfig) -> dict | Path:
    if config.xray is not None:
        return xray(config, config.xray)
    if config.compare is not None:
        return compare_two(config, *config.compare)
    return evaluate(resolved(config))


def evaluate(config: EvalConfig) -> dict:
    """Make the runs that the folder does not have yet, grade all that are asked for, report."""
    assert config.concurrency is not None
    kind = "judge" if config.judge else config.score
    with (closing(questions_of(config)) as source,
          open_results(config, source, fingerprints(config, source)) as results,
          closing(make_grader(kind, results.folder)) as grader):
        save_config(config, results.folder)

        # 1. make what is missing; all first runs come before all second ones
        runs = [(question, run) for run in range(config.runs) for question in source.held_out]
        missing = results.missing(runs)
        if missing:
            loop, description = load_loop(config.agent, config.concurrency, config.pages)
            print(f"{description}; graded by {grader.name}", file=sys.stderr)
            print(f"{results.folder}: {len(runs) - len(missing)} of {len(runs)} runs there already",
                  file=sys.stderr)
            with loop, stop_on_signals() as stop:
                make_runs(loop, source, missing, config.concurrency, results, stop)
        missing = results.missing(runs)
        if missing:
            raise KeyboardInterrupt(f"stopped: {len(runs) - len(missing)} of {len(runs)} runs are "
                                    f"in {results.path}; the same command goes on from there")

        # 2. grade
        if config.judge:
            print("asking the judge about answers without a verdict", file=sys.stderr)
        finished = [results.runs[question.id, run] for question, run in runs]
        verdicts = graded(finished, grader)

        # 3. report
        summary = summarise(verdicts, grader.name)
        write_json(results.folder / REPORT, summary)

    head = f"{summary['questions']} questions, runs of each: {config.runs}"
    show(config, summary, f"{head}\n\n{report_text(summary)}\n\nin {results.folder}")
    return summary


def resolved(config: EvalConfig) -> EvalConfig:
    """Fill in what depends on the machine and the model: the newest model's folder, device,
    sampling, sizes."""
    agent = load.resolved(config.agent)
    if config.runs > 1 and agent.temperature == 0:
        raise ConfigError(f"{config.runs} runs with temperature 0 would all be the same: give a "
                          "--temperature")
    is_toy = agent.tools == "toyweb"
    return replace(
        config,
        agent=agent,
        limit=config.limit or (128 if is_toy else None),
        concurrency=config.concurrency or (64 if is_toy else 8))


def questions_of(config: EvalConfig) -> QuestionSource:
    agent = config.agent
    source = open_questions(
        config.questions, agent.tools, agent.web_seed, hops=config.hops, slack=config.slack,
        asks=agent.asks, limit=config.limit)
    return replace(source, turn_limit=agent.max_turns)


def fingerprints(config: EvalConfig, source: QuestionSource) -> dict[str, str]:
    """Of the files and services that an evaluation may not change."""
    agent = config.agent
    contents = {
        "questions": source.fingerprint,
        "system_prompt": digest(format_of(agent).prompt),
        "model": model_fingerprint(agent.model)}
    if not source.immediate:                     # other tools are named by --tools alone
        contents["services"] = describe_tools(agent.tools)
    return contents


def compare_two(config: EvalConfig, name_a: str, name_b: str) -> dict:
    """The paired difference of two finished evaluations."""
    comparison = compare(read_report(name_a), read_report(name_b))
    show(config, comparison, comparison_text(comparison, (f"A {name_a}", f"B {name_b}")))
    return comparison


def xray(config: EvalConfig, source: str) -> Path:
    """Write the X-ray page of a file; with a model, it also shows how probable the answer was
    before every turn."""
    scorer = None
    if config.answer is not None or config.agent.model != "tiny":
        folder = model_folder(config.agent)
        if folder is None:
            raise ConfigError("--answer needs a --model that says how probable it is: none has "
                              "been trained under runs/")
        recipe = Recipe(lead_in=format_of(config.agent).lead_in)    # as it has learned to answer
        tokenizer, score, _ = load_scorer(folder, config.agent.device)
        scorer = Scorer(str(folder), tokenizer, score, recipe, config.answer)

    file = config.out or default_page(source)
    page = write_page(source, file, config.group, scorer)
    show(config, {"page": str(page)}, f"X-ray of {source}: {page}")
    return page


def show(config: EvalConfig, numbers: dict, text: str) -> None:
    print(json.dumps(numbers) if config.json else text)


if __name__ == "__main__":
    with one_line_errors("eval.py"):
        main(parse_flags(EvalConfig, description=__doc__))
