"""Ask a policy many questions and count: accuracy, pass@k, how runs end.   python eval.py --help"""

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import torch

from minvenus.agent.episode import Limits
from minvenus.agent.policy import PAGE_SIZE, load_policy, model_folder, prompt_and_notices
from minvenus.config import ConfigError, Recipe
from minvenus.engine import Engine
from minvenus.evaluation import table
from minvenus.evaluation.aggregate import Run
from minvenus.evaluation.collect import PolicyFails, collect, put_right
from minvenus.evaluation.compare import Comparison, compare
from minvenus.evaluation.config import default_folder, identity, resolved
from minvenus.evaluation.grade import Grader
from minvenus.evaluation.judge import Judge, JudgeUnreliable, judge_endpoint
from minvenus.evaluation.play import Stage
from minvenus.evaluation.published import published_table
from minvenus.evaluation.questions import QuestionSource, open_questions
from minvenus.evaluation.results import NAME, Results, read_with_text
from minvenus.evaluation.summary import Summary, summarise
from minvenus.evaluation.task import Job, jobs
from minvenus.flags import parse_flags, save_config
from minvenus.model import weights
from minvenus.report.source import Scorer
from minvenus.report.xray import write_page
from minvenus.settings import EvalConfig
from minvenus.text.tokenizer import Tokenizer
from minvenus.tools.base import ToolErrorRate
from minvenus.tools.toyweb_teachers import LEAD_IN
from minvenus.train.signals import stop_on_signals


def main(config: EvalConfig) -> Summary | Comparison | Path:
    """The evaluation, or what --compare and --xray make of finished ones; printed, too."""
    if config.compare is not None:
        return compare_files(config, *config.compare)
    if config.xray is not None:
        return xray(config, config.xray)
    return evaluate(resolved(config))


def evaluate(config: EvalConfig) -> Summary:
    """Make the runs that are not there yet, one line each in the folder's results.jsonl, and summarise all of them."""
    if config.judge:
        judge_endpoint()
    system, notices = prompt_and_notices(config.agent)
    agent = config.agent
    task = open_questions(config.questions, agent.tools, agent.seed, hops=config.hops, slack=config.slack,
                          max_turns=agent.max_turns, limit=config.limit)
    try:
        own = identity(config, task.fingerprint, system, judge_endpoint().model if config.judge else None)
        folder = Path(config.out) if config.out else default_folder(config, own)
        wanted = jobs(task.entries, config.runs)
        with Results(folder, own, config.regrade) as results:
            save_config(replace(config, out=str(folder)), folder)
            judge = Judge(folder / "judge.db") if config.judge else None
            grader: Grader = Grader(config.score, config.f1_at_least, judge)
            try:
                put_right(results, grader, config.redo_failed, config.regrade)
                results.settle(own)
                play_rest(config, task, system, notices, wanted, results, grader)
            finally:
                grader.close()
            runs = [results.runs[job.key] for job in wanted]
    finally:
        task.close()
    summary = summarise(runs)
    (folder / "report.json").write_text(json.dumps(asdict(summary), indent=2) + "\n", encoding="utf-8")
    show(config, summary, f"{summary.questions} questions, {config.runs} run{'s' * (config.runs > 1)} each, right by "
                          f"{right_by(config)}\n\n{table.report(summary)}\n\nreport and runs in {folder}")
    return summary


def play_rest(config: EvalConfig, task: QuestionSource, system: str, notices, wanted: list[Job], results: Results, grader: Grader) -> None:
    """The runs that are not there yet."""
    done = [results.runs[job.key] for job in wanted if job.key in results.runs]
    todo = [job for job in wanted if job.key not in results.runs]
    say(config, "folder", f"{results.folder}, {len(done)} of {len(wanted)} runs there already")
    if todo:
        stage = stage_for(config, task, system, notices)
        with stop_on_signals() as stop:
            whole = collect(stage, todo, config.concurrency, config.agent.seed, results, grader, done, stop)
        if not whole:
            raise KeyboardInterrupt(f"stopped: {sum(job.key in results.runs for job in wanted)} of {len(wanted)} runs are in "
                                    f"{results.path}; the same command goes on from there")


def stage_for(config: EvalConfig, task: QuestionSource, system: str, notices) -> Stage:
    agent = config.agent
    policy, tokenizer, source = load_policy(agent, config.concurrency, config.pages)
    say(config, "model", source)
    say(config, "questions", f"{len(task.entries)}, {agent.tools}")
    context = min(agent.max_context, policy.max_context or agent.max_context)
    threads = None if task.immediate else config.concurrency
    limits = Limits(agent.max_turns or 200, context, agent.max_new_tokens, agent.max_observation_tokens, agent.time_limit,
                    agent.tool_seconds, threads, agent.retries)
    return Stage(policy, tokenizer, limits, system, notices, task.tools_for, task.max_turns)


# ------------------------------------------------------------------------------------------------------- of finished ones


def compare_files(config: EvalConfig, a: str, b: str) -> Comparison:
    runs_a, runs_b = read_both(a, b)
    found = compare(runs_a, runs_b)
    columns = dict(zip((f"A {Path(a).name}", f"B {Path(b).name}"), (found.a, found.b), strict=True))
    show(config, found, f"{table.side_by_side(columns)}\n\n{table.difference(found.difference)}")
    return found


def read_both(a: str, b: str) -> tuple[list[Run], list[Run]]:
    texts: dict[str, str] = {}
    found: list[list[Run]] = []
    for name in (a, b):
        path = Path(name) / NAME if Path(name).is_dir() else Path(name)
        if not path.is_file():
            raise ConfigError(f"{path} does not exist: --compare takes two folders of finished evaluations, or their {NAME}")
        found.append([])
        for _, run, text in read_with_text(path):
            found[-1].append(run)
            if texts.setdefault(run.question, text) != text:
                raise ConfigError(f"question {run.question!r} is another one in {a} than in {b}: they cannot be compared")
    return found[0], found[1]


def xray(config: EvalConfig, source: str) -> Path:
    """The page of a file; with a model, also how probable it found the answer before every turn."""
    scored = config.answer is not None or config.agent.model != "tiny"
    folder = model_folder(config.agent) if scored else None
    if scored and folder is None:
        raise ConfigError("--answer needs a --model that says how probable it is: no model has been trained under runs/ yet")
    recipe = Recipe(lead_in=LEAD_IN) if config.agent.tiny else None               # as the tiny model has learned to answer
    scorer = load_scorer(folder) if folder is not None else None
    page = write_page(source, config.out or Path(source).with_suffix(".html"), config.group, scorer, config.answer, recipe)
    if config.json:
        print(json.dumps({"page": str(page)}))
    else:
        print(f"X-ray of {source}: {page}, {page.stat().st_size / 1000:,.0f} kB")
    return page


def load_scorer(folder) -> Scorer:
    """The model of a folder, for log P(answer) on an X-ray."""
    device = weights.device_of("auto")
    model = weights.load(folder, device, torch.bfloat16 if device == "cuda" else torch.float32)

    def score(tokens: list[int], lengths: list[int], continuation: list[int]) -> list[list[float]]:
        pages = -(-len(tokens) // PAGE_SIZE) + len(lengths) * (len(continuation) // PAGE_SIZE + 2)
        return Engine(model, pages, PAGE_SIZE).score_many([(tokens, lengths, continuation)])[0]

    return Scorer(str(folder), Tokenizer.from_file(folder), score, model.config.max_position_embeddings)


# ----------------------------------------------------------------------------------------------------------------- output


def right_by(config: EvalConfig) -> str:
    if config.judge:
        return f"the judge {judge_endpoint().model}"
    return "exact match" if config.score == "em" else f"word F1 of at least {config.f1_at_least:g}"


def say(config: EvalConfig, name: str, text: str) -> None:
    if not config.json:
        print(table.lines([(name, text)]), flush=True)


def show(config: EvalConfig, found, text: str) -> None:
    if config.json:
        print(json.dumps(asdict(found)))
        return
    print(f"\n{text}")
    if config.published:
        print(f"\nPublished accuracies in percent, made with other judges, tools and dates than yours:\n{published_table()}")


def run(argv: list[str] | None = None) -> int:
    """The exit code: 0, 130 after Ctrl-C, 2 with one line that says what is wrong."""
    try:
        main(parse_flags(EvalConfig, argv, description=__doc__))
    except KeyboardInterrupt as stopped:
        print(f"eval.py: {stopped or 'stopped at once; the same command goes on from there'}", file=sys.stderr)
        return 130
    except (ValueError, OSError, ToolErrorRate, JudgeUnreliable, PolicyFails) as error:
        print(f"eval.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(run())
