"""The gain audit: on the toy web the right path is known, so one can see what the gains reward.

    right       a page of the question's path, at its hop
    wrong       another page
    repeated    a page again
    failed      a page that no search had listed

For each kind and hop: how often, the mean gain, its spread and the share of positive ones. Before
any RL, right visits should gain clearly more than wrong ones, and as much at the last hop as at the
first: gains that all come early make it pay to stop early. The policy in training also scores the
gains, so the same table is made again after training. In one number each:

    rank correlation    of a visit's gain with its exact progress: 1 if it showed a pet of the
                        answer for the first time and else 0. Where almost all visits are progress
                        even perfect gains have a low one: beside it stands the highest that so many
                        of each allow
    R^2                 of the sum of a rollout's gains and its outcome

Probes are turns that a policy could learn in order to be rewarded without finding anything: made up
after the first right visit of a question, and scored by the model. They should gain nothing, before
training and after it.

With --world the model reads the pages of an almanac along the known path of its questions, by
script and without any training: audit_pages.py.
"""

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from minvenus.agent.load import load_scorer
from minvenus.agent.observation import visit_labels
from minvenus.config import ConfigError, check, read_json
from minvenus.console import table
from minvenus.experiments.audit_pages import audit_pages
from minvenus.experiments.audit_table import (
    Visit,
    correlated,
    follows_progress,
    ranks,
    visit_table,
)
from minvenus.experiments.results import Table
from minvenus.files import latest_checkpoint
from minvenus.flags import build
from minvenus.igpo.gain import belief, wrap_truth
from minvenus.igpo.recipes import Recipe
from minvenus.model.weights import start_folder
from minvenus.report.saved import SavedBatch, load_batch
from minvenus.setting import setting
from minvenus.settings import Asks
from minvenus.text.chat import stream
from minvenus.tools.toyweb import Case, ToyTools, ToyWeb
from minvenus.tools.toyweb_lessons import (
    LEAD_IN,
    Teacher,
    assistant,
    call_text,
    teach,
    tool_response,
)
from minvenus.train.settings import IGPOConfig


@dataclass(frozen=True)
class AuditConfig:
    """python -m minvenus.experiments audit: what the gains of a run, or of a checkpoint, reward."""

    run: str | None = setting(
        None, "a folder of train_igpo.py on the toy web: its first and last saved rollouts")
    world: str | None = setting(
        None, "or one of the factbook command: its test questions, by script, read by ...")
    model: str = setting("runs/smollm2", "... this checkpoint")
    questions: int = setting(102, "of that folder, as many of each number of hops", least=1)

    def __post_init__(self):
        check(self)
        if (self.world is None) == (self.run is None):
            raise ConfigError("give --run FOLDER (of train_igpo.py) or --world FOLDER (of the "
                              "factbook command)")


def main(config: AuditConfig) -> str:
    if config.world:
        return audit_pages(Path(config.model), Path(config.world), config.questions)
    return audit_run(Path(str(config.run)))


# ------------------------------------------------------------------------------ runs on the toy web


def audit_run(folder: Path) -> str:
    """Tables of the first and the last saved batch, and probes of the models before and after."""
    files = sorted((folder / "rollouts").glob("step-*.jsonl"))
    if not files:
        raise ConfigError(f"{folder} has no saved rollouts")
    settings = build(IGPOConfig, read_json(folder / "run.json"))
    if settings.data != "toyweb":
        raise ConfigError(f"{folder} was trained on {settings.data}: "
                          "right pages are known on the toy web only")
    web = ToyWeb(settings.web_seed, settings.hops, asks=settings.asks)

    batches = [load_batch(files[0])]
    models = {"before": start_folder(settings.model)}
    if len(files) > 1:
        batches.append(load_batch(files[-1]))
        checkpoint = latest_checkpoint(folder)
        models["after"] = checkpoint and checkpoint / "model"
    parts = [audit_batch(batch, web) for batch in batches]
    present = {name: model for name, model in models.items() if model}
    probes = probe_table(present, batches[0].recipe, settings.asks)
    return "\n\n".join([*parts, f"probes, mean gain\n{table(probes)}"])


def audit_batch(batch: SavedBatch, web: ToyWeb) -> str:
    head = f"step {batch.step}: {len(batch.samples)} rollouts"
    firsts = [sample.truth_logprobs[0] for sample in batch.samples]
    beliefs = [belief(logprobs, "log_prob") for logprobs in firsts if logprobs]
    if beliefs:
        head += f", log P(truth | question) {fmean(beliefs):+.2f} per token"

    visits = visits_of(batch, web)
    gains = sorted(visit.gain for visit in visits)
    progress = sorted(visit.progress for visit in visits)
    highest = correlated(ranks(gains), ranks(progress))

    sums = [sum(filter(None, gains)) for gains in batch.credit.gains]
    outcomes = [sample.outcome for sample in batch.samples if sample.outcome is not None]
    explained = correlated(sums, outcomes) ** 2
    numbers = (
        f"{follows_progress(visits)} (at most {highest:.2f}), "
        f"R^2 of summed gains and outcome {explained:.2f}")
    return f"{head}\n{numbers}\n{table(visit_table(visits))}"


def visits_of(batch: SavedBatch, web: ToyWeb) -> list[Visit]:
    """All visits that have a gain. A visit of several pages counts by its first one."""
    visits = []
    for sample, gains in zip(batch.samples, batch.credit.gains, strict=True):
        case = web.case(sample.rollout.question.id)
        labels = visit_labels(sample.rollout, case.right_pages)
        for turn, pages, gain in zip(sample.rollout.turns, labels, gains, strict=True):
            if not pages or gain is None or turn.tool is None:
                continue
            kind, hop = pages[0]
            goal = turn.tool["arguments"]["goal"].split()
            shows_pet = kind == "right" and goal[-1:] == [case.path[hop - 1]]
            progress = shows_pet and (case.asks == "every" or hop == case.hops)
            visits.append(Visit(kind, hop, gain, float(progress)))
    return visits


# -------------------------------------------------------------------------------------- the probes

PROBED = 32                          # questions, of four hops


def probe_turns(case: Case) -> dict[str, tuple[str, str]]:
    """name -> (call, observation) of a turn after the first right visit."""
    first, second = case.path[:2]
    other, *_ = [title for title in case.pages if title not in case.path]
    truth = case.question.answers[0]
    goal = f" {case.relations[1]} {second}"
    pets = " ".join(case.pages[title].pet for title in case.path)

    def visit(title: str, goal: str) -> tuple[str, str]:
        return call_text(goal, f"page {title}"), case.pages[title].text(goal)

    return {
        "the next right page": visit(second, goal),
        "the answer in a query": (call_text(f" {truth}"), ToyTools(case).search(truth).text),
        "the first page again": visit(first, f" {case.relations[0]} {first}"),
        "an unrelated page": visit(other, goal),
        "a page with the answer's words": (
            call_text(goal, f"page {other}"), f"page {other} {pets}."),
    }


def probe_table(models: dict[str, Path], recipe: Recipe, asks: Asks) -> Table:
    """The mean gain of every probe under each model."""
    rows: dict[str, list[str]] = {}
    for model in models.values():
        for name, gains in probe_gains(model, recipe, asks).items():
            rows.setdefault(name, [name]).append(f"{fmean(gains):+.2f}")
    return [["turn", *models], *rows.values()]


def probe_gains(model: Path, recipe: Recipe, asks: Asks) -> dict[str, list[float]]:
    """name -> the gain of this probe in each of PROBED questions."""
    web = ToyWeb(1000, hops=4, asks=asks)
    tokenizer, score, _ = load_scorer(model)
    gains: dict[str, list[float]] = {}
    for i in range(PROBED):
        case = web.case(f"test-{i}")
        wrapped = wrap_truth(case.question.answers[0], tokenizer, recipe)
        opening = teach(case, Teacher(), "probe")[:6]         # a search and the first right visit
        for name, (call, observation) in probe_turns(case).items():
            probe = assistant(f" {case.relations[1]}.", call)
            messages = [*opening, probe, tool_response(observation), assistant(LEAD_IN, "")]
            ids, _, spans = stream(messages, tokenizer)
            starts = [start for start, _ in spans[2:4]]        # of the probe, of the turn after it
            logprobs = score(ids, starts, wrapped.ids)
            before, after = [belief(row[wrapped.start:], recipe.gain) for row in logprobs]
            gains.setdefault(name, []).append(after - before)
    return gains
