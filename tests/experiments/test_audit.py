"""The gain audit, by hand: gains of a few made-up rollouts on a web whose right path is known."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from minvenus.config import ConfigError, ModelConfig
from minvenus.console import table
from minvenus.experiments import audit
from minvenus.experiments.audit import AuditConfig, Visit, visit_table, visits_of
from minvenus.flags import save_config
from minvenus.igpo.recipes import Recipe
from minvenus.model.weights import start_folder
from minvenus.report.saved import save_batch
from minvenus.tools.toyweb import ToyWeb
from minvenus.tools.toyweb_lessons import call_text
from minvenus.train.settings import IGPOConfig
from tests.agent.scripted import TOKENIZER
from tests.report.examples import answer, rollout, saved_batch, search, visit

WEB = ToyWeb(5, hops=(2,), slack=2)
CASE = WEB.case("train-0")
FIRST, SECOND = CASE.path
# a page that a search shows beside the first
LISTED = [page.title for page in WEB.for_question("train-0").results(FIRST)]
[OTHER] = [title for title in LISTED if title != FIRST]


def played(*titles):
    """A search and a visit for each page; a title with a ! is visited without a search."""
    turns, seen, tools = [], [], WEB.for_question("train-0")
    for title in titles:
        if not title.startswith("!"):
            turns.append(search(title))
            seen.append(tools.search(title).text)
        url = f"page {title.lstrip('!')}"
        turns.append(visit(url))
        seen.append(tools.visit(url, "pet").text)
    return rollout([*turns, answer("pets own cat")], seen, CASE.question)


def saved(rollouts, logprobs, recipe=None, step=1):
    """One group; only the first answer is right."""
    outcomes = [float(i == 0) for i in range(len(rollouts))]
    groups = [0] * len(rollouts)
    return saved_batch(rollouts, groups, outcomes, recipe or Recipe(), logprobs, step=step)


def batch(recipe=None, step=1, lift=0.0):
    """Two rollouts. The first opens both right pages, its beliefs are -4, -3, -1; the second
    another page, a page that no search has listed, the first right page and that one again, its
    beliefs are -4, -4.5, -4.5, -3.5, -3.75."""
    one, two = played(FIRST, SECOND), played(OTHER, f"!{SECOND}", FIRST, f"!{FIRST}")
    logprobs = [
        [[-4.0], None, [-3.0], None, [-1.0 + lift]],
        [[-4.0, -4.0], None, [-4.5], [-4.5], None, [-3.5], [-3.75]],
    ]
    return saved([one, two], logprobs, recipe, step)


# the visits of batch(); none asked for a pet
VISITS = [
    Visit("right", 1, 1.0, 0.0),
    Visit("right", 2, 2.0, 0.0),
    Visit("wrong", 1, -0.5, 0.0),
    Visit("failed", 1, 0.0, 0.0),
    Visit("right", 1, 1.0, 0.0),
    Visit("repeated", 2, -0.25, 0.0),
]


def test_gains_are_told_apart_by_what_the_visit_was_and_at_which_hop():
    assert visits_of(batch(), WEB) == VISITS


def test_a_wrong_visit_after_all_right_pages_counts_at_the_last_hop():
    logprobs = [[-4.0], None, [-3.0], None, [-1.0], None, [-2.0]]
    further = saved([played(FIRST, SECOND, OTHER)], [logprobs])
    assert visits_of(further, WEB)[-1] == Visit("wrong", 2, -1.0, 0.0)


def test_a_visit_of_several_pages_counts_by_its_first_one():
    call = f'{{"name":"visit","arguments":{{"url":["page {OTHER}","page {FIRST}"],"goal":"pet"}}}}'
    turns = [f"Open.\n</think>\n\n<tool_call>\n{call}\n</tool_call>", answer()]
    both = rollout(turns, [f"page {OTHER}.\npage {FIRST}."], CASE.question)
    assert visits_of(saved([both], [[[-4.0], [-3.0]]]), WEB) == [Visit("wrong", 1, 1.0, 0.0)]


TABLE = """
visit     hop  count   mean  spread  positive
right       1      2  +1.00    0.00      100%
right       2      3  +1.33    1.70       67%
right     all      5  +1.20    1.33       80%
wrong       1      1  -0.50    0.00        0%
repeated    2      1  -0.25    0.00        0%
failed      1      1  +0.00    0.00        0%
""".strip()


def test_the_table_word_for_word():
    """Variances: ((2/3)^2 + (5/3)^2 + (7/3)^2) / 3 = 26 / 9 at hop 2, and of all right ones
    (2 * .04 + .64 + 3.24 + 4.84) / 5."""
    more = [Visit("right", 2, 3.0, 0.0), Visit("right", 2, -1.0, 0.0)]
    assert table(visit_table([*VISITS, *more])) == TABLE


# ------------------------------------------------------------------------------ of a run's folder


@pytest.fixture
def probed(monkeypatch):
    """No model is scored; gives what the probes were asked for."""
    asked = []
    monkeypatch.setattr(audit, "probe_table", lambda *given: asked.append(given) or [["turn"]])
    return asked


def saved_run(folder, *batches, **changes):
    start = folder / "start"
    start.mkdir(exist_ok=True)
    (start / "config.json").write_text(json.dumps(ModelConfig.preset("tiny").to_hf()))
    settings = {"seed": 6, "question_seed": 5, "hops": 2, "model": str(start)} | changes
    save_config(IGPOConfig(**settings), folder)
    for one in batches:
        save_batch(folder, one)
    return AuditConfig(run=str(folder))


def test_of_a_run_the_first_and_the_last_saved_rollouts_are_reported(tmp_path, probed):
    first, probes = audit.main(saved_run(tmp_path, batch(step=1))).split("\n\n")
    assert first.startswith(
        "step 1: 2 rollouts, log P(truth | question) -4.00 per token\n"
        "rank correlation of gain and progress nan (at most nan), R^2 of summed gains and outcome "
        "1.00\nvisit "
    ), "nobody asked for a pet; two points are always on a line"
    assert first.endswith(table(visit_table(VISITS))) and probes == "probes, mean gain\nturn"
    config = saved_run(tmp_path, batch(step=20), batch(step=100, lift=0.5))
    before, after, _ = audit.main(config).split("\n\n")
    assert before == first and after.startswith("step 100: 2 rollouts")
    assert "right       2      1  +2.50" in after


def test_the_web_is_that_of_the_question_seed_and_0_is_one(tmp_path, probed):
    own = audit.main(saved_run(tmp_path, batch()))
    assert audit.main(saved_run(tmp_path, seed=5, question_seed=None)) == own
    assert audit.main(saved_run(tmp_path, seed=5, question_seed=0)) != own
    assert audit.main(saved_run(tmp_path, hops=3)) != own


def opens(*calls, last=None):
    """A rollout that opens pages, each asked for somebody's pet."""
    turns, seen = [], []
    for title, asked in calls:
        turns.append(f"Open.\n</think>\n\n{call_text(f'own {asked}', f'page {title}')}")
        seen.append(f"page {title} own cat.")
    return rollout([*turns, last or answer()], seen, CASE.question)


def test_progress_is_a_pet_of_the_answer_that_is_shown_for_the_first_time():
    """The first right page asked for its pet, then again; the second asked for something else."""
    opened = opens((FIRST, FIRST), (FIRST, FIRST), (SECOND, "nobody"))
    visits = visits_of(saved([opened], [[[-4.0], [-3.0], [-3.5], [-2.0]]]), WEB)
    numbers = [(visit.gain, visit.progress) for visit in visits]
    assert numbers == [(1.0, 1.0), (-0.5, 0.0), (1.5, 0.0)]


def test_where_the_last_pet_is_asked_for_only_its_page_is_progress():
    web = ToyWeb(5, hops=(2,), slack=2, asks="last")
    opened = opens((FIRST, FIRST), (SECOND, SECOND), (SECOND, SECOND))
    visits = visits_of(saved([opened], [[[-4.0], [-4.0], [-1.0], [-1.0]]]), web)
    assert [visit.progress for visit in visits] == [0.0, 1.0, 0.0]


def test_both_numbers_of_a_batch_worked_by_hand():
    """Gains 1 3 | -1 .1 | 1 with progress 1 1 | 0 1 | 0: ranks 3.5 5 1 2 3.5 and 4 4 1.5 4 1.5, so
    3.75 / sqrt(9.5 * 7.5), .44; with both in order 7.5 / sqrt(71.25) = .89. Sums 4 -.9 1 and
    outcomes 1 0 0: R^2 = 2.633^2 / (12.21 * 2/3) = .85. The last answer is malformed: its outcome
    is still 0."""
    rollouts = [
        opens((FIRST, FIRST), (SECOND, SECOND)),
        opens((OTHER, OTHER), (FIRST, FIRST)),
        opens((FIRST, "nobody"), last="no answer"),
    ]
    logprobs = [[[-5.0], [-4.0], [-1.0]], [[-5.0], [-6.0], [-5.9]], [[-5.0], [-4.0]]]
    numbers = "progress 0.44 (at most 0.89), R^2 of summed gains and outcome 0.85\n"
    assert numbers in audit.audit_batch(saved(rollouts, logprobs), WEB)


def test_rollouts_that_nobody_scored_have_no_gains_and_no_correlations():
    scored = batch(Recipe(use_gain=False))
    samples = [replace(s, truth_logprobs=[None] * len(s.rollout.turns)) for s in scored.samples]
    text = audit.audit_batch(replace(scored, samples=samples), WEB)
    numbers = "progress nan (at most nan), R^2 of summed gains and outcome nan\n"
    assert text.startswith("step 1: 2 rollouts\nrank ") and numbers in text


def visiting(title, goal):
    call = f'{{"name":"visit","arguments":{{"url":["{title}"],"goal":"{goal}"}}}}'
    return f"<tool_call>\n{call}\n</tool_call>"


SEARCH = '<tool_call>\n{"name":"search","arguments":{"query":["%s"]}}\n</tool_call>'
PROBES = {  # of "From Mae own nurse friend aunt?": Mae, Hal, Paul, Cid with hen, owl, ant, doe
    "the next right page": (
        visiting("page Hal", " nurse Hal"), "page Hal nurse owl friend Paul coach Mia."),
    "the answer in a query": (
        SEARCH % " pets own hen nurse owl friend ant aunt doe", "ERROR: nothing found."),
    "the first page again": (
        visiting("page Mae", " own Mae"), "page Mae own hen uncle Uma nurse Hal."),
    "an unrelated page": (visiting("page Ben", " nurse Hal"), "page Ben nurse Hugh uncle Hal."),
    "a page with the answer's words": (
        visiting("page Ben", " nurse Hal"), "page Ben hen owl ant doe."),
}


def test_probes_are_turns_without_news_and_are_scored_before_and_after_training(monkeypatch):
    assert audit.probe_turns(ToyWeb(1000, hops=4).case("test-0")) == PROBES
    last = audit.probe_turns(ToyWeb(1000, hops=4, asks="last").case("test-0"))
    query = SEARCH % " pet aunt doe", "ERROR: nothing found."
    assert last == PROBES | {"the answer in a query": query}
    monkeypatch.setattr(audit, "PROBED", 1)
    base = start_folder("tiny-base")
    head, *rows = audit.probe_table(
        {"before": base, "after": base}, Recipe(lead_in="Answer."), "every"
    )
    _, (_, next_page), *_ = audit.probe_table({"before": base}, Recipe(lead_in="Answer."), "last")
    assert float(next_page) < 0.1, "the second of four pages has no part of the answer"
    assert head == ["turn", "before", "after"] and [row[0] for row in rows] == list(PROBES)
    (_, news, same), _, (_, no_news, _), *_ = rows
    assert float(news) > 0.1 > float(no_news) and news == same, "the base can read"


@pytest.mark.parametrize("gain, expected", [("log_prob", "+0.50"), ("prob", "+0.24")])
def test_a_probe_gains_what_the_answers_own_tokens_gain_from_its_turn(monkeypatch, gain, expected):
    """The model gives each token of the truth, nine for four hops, e^-1 before the probe and e^-.5
    after it (e^-.5 - e^-1 = .239); those of the wrapper do not count. Before it the first right
    page has been read, after it what the probe showed, too."""
    contexts = []

    def score(ids, lengths, continuation):
        contexts.extend(TOKENIZER.decode(ids[:n]) for n in lengths)
        wrapper = len(continuation) - 9
        return [[-7.0] * wrapper + [-1.0] * 9, [-3.0] * wrapper + [-0.5] * 9]

    monkeypatch.setattr(audit, "load_scorer", lambda folder: (TOKENIZER, score, 0))
    _, *rows = audit.probe_table({"before": Path("x")}, Recipe(gain=gain), "every")
    assert {cell for _, cell in rows} == {expected}
    assert len(contexts) == 2 * 5 * 32, "32 questions"
    case = ToyWeb(1000, hops=4).case("test-0")
    first = case.pages[case.path[0]].text(f" own {case.path[0]}")
    for i, probe in enumerate(PROBES.values()):
        before, after = contexts[2 * i : 2 * i + 2]
        assert first in before and after.startswith(before)
        for part in probe:  # the call and what it showed
            assert after.count(part) == before.count(part) + 1


def test_the_start_is_probed_and_where_there_are_later_rollouts_the_newest_checkpoint_too(
    tmp_path, probed
):
    (tmp_path / "checkpoints/step-00000003/model").mkdir(parents=True)
    (tmp_path / "checkpoints/step-00000003/state.json").write_text("{}")
    (tmp_path / "latest").write_text("step-00000003")
    recipe = Recipe(gain="prob")
    text = audit.main(saved_run(tmp_path, batch(recipe, step=1)))
    assert text.startswith("step 1: 2 rollouts, log P(truth | question) -4.00 per token\nrank")
    audit.main(saved_run(tmp_path, batch(recipe, step=3)))
    audit.main(saved_run(tmp_path, asks="last"))
    audit.main(saved_run(tmp_path, model="tiny"))
    before = {"before": tmp_path / "start"}
    after = {"after": tmp_path / "checkpoints/step-00000003/model"}
    assert probed == [
        (before, recipe, "every"),
        (before | after, recipe, "every"),
        (before | after, recipe, "last"),
        (after, recipe, "every"),  # random weights have no folder
    ], "under the run's own recipe, on its own questions"


@pytest.mark.parametrize("given", [{}, {"world": "a", "run": "b"}])
def test_a_run_or_a_world_must_be_named_and_not_both(given):
    with pytest.raises(ConfigError, match=r"--run FOLDER .* or --world FOLDER"):
        AuditConfig(**given)


def test_a_run_without_rollouts_or_on_a_file_of_questions_cannot_be_audited(tmp_path):
    with pytest.raises(ConfigError, match="no saved rollouts"):
        audit.main(saved_run(tmp_path))
    toy_only = r"questions.jsonl: right pages are known on the toy web only"
    with pytest.raises(ConfigError, match=toy_only):
        files = {"data": "questions.jsonl", "tools": "folder:docs"}
        audit.main(saved_run(tmp_path, batch(), hops=4, **files))
