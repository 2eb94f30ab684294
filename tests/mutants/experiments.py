"""Known bugs of the experiments' own statistics (5, 12, 51)."""

from tests.mutants.mutant import mutant

MUTANTS = (
    mutant(5, "the interval over seeds from the population's spread",
           "experiments/test_compare.py::test_intervals_by_hand",
           ("minvenus.experiments.compare:interval", "stdev(values)", "stdev(values) * (1 - 1 / len(values)) ** 0.5")),
    mutant(12, "the lab credits the choice with the next turn's advantage",
           "experiments/test_lab.py::test_the_gradient_is_that_of_the_shipped_loss",
           ("minvenus.experiments.lab:policy_gradient", "row[::2]", "row[1::2]")),
    mutant(51, "a group counts once, in however many orders it can be drawn",
           "igpo/test_gradient.py::test_centred_outcomes_without_discount_give_the_true_gradient",
           ("minvenus.experiments.theory:expected_update", " / math.factorial(count)", "")),
    mutant(51, "the start checkpoint counts in the area of every method",
           "experiments/test_compare.py::test_the_numbers_of_a_run_come_from_its_metrics",
           ("minvenus.experiments.compare:read_curves", " if step > 0]", "]")),
    mutant(51, "differences between runs of different seeds",
           "experiments/test_compare.py::test_the_table_word_for_word_and_differences_paired_by_seed",
           ("minvenus.experiments.compare:results", "of_seeds, baseline))", "of_seeds, reversed(baseline)))")),
    mutant(51, "gains of wrong visits among those of right ones",
           "experiments/test_audit.py::test_the_table_word_for_word",
           ("minvenus.experiments.audit:rows", "if name == kind", "if name")),
    mutant(51, "the answer that came by itself counts as a choice of the lab's policy",
           "experiments/test_lab.py::test_rollouts_follow_the_rules",
           ("minvenus.experiments.lab:sample", "            if hop == len(probs):\n",
            "            if hop == len(probs):\n                choices.append((hop - 1, STOP))\n")),
)
