"""make real: a real language model on real text, from SFT to IGPO beside GRPO.

    SmolLM2 -> audit -> SFT on demonstrations -> audit -> every method from that checkpoint
            -> the same held-out questions for all -> tables, a page, an X-ray

`make real-model` comes first: it brings the model and the world. Everything that is compared was
fixed in OUT/plan.json before the first run, and no test country is the start or the answer of a
question that is trained on. RL asks questions of two and three hops only: after SFT a question of
one hop teaches little.

    OUT/audit-start.txt    what the gains reward before any training, and
    OUT/audit-sft.txt      after SFT: the mean gain of a first right visit should be above 0 by then
    OUT/sft, METHOD-SEED   runs of train_sft.py and train_igpo.py, with their logs
    OUT/eval/MODEL         evaluations on the first questions of the world's test.jsonl
    OUT/results.txt        the tables, also in report.html with the curves
    OUT/xray.html          the newest rollouts of the last run

The command can be stopped and goes on; with more --seeds it adds runs. `jobs` scripts with one
thread each run at a time; SFT, which runs alone, has all the threads.
"""

from dataclasses import asdict, dataclass
from pathlib import Path

from minvenus.config import ConfigError, check
from minvenus.console import clock, table
from minvenus.evaluation.aggregate import compare
from minvenus.evaluation.results import read_report
from minvenus.evaluation.tables import percent, share_text
from minvenus.experiments import results
from minvenus.experiments.audit_pages import audit_pages
from minvenus.experiments.compare import (
    CompareConfig,
    run_all,
    run_name,
    train_all,
    write_plan,
)
from minvenus.experiments.factbook import FactbookConfig, write_records
from minvenus.experiments.methods import CHANGES, check_names, method_settings, split_names
from minvenus.experiments.smollm2 import SmolLM2Config
from minvenus.files import read_jsonl, write_text
from minvenus.igpo.recipes import RECIPES
from minvenus.report.xray import write_page
from minvenus.setting import setting

MODEL = Path(SmolLM2Config.out)
WORLD = Path(FactbookConfig.out)
TOOLS = f"almanac:{WORLD / 'pages'}"
PRESET = "smollm2"
# Seconds of one core for a step of SFT or RL with its share of audits and evaluations, measured; a
# step of GRPO takes half as long, because groups without a signal are not trained
SFT_SECONDS, RL_SECONDS = 42, 260
MEMORY = 9  # GB of a process, at most


@dataclass(frozen=True)
class RealConfig:
    """python -m minvenus.experiments real: SmolLM2 learns to read The World Factbook."""

    out: str = setting("runs/real", "folder of everything that it makes")
    methods: str = setting(
        "grpo, paper - penalty, uncentred - penalty",
        "recipes, perhaps with changes; a wrong name lists them all")
    seeds: int = setting(1, "runs of each method", least=1)
    sft_steps: int = setting(100, "optimiser steps on demonstrations", least=1)
    steps: int = setting(12, "batches of rollouts of each run", least=1)
    learning_rate: float = setting(3e-5, "of all methods", above=0)
    watched: int = setting(16, "test questions asked before, half-way and after it", least=1)
    tested: int = setting(96, "test questions asked of every model at the end", least=2)
    audited: int = setting(102, "test questions of an audit", least=3)
    jobs: int = setting(2, "processes at the same time", least=1)

    def __post_init__(self):
        check(self)
        check_names("methods", self.methods, RECIPES, CHANGES)


def main(config: RealConfig) -> str:
    for file in (MODEL / "config.json", WORLD / "manifest.json"):
        if not file.is_file():
            raise ConfigError(f"there is no {file}: make real-model")
    out = Path(config.out)
    write_plan(out, plan_of(config))
    methods = split_names(config.methods)
    rl_steps = len(methods) * config.seeds * config.steps
    cost = (config.sft_steps * SFT_SECONDS + rl_steps * RL_SECONDS) / config.jobs
    print(f"about {clock(cost)} in all on {config.jobs} quiet cores, {MEMORY} GB of memory for "
          f"each of {config.jobs} processes. Their output is in {out}/*/log.txt. Ctrl-C stops, the "
          "same command goes on.", flush=True)

    audit(MODEL, out / "audit-start.txt", config.audited)
    lesson = {"preset": PRESET, "model": MODEL, "data": WORLD / "demonstrations.jsonl"}
    [sft] = train_all(
        "SFT", "train_sft.py", out, config.sft_steps, {"sft": lesson}, 1, threads=config.jobs)
    audit(sft, out / "audit-sft.txt", config.audited)

    # test questions, which train_igpo.py holds out, and behind them those to train on
    test = read_jsonl(WORLD / "test.jsonl")[:config.watched]
    train = [row for row in read_jsonl(WORLD / "train.jsonl") if len(row["pages"]) > 1]
    write_records(out / "questions.jsonl", test + train)
    runs = {}                              # method -> the names of its runs
    jobs = {}
    for method in methods:
        runs[method] = [run_name(CompareConfig(first_seed=1), method, i)
                        for i in range(config.seeds)]
        for i, name in enumerate(runs[method]):
            jobs[name] = run_settings(sft, method, i, config)
    trained = train_all("runs", "train_igpo.py", out, config.steps, jobs, config.jobs)

    evaluate({"sft": sft} | dict(zip(jobs, trained, strict=True)), config)
    return report(runs, config)


def plan_of(config: RealConfig) -> dict:
    """What is fixed before the first run; more seeds may follow."""
    settings = asdict(config)
    del settings["out"], settings["jobs"], settings["seeds"]
    return {
        "first metric": f"accuracy on the first {config.tested} test questions, 95 % intervals",
        "second metric": "its difference to SFT, paired by question",
        **settings,
        "recipes": {name: method_settings(name) for name in split_names(config.methods)},
    }


def audit(model: Path, file: Path, count: int) -> None:
    """Print the audit of a model, and keep it."""
    if not file.is_file():
        write_text(file, audit_pages(model, WORLD, count) + "\n")
    print(f"\n{file}\n{file.read_text(encoding='utf-8')}", flush=True)


def run_settings(start: Path, method: str, i: int, config: RealConfig) -> dict:
    """The settings of train_igpo.py for run i of a method, beside the folder and the steps."""
    shared = {
        "preset": PRESET,
        "model": start,
        "data": Path(config.out) / "questions.jsonl",
        "tools": TOOLS,
        "seed": i + 1,
        "evaluate_questions": config.watched,
        "evaluate_every": max(1, config.steps // 2),
        "rollouts_every": 5,
        "learning_rate": config.learning_rate,
        "kl_coef": 0.0,             # a reference would cost a forward pass more
    }
    return shared | method_settings(method)


def evaluate(models: dict[str, Path], config: RealConfig) -> None:
    """One sampled rollout of each test question; what is there is not asked again."""
    out = Path(config.out)
    jobs = {}
    for name, model in models.items():
        jobs[f"eval/{name}"] = {
            "model": model,
            "questions": WORLD / "test.jsonl",
            "tools": TOOLS,
            "limit": config.tested,
            "temperature": 1,
            "concurrency": 16,
            "out": out / "eval" / name,
        }
    for name in run_all("eval.py", jobs, config.jobs, out):
        print(f"{name} is done", flush=True)


def report(runs: dict[str, list[str]], config: RealConfig) -> str:
    """Tables, curves and an X-ray of all runs of this plan."""
    out = Path(config.out)
    curves: results.Runs = {}
    reports = {"sft": read_report(str(out / "eval" / "sft"))}
    for method, names in runs.items():
        curves[method] = [results.read_curves(out / name) for name in names]
        reports |= {name: read_report(str(out / "eval" / name)) for name in names}

    columns = {
        "accuracy at step 0": (results.ACCURACY, 0),
        f"at step {config.steps}": (results.ACCURACY, config.steps),
        "right pages": (results.RIGHT_PAGES, config.steps),
        "turns": (results.TURNS, config.steps),
    }
    tables = {
        f"{config.tested} test questions, one rollout of each, 95 % intervals over the questions":
            result_table(reports),
        f"The first {config.watched} of them during training, mean over runs [95 % interval]":
            results.over_seeds(curves, columns),
    }
    parts = [f"{title}\n{table(rows)}" for title, rows in tables.items()]
    write_text(out / "results.txt", "\n\n".join(parts) + "\n")
    page = write_text(out / "report.html", results.page_of(curves, tables, plan_of(config)))
    newest = max((out / list(reports)[-1] / "rollouts").iterdir())
    xray = write_page(newest, out / "xray.html")
    return "\n\n".join([*parts, f"page: {page}", f"X-ray: {xray}"])


def result_table(reports: dict[str, dict]) -> results.Table:
    """A row for each model; the difference to SFT is paired by question."""
    sources = sorted(reports["sft"]["by_source"])
    rows = [["model", "accuracy", *sources, "right pages", "turns", "malformed", "minus SFT"]]
    for name, summary in reports.items():
        difference = compare(reports["sft"], summary)
        points = [100 * difference[key] for key in ("difference", "low", "high")]
        rows.append([
            name,
            share_text(summary["accuracy"]),
            *(percent(summary["by_source"][source]["value"]) for source in sources),
            percent(summary["means"]["right_pages"]),
            f"{summary['means']['turns']:.1f}",
            percent(summary["malformed"]),
            "{:+.1f} [{:+.1f}, {:+.1f}]".format(*points) if name != "sft" else "",
        ])
    return rows
