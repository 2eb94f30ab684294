"""Known bugs of the experiments' own statistics (5, 12, 51)."""

from tests.mutants.mutant import mutant

AUDIT, COMPARE, INTERVALS, LAB, METHODS, RESULTS = (
    f"minvenus.experiments.{name}:"
    for name in ("audit", "compare", "intervals", "lab", "methods", "results")
)
ENUMERATION = "tests.igpo.enumeration:"
IN_AUDIT, IN_CALCULATOR, IN_COMPARE, IN_INTERVALS, IN_LAB, IN_RESULTS = (
    f"experiments/test_{name}.py::"
    for name in ("audit", "calculator", "compare", "intervals", "lab", "results")
)
IN_GRADIENT = "igpo/test_gradient.py::"
PAIRED = (
    IN_COMPARE
    + "test_runs_of_one_number_have_the_same_start_questions_and_sampling_seed_in_every_method"
)
NAMED = IN_COMPARE + "test_a_method_is_its_recipe_with_the_changes_behind_it_and_nothing_else"
AUDITED = IN_AUDIT + "test_both_numbers_of_a_batch_worked_by_hand"
PLANNED = IN_COMPARE + "test_a_comparison_is_planned_once_and_goes_on_only_with_the_same_plan"
UPDATED = IN_LAB + "test_an_update_is_a_step_on_eight_groups_of_four_rollouts_of_the_runs_own_seed"
PROBED = (
    IN_AUDIT
    + "test_the_start_is_probed_and_where_there_are_later_rollouts_the_newest_checkpoint_too"
)

MUTANTS = (
    mutant(
        5,
        "the sd of the starts' means is not divided by the root of their number",
        IN_INTERVALS + "test_the_t_interval_of_five_starts_worked_by_hand",
        (INTERVALS + "t_interval", " / len(means) ** 0.5", ""),
    ),
    mutant(
        5,
        "a one-sided test",
        IN_INTERVALS + "test_the_t_interval_of_five_starts_worked_by_hand",
        (INTERVALS + "p_value", "return 2 * (", "return ("),
    ),
    mutant(
        5,
        "degrees of freedom: one too many",
        IN_INTERVALS + "test_students_t_equals_its_closed_forms_and_the_printed_tables",
        (INTERVALS + "t_angles", "** (freedom - 1)", "** freedom"),
    ),
    mutant(
        5,
        "Holm without the running maximum",
        IN_INTERVALS + "test_holm_worked_by_hand",
        (INTERVALS + "holm", "max(largest, min(", "max(0.0, min("),
    ),
    mutant(
        5,
        "consecutive runs are taken for runs of one start",
        IN_INTERVALS + "test_the_t_interval_of_five_starts_worked_by_hand",
        (INTERVALS + "start_means", "numbers[start::starts]", "numbers[2 * start:2 * start + 2]"),
    ),
    mutant(
        5,
        "the tests of two metrics are corrected together with the first one's",
        IN_RESULTS + "test_the_tables_with_differences_of_paired_runs_worked_by_hand",
        (RESULTS + "tested", "[run[metric][step]", "[run[ACCURACY][step]"),
    ),
    mutant(
        5,
        "runs are drawn without replacement, so that an interval has no width",
        IN_INTERVALS + "test_the_interval_equals_the_percentiles_over_all_resamples",
        (INTERVALS + "interval", "(DRAWS, len(runs)))", "(1, len(runs)), replace=False)"),
    ),
    mutant(
        5,
        "other draws each time",
        IN_INTERVALS + "test_the_same_runs_have_the_same_interval_each_time",
        (INTERVALS + "interval", "default_rng(0)", "default_rng()"),
    ),
    mutant(
        5,
        "only the runs of each checkpoint are drawn, never the checkpoints",
        IN_INTERVALS + "test_drawing_checkpoints_equals_the_percentiles_over_all_such_draws",
        (INTERVALS + "draw_starts", "rng.integers(starts, size=DRAWS)", "np.full(DRAWS, start)"),
    ),
    mutant(
        5,
        "one checkpoint is drawn for all runs",
        IN_INTERVALS + "test_how_often_intervals_hold_the_truth",
        (INTERVALS + "draw_starts", "samples[rows, start::starts]", "samples[rows, :]"),
        (INTERVALS + "draw_starts", "len(runs[start::starts])", "len(runs)"),
    ),
    mutant(
        51,
        "every run begins at the first checkpoint",
        PAIRED,
        (COMPARE + "main", "starts[i % len(starts)]", "starts[0]"),
    ),
    mutant(
        51,
        "the methods of a seed begin at different checkpoints",
        PAIRED,
        COMPARE + "main",
        "run_settings(config, start, ",
        "run_settings(config, starts[len(jobs) % len(starts)], ",
    ),
    mutant(
        51,
        "every run has questions of its own, whatever its seed",
        PAIRED,
        (COMPARE + "main", "start, method, i)", "start, method, len(jobs))"),
    ),
    mutant(
        51,
        "a run has collapsed against another run's start",
        IN_RESULTS + "test_a_run_has_collapsed_against_its_own_start",
        (RESULTS + "endings", "COLLAPSED * run[", "COLLAPSED * runs[0]["),
    ),
    mutant(
        51,
        "a comparison goes on with another plan",
        PLANNED,
        (COMPARE + "write_plan", "planned.get(name) != value:", "not plan:"),
    ),
    mutant(
        51,
        "a plan is written after the first run",
        PLANNED,
        (COMPARE + "write_plan", "elif list(", "elif not list("),
    ),
    mutant(
        51,
        "a method's last change replaces those before it",
        NAMED,
        (METHODS + "method_settings", "settings |= ", 'settings = {"recipe": recipe} | '),
    ),
    mutant(
        51,
        "the shared settings win against those of a method",
        NAMED,
        COMPARE + "run_settings",
        "shared | method_settings(method)",
        "method_settings(method) | shared",
    ),
    mutant(
        12,
        "the lab credits the choice with the next turn's advantage",
        IN_LAB + "test_the_gradient_is_that_of_the_shipped_loss",
        (LAB + "policy_gradient", "row[2 * k]", "row[min(2 * k + 1, len(row) - 1)]"),
    ),
    mutant(
        51,
        "a group counts once, in however many orders it can be drawn",
        IN_GRADIENT + "test_centred_outcomes_without_discount_give_the_true_gradient",
        (ENUMERATION + "expected_update", " / math.factorial(count)", ""),
    ),
    mutant(
        51,
        "the start checkpoint counts in the area of every method",
        IN_RESULTS + "test_the_numbers_of_a_run_come_from_its_metrics",
        (RESULTS + "read_curves", "if step > 0:", "if step >= 0:"),
    ),
    mutant(
        51,
        "differences between runs of different seeds",
        IN_RESULTS + "test_the_tables_with_differences_of_paired_runs_worked_by_hand",
        (RESULTS + "differences_of", "runs[other], strict", "runs[other][::-1], strict"),
    ),
    mutant(
        51,
        "the correlation beside R^2 is not squared",
        AUDITED,
        (AUDIT + "audit_batch", "correlated(sums, outcomes) ** 2", "correlated(sums, outcomes)"),
    ),
    mutant(
        51,
        "gains are correlated with progress as they are, not by rank",
        AUDITED,
        "minvenus.experiments.audit_table:follows_progress",
        "correlated(ranks(gains), ranks(progress))",
        "correlated(gains, progress)",
    ),
    mutant(
        51,
        "a probe's gain counts the wrapper's tokens",
        IN_AUDIT + "test_a_probe_gains_what_the_answers_own_tokens_gain_from_its_turn",
        (AUDIT + "probe_gains", "belief(row[wrapped.start:]", "belief(row"),
    ),
    mutant(
        51,
        "the start is probed again for the model after training",
        PROBED,
        (AUDIT + "audit_run", 'checkpoint and checkpoint / "model"', 'models["before"]'),
    ),
    mutant(
        12,
        "the lab compares all rollouts of a step as one group",
        UPDATED,
        (LAB + "advantages", "i // GROUP_SIZE", "0"),
    ),
    mutant(
        12,
        "all seeds of the lab are one",
        UPDATED,
        (LAB + "train", "default_rng((seed, step))", "default_rng((0, step))"),
    ),
    mutant(
        51,
        "pushes to go on are not per time that a hop is reached",
        IN_GRADIENT
        + "test_pushes_are_per_time_that_a_hop_is_reached_and_in_lengths_of_the_gradient",
        (ENUMERATION + "push_to_go_on", " / reached / gradient", " / gradient"),
    ),
    mutant(
        51,
        "the calculator shows the outcome without its penalty",
        IN_CALCULATOR + "test_the_table_word_for_word",
        "minvenus.experiments.calculator:columns",
        "row.outcome",
        "float(row.outcome > 0)",
    ),
    mutant(
        51,
        "a right page that was not asked for its pet counts as progress",
        IN_AUDIT + "test_progress_is_a_pet_of_the_answer_that_is_shown_for_the_first_time",
        (AUDIT + "visits_of", " and goal[-1:] == [case.path[hop - 1]]", ""),
    ),
    mutant(
        51,
        "gains of wrong visits among those of right ones",
        IN_AUDIT + "test_the_table_word_for_word",
        "minvenus.experiments.audit_table:visit_table",
        "            if visit.kind == kind:",
        "            if visit:",
    ),
    mutant(
        51,
        "the answer that came by itself counts as a choice of the lab's policy",
        IN_LAB + "test_rollouts_follow_the_rules",
        LAB + "sample",
        "            if hop == len(probs):\n",
        "            if hop == len(probs):\n                choices.append((hop - 1, STOP))\n",
    ),
    mutant(
        51,
        "q and k keep llama.cpp's order of rows",
        "experiments/test_smollm2.py::"
        "test_the_checkpoint_has_the_weights_under_our_names_and_q_and_k_in_our_order",
        ("minvenus.experiments.smollm2:halves_in_order", ".swapaxes(1, 2)", ""),
    ),
    mutant(
        51,
        "tags keep the embeddings of tokens that nothing was trained on",
        "experiments/test_smollm2.py::"
        "test_a_tag_lies_between_the_tokens_that_spell_it_and_no_two_tags_are_alike",
        ("minvenus.experiments.smollm2:spell_tags", "    for tag in TAGS:", "    for tag in ():"),
    ),
    mutant(
        51,
        "a side page gains since the question, not since the visit before it",
        "experiments/test_real.py::test_a_gain_is_that_of_the_whole_conversation_read_anew",
        "minvenus.experiments.audit_pages:Walker.walk",
        "after - before",
        "after - first",
    ),
    mutant(
        51,
        "a test question may end where a training question does",
        "experiments/test_factbook.py::"
        "test_no_start_or_end_of_a_test_question_is_one_of_a_training_question",
        "minvenus.experiments.factbook:split",
        "if (start in held_out) == (end in held_out):",
        "if start:",
    ),
    mutant(
        51,
        "the teacher's mistake is a right page that comes later",
        "experiments/test_factbook.py::"
        "test_whatever_the_teacher_does_the_right_pages_come_in_their_order",
        ("minvenus.experiments.factbook:mistake", " if title not in path", ""),
    ),
    mutant(
        51,
        "the lines of a question in the order of its words, not of its path",
        "experiments/test_factbook.py::"
        "test_questions_follow_the_lists_in_words_and_no_country_comes_twice",
        ("minvenus.experiments.factbook:lines_to_read", "reversed(matches)", "matches"),
    ),
    mutant(
        51,
        "the first training questions are held out, the test questions are trained on",
        "experiments/test_real.py::test_the_experiment_from_the_first_audit_to_the_page",
        ("minvenus.experiments.real:main", "test + train", "train + test"),
    ),
    mutant(
        12,
        "every right page is progress, though the last pet alone was asked for",
        IN_AUDIT + "test_where_the_last_pet_is_asked_for_only_its_page_is_progress",
        (AUDIT + "visits_of", ' and (case.asks == "every" or hop == case.hops)', ""),
    ),
    mutant(
        51,
        "the test of a difference counts runs of one start as starts",
        "experiments/test_results.py::"
        "test_two_tables_of_differences_are_of_the_start_checkpoints",
        "minvenus.experiments.results:tested",
        "start_means([run[metric][step] for run in runs], checkpoints)",
        "[run[metric][step] for run in runs]",
    ),
)
