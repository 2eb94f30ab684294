"""The pages in a real browser: no error, no request, numbers that are the code's, and hostile text that does nothing."""

import json

import pytest

from minvenus.config import Recipe
from minvenus.report.run_page import write_run_page
from minvenus.report.xray import write_page
from tests.report.examples import HOSTILE, group_of_four, hostile_rollout, random_batch, saved_batch
from tests.report.test_run_page import ROW, TIME, log
from tests.report.test_source import SCORER, messages


def silent(browser):
    assert browser.complaints() == [] and browser.requests() == []


# ------------------------------------------------------------------------------------------------------ every page draws


def test_pages_of_every_kind_draw_without_an_error_or_a_request(browser, xray, tmp_path):
    (tmp_path / "messages.json").write_text(json.dumps({"messages": messages(), "gt": "cat"}))
    log(tmp_path / "run", [ROW, ROW | {"test_exact_match": 0.5}], [TIME, TIME], {"evaluate_questions": 10})
    pages = [xray(group_of_four()), xray(group_of_four(Recipe.paper(use_gain=False))), xray(random_batch(2, Recipe.released())),
             write_page(tmp_path / "messages.json", tmp_path / "a.html"),
             write_page(tmp_path / "messages.json", tmp_path / "b.html", scorer=SCORER)]
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
