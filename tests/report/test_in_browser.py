"""The pages in a real browser: they draw without an error or a request, hostile text does nothing, and the controls work."""

import json
import os
from itertools import count

import pytest

from minvenus.config import Recipe
from minvenus.report.run_page import write_run_page
from minvenus.report.xray import write_page
from minvenus.train.saved import path_of, save_credits
from tests.report.browser import NAMES, Browser, find
from tests.report.examples import BROKEN, HOSTILE, answer, hostile_rollout, random_batch, rollout, saved_batch, search, visit
from tests.report.test_run_page import ROW, TIME, log
from tests.report.test_source import SCORER, messages

MISSING = f"no browser here: none of {', '.join(NAMES)} (Debian: apt-get install chromium)"
pytestmark = pytest.mark.skipif(find() is None, reason=MISSING)


@pytest.fixture(scope="module")
def browser():
    started = Browser()
    try:
        started.__enter__()
    except (OSError, TimeoutError, RuntimeError) as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"{find()} is there but does not start: {error}")
    yield started
    started.__exit__()


@pytest.fixture
def xray(tmp_path):
    number = count()

    def written(batch):
        folder = tmp_path / str(next(number))
        save_credits(folder, batch)
        return write_page(path_of(folder, batch.step), folder / "xray.html")
    return written


def group_of_four(recipe=None):
    turns = [[search(), visit(), search("Ada"), visit("Ada"), answer()], [search(), visit(), answer("dog")],
             [BROKEN, visit(), answer()], [search(), answer("dog")]]
    return saved_batch([rollout(t) for t in turns], [0] * 4, [1.0, 0.0, 1.0, 0.0], recipe or Recipe.paper())


def silent(browser):
    assert browser.complaints() == [] and browser.requests() == []


# ------------------------------------------------------------------------------------------------------ every page draws


def test_pages_of_every_kind_draw_without_an_error_or_a_request(browser, xray, tmp_path):
    (tmp_path / "messages.json").write_text(json.dumps({"messages": messages(), "gt": "cat"}))
    log(tmp_path / "run", [ROW, ROW | {"accuracy": 0.5}], [TIME, TIME], {"evaluate_questions": 10})
    pages = [xray(group_of_four()), xray(group_of_four(Recipe.paper(use_gain=False))), xray(random_batch(2, Recipe.released())),
             write_page(tmp_path / "messages.json", tmp_path / "a.html"),
             write_page(tmp_path / "messages.json", tmp_path / "b.html", model=SCORER)]
    for path in pages:
        for width, dark in ((1200, False), (380, True)):
            browser.open(path, width, 800, dark)
            assert browser.js("document.querySelectorAll('article.turn').length") > 0
            assert browser.js("document.documentElement.scrollWidth <= innerWidth"), f"{path} is wider than a window of {width}"
            silent(browser)
    browser.open(write_run_page(tmp_path / "run"))
    assert browser.js("document.querySelectorAll('svg').length") > 5
    silent(browser)


# What is shown by the buttons and cells of a page, for every rollout under every recipe that can be chosen.
EVERYTHING = """(() => {
  const found = { mismatches: 0, numbers: [], unlike: [] };
  const groups = document.querySelector("#group"), shownAs = (x) => x === null ? "none" : x;
  const look = (rollout, recipe) => {
    found.mismatches += document.querySelectorAll(".mismatch").length;
    for (const b of document.querySelectorAll("button.step")) {
      found.numbers.push([rollout, recipe, Number(b.dataset.turn), b.dataset.step,
        b.dataset.value === undefined ? null : Number(b.dataset.value)]);
    }
    for (const c of document.querySelectorAll("td[data-recipe]")) {
      found.numbers.push([rollout, c.dataset.recipe, Number(c.dataset.turn), "cell", Number(c.dataset.value)]);
    }
  };
  for (let g = 0; g < (groups ? groups.options.length : 1); g += 1) {
    if (groups) {
      const now = document.querySelector("#group");
      now.value = String(g);
      now.dispatchEvent(new Event("change"));
    }
    const rollouts = [...document.querySelectorAll("button[data-rollout]")].map((b) => b.dataset.rollout);
    for (const rollout of rollouts.length ? rollouts : ["0"]) {
      if (rollouts.length) document.querySelector(`button[data-rollout="${rollout}"]`).click();
      for (const radio of document.querySelectorAll("input[name=recipe]:not(:disabled)")) {
        radio.click();
        look(Number(rollout), radio.value);
      }
    }
  }
  return found;
})()"""
RECIPES = [Recipe(normalize="joint", browse="off", gain="prob"), Recipe(normalize="none", penalty_scope="segment", ig_weight=0.5),
           Recipe(normalize="separate", discount_over="rewards"), Recipe(center_gain=False, browse="segment", gamma=0.5),
           Recipe.released(penalty_scope="turn")]                    # and on each page paper, released and GRPO beside it


@pytest.mark.parametrize("seed", range(len(RECIPES)))
def test_every_number_on_the_page_is_that_of_the_code_and_follows_from_the_inputs_that_are_shown(browser, xray, seed):
    batch = random_batch(seed, RECIPES[seed])
    path = xray(batch)
    browser.open(path)
    found = browser.js(EVERYTHING)
    data = json.loads(browser.text("#data"))
    assert found["mismatches"] == 0 and found["numbers"]
    cells = 0
    for index, recipe, turn, step, shown in found["numbers"]:
        own = data["rollouts"][index]["arithmetic"][recipe]
        last, t = turn == len(own["advantages"]), turn - 1
        half = "outcome" if last else "gain"
        expected = {"advantage": own["advantages"][t], "cell": own["advantages"][t], "term": own["terms"][t],
                    "scale": own["scale"], "reward": own["outcome"] if last else own["turn_rewards"][t], "gain": own["gains"][t],
                    "value": None if last else own["values"][turn], "mean": own["group_stats"][f"{half}_mean"],
                    "std": own["group_stats"][f"{half}_std"], "z": own["outcome_z"] if last else own["turn_z"][t],
                    "value-before": next((v for v in reversed(own["values"][:turn]) if v is not None), None)}
        assert shown == expected[step], (index, recipe, turn, step)
        cells += step == "cell"
    assert cells
    silent(browser)


# --------------------------------------------------------------------------------------------------------- hostile text


def test_hostile_text_shows_as_text_and_does_nothing(browser, xray):
    made = hostile_rollout()
    browser.open(xray(saved_batch([made, made], [0, 0], [1.0, 0.0], Recipe.paper())))
    browser.js("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    browser.click('#turn-2 [data-step="advantage"]')
    words = " ".join(HOSTILE)
    assert browser.text("#turn-2 details.observation pre") == made.turns[1].observation == words
    assert browser.text("#turn-2 .said") == words and browser.text("#turn-4 .answer") == words.strip()
    assert browser.js("window.hit") is None
    assert browser.js("[...document.querySelectorAll('script, img, iframe, style, svg[onload]')].map(e => e.tagName)") == [
        "STYLE", "SCRIPT", "SCRIPT"]
    attributes = "[...document.querySelectorAll('*')].flatMap(e => [...e.attributes].map(a => a.name))"
    assert browser.js(f"{attributes}.filter(name => /^on/.test(name))") == []
    silent(browser)


def test_even_html_that_gets_in_can_neither_run_nor_load_anything(browser, xray):
    """As if the escaping had failed: the page's policy stands behind it."""
    path = xray(group_of_four())
    injected = ("<script>window.hit = 1</script><img src=x onerror='window.hit = 2'><img src='https://example.com/a.png'>"
                "<iframe src='javascript:parent.hit=3'></iframe><link rel=stylesheet href='https://example.com/a.css'>")
    document = path.read_text(encoding="utf-8").replace('<main id="content">', '<main id="content">' + injected)
    path.write_text(document, encoding="utf-8")
    browser.open(path)
    assert browser.js("window.hit") is None and browser.js("document.querySelectorAll('article.turn').length") == 5
    refused = browser.complaints()
    assert refused and all("Content Security Policy" in text for text in refused), refused
    answered = [e for e in browser.events if e.get("method") == "Network.responseReceived"
                and e["params"]["response"]["url"].startswith("http")]
    assert answered == []


# -------------------------------------------------------------------------------------------------------- the controls


def test_an_observation_unfolds_and_folds(browser, xray):
    browser.open(xray(group_of_four()))
    seen = "document.querySelector('#turn-1 details.observation pre').checkVisibility()"
    assert browser.js(seen) is False
    browser.click("#turn-1 details.observation summary")
    assert browser.js(seen) is True and browser.text("#turn-1 details.observation pre") == "Bob sings"
    browser.click("#turn-1 details.observation summary")
    assert browser.js(seen) is False
    browser.click("#open-all")
    assert browser.js("[...document.querySelectorAll('details.observation')].every(d => d.open)")
    browser.click("#close-all")
    assert not browser.js("[...document.querySelectorAll('details.observation')].some(d => d.open)")


def test_the_switch_of_recipes_changes_the_advantages_and_nothing_else(browser, xray):
    batch = group_of_four()
    browser.open(xray(batch))
    shown = "[...document.querySelectorAll('[data-step=advantage]')].map(b => Number(b.dataset.value))"
    data = json.loads(browser.text("#data"))
    for name in ("released", "GRPO", "paper"):
        browser.click(f'input[name="recipe"][value="{name}"]')
        assert browser.js(shown) == data["rollouts"][0]["arithmetic"][name]["advantages"]
        assert browser.js("document.querySelectorAll('#turn-1 .said').length") == 1
    assert len({tuple(data["rollouts"][0]["arithmetic"][n]["advantages"]) for n in ("paper", "released", "GRPO")}) == 3


def test_a_number_opens_with_its_formula_its_equation_and_its_inputs(browser, xray):
    browser.open(xray(group_of_four()))
    gain = json.loads(browser.text("#data"))["rollouts"][0]["arithmetic"]["paper"]["gains"][1]
    browser.click('#turn-2 [data-step="gain"]')
    panel = browser.text("#how-2")
    assert "IG = V after − V before" in panel and "[P eq.3]" in panel and "V after turn 2" in panel
    assert str(gain).replace("-", "−") in panel
    browser.click('#turn-2 [data-step="z"]')
    assert "[P eq.5]" in browser.text("#how-2") and "μ" in browser.text("#how-2")
    browser.click('#turn-2 [data-step="z"]')
    assert browser.js("document.querySelector('#how-2').hidden") is True


def test_another_rollout_is_chosen_from_the_list(browser, xray):
    browser.open(xray(group_of_four()))
    browser.click('button[data-rollout="2"]')
    assert "The tool call is not JSON" in browser.text("#turn-1 .verdict")
    assert browser.js("document.querySelectorAll('article.turn').length") == 3


def test_tokens_are_coloured_by_advantage_or_by_mask(browser, xray):
    cut = rollout([search(), answer("dog")], forced=0)                       # its first turn's end was not sampled
    browser.open(xray(saved_batch([cut, rollout([search(), answer()])], [0, 0], [0.0, 1.0], Recipe.paper())))
    assert browser.js("document.querySelector('.stream').className") == "stream colour-advantage"
    assert browser.js("document.querySelectorAll('.token.trained.shade.minus').length") == sum(cut.sampled)
    assert browser.js("[...document.querySelectorAll('.token.masked')].map(t => t.textContent)") == ["<|im_end|>"]
    browser.click('input[name="colour"][value="mask"]')
    assert browser.js("document.querySelector('.stream').className") == "stream colour-mask"


def test_everything_can_be_reached_with_the_keyboard(browser, xray):
    browser.open(xray(group_of_four()))
    browser.key("j")
    assert browser.js("document.activeElement.id") == "turn-1"
    browser.key("j")
    browser.key("k")
    browser.key("j")
    assert browser.js("document.activeElement.id") == "turn-2"
    for _ in range(2):                                                       # the observation, then the first number
        browser.key("Tab", 9)
    assert browser.js("document.activeElement.dataset.step") == "value-before"
    browser.key("Enter", 13)
    assert browser.js("document.activeElement.getAttribute('aria-expanded')") == "true"
    assert browser.js("document.querySelector('#how-2').hidden") is False
    browser.js("document.querySelector('input[name=recipe]:checked').focus()")
    browser.key("ArrowRight", 39)
    assert browser.js("document.querySelector('input[name=recipe]:checked').value") == "released"


def test_it_prints_without_its_controls(browser, xray):
    browser.open(xray(group_of_four()), dark=True)
    browser.send("Emulation.setEmulatedMedia", media="print")
    assert browser.js("document.querySelector('.bar').checkVisibility()") is False
    assert browser.js("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert len(browser.send("Page.printToPDF")["data"]) > 10_000
    browser.send("Emulation.setEmulatedMedia", media="")


def test_a_page_without_scripts_says_why_it_is_empty(browser, xray):
    browser.send("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(xray(group_of_four()))
    finally:
        browser.send("Emulation.setScriptExecutionDisabled", value=False)
    assert "scripts are turned off" in browser.text("noscript")


def test_a_mistake_on_a_page_would_be_seen(browser, tmp_path):
    """The check of the checks: an error, a request and an alert are all noticed."""
    path = tmp_path / "bad.html"
    path.write_text("<img src='nothing.png'><script>console.error('oh'); alert('no'); missing()</script>")
    browser.open(path)
    complaints = " ".join(browser.complaints())
    assert "oh" in complaints and "dialog: no" in complaints and "missing" in complaints
    assert [url.rsplit("/", 1)[1] for url in browser.requests()] == ["nothing.png"]


def test_the_scripts_are_one_function_and_leave_no_global_names(browser, xray):
    browser.open(xray(group_of_four()))
    assert browser.js("typeof state + typeof el + typeof steps") == "undefined" * 3
