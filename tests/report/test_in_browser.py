"""The pages in a real browser: they draw, show the right numbers, obey mouse and keyboard, and are safe."""

import json
import re

from minvenus.config import Recipe
from minvenus.report.run_page import write_run_page
from minvenus.report.xray import write_page
from tests.report.examples import (
    HOSTILE,
    answer,
    group_of_four,
    hostile_rollout,
    random_batch,
    rollout,
    saved_batch,
    search,
    xray,
)
from tests.report.test_run_page import ROW, TIME, log
from tests.report.test_source import SCORER, messages


def silent(browser):
    assert browser.complaints() == [] and browser.requests() == []


def data_of(browser) -> dict:
    return json.loads(browser.text("#data"))


# --------------------------------------------------------------------------------------- every page draws


def test_pages_of_every_kind_draw_without_an_error_or_a_request(browser, tmp_path):
    (tmp_path / "messages.json").write_text(json.dumps({"messages": messages(), "gt": "cat"}))
    log(tmp_path / "run", [ROW, ROW | {"test_exact_match": 0.5}], [TIME, TIME], {"evaluate_questions": 10})
    batches = [group_of_four(), group_of_four(Recipe.paper(use_gain=False)), random_batch(2, Recipe.released())]
    pages = [*(xray(tmp_path / str(i), batch) for i, batch in enumerate(batches)),
             write_page(tmp_path / "messages.json", tmp_path / "a.html"),
             write_page(tmp_path / "messages.json", tmp_path / "b.html", scorer=SCORER)]
    for path in pages:
        for width, dark in ((1200, False), (380, True)):
            browser.open(path, width, 800, dark)
            assert browser.js("document.querySelectorAll('article.turn').length") > 0
            assert browser.js("document.documentElement.scrollWidth <= innerWidth"), f"{path} is wider than {width}"
            written = browser.js("[...document.querySelectorAll('[title]')].map(e => e.title).join()"
                                 " + document.querySelector('main').innerText")
            assert not re.search("undefined|NaN|null", written)
            silent(browser)
    browser.open(write_run_page(tmp_path / "run"))
    assert browser.js("document.querySelectorAll('svg').length") > 5
    assert browser.js("document.documentElement.scrollWidth <= innerWidth")
    silent(browser)


# What the buttons of a page show, for every rollout under every recipe that can be chosen.
EVERYTHING = """(() => {
  const found = [];
  const look = (rollout, recipe) => {
    for (const b of document.querySelectorAll("button.step")) {
      const value = b.dataset.value === undefined ? null : +b.dataset.value;
      found.push([rollout, recipe, b.dataset.turn - 1, b.dataset.step, value]);
    }
  };
  for (let g = 0; g < document.querySelectorAll("#group option").length || g === 0; g += 1) {
    const groups = document.querySelector("#group");
    if (groups) {
      groups.value = String(g);
      groups.dispatchEvent(new Event("change", { bubbles: true }));
    }
    for (const rollout of [...document.querySelectorAll("button[data-rollout]")].map((b) => b.dataset.rollout)) {
      document.querySelector(`button[data-rollout="${rollout}"]`).click();
      for (const radio of document.querySelectorAll("input[name=recipe]:not(:disabled)")) {
        radio.click();
        look(+rollout, radio.value);
      }
    }
  }
  return found;
})()"""


def test_every_number_that_is_shown_is_that_of_the_data(browser, tmp_path):
    browser.open(xray(tmp_path, random_batch(5, Recipe(normalize="joint", browse="off", gain="prob"))))
    data, expected = data_of(browser), {}
    for i, shown in enumerate(data["rollouts"]):
        for recipe, credit in shown["credit"].items():
            for t, places in enumerate(credit["steps"]):
                for about, value, _ in (data["steps"][place] for place in places):
                    expected[i, recipe, t, data["explanations"][about]["id"]] = value
    seen = set()
    for *key, value in browser.js(EVERYTHING):
        assert value == expected[tuple(key)], key
        seen.add(tuple(key))
    assert seen == set(expected)
    silent(browser)


def test_the_chart_says_every_gain_and_every_advantage_at_its_turn(browser, tmp_path):
    browser.open(xray(tmp_path, group_of_four()))
    own = data_of(browser)["rollouts"][0]
    titles = "[...document.querySelectorAll('.chart {0} title')].map(e => e.textContent.replaceAll('−', '-'))"
    bars, marks = browser.js(titles.format(".column")), browser.js(titles.format(".point"))
    credit = own["credit"]["paper"]
    assert bars == [f"turn {t}: advantage {a:+.3f}" for t, a in enumerate(credit["advantages"], 1)]
    gains = [f"after turn {t}: log P(answer) {own['measured'][t]:.3f}, gain {credit['gains'][t - 1]:+.3f}"
             for t in (2, 4)]
    assert marks == [f"question alone: log P(answer) {own['measured'][0]:.3f}", *gains]


# -------------------------------------------------------------------------------------------- the controls


def test_an_observation_unfolds_and_folds(browser, tmp_path):
    browser.open(xray(tmp_path, group_of_four()))
    for visible in (False, True, False):
        assert browser.js("document.querySelector('#turn-1 details.observation pre').checkVisibility()") is visible
        browser.click("#turn-1 details.observation summary")
    assert browser.text("#turn-1 details.observation") == "what came back (9 characters)Bob sings"


def test_a_number_opens_with_its_formula_its_equation_and_its_inputs(browser, tmp_path):
    browser.open(xray(tmp_path, group_of_four()))
    gain = data_of(browser)["rollouts"][0]["credit"]["paper"]["gains"][1]
    browser.click('#turn-2 [data-step="gain"]')
    panel = browser.text("#how-2")
    assert "IG = V after − V before" in panel and "[P eq.3]" in panel and "V after turn 2" in panel
    assert str(gain) in panel
    browser.click('#turn-2 [data-step="z"]')
    assert "[P eq.5]" in browser.text("#how-2") and "μ" in browser.text("#how-2")
    browser.click('#turn-2 [data-step="z"]')
    assert browser.js("document.querySelector('#how-2').hidden") is True


def test_tokens_are_coloured_by_advantage_or_by_mask(browser, tmp_path):
    cut = rollout([search(), answer("dog")], forced=0)                       # its first turn's end was not sampled
    browser.open(xray(tmp_path, saved_batch([cut, rollout([search(), answer()])], [0, 0], [0.0, 1.0], Recipe.paper())))
    colours = "[...document.querySelectorAll('.token')].map(t => getComputedStyle(t).backgroundColor)"
    assert browser.js("document.querySelectorAll('.token.trained.shade.minus').length") == sum(cut.sampled)
    assert browser.js("[...document.querySelectorAll('.token.masked')].map(t => t.textContent)") == ["<|im_end|>"]
    assert browser.js("document.querySelectorAll('.token.masked.shade').length") == 0
    before = browser.js(colours)
    browser.click('input[name="colour"][value="mask"]')
    assert browser.js(colours) != before


def test_everything_can_be_reached_with_the_keyboard(browser, tmp_path):
    browser.open(xray(tmp_path, group_of_four()))
    browser.key("j")
    assert browser.js("document.activeElement.id") == "turn-1"
    for key in "jkj":
        browser.key(key)
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


def test_it_prints_without_its_controls(browser, tmp_path):
    browser.open(xray(tmp_path, group_of_four()), dark=True)
    browser.send("Emulation.setEmulatedMedia", media="print")
    assert browser.js("document.querySelector('.bar').checkVisibility()") is False
    assert browser.js("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.js("getComputedStyle(document.querySelector('.turn')).backgroundColor") == "rgb(255, 255, 255)"
    assert len(browser.send("Page.printToPDF")["data"]) > 10_000
    browser.send("Emulation.setEmulatedMedia", media="")


# ------------------------------------------------------------------------------------------------- safety


def test_hostile_text_shows_as_text_and_does_nothing(browser, tmp_path):
    made = hostile_rollout()
    browser.open(xray(tmp_path, saved_batch([made, made], [0, 0], [1.0, 0.0], Recipe.paper())))
    browser.js("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    browser.click('#turn-2 [data-step="advantage"]')
    words = " ".join(HOSTILE)
    assert browser.text("#turn-2 details.observation pre") == made.turns[1].observation == words
    assert browser.text("#turn-2 .said") == words and browser.text("#turn-4 .answer") == words.strip()
    assert browser.js("window.hit") is None
    dangerous = "[...document.querySelectorAll('script, img, iframe, style, svg[onload]')].map(e => e.tagName)"
    assert browser.js(dangerous) == ["STYLE", "SCRIPT", "SCRIPT"]
    attributes = "[...document.querySelectorAll('*')].flatMap(e => [...e.attributes].map(a => a.name))"
    assert browser.js(f"{attributes}.filter(name => /^on/.test(name))") == []
    silent(browser)


def test_even_html_that_gets_in_can_neither_run_nor_load_anything(browser, tmp_path):
    """As if the escaping had failed: the page's policy is the second wall."""
    path = xray(tmp_path, group_of_four())
    injected = ("<script>window.hit = 1</script><img src=x onerror='window.hit = 2'>"
                "<iframe src='javascript:parent.hit=3'></iframe><img src='https://example.com/a.png'>"
                "<link rel=stylesheet href='https://example.com/a.css'>")
    document = path.read_text(encoding="utf-8").replace('<main id="content">', '<main id="content">' + injected)
    path.write_text(document, encoding="utf-8")
    browser.open(path)
    assert browser.js("window.hit") is None and browser.js("document.querySelectorAll('article.turn').length") == 5
    refused = browser.complaints()
    assert refused and all("Content Security Policy" in text for text in refused), refused
    answered = [event for event in browser.events if event.get("method") == "Network.responseReceived"
                and event["params"]["response"]["url"].startswith("http")]
    assert answered == []


def test_a_mistake_on_a_page_would_be_seen(browser, tmp_path):
    """The check of the checks: an error, a request and an alert are all noticed."""
    path = tmp_path / "bad.html"
    path.write_text("<img src='nothing.png'><script>console.error('oh'); alert('no'); missing()</script>")
    browser.open(path)
    complaints = " ".join(browser.complaints())
    assert "oh" in complaints and "dialog: no" in complaints and "missing" in complaints
    assert [url.rsplit("/", 1)[1] for url in browser.requests()] == ["nothing.png"]
