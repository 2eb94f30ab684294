"""The controls of an X-ray in a real browser: folding, the switches, the list of rollouts, the keyboard, printing."""

import json

from minvenus.config import Recipe
from tests.report.examples import answer, group_of_four, rollout, saved_batch, search


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
