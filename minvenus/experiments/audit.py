"""The gain audit: on the toy web the right path is known, so one can see which visits the gains reward.

    right       a page of the question's path, at its hop
    wrong       another page            repeated     a page again          failed     a page that no search had listed

For each kind and hop: how often, the mean gain, its spread and the share of positive ones. Before any RL, right
visits should gain clearly more than wrong ones, and as much at the last hop as at the first: gains that all come
early make it pay to stop early. The policy in training also scores the gains, so the same table is made again after
training. In one number each:

    rank correlation    of a visit's gain with its exact progress: 1 if it showed a pet of the answer for the first time
                        and else 0. Where almost all visits are progress even perfect gains have a low one: beside it
                        stands the highest that so many of each allow
    R^2                 of the sum of a rollout's gains and its outcome

Probes are turns that a policy could learn in order to be paid without finding anything: made up after the first right
visit of a question, and scored by the model. They should gain nothing, before training and after it.
"""

import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import StatisticsError, correlation, fmean, pstdev
from typing import NamedTuple

from minvenus.agent.load import load_scorer
from minvenus.config import ConfigError, check, read_json
from minvenus.console import table
from minvenus.experiments.scripts import run
from minvenus.files import latest_checkpoint
from minvenus.igpo.gain import belief, wrap_truth
from minvenus.igpo.recipes import Recipe
from minvenus.model.weights import start_folder
from minvenus.report.saved import SavedBatch, load_batch
from minvenus.settings import Hops
from minvenus.text.chat import stream
from minvenus.tools.toyweb import Case, ToyTools, ToyWeb, visit_labels
from minvenus.tools.toyweb_lessons import LEAD_IN, Teacher, assistant, call_text, teach
from minvenus.types import setting

KINDS = ("right", "wrong", "repeated", "failed")


class Visit(NamedTuple):
    kind: str                         # of KINDS
    hop: int
    gain: float
    progress: float                   # 1 for a right page, seen for the first time, that was asked for its pet


@dataclass(frozen=True)
class AuditConfig:
    """python -m minvenus.experiments audit: what the gains of a checkpoint, or of a training run, reward."""

    model: str | None = setting(None,
        "a checkpoint of the tiny model: 256 rollouts, 2 turns to spare")
    hops: Hops = setting(4, "of its questions")
    run: str | None = setting(None,
        "or a folder of train_igpo.py: its first and its last saved rollouts")

    def __post_init__(self):
        check(self)
        if (self.model is None) == (self.run is None):
            raise ConfigError("give --model FOLDER (a checkpoint) or --run FOLDER (of train_igpo.py)")


def main(config: AuditConfig) -> str:
    if config.run:
        return audit_run(Path(config.run))
    with tempfile.TemporaryDirectory() as folder:
        # one step of training: its rollouts are sampled and scored before the update
        run("train_igpo.py", "--model", config.model, "--out", folder, "--steps", 1, "--questions", 64, "--group", 4,
            "--hops", config.hops, "--slack", 2, "--max-context", max(768, 192 * config.hops), "--seed", 1000,
            "--pages", 8192, "--evaluate-questions", 1)
        return audit_run(Path(folder))


def audit_run(folder: Path) -> str:
    files = sorted((folder / "rollouts").glob("step-*.jsonl"))
    if not files:
        raise ConfigError(f"{folder} has no saved rollouts")
    settings = read_json(folder / "run.json")
    if settings["data"] != "toyweb":
        raise ConfigError(f"{folder} was trained on {settings['data']}: right pages are known on the toy web only")
    seed = settings["question_seed"]
    web = ToyWeb(settings["seed"] if seed is None else seed, settings["hops"], settings["slack"])
    batches = [load_batch(file) for file in dict.fromkeys([files[0], files[-1]])]
    models = {"before": start_folder(settings["model"])}
    with suppress(ConfigError):                                        # a copy of a run without its checkpoints
        if len(batches) > 1 and (newest := latest_checkpoint(folder)):
            models["after"] = newest / "model"
    there = {name: model for name, model in models.items() if model and (model / "config.json").is_file()}
    parts = [audit_batch(batch, web) for batch in batches]
    if there:
        parts.append(f"probes, mean gain\n{table(probe_rows(there, batches[0].recipe))}")
    parts += [f"no probes {name} training: {models[name]} is no model" for name in models if name not in there]
    return "\n\n".join(parts)


def audit_batch(batch: SavedBatch, web: ToyWeb) -> str:
    head = f"step {batch.step}: {len(batch.samples)} rollouts"
    first = [beliefs[0] for beliefs in batch.credit.beliefs if beliefs[0] is not None]
    if first and batch.recipe.gain == "log_prob":
        head += f", log P(answer | question) {fmean(first):+.2f} per token"
    sums = [sum(gain for gain in gains if gain is not None) for gains in batch.credit.gains]
    explained = correlated(sums, [m.outcome for m in batch.samples if m.outcome is not None])
    visits = visits_of(batch, web)
    gains, progress = [visit.gain for visit in visits], [visit.progress for visit in visits]
    ranked, best = (correlated(ranks(a), ranks(b)) for a, b in ((gains, progress), (sorted(gains), sorted(progress))))
    said = (f"rank correlation of gain and progress {number(ranked)} (at most {number(best)}), "
            f"R^2 of summed gains and outcome {number(explained and explained ** 2)}")
    return f"{head}\n{said}\n{table(rows(visits))}"


def visits_of(batch: SavedBatch, web: ToyWeb) -> list[Visit]:
    """All visits that have a gain. A visit of several pages counts by its first one."""
    found = []
    for sample, gains in zip(batch.samples, batch.credit.gains, strict=True):
        rollout = sample.rollout
        for turn, labels, gain in zip(rollout.turns, visit_labels(web, rollout), gains, strict=True):
            if labels and gain is not None and turn.tool:
                kind, hop = labels[0]
                title = turn.tool["arguments"]["url"][0].removeprefix("page ")
                asked = turn.tool["arguments"]["goal"].split()[-1:] == [title]
                found.append(Visit(kind, hop, gain, progress=float(asked and kind == "right")))
    return found


def rows(visits: list[Visit]) -> list[list[str]]:
    found = [["visit", "hop", "count", "mean", "spread", "positive"]]
    for kind in KINDS:
        made = [visit for visit in visits if visit.kind == kind]
        hops = sorted({visit.hop for visit in made})
        gains = {str(hop): [visit.gain for visit in made if visit.hop == hop] for hop in hops}
        if len(gains) > 1:
            gains["all"] = [visit.gain for visit in made]
        for hop, values in gains.items():
            positive = fmean(value > 0 for value in values)
            numbers = [f"{fmean(values):+.2f}", f"{pstdev(values):.2f}", f"{positive:.0%}"]
            found.append([kind, hop, str(len(values)), *numbers])
    return found


def ranks(values: list[float]) -> list[float]:
    """1 for the lowest; equal values share the mean of their ranks."""
    return [sum(v < value for v in values) + (values.count(value) + 1) / 2 for value in values]


def correlated(a: list[float], b: list[float]) -> float | None:
    """Pearson's correlation; None where one side does not vary."""
    try:
        return correlation(a, b)
    except StatisticsError:
        return None


def number(value: float | None) -> str:
    return "not known" if value is None else f"{value:.2f}"


# ----------------------------------------------------------------------------------------------------------- the probes

PROBED = 32                          # questions, of four hops


def probes(case: Case) -> dict[str, tuple[str, str]]:
    """name -> (call, observation) of a turn after the first right visit."""
    def opened(title: str, goal: str) -> tuple[str, str]:
        return call_text(goal, f"page {title}"), case.pages[title].text(goal)

    first, second = case.path[:2]
    other = next(title for title in case.pages if title not in case.path)
    answer, goal = case.question.answers[0], f" {case.relations[1]} {second}"
    pets = " ".join(case.pages[title].pet for title in case.path)
    return {
        "the next right page": opened(second, goal),
        "the answer in a query": (call_text(f" {answer}"), ToyTools(case).search(answer).text),
        "the first page again": opened(first, f" {case.relations[0]} {first}"),
        "an unrelated page": opened(other, goal),
        "a page with the answer's words": (call_text(goal, f"page {other}"), f"page {other} {pets}."),
    }


def probe_rows(models: dict[str, Path], recipe: Recipe) -> list[list[str]]:
    """A table: the mean gain of every probe under each model."""
    web = ToyWeb(1000, hops=4)
    found: dict[str, list[str]] = {}
    for model in models.values():
        tokenizer, score, _ = load_scorer(model)
        gains: dict[str, list[float]] = {}
        for i in range(PROBED):
            case = web.case(f"test-{i}")
            wrapped = wrap_truth(case.question.answers[0], tokenizer, recipe)
            begun = teach(case, Teacher(), "probe")[:6]                      # a search and the first right visit
            for name, (call, observation) in probes(case).items():
                shown = {"role": "user", "content": f"<tool_response>\n{observation}\n</tool_response>"}
                messages = [*begun, assistant(f" {case.relations[1]}.", call), shown, assistant(LEAD_IN, "")]
                ids, _, spans = stream(messages, tokenizer)
                scores = score(ids, [spans[2][0], spans[3][0]], wrapped.ids)
                before, after = (belief(logprobs[wrapped.start:], recipe.gain) for logprobs in scores)
                gains.setdefault(name, []).append(after - before)
        for name, values in gains.items():
            found.setdefault(name, []).append(f"{fmean(values):+.2f}")
    return [["turn", *models], *([name, *cells] for name, cells in found.items())]
