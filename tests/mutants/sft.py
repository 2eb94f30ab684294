"""Known bugs of trajectories as training data (20, 33, 40)."""

from tests.mutants.mutant import mutant

MUTANTS = (
    mutant(20, "the position of a token predicts the token itself",
           "train/test_sft.py::test_the_loss_is_the_mean_over_trajectories_of_their_mean_over_the_agents_tokens",
           ("minvenus.sft.dataset:build_pack", "positions - 1, tokens[positions]", "positions, tokens[positions]")),
    mutant(33, "trajectory mean per pack",
           "train/test_sft.py::test_one_two_or_five_packs_give_the_same_step[trajectory-mean]",
           ("minvenus.sft.dataset:step_packs",
            "[share(examples[i]) for i in row]",
            "[share(examples[i]) * len(examples) / len(row) for i in row]")),
    mutant(33, "token mean where each trajectory should weigh the same",
           "train/test_sft.py::test_the_loss_is_the_mean_over_trajectories_of_their_mean_over_the_agents_tokens",
           ("minvenus.sft.dataset:step_packs", "1.0 / (len(examples) * example.trained)", "1.0 / every_token")),
    mutant(40, "over-long trajectories cut without being asked",
           "sft/test_dataset.py::test_the_too_long_are_dropped_and_counted_or_cut_after_a_whole_turn",
           ("minvenus.sft.dataset:load",
            'cut_to(whole, max_tokens) if overlong == "truncate" else None',
            "cut_to(whole, max_tokens)")),
    mutant(40, "cut in the middle of a turn",
           "sft/test_dataset.py::test_a_cut_keeps_as_many_whole_turns_as_fit",
           ("minvenus.sft.dataset:cut_to", "if end <= max_tokens)\n", "if end <= max_tokens) + (max_tokens,)\n")),
)
