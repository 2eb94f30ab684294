"""Known bugs of trajectories as training data (20, 33, 37, 39, 40) and of files and statistics
about them (49, 50)."""

from tests.mutants.mutant import mutant

LOSS = "train/test_sft.py::test_the_numbers_of_a_step_are_those_of_plain_forwards"
JUDGED = (
    "sft/test_command.py::"
    "test_the_judge_keeps_only_what_is_correct_and_counts_unknown_verdicts_apart"
)

MUTANTS = (
    mutant(
        20,
        "the position of a token predicts the token itself",
        LOSS,
        ("minvenus.train.pack:build_pack", "positions - 1", "positions"),
    ),
    mutant(
        33,
        "trajectory mean per pack",
        "train/test_sft.py::test_one_two_or_five_packs_give_the_same_step[trajectory-mean]",
        ("minvenus.train.sft:sft_losses", "len(examples)", "len(pack.rows)"),
    ),
    mutant(
        33,
        "token mean where each trajectory should weigh the same",
        LOSS,
        ("minvenus.train.sft:sft_losses", "config.reduction ==", "config.reduction !="),
    ),
    mutant(
        37,
        "the seed does not reach the order of the cleaned file",
        "sft/test_command.py::test_the_order_is_a_function_of_the_seed",
        ("minvenus.sft.__main__:resampled", "random.Random(seed)", "random.Random(0)"),
    ),
    mutant(
        39,
        "an answer that the judge could not tell is kept as correct",
        JUDGED,
        ("minvenus.sft.__main__:correct_ones", "if grade:", "if grade is None or grade:"),
    ),
    mutant(
        39,
        "an answer that the judge could not tell is counted as wrong",
        JUDGED,
        ("minvenus.sft.__main__:correct_ones", "elif grade is None:", "elif False:"),
    ),
    mutant(
        40,
        "over-long trajectories are cut and lose their answer",
        "sft/test_dataset.py::test_the_too_long_are_dropped_whole_and_counted",
        "minvenus.sft.dataset:load",
        "too_long.append(len(example))\n            continue",
        "example = Example(example.tokens[:max_tokens], example.sampled[:max_tokens])",
    ),
    mutant(
        40,
        "over-long trajectories are dropped and not counted",
        "sft/test_dataset.py::test_the_too_long_are_dropped_whole_and_counted",
        ("minvenus.sft.dataset:load", "too_long.append(len(example))", "pass"),
    ),
    mutant(
        40,
        "a nested answer gives the text before it",
        "sft/test_rewrite.py::test_the_final_turn",
        ("minvenus.sft.rewrite:blocks", "if closed", 'if closed or tag == "answer"'),
        ("minvenus.sft.rewrite:last_answer", "answers[-1]", "answers[0]"),
    ),
    mutant(
        49,
        "the order of input files is left to the file system",
        "sft/test_command.py::"
        "test_a_folder_of_files_is_read_in_the_order_of_their_names_and_not_of_the_disk",
        "minvenus.sft.__main__:input_files",
        "sorted(root.glob(pattern))",
        "list(root.glob(pattern))",
    ),
    mutant(
        50,
        "statistics appear before their data",
        "sft/test_command.py::"
        "test_an_interruption_leaves_the_old_files_or_new_data_and_never_statistics_of_other_data",
        "minvenus.sft.__main__:run",
        "config.stats_path.unlink(missing_ok=True)",
        "write_json(config.stats_path, {})",
    ),
    mutant(
        50,
        "statistics of the old data stay beside the new",
        "sft/test_command.py::"
        "test_an_interruption_leaves_the_old_files_or_new_data_and_never_statistics_of_other_data",
        ("minvenus.sft.__main__:run", "config.stats_path.unlink(missing_ok=True)", "pass"),
    ),
    mutant(
        50,
        "removed turns are not counted",
        "sft/test_clean.py::test_every_turn_of_the_input_is_accounted_for",
        "minvenus.sft.clean:clean_messages",
        'counts[f"{removal}_tool_turns_removed"] += 1',
        "pass",
    ),
    mutant(
        39,
        "records without a true answer are graded against a placeholder",
        "sft/test_command.py::"
        "test_without_a_true_answer_a_record_can_be_trained_on_but_not_be_found_correct",
        ("minvenus.sft.__main__:clean_records", 'record["gt"] == UNKNOWN', "False"),
    ),
    mutant(
        40,
        "a rollout that did not answer is taken for one",
        "sft/test_clean.py::"
        "test_a_rollout_of_our_own_is_cleaned_like_a_raw_record_if_it_ended_with_an_answer",
        "minvenus.sft.clean:clean_record",
        "if not str(record.get(",
        "if False and str(record.get(",
    ),
    mutant(
        50,
        "the statistics take the place of the input",
        "sft/test_command.py::test_impossible_options_are_refused_before_any_work",
        ("minvenus.sft.__main__:CleanConfig.__post_init__", ", self.stats_path.resolve()}", "}"),
    ),
    mutant(
        39,
        "the teacher of the toy web has a rate of its own",
        "test_wiring.py::test_the_toy_data_of_train_sft",
        "train_sft:toyweb_records",
        "replace(TEACHER, wrong_result=config.wrong_result)",
        "TEACHER",
    ),
)
