"""The reward X-ray: rollouts turn by turn, and how every number of their rewards came about, as one HTML file.

    write_page("runs/igpo/rollouts/step-00000020.jsonl", "xray.html")             a training batch, all of its groups
    write_page(..., group=3)                                                    one group of it
    write_page("trajectory.json", "xray.html", scorer=scorer, answer="Paul Beneke")     somebody else's, scored by a model

source.py reads the file, content.py turns it into the page's data, the scripts beside them draw it.
"""

from dataclasses import replace
from pathlib import Path

from minvenus.config import ConfigError, Recipe
from minvenus.report import page
from minvenus.report.content import page_data
from minvenus.report.measure import Scorer, answer_logprobs
from minvenus.report.source import Source, read_source
from minvenus.report.tokens import candidates, fitting
from minvenus.types import Question

SCRIPTS = ("xray_dom.js", "xray_explain.js", "xray_chart.js", "xray_turns.js", "xray_compare.js", "xray_tokens.js", "xray.js")
LARGEST = 24_000_000               # bytes of a page; browsers become slow beyond
TITLE = 160                        # letters


def write_page(source_path, out_path, group: int | str | None = None, scorer: Scorer | None = None,
               answer: str | None = None, recipe: Recipe | None = None) -> Path:
    """Write the page and return its path.

    group    show only this one of a file with several (a training file: its number; eval.py's: the question's id)
    scorer   gives log P(answer) before every turn of a rollout that has none
    answer   the true one, where the file does not know it
    recipe   how the model is asked for it (lead_in), if not as the paper does
    """
    source = with_answer(chosen(read_source(source_path), group), answer)
    scores = measured(source, scorer, answer, recipe or Recipe.paper())
    offered = [scorer.tokenizer] if scorer else candidates(Path(source_path))
    rollouts = [case.rollout for case in source.cases if case.rollout is not None]
    data = page_data(source, scores, fitting(rollouts, offered), scorer.name if scorer else None)
    content = document(data)
    if len(content) > LARGEST:
        raise ConfigError(f"{source.name} has {len(source.cases)} rollouts, too many for one page: choose one group of "
                          f"{', '.join(g['name'] for g in data['groups'][:20])}")
    return page.write(out_path, content)


def chosen(source: Source, group: int | str | None) -> Source:
    """The source with one of its groups. The batch stays whole: its statistics are over all groups."""
    if group is None:
        return source
    names = list(dict.fromkeys(str(case.group) for case in source.cases))
    if str(group) not in names:
        listed = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
        raise ConfigError(f"{source.name} has no group {group}; it has {listed}")
    return Source(source.name, [case for case in source.cases if str(case.group) == str(group)], source.batch)


def measured(source: Source, scorer: Scorer | None, answer: str | None, recipe: Recipe) -> list[list[list[float]] | None]:
    """Answer log-probs of every case, where a model was given."""
    if source.batch and (scorer or answer is not None):
        raise ConfigError(f"{source.name} is a training batch with its own numbers: leave out the model and the answer")
    if scorer is None:
        if answer is not None:
            raise ConfigError("an answer can only be scored by a model: give both, or neither")
        return [None] * len(source.cases)
    for case in source.cases:
        if case.question is None:
            raise ConfigError(f"{source.name} does not say what the true answer is: give the answer that is to be scored")
    return [answer_logprobs(case, scorer, case.question.answers[0], recipe) for case in source.cases if case.question]


def with_answer(source: Source, answer: str | None) -> Source:
    """The true answer that somebody gave, in place of what the file says."""
    if answer is None:
        return source
    if not answer.strip():
        raise ConfigError("the answer is blank")
    cases = [replace(case, question=Question("given", case.prompt or "question", [answer])) for case in source.cases]
    return replace(source, cases=cases)


def document(data: dict) -> str:
    groups, rollouts = data["groups"], data["rollouts"]
    title = groups[0]["question"] if len(groups) == 1 else f"{len(rollouts)} rollouts of {len(groups)} questions"
    title = title if len(title) <= TITLE else title[:TITLE].rsplit(" ", 1)[0] + " ..."
    without = "This page draws itself with the script that it holds, and scripts are turned off in your browser."
    parts = [f'<noscript>{page.note(without, warn=True)}</noscript>', '<div id="app"></div>']
    return page.page(title, parts, lede(data), facts(data), "reward X-ray", ("xray.css",), SCRIPTS, data)


def lede(data: dict) -> str:
    if data["trained"]:
        return ("What the agent did, how each of its turns was paid, and what training makes of it. "
                "Every number opens: it shows its formula and the numbers that it was made of.")
    if data["scored_by"]:
        return "What the agent did, and how probable each turn made the true answer."
    return "What the agent did, and whether each turn keeps to the format. No model has scored it, so there are no gains."


def facts(data: dict) -> list[tuple[str, str]]:
    listed = [("file", data["source"])]
    if data["step"] is not None:
        listed.append(("training step", f"{data['step']:,}"))
    listed += [("trained by", recipe["described"]) for recipe in data["recipes"] if recipe["trained"]]
    if data["scored_by"]:
        listed.append(("log P(answer) according to", data["scored_by"]))
    return listed
