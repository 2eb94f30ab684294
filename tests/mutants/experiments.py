"""Known bugs of the experiments' own statistics (5, 12, 51)."""

from tests.mutants.mutant import mutant

MUTANTS = (
    mutant(5, "the interval over seeds from the population's spread",
           "experiments/test_results.py::test_intervals_by_hand",
           ("minvenus.experiments.results:interval", "statistics.stdev(values)", "statistics.pstdev(values)")),
    mutant(12, "the lab credits the choice with the next turn's advantage",
           "experiments/test_lab.py::test_the_gradient_is_that_of_the_shipped_loss",
           ("minvenus.experiments.lab_world:policy_gradient", "row[::world.turns_per_visit]",
            "row[1::world.turns_per_visit]")),
    mutant(51, "the start checkpoint counts in the area of every method",
           "experiments/test_results.py::test_the_numbers_of_a_run_come_from_its_metrics",
           ("minvenus.experiments.results:read_outcome", " if step > 0)", ")")),
    mutant(51, "differences between runs of different seeds",
           "experiments/test_results.py::"
           "test_differences_are_paired_by_seed_and_leave_out_seeds_that_only_one_method_has",
           ("minvenus.experiments.results:differences", "by_seed[run.seed]) for run in runs",
            "baseline[i]) for i, run in enumerate(runs)")),
    mutant(51, "gains of wrong visits among those of right ones",
           "experiments/test_results.py::"
           "test_gains_by_hop_are_means_over_seeds_of_right_visits_at_the_first_and_the_last_saved_step",
           ("minvenus.experiments.results:gains_by_hop", 'if kind == "right":', "if kind:")),
    mutant(51, "the answer that came by itself counts as a choice of the lab's policy",
           "experiments/test_lab.py::test_the_gradient_is_that_of_the_shipped_loss",
           ("minvenus.experiments.lab_world:policy_gradient", "    weights[rollouts.choice == NO_CHOICE] = 0.0",
            "    pass")),
)
