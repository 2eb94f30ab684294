"""The gain audit, by hand: gains of a few made-up rollouts on a web whose right path is known."""

import json
from pathlib import Path

import pytest

from minvenus.config import ConfigError, ModelConfig
from minvenus.console import table
from minvenus.experiments import audit
from minvenus.experiments.audit import AuditConfig, Visit, rows, visits_of
from minvenus.flags import parse_flags
from minvenus.igpo.recipes import Recipe
from minvenus.model.weights import start_folder
from minvenus.report.saved import save_batch
from minvenus.settings import IGPOConfig
from minvenus.tools.toyweb import ToyWeb
from minvenus.tools.toyweb_lessons import call_text
from tests.agent.scripted import TOKENIZER
from tests.report.examples import answer, rollout, saved_batch, search, visit

WEB = ToyWeb(5, hops=(2,), slack=2)
CASE = WEB.case("train-0")
FIRST, SECOND = CASE.path
# a page that a search shows beside the first
OTHER = next(
    page.title for page in WEB.for_question("train-0").results(FIRST) if page.title != FIRST
)


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


def batch(recipe=None, step=1, lift=0.0):
    """Two rollouts. The first opens both right pages, its values -4, -3, -1; the second another page, a page that no
    search has listed, the first right page and that one again, its values -4, -4.5, -4.5, -3.5, -3.75."""
    one, two = played(FIRST, SECOND), played(OTHER, f"!{SECOND}", FIRST, f"!{FIRST}")
    logprobs = [
        [[-4.0], None, [-3.0], None, [-1.0 + lift]],
        [[-4.0, -4.0], None, [-4.5], [-4.5], None, [-3.5], [-3.75]],
    ]
    return saved_batch([one, two], [0, 0], [1.0, 0.0], recipe or Recipe(), logprobs, step=step)


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


def test_a_visit_of_several_pages_counts_by_its_first_one():
    call = f'{{"name":"visit","arguments":{{"url":["page {OTHER}","page {FIRST}"],"goal":"pet"}}}}'
    turns = [search(FIRST), f"Open.\n</think>\n\n<tool_call>\n{call}\n</tool_call>", answer()]
    seen = [f"page {FIRST} sings {OTHER} sings.", f"page {OTHER}.\npage {FIRST}."]
    several = saved_batch(
        [rollout(turns, seen, CASE.question)] * 2,
        [0, 0],
        [1.0, 0.0],
        Recipe(),
        [[[-4.0], None, [-3.0]], [[-4.0], None, [-2.0]]],
    )
    assert [visit[:3] for visit in visits_of(several, WEB)] == [
        ("wrong", 1, 1.0),
        ("wrong", 1, 2.0),
    ]


def test_the_table_word_for_word():
    assert (
        table(
            rows([*VISITS, Visit("right", 2, 3.0, 0.0), Visit("right", 2, -1.0, 0.0)])
        ).splitlines()
        == [
            "visit     hop  count   mean  spread  positive",
            "right       1      2  +1.00    0.00      100%",
            "right       2      3  +1.33    1.70       67%",  # variance ((2/3)^2 + (5/3)^2 + (7/3)^2) / 3 = 26 / 9
            "right     all      5  +1.20    1.33       80%",  # variance (2 * 0.04 + 0.64 + 3.24 + 4.84) / 5
            "wrong       1      1  -0.50    0.00        0%",
            "repeated    2      1  -0.25    0.00        0%",
            "failed      1      1  +0.00    0.00        0%",
        ]
    )


# ---------------------------------------------------------------------------------------------------- of a run's folder


def saved_run(folder, *batches, **changes):
    settings = {
        "data": "toyweb",
        "seed": 6,
        "question_seed": 5,
        "hops": 2,
        "slack": 2,
        "model": str(folder / "gone"),
    }
    (folder / "run.json").write_text(json.dumps(settings | changes))
    for one in batches:
        save_batch(folder, one)
    return AuditConfig(run=str(folder))


def test_of_a_run_the_first_and_the_last_saved_rollouts_are_reported(tmp_path):
    config = saved_run(tmp_path, batch(step=1))
    first = audit.main(config)
    first, unscored = first.split("\n\n")
    assert first.startswith(
        "step 1: 2 rollouts, log P(answer | question) -4.00 per token\n"
        "rank correlation of gain and progress not known (at most not known), R^2 of summed gains "
        "and outcome 1.00\nvisit "
    ), "nobody asked for a pet; two points are always on a line"
    assert (
        first.endswith(table(rows(VISITS)))
        and unscored == f"no probes before training: {tmp_path}/gone is no model"
    )
    saved_run(tmp_path, batch(step=20), batch(step=100, lift=0.5))
    before, after, _ = audit.main(config).split("\n\n")
    assert (
        before == first
        and after.startswith("step 100: 2 rollouts")
        and "right       2      1  +2.50" in after
    )


def opens(*calls, last=None):
    """A rollout that opens pages, each asked for somebody's pet."""
    turns = [
        f"Open.\n</think>\n\n{call_text(f'own {asked}', f'page {title}')}" for title, asked in calls
    ]
    return rollout(
        [*turns, last or answer()], [f"page {title} own cat." for title, _ in calls], CASE.question
    )


def test_progress_is_a_pet_of_the_answer_that_is_shown_for_the_first_time():
    """The first right page asked for its pet, then again; the second right page asked for something else."""
    done = opens((FIRST, FIRST), (FIRST, FIRST), (SECOND, "nobody"))
    logprobs = [[[-4.0], [-3.0], [-3.5], [-2.0]], [[-4.0], [-3.5], [-3.0], [-2.0]]]
    found = visits_of(
        saved_batch([done] * 2, [0, 0], [1.0, 0.0], Recipe(browse="off"), logprobs), WEB
    )
    assert [visit.gain for visit in found] == [1.0, -0.5, 1.5, 0.5, 0.5, 1.0]
    assert [visit.progress for visit in found] == [1.0, 0.0, 0.0, 1.0, 0.0, 0.0]


def test_both_numbers_of_a_batch_worked_by_hand():
    """Gains 1 3 | -1 .1 | 1 with progress 1 1 | 0 1 | 0: ranks 3.5 5 1 2 3.5 and 4 4 1.5 4 1.5, so 3.75 / sqrt(9.5 *
    7.5), .44; with both in order 7.5 / sqrt(71.25) = .89. Sums 4 -.9 1 and outcomes 1 0 0: R^2 = 2.633^2 / (12.21 *
    2/3) = .85. The last answer is malformed: its outcome is still 0."""
    made = [
        opens((FIRST, FIRST), (SECOND, SECOND)),
        opens((OTHER, OTHER), (FIRST, FIRST)),
        opens((FIRST, "nobody"), last="no answer"),
    ]
    logprobs = [[[-5.0], [-4.0], [-1.0]], [[-5.0], [-6.0], [-5.9]], [[-5.0], [-4.0]]]
    said = audit.audit_batch(saved_batch(made, [0, 0, 0], [1.0, 0.0, 0.0], Recipe(), logprobs), WEB)
    assert "progress 0.44 (at most 0.89), R^2 of summed gains and outcome 0.85\n" in said


def test_probes_are_turns_without_news_and_are_scored_before_and_after_training(
    tmp_path, monkeypatch
):
    case = ToyWeb(1000, hops=4).case("test-0")
    made = audit.probes(case)
    pets = [case.pages[title].pet for title in case.path]
    _, words = made["a page with the answer's words"]
    assert (
        all(pet in words.split(" ", 2)[2] for pet in pets) and case.question.answers[0] not in words
    )
    query, seen = made["the answer in a query"]
    assert case.question.answers[0] in query and case.question.answers[0] not in seen
    again, seen = made["the first page again"]
    assert (
        again == call_text(f" own {case.path[0]}", f"page {case.path[0]}")
        and pets[0] in seen.split()
    )
    call, seen = made["an unrelated page"]
    assert not any(f"page {title}" in call or f"page {title} " in seen for title in case.path)
    assert made["the next right page"][1] == case.pages[case.path[1]].text(
        f"x {case.path[1]}"
    ).replace(" x ", f" {case.relations[1]} ")
    monkeypatch.setattr(audit, "PROBED", 1)
    base = start_folder("tiny-base")
    head, *probed = audit.probe_rows({"before": base, "after": base}, Recipe(lead_in="Answer."))
    assert head == ["turn", "before", "after"] and [row[0] for row in probed] == list(made)
    assert all(before == after for _, before, after in probed), "the same model twice"
    gains = {name: float(gain) for name, gain, _ in probed}
    assert gains["the next right page"] > 0.1 > gains["the first page again"], "the base can read"


@pytest.mark.parametrize(
    "gain, expected", [("log_prob", "+0.50"), ("prob", "+0.24")]
)  # e^-.5 - e^-1 = .239
def test_a_probe_gains_what_the_answers_own_tokens_gain_from_its_turn(monkeypatch, gain, expected):
    """The model gives each token of the truth, nine for four hops, e^-1 before the probe and e^-.5 after it; those of
    the wrapper do not count. Before it the first right page has been read, after it what the probe showed, too."""
    contexts = []

    def score(ids, lengths, continuation):
        contexts.extend(TOKENIZER.decode(ids[:n]) for n in lengths)
        wrapper = len(continuation) - 9
        return [[-7.0] * wrapper + [-1.0] * 9, [-3.0] * wrapper + [-0.5] * 9]

    monkeypatch.setattr(audit, "load_scorer", lambda folder: (TOKENIZER, score, 0))
    _, *probed = audit.probe_rows({"before": Path("x")}, Recipe(gain=gain))
    assert {cell for _, cell in probed} == {expected}
    assert len(contexts) == 2 * 5 * 32, "32 questions"
    case = ToyWeb(1000, hops=4).case("test-0")
    first = case.pages[case.path[0]].text(f" own {case.path[0]}")
    for i, probe in enumerate(audit.probes(case).values()):
        before, after = contexts[2 * i : 2 * i + 2]
        assert first in before and after.startswith(before)
        assert all(after.count(part) == before.count(part) + 1 for part in probe), (
            "the call and what it showed"
        )


def test_the_start_is_probed_and_where_there_are_later_rollouts_the_newest_checkpoint_too(
    tmp_path, monkeypatch
):
    seen = []
    monkeypatch.setattr(audit, "probe_rows", lambda *given: seen.append(given) or [["turn"]])
    for model in ("gone", "checkpoints/step-00000003/model"):
        (tmp_path / model).mkdir(parents=True)
        (tmp_path / model / "config.json").touch()
    (tmp_path / "checkpoints/step-00000003/state.json").write_text("{}")
    (tmp_path / "latest").write_text("step-00000003")
    recipe = Recipe(gain="prob")
    text = audit.main(saved_run(tmp_path, batch(recipe, step=1)))
    assert text.startswith("step 1: 2 rollouts\nrank"), (
        "a probability is not called a log-probability"
    )
    audit.main(saved_run(tmp_path, batch(recipe, step=3)))
    before, newest = (
        {"before": tmp_path / "gone"},
        {"after": tmp_path / "checkpoints/step-00000003/model"},
    )
    assert seen == [(before, recipe), (before | newest, recipe)], "under the run's own recipe"


def test_a_checkpoint_is_audited_by_one_step_of_training(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(json.dumps(ModelConfig.preset("tiny").to_hf()))
    seen = []

    def run(script, *flags):
        config = parse_flags(IGPOConfig, [str(flag) for flag in flags])
        seen.append(
            (
                script,
                config.model,
                config.steps,
                config.questions * config.group,
                config.hops,
                config.slack,
                config.recipe,
            )
        )
        saved_run(Path(config.out), batch())

    monkeypatch.setattr(audit, "run", run)
    for hops in (4, 5):
        assert audit.main(AuditConfig(model=str(tmp_path), hops=hops)).startswith(
            "step 1: 2 rollouts"
        )
    assert seen == [("train_igpo.py", str(tmp_path), 1, 256, hops, 2, Recipe()) for hops in (4, 5)]


@pytest.mark.parametrize("given", [{}, {"model": "a", "run": "b"}])
def test_a_checkpoint_or_a_run_must_be_named_and_not_both(given):
    with pytest.raises(ConfigError, match=r"--model FOLDER .* or --run FOLDER"):
        AuditConfig(**given)


def test_a_run_without_rollouts_or_on_a_file_of_questions_cannot_be_audited(tmp_path):
    with pytest.raises(ConfigError, match="no saved rollouts"):
        audit.main(saved_run(tmp_path))
    with pytest.raises(
        ConfigError, match=r"questions.jsonl: right pages are known on the toy web only"
    ):
        audit.main(saved_run(tmp_path, batch(), data="questions.jsonl"))
