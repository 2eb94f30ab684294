"""Known bugs of the pages: text that leaves its place (47), saved arithmetic that is not checked (48), and numbers of a
page that are not those of the credit (48, too: what is shown must be what the code gives)."""

from tests.mutants.mutant import mutant

HOSTILE_PIECES = "report/test_page.py::test_hostile_text_makes_no_element_and_no_attribute_wherever_it_stands"
EMBEDDED = "report/test_page.py::test_embedded_data_reads_back_as_it_was_and_cannot_leave_its_element"
CHANGED_FILE = "report/test_saved.py::test_a_file_that_was_changed_is_refused_with_the_place"
EXPLAINED = "report/test_explain.py::test_every_number_is_that_of_the_code_and_follows_from_its_inputs"
SHOWN = "report/test_xray.py::test_the_numbers_of_the_page_are_those_of_the_saved_batch"

MUTANTS = (
    mutant(47, "text unescaped in an element", HOSTILE_PIECES,
           ("minvenus.report.page:text", "escape(UNSAFE_IN_HTML", "str(UNSAFE_IN_HTML")),
    mutant(47, "quotes unescaped inside an attribute", HOSTILE_PIECES,
           ("minvenus.report.page:text", 'value))', 'value), quote=False)')),
    mutant(47, "an address unescaped inside an attribute", HOSTILE_PIECES,
           ("minvenus.report.page:links", "text(href)", "href")),
    mutant(47, "the title of a plot unescaped inside an attribute",
           "report/test_curves.py::test_text_from_outside_stays_text_and_nothing_is_fetched",
           ("minvenus.report.curves:line_plot", 'aria-label="{text(title)}"', 'aria-label="{title}"')),
    mutant(47, "data that can end its script element", EMBEDDED,
           ("minvenus.report.page:embed", "UNSAFE_IN_SCRIPT.sub(", "(lambda _, text: text)(")),
    mutant(47, "a policy that allows any script",
           "report/test_page.py::test_the_policy_allows_this_script_and_this_style_and_nothing_else",
           ("minvenus.report.page:page", "script-src '{digest(script)}'", "script-src 'unsafe-inline'")),
    mutant(48, "saved arithmetic accepted although it disagrees", CHANGED_FILE,
           ("minvenus.report.saved:load_batch", "if wrong := difference(", "if None and difference(")),
    mutant(48, "only the first number of a list compared", CHANGED_FILE,
           ("minvenus.report.saved:difference", "enumerate(zip(stored, computed, strict=True))]",
            "enumerate(zip(stored[:1], computed[:1], strict=True))]")),
    mutant(48, "a number compared up to a percent", CHANGED_FILE,
           ("minvenus.report.saved:difference", "abs_tol=1e-9", "abs_tol=1e-2")),
    mutant(48, "lines of two batches credited as one", CHANGED_FILE,
           ("minvenus.report.saved:load_batch", "if other := [", "if None and [")),
    mutant(48, "the step shown is the next rollout's", SHOWN,
           ("minvenus.report.xray:page_data", "credit_data(one.rollouts[row]", "credit_data(one.rollouts[row - 1]")),
    mutant(48, "a step of a turn that shows another turn's advantage", EXPLAINED,
           ("minvenus.report.explain:advantage_steps", 'advantages[t], formula', 'advantages[0], formula')),
    mutant(48, "a gain explained by the value of the turn before", EXPLAINED,
           ("minvenus.report.explain:gain_steps", "before = max(", "before = min(")),
    mutant(48, "the outcome's spread shown for a turn", EXPLAINED,
           ("minvenus.report.explain:z_steps", '"outcome" if last else "gain"', '"outcome"')),
    mutant(48, "a penalty that is not shared explained as shared", EXPLAINED,
           ("minvenus.report.explain:next_turn", 'a.recipe.penalty_scope == "turn"', "False")),
    mutant(48, "later turns with one factor gamma too many", EXPLAINED,
           ("minvenus.report.explain:advantage_steps", "rest = a.recipe.gamma *",
            "rest = a.recipe.gamma ** 2 *")),
    mutant(48, "one group of a batch scaled as if it were the whole batch",
           "report/test_xray.py::test_a_page_of_one_group_keeps_the_batchs_scale",
           ("minvenus.report.xray:measure", "return source.batch.measured",
            "return [source.batch.measured[case.row] for case in source.cases] * 9")),
)
