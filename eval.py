"""Evaluate a policy on many questions: accuracy, pass@k, how the runs end."""

import json
import sys
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

from minvenus.agent import policy
from minvenus.agent.policy import format_of, load_loop, load_scorer, model_folder
from minvenus.config import ConfigError
from minvenus.console import one_line_errors, stop_on_signals
from minvenus.evaluation.aggregate import compare, comparison_text, report_text, summarise
from minvenus.evaluation.questions import open_questions
from minvenus.evaluation.results import collect, open_results, results_of
from minvenus.files import digest, model_fingerprint, write_json
from minvenus.flags import parse_flags
from minvenus.igpo.recipes import Recipe
from minvenus.report.source import Scorer
from minvenus.report.xray import default_page, write_page
from minvenus.settings import EvalConfig
from minvenus.tools.web import describe_tools


def main(config: EvalConfig) -> dict | Path:
    if config.xray is not None:
        return xray(config, config.xray)
    if config.compare is not None:
        a, b = config.compare
        found = compare(results_of(a), results_of(b), config.compare)
        print(json.dumps(found) if config.json else comparison_text(found, (f"A {a}", f"B {b}")))
        return found
    return evaluate(resolved(config))


def resolved(config: EvalConfig) -> EvalConfig:
    """Fill in what depends on the machine and the model: the newest model's folder, device, sampling, sizes."""
    agent = policy.resolved(config.agent)
    if config.runs > 1 and agent.temperature == 0:
        raise ConfigError(f"{config.runs} runs with temperature 0 would all be the same: give a --temperature")
    return replace(config, agent=agent, limit=config.limit or (128 if agent.tools == "toyweb" else None),
                   concurrency=config.concurrency or (64 if agent.tools == "toyweb" else 8))


def evaluate(config: EvalConfig) -> dict:
    """Make the runs that the folder does not have yet, and summarise all that are wanted."""
    agent, concurrency = config.agent, config.concurrency
    assert concurrency is not None
    with ExitStack() as stack:
        source = stack.enter_context(closing(open_questions(
            config.questions, agent.tools, agent.web_seed, hops=config.hops, slack=config.slack,
            max_turns=agent.max_turns, limit=config.limit, tool_seconds=agent.tool_seconds)))
        fingerprints = {"questions": source.fingerprint, "system_prompt": digest(format_of(agent).prompt),
                        "model": model_fingerprint(agent.model)}
        if not source.immediate:                     # the others are named by --tools alone
            fingerprints["services"] = describe_tools(agent.tools)
        results = stack.enter_context(open_results(config, fingerprints))
        wanted = {(question.id, run): question for run in range(config.runs) for question in source.held_out}
        missing = [(question, run) for (name, run), question in wanted.items() if (name, run) not in results.runs]
        if missing:
            loop, description = load_loop(agent, concurrency, config.pages)
            there = f"{len(wanted) - len(missing)} of {len(wanted)} runs there already"
            print(f"{description}; graded by {results.grader.name}\n{results.folder}: {there}", file=sys.stderr)
            with loop, stop_on_signals() as stop:
                collect(loop, source, missing, concurrency, results, stop)
        done = [key for key in wanted if key in results.runs]
        if len(done) < len(wanted):
            raise KeyboardInterrupt(f"stopped: {len(done)} of {len(wanted)} runs are in {results.path}; the same "
                                    "command goes on from there")
        if config.judge:
            print("asking the judge about answers without a verdict", file=sys.stderr)
        results.grade()
        summary = summarise([results.runs[key] for key in done])
        write_json(results.folder / "report.json", summary)
    head = f"{summary['questions']} questions, runs of each: {config.runs}"
    print(json.dumps(summary) if config.json else
          f"{head}\n\n{report_text(summary)}\n\nin {results.folder}")
    return summary


def xray(config: EvalConfig, source: str) -> Path:
    """Write the X-ray page of a file; with a model, it also shows how probable the answer was before every turn."""
    scorer = None
    if config.answer is not None or config.agent.model != "tiny":
        folder = model_folder(config.agent)
        if folder is None:
            raise ConfigError("--answer needs a --model that says how probable it is: none has been trained under "
                              "runs/")
        recipe = Recipe(lead_in=format_of(config.agent).lead_in)           # as the model has learned to answer
        scorer = Scorer(str(folder), *load_scorer(folder, config.agent.device), recipe, config.answer)
    page = write_page(source, config.out or default_page(source, config.group), config.group, scorer)
    print(json.dumps({"page": str(page)}) if config.json else f"X-ray of {source}: {page}")
    return page


if __name__ == "__main__":
    with one_line_errors("eval.py"):
        main(parse_flags(EvalConfig, description=__doc__))
