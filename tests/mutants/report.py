"""Known bugs of the pages: text that leaves its place (47), saved arithmetic that is not checked
(48), and numbers of a page that are not those of the credit (48, too: what is shown must be what
the code gives)."""

from tests.mutants.mutant import mutant

HOSTILE_PIECES = (
    "report/test_page.py::test_hostile_text_makes_no_element_and_no_attribute_wherever_it_stands"
)
CHANGED_FILE = "report/test_saved.py::test_a_file_that_was_changed_is_refused_with_the_place"
EXPLAINED = (
    "report/test_explain.py::test_every_number_is_that_of_the_code_and_follows_from_its_inputs"
)
GROUP = (
    "report/test_explain.py::test_the_numbers_of_a_group_are_the_codes_and_follow_from_its_rewards"
)
SHOWN = "report/test_xray.py::test_the_page_word_for_word"

MUTANTS = (
    mutant(
        47,
        "text unescaped in an element",
        HOSTILE_PIECES,
        ("minvenus.report.page:text", "escape(safe)", "safe"),
    ),
    mutant(
        47,
        "quotes unescaped inside an attribute",
        HOSTILE_PIECES,
        ("minvenus.report.page:text", "escape(safe)", "escape(safe, quote=False)"),
    ),
    mutant(
        47,
        "an address unescaped inside an attribute",
        HOSTILE_PIECES,
        ("minvenus.report.page:el", "{text(str(value))}", "{value}"),
    ),
    mutant(
        47,
        "any string of a plot taken for markup",
        "report/test_curves.py::test_any_plot_is_well_formed_with_every_point_inside_the_axes",
        ("minvenus.report.page:html", "isinstance(content, Html)", "isinstance(content, str)"),
    ),
    mutant(
        47,
        "what came back taken for markup",
        "report/test_xray.py::test_hostile_text_is_text_wherever_a_model_or_a_web_page_can_put_it",
        ("minvenus.report.xray:verbatim", 'el("div", words', 'el("div", Html(words)'),
    ),
    mutant(
        47,
        "a policy that allows any script",
        "report/test_page.py::test_a_page_has_no_script_and_its_policy_allows_its_style_alone",
        "minvenus.report.page:page",
        "default-src 'none'",
        "default-src 'none'; script-src 'unsafe-inline'",
    ),
    mutant(
        48,
        "saved arithmetic accepted although it disagrees",
        CHANGED_FILE,
        ("minvenus.report.saved:load_batch", "if rounded(", "if False and rounded("),
    ),
    mutant(
        48,
        "the largest advantage in a colour that does not exist",
        "report/test_xray.py::"
        "test_an_advantage_has_one_of_five_strengths_of_blue_or_orange_and_none_at_0",
        "minvenus.report.xray:shade",
        "min(5, ceil(5 * abs(advantage) / DEEPEST))",
        "ceil(5 * abs(advantage) / DEEPEST)",
    ),
    mutant(
        48,
        "only the first line of a file compared",
        CHANGED_FILE,
        ("minvenus.report.saved:load_batch", "zip(lines, batch.lines(), strict=True)",
         "zip(lines[:1], batch.lines())"),
    ),
    mutant(
        48,
        "a number compared up to a percent",
        CHANGED_FILE,
        ("minvenus.report.saved:load_batch", "line.get(name), 9)", "line.get(name), 2)"),
        ("minvenus.report.saved:load_batch", "rounded(value, 9)", "rounded(value, 2)"),
    ),
    mutant(
        48,
        "lines of two batches credited as one",
        CHANGED_FILE,
        "minvenus.report.saved:load_batch",
        "computed.items()",
        '[("arithmetic", computed["arithmetic"])]',
    ),
    mutant(
        48,
        "the numbers shown are another rollout's",
        SHOWN,
        ("minvenus.report.explain:under_recipes", "under[i][name]", "under[i - 1][name]"),
    ),
    mutant(
        48,
        "recipes that disagree on a number share its line",
        SHOWN,
        "minvenus.report.xray:arithmetic",
        "recipes.setdefault(step, [])",
        "recipes.setdefault(next((s for s in recipes if s.id == step.id), step), [])",
    ),
    mutant(
        48,
        "a step of a turn that shows another turn's advantage",
        EXPLAINED,
        "minvenus.report.explain:turn_steps",
        "n.advantages[t]",
        "n.advantages[0]",
    ),
    mutant(
        48,
        "a gain explained by the value of the turn before",
        EXPLAINED,
        ("minvenus.report.explain:gain_formula", "before = max(", "before = min("),
    ),
    mutant(
        48,
        "the outcome's spread shown for a turn",
        EXPLAINED,
        "minvenus.report.explain:z_formula",
        '"σ": stats.turn_reward_spread',
        '"σ": stats.outcome_std',
    ),
    mutant(
        48,
        "the outcomes' mean shown for the turn rewards of a group",
        GROUP,
        "minvenus.report.explain:group_steps",
        "mean_and_spread(stats.turn_reward_mean,",
        "mean_and_spread(stats.outcome_mean,",
    ),
    mutant(
        48,
        "a penalty that is not shared explained as shared",
        EXPLAINED,
        ("minvenus.report.explain:next_turn", 'c.recipe.penalty_scope == "turn"', "False"),
    ),
    mutant(
        48,
        "later turns with one factor gamma too many",
        EXPLAINED,
        ("minvenus.report.explain:advantage_formula", "] = c.recipe.gamma",
         "] = c.recipe.gamma ** 2"),
    ),
    mutant(
        48,
        "one group of a batch scaled as if it were the whole batch",
        "report/test_xray.py::test_a_page_of_one_group_keeps_the_batchs_scale",
        "minvenus.report.saved:read_source",
        "groups_of(load_batch(path))",
        "groups_of(replace(batch := load_batch(path), samples=[sample for sample in "
        "batch.samples if group in (None, str(sample.group))]))",
    ),
    mutant(
        48,
        "the truth scored after the default thought",
        "report/test_source.py::"
        "test_a_model_folder_scores_the_answer_before_every_turn_as_a_fresh_forward_does",
        ("minvenus.report.saved:scored", "tokenizer, scorer.recipe)", "tokenizer, Recipe())"),
    ),
    mutant(
        48,
        "the plot of log P shows P",
        "report/test_xray.py::test_the_plot_has_mean_log_probs_before_each_turn_whatever_a_gain_is",
        ("minvenus.report.xray:belief_plot", '"log_prob"', '"prob"'),
    ),
)
