"""The reward X-ray: rollouts turn by turn, and how every number of their rewards came about, as one HTML file.

    write_page("runs/igpo/rollouts/step-00000020.jsonl", "xray.html")         a training batch, all of its groups
    write_page(..., group=3)                                                one group of it
    write_page("trajectory.json", "xray.html", scorer=s, answer="Rome")     somebody else's, scored by a model

source.py reads the file, recipes.py and explain.py give the numbers, xray.js draws them. Numbers on the
page are not rounded, but for the log-probs of sampled tokens (three digits).
"""

from dataclasses import replace
from pathlib import Path

from minvenus.config import ConfigError, Recipe
from minvenus.files import write_text
from minvenus.igpo.credit import Measured
from minvenus.report import page
from minvenus.report.content import TEXT, TEXT_OF_ALL, TOKENS, TOKENS_OF_ALL, add_tokens, page_data, shorten_texts
from minvenus.report.recipes import under_recipes
from minvenus.report.source import Scorer, Source, answer_logprobs, find_tokenizer, read_source
from minvenus.text.tokenizer import Tokenizer

LARGEST = 24_000_000                             # bytes of a page; browsers become slow beyond
TITLE = 160                                      # letters
POLICIES = {"current": "the policy itself, before the update", "reference": "the start checkpoint"}


def write_page(source_path, out_path, group: int | str | None = None, scorer: Scorer | None = None,
               answer: str | None = None, recipe: Recipe | None = None) -> Path:
    """Write the page and return its path.

    group    show only this one of a file with several (a training file: its number; eval.py's: the question's id)
    scorer   gives log P(answer) before every turn of a rollout that has none
    answer   the true one, where the file does not know it
    recipe   how the model is asked for it (lead_in), if not as the paper does
    """
    source = chosen(read_source(source_path), group)
    if source.batch and (scorer or answer is not None):
        raise ConfigError(f"{source.name} is a training batch with its own numbers: leave out the model and the answer")
    if answer is not None:
        if scorer is None:
            raise ConfigError("an answer can only be scored by a model: give both, or neither")
        if not answer.strip():
            raise ConfigError("the answer is blank")
        source = replace(source, cases=[replace(case, answers=[answer]) for case in source.cases])
    measured = measure(source, scorer, recipe or Recipe.paper())
    rollouts = [case.rollout for case in source.cases if case.rollout is not None]
    tokenizer = scorer.tokenizer if scorer else find_tokenizer(rollouts, Path(source_path))
    document = xray(source, measured, tokenizer, scorer.name if scorer else None)
    if len(document) > LARGEST:
        raise ConfigError(f"{source.name} has {len(source.cases)} rollouts, too many for one page: choose one group of "
                          f"{group_names(source)}")
    return write_text(out_path, document)


def chosen(source: Source, group: int | str | None) -> Source:
    """The source with one of its groups. The batch stays whole: its statistics are over all groups."""
    cases = [case for case in source.cases if group is None or str(case.group) == str(group)]
    if not cases:
        raise ConfigError(f"{source.name} has no group {group}; it has {group_names(source)}")
    return replace(source, cases=cases)


def group_names(source: Source) -> str:
    names = list(dict.fromkeys(str(case.group) for case in source.cases))
    return ", ".join(names[:20]) + ", ..." * (len(names) > 20)


def measure(source: Source, scorer: Scorer | None, recipe: Recipe) -> list[Measured] | None:
    """What the numbers are made of: of all rollouts of a training batch, or of the cases that a model scores here."""
    if source.batch:
        return source.batch.measured
    if scorer is None:
        return None
    if not all(case.answers for case in source.cases):
        raise ConfigError(f"{source.name} does not say what the true answer is: give the answer that is to be scored")
    return [Measured(case.kinds, case.malformed, answer_logprobs(case, scorer, recipe), outcome=0.0, group=i)
            for i, case in enumerate(source.cases)]


def xray(source: Source, measured: list[Measured] | None, tokenizer: Tokenizer | None, scored_by: str | None) -> str:
    """The page of a source. `measured` has an entry per rollout of the batch, or per case that was scored here."""
    batch, cases = source.batch, source.cases
    compared = under_recipes(measured, batch.recipe if batch else None) if measured else []
    if batch and any(row is not None for m in batch.measured for row in m.logprobs):
        scored_by = POLICIES[batch.gain_policy]
    shortened = sum(shorten_texts(case.turns, min(TEXT, TEXT_OF_ALL // len(cases))) for case in cases)
    if tokenizer:
        add_tokens(cases, tokenizer, min(TOKENS, TOKENS_OF_ALL // len(cases)))
    data = page_data(source, measured, compared)
    conditions = {
        "trained": batch, "lone": scored_by and not batch, "recipes": compared, "several": len(cases) > 1,
        "scored": scored_by, "unscored": not scored_by, "unscored-run": batch and not scored_by,
        "shortened": shortened, "text-only": cases[0].rollout is None}
    data["conditions"] = [name for name, holds in conditions.items() if holds]
    facts = [("file", source.name)]
    facts += [("training step", f"{batch.step:,}")] if batch else []
    facts += [("trained by", one.described) for one in compared if one.trained]
    facts += [("log P(answer) according to", scored_by)] if scored_by else []
    title = f"{len(cases)} rollouts of {len(data['groups'])} questions"
    if len(data["groups"]) == 1:
        question = cases[0].question
        title = question if len(question) <= TITLE else question[:TITLE].rsplit(" ", 1)[0] + " ..."
    return page.page(title, [page.asset("xray.html")], lede(source, scored_by), facts, "reward X-ray", data)


def lede(source: Source, scored_by: str | None) -> str:
    if source.batch:
        return ("What the agent did, how each of its turns was paid, and what training makes of it. "
                "Every number opens: it shows its formula and the numbers that it was made of.")
    if scored_by:
        return "What the agent did, and how probable each turn made the true answer."
    return ("What the agent did, and whether each turn keeps to the format. No model has scored it, so there are no "
            "gains.")
