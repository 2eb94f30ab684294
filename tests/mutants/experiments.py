"""Known bugs of the experiments' own statistics (5, 12, 51)."""

from tests.mutants.mutant import mutant

AUDIT, COMPARE, LAB, RESULTS, THEORY = (
    f"minvenus.experiments.{name}:" for name in ("audit", "compare", "lab", "results", "theory")
)
IN_AUDIT, IN_COMPARE, IN_LAB, IN_RESULTS = (
    f"experiments/test_{name}.py::" for name in ("audit", "compare", "lab", "results")
)
PAIRED = (
    IN_COMPARE
    + "test_runs_of_one_number_have_the_same_start_questions_and_sampling_seed_whatever_their_method"
)
AUDITED = IN_AUDIT + "test_both_numbers_of_a_batch_worked_by_hand"
PLANNED = IN_COMPARE + "test_what_is_changed_after_the_plan_is_said_and_never_forgotten"
UPDATED = IN_LAB + "test_an_update_is_a_step_on_eight_groups_of_four_rollouts_of_the_runs_own_seed"

MUTANTS = (
    mutant(
        5,
        "the interquartile mean trims one end only",
        IN_RESULTS + "test_the_interquartile_mean_leaves_out_the_lowest_and_the_highest_quarter",
        (RESULTS + "interquartile_mean", "runs // 4:runs - runs // 4", "runs // 4:"),
    ),
    mutant(
        5,
        "runs are drawn without replacement, so that an interval has no width",
        IN_RESULTS + "test_the_interval_equals_the_percentiles_over_all_resamples",
        (RESULTS + "interval", "(DRAWS, len(array)))", "(1, len(array)), replace=False)"),
    ),
    mutant(
        5,
        "the interval beside an interquartile mean is that of the mean",
        IN_RESULTS + "test_the_interval_is_that_of_the_statistic_itself",
        (RESULTS + "interval", "percentile(statistic(drawn)", "percentile(mean(drawn)"),
    ),
    mutant(
        5,
        "other draws each time",
        IN_RESULTS + "test_the_same_runs_have_the_same_interval_each_time",
        (RESULTS + "interval", "default_rng(0)", "default_rng()"),
    ),
    mutant(
        5,
        "only the runs of each checkpoint are drawn, never the checkpoints",
        IN_RESULTS + "test_drawing_checkpoints_equals_the_percentiles_over_all_such_draws",
        (RESULTS + "interval", "[:, start]", "[:, start] * 0 + start"),
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
        (COMPARE + "main", "starts[i % len(starts)]", "starts[len(jobs) % len(starts)]"),
    ),
    mutant(
        51,
        "every run has questions of its own, whatever its seed",
        PAIRED,
        (COMPARE + "main", "method, i)", "method, len(jobs))"),
    ),
    mutant(
        51,
        "a run has collapsed against another run's start",
        IN_RESULTS + "test_a_run_has_collapsed_against_its_own_start",
        (RESULTS + "results", "COLLAPSED * run[", "COLLAPSED * of_seeds[0]["),
    ),
    mutant(
        51,
        "until the first run has numbers a new plan replaces the old one",
        PLANNED,
        (COMPARE + "register", "if path.is_file()", "if path.is_file() and begun"),
    ),
    mutant(
        51,
        "a change of the plan replaces the plan",
        PLANNED,
        (COMPARE + "register", "plans.append(", "plans.clear() or plans.append("),
    ),
    mutant(
        12,
        "the lab credits the choice with the next turn's advantage",
        IN_LAB + "test_the_gradient_is_that_of_the_shipped_loss",
        (LAB + "policy_gradient", "row[::2]", "row[1::2]"),
    ),
    mutant(
        51,
        "a group counts once, in however many orders it can be drawn",
        "igpo/test_gradient.py::test_centred_outcomes_without_discount_give_the_true_gradient",
        (THEORY + "expected_update", " / math.factorial(count)", ""),
    ),
    mutant(
        51,
        "the start checkpoint counts in the area of every method",
        IN_RESULTS + "test_the_numbers_of_a_run_come_from_its_metrics",
        (RESULTS + "read_curves", " if step > 0]", "]"),
    ),
    mutant(
        51,
        "differences between runs of different seeds",
        IN_RESULTS + "test_the_tables_with_differences_of_paired_runs_worked_by_hand",
        (RESULTS + "results", ", runs[other]))", ", reversed(runs[other])))"),
    ),
    mutant(
        51,
        "the correlation beside R^2 is not squared",
        AUDITED,
        (AUDIT + "audit_batch", "explained and explained ** 2", "explained"),
    ),
    mutant(
        51,
        "gains are correlated with progress as they are, not by rank",
        AUDITED,
        (AUDIT + "audit_batch", "correlated(ranks(a), ranks(b))", "correlated(a, b)"),
    ),
    mutant(
        51,
        "a probe's gain counts the wrapper's tokens",
        IN_AUDIT + "test_a_probe_gains_what_the_answers_own_tokens_gain_from_its_turn",
        (AUDIT + "probe_rows", "belief(logprobs[wrapped.start:]", "belief(logprobs"),
    ),
    mutant(
        51,
        "the start is probed again for the model after training",
        IN_AUDIT
        + "test_the_start_is_probed_and_where_there_are_later_rollouts_the_newest_checkpoint_too",
        (AUDIT + "audit_run", 'newest / "model"', 'models["before"]'),
    ),
    mutant(
        12,
        "the lab compares all rollouts of a step as one group",
        UPDATED,
        (LAB + "sample", "i // GROUP_SIZE", "0"),
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
        "experiments/test_theory.py::test_pushes_are_per_time_that_a_hop_is_reached_and_in_lengths_of_the_gradient",
        (THEORY + "push_to_go_on", " / reached / gradient", " / gradient"),
    ),
    mutant(
        51,
        "the calculator shows the outcome without its penalty",
        "experiments/test_calculator.py::test_the_table_word_for_word",
        (
            "minvenus.experiments.calculator:numbers",
            "[*r.turns, r.outcome]",
            "[*r.turns, m.outcome]",
        ),
    ),
    mutant(
        51,
        "a right page that was not asked for its pet counts as progress",
        IN_AUDIT + "test_progress_is_a_pet_of_the_answer_that_is_shown_for_the_first_time",
        (AUDIT + "visits_of", "float(asked and ", "float("),
    ),
    mutant(
        51,
        "gains of wrong visits among those of right ones",
        IN_AUDIT + "test_the_table_word_for_word",
        (AUDIT + "rows", "if visit.kind == kind", "if visit"),
    ),
    mutant(
        51,
        "the answer that came by itself counts as a choice of the lab's policy",
        IN_LAB + "test_rollouts_follow_the_rules",
        (
            LAB + "sample",
            "            if hop == len(probs):\n",
            "            if hop == len(probs):\n                choices.append((hop - 1, STOP))\n",
        ),
    ),
)
