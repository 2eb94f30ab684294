"""Known bugs of optimiser steps, data order and resume (35 to 38), and their relatives (44, 46, 50,
51, 58, 73)."""

from tests.mutants.mutant import mutant

ERROR = (
    "train/test_run.py::"
    "test_a_run_that_is_left_outside_of_an_update_saves_and_it_goes_on_to_the_same_bytes"
)
REFUSED = (
    "train/test_run.py::"
    "test_a_setting_that_changes_what_is_learned_is_refused_before_a_model_is_loaded"
)
WIRING = "test_wiring.py::test_train_igpo"
HEALTH = "train/test_batch.py::test_every_number_of_a_step_worked_by_hand"
NUMBERS = (
    "train/test_update.py::"
    "test_every_number_of_an_update_by_hand_where_two_of_four_rows_do_not_run"
)
GAP = (
    "train/test_precision.py::"
    "test_the_mean_gap_is_over_the_tokens_of_all_packs_and_a_larger_one_is_logged_and_stops_nothing"
)

MUTANTS = (
    mutant(
        73,
        "a tokenizer with more ids than the model has rows",
        "train/test_checkpoint.py::test_a_tokenizer_with_more_ids_than_the_model_is_refused_before_"
        "weights_reach_a_device",
        ("minvenus.train.checkpoint:load_start", "tokenizer.size > rows", "False"),
    ),
    mutant(
        36,
        "gradients not reset",
        "train/test_sft.py::test_a_step_starts_from_no_gradient",
        ("minvenus.train.optim:optimizer_step", "model.zero_grad()", "pass"),
    ),
    mutant(
        37,
        "the seed does not reach the order",
        "train/test_batch.py::test_the_seed_and_the_epoch_reach_the_order",
        ("minvenus.evaluation.questions:batch_indices", "(seed, epoch)", "(0, epoch)"),
    ),
    mutant(
        37,
        "every epoch in the same order",
        "train/test_batch.py::test_the_seed_and_the_epoch_reach_the_order",
        ("minvenus.evaluation.questions:batch_indices", "(seed, epoch)", "(seed, 0)"),
    ),
    mutant(
        38,
        "resume loses the moments",
        ERROR + "[during-4-error0-step-00000003]",
        "minvenus.train.checkpoint:restore",
        "trained.items():\n        parameter_state",
        "{}.items():\n        parameter_state",
    ),
    mutant(
        38,
        "resume loses the moments of some parameters",
        "train/test_checkpoint.py::"
        "test_a_damaged_checkpoint_is_refused_with_the_way_back_and_changes_nothing",
        ("minvenus.train.checkpoint:check_moments", "names != expected", "names - expected"),
    ),
    mutant(
        38,
        "resume starts the data and the schedule again",
        "test_train_sft.py::test_a_signal_ends_the_run_after_its_step_and_where_changes_no_bit",
        "minvenus.train.run:Run.steps",
        "self.done = done",
        "self.done = 0",
    ),
    mutant(
        38,
        "resume repeats lines of metrics",
        "train/test_run.py::test_cutting_back_after_any_tear_leaves_the_first_lines_byte_for_byte",
        ("minvenus.train.run:cut_back", ' if row["step"] <= step', ""),
    ),
    mutant(
        38,
        "the pointer moves before the checkpoint is there",
        "train/test_crash.py::"
        "test_a_disk_that_fills_up_at_any_change_is_a_clear_error_and_loses_nothing",
        "minvenus.train.checkpoint:save",
        "with replaced_folder(folder) as new:\n",
        "(run / 'latest').write_text(folder.name + '\\n')\n"
        "        with replaced_folder(folder) as new:\n",
    ),
    mutant(
        44,
        "every step draws its rollouts from the same stream",
        WIRING,
        ("train_igpo:rollouts", "step=step - 1", "step=None"),
    ),
    mutant(
        44,
        "a question that comes twice in a step has one stream",
        "evaluation/test_questions.py::"
        "test_a_question_that_comes_twice_in_a_step_has_a_second_name",
        ("minvenus.evaluation.questions:QuestionSource.of_step", '"again " if', '"" if'),
    ),
    mutant(
        44,
        "every step shuffles its rollouts alike",
        "train/test_update.py::test_every_step_and_every_epoch_has_an_order_of_its_own",
        ("minvenus.train.update:minibatches", "(config.seed, step, epoch)", "(config.seed, epoch)"),
    ),
    mutant(
        44,
        "every epoch shuffles its rollouts alike",
        "train/test_update.py::test_every_step_and_every_epoch_has_an_order_of_its_own",
        ("minvenus.train.update:minibatches", "(config.seed, step, epoch)", "(config.seed, step)"),
    ),
    mutant(
        46,
        "the learning rate may change on resume",
        REFUSED + "[igpo]",
        "minvenus.train.run:check_resume",
        "not in may_change",
        "not in may_change | {'learning_rate'}",
    ),
    mutant(
        46,
        "SFT may change its number of steps on resume",
        REFUSED + "[sft]",
        ("minvenus.train.run:check_resume", "not in may_change", "not in may_change | {'steps'}"),
    ),
    mutant(
        46,
        "other data is accepted on resume",
        "train/test_run.py::test_other_data_is_refused_and_nothing_changes",
        ("minvenus.train.run:Run.resume", 'if state["data"] != self.data', "if False"),
    ),
    mutant(
        51,
        "of a phase in parts only the last part counts",
        "train/test_run.py::test_the_time_of_a_step_and_of_its_phases",
        ("minvenus.train.run:Run.phase", "+= clock()", "= clock()"),
    ),
    mutant(
        51,
        "a mean gain of wrong pages over turns without a visit",
        HEALTH,
        "minvenus.train.batch:gains_by_page",
        'set(pages) == {"wrong"}',
        'set(pages) <= {"wrong", "repeated"}',
    ),
    mutant(
        51,
        "groups that lost their rollouts do not count as without a signal",
        HEALTH,
        "minvenus.train.batch:signal_shares",
        "no_advantage = lost + sum(",
        "no_advantage = sum(",
    ),
    mutant(
        38,
        "weights that moved before an error are kept as the step before",
        ERROR + "[after-4-error2-step-00000002]",
        ("minvenus.train.run:Run.update", "self.whole = False", "self.whole = True"),
    ),
    mutant(
        58,
        "the engine keeps its pages after an update",
        "test_train_igpo.py::test_a_run_writes_a_model_that_loads_and_the_health_of_every_step",
        ("train_igpo:main", "engine.load_weights(policy)", "pass"),
    ),
    mutant(
        51,
        "a penalty counted as a gain",
        HEALTH,
        ("minvenus.train.batch:signal_shares", "is not None and not penalty", "is not None"),
    ),
    mutant(
        51,
        "share of gains over the rewarded turns only",
        HEALTH,
        "minvenus.train.batch:signal_shares",
        "gained.append(",
        "reward is None or gained.append(",
    ),
    mutant(
        38,
        "an evaluation leaves pages that a resumed run would not have",
        "test_train_igpo_data.py::test_an_evaluation_leaves_nothing_that_the_next_step_could_find",
        ("train_igpo:main", "engine.load_weights(policy)", "pass"),
    ),
    mutant(
        58,
        "the engine's copy of the weights stays as it was",
        "train/test_precision.py::"
        "test_as_on_a_gpu_the_engine_has_a_bfloat16_copy_that_follows_the_master_weights",
        ("minvenus.engine.engine:Engine.load_weights", "is not model", "is None"),
    ),
    mutant(
        58,
        "new weights leave the old pages",
        "train/test_precision.py::test_copied_weights_drop_what_was_computed_with_the_old_ones",
        ("minvenus.engine.engine:Engine.load_weights", "self.free_pages()", "pass"),
    ),
    mutant(
        62,
        "a forward pass waits for the device to learn its lengths",
        "train/test_precision.py::test_forward_and_backward_read_nothing_back_from_the_device",
        "minvenus.model.qwen3:Qwen3.packed",
        "lengths = cu_seqlens.diff().tolist()",
        "lengths = cu_seqlens.to(tokens.device).diff().tolist()",
    ),
    mutant(
        62,
        "layers are checkpointed in inference, too",
        "train/test_precision.py::"
        "test_layers_are_checkpointed_only_where_a_gradient_is_needed[True]",
        ("minvenus.model.qwen3:Decoder.forward", " and torch.is_grad_enabled()", ""),
    ),
    mutant(
        62,
        "one token far apart stops a run",
        GAP + "[4096]",
        ("minvenus.train.update:train_on", 'stats["logprob_gap_mean"]', 'stats["logprob_gap"]'),
    ),
    mutant(
        62,
        "the mean gap is that of the packs' sums",
        GAP + "[512]",
        ("minvenus.train.batch:pack_stats", "gaps.sum()", "gaps.mean()"),
    ),
    mutant(
        50,
        "a file gets its name before it is on the disk",
        "model/test_save.py::test_a_file_is_on_the_disk_before_it_gets_its_name",
        "minvenus.files:replaced_file",
        "            sync(new)\n            new.replace(path)",
        "            new.replace(path)\n            sync(path)",
    ),
    mutant(
        35,
        "where only the KL term has a gradient nothing is updated",
        "train/test_update.py::"
        "test_where_all_have_failed_grpo_with_a_kl_term_has_the_gradient_of_that_term_alone",
        "minvenus.train.update:trained_rows",
        "row.has_signal or config.loss.kl_coef",
        "row.has_signal",
    ),
    mutant(
        54,
        "a question without room is refused in the step that takes it",
        "test_train_igpo_data.py::"
        "test_a_question_or_an_answer_without_room_is_refused_before_the_first_step",
        "minvenus.setup:check_questions",
        "loop.limits.check_room(question, source.max_turns(question))",
        "pass",
    ),
    mutant(
        54,
        "an answer without room stops the run in the middle",
        "test_train_igpo_data.py::"
        "test_a_question_or_an_answer_without_room_is_refused_before_the_first_step",
        "minvenus.setup:check_questions",
        "config.recipe.use_gain and",
        "not config.recipe.use_gain and",
    ),
    mutant(
        58,
        "an evaluation with the weights of the step before",
        WIRING,
        ("train_igpo:evaluate", "loop.writer.engine.load_weights(policy)", "pass"),
    ),
    mutant(
        54,
        "held-out questions without their own limit of turns",
        WIRING,
        ("train_igpo:evaluate", ", max_turns=max_turns)", ")"),
    ),
    mutant(
        42,
        "the last of several accepted answers is scored",
        WIRING,
        ("train_igpo:score_truth", "answers[0]", "answers[-1]"),
    ),
    mutant(
        64,
        "rows that remain over mini-batches are never trained on",
        "train/test_update.py::"
        "test_rows_that_do_not_divide_into_mini_batches_are_all_trained_on_once[5-3]",
        "minvenus.train.update:minibatches",
        "len(rows) * i // config.minibatches for",
        "len(rows) // config.minibatches * i for",
    ),
    mutant(
        65,
        "means over tokens that did not run",
        NUMBERS + "[token-mean]",
        "minvenus.train.update:backward",
        "trained = sum(row.example.trained for row in rows)",
        "trained = tokens",
    ),
    mutant(
        62,
        "what the last norm keeps goes to host memory, too",
        "train/test_sft.py::test_only_the_inputs_of_the_layers_go_to_host_memory",
        "minvenus.model.qwen3:Decoder.forward",
        "        return self.norm(x)",
        "            return self.norm(x)",
    ),
    mutant(
        54,
        "minutes without a word while many questions are checked",
        "test_train_igpo_data.py::"
        "test_a_question_or_an_answer_without_room_is_refused_before_the_first_step",
        ("minvenus.setup:check_questions", "print(", "dict(text="),
    ),
    mutant(
        63,
        "with --device cpu a run opens a context on a GPU that is there",
        WIRING,
        ("minvenus.train.run:clock", "cuda.is_initialized()", "cuda.is_available()"),
    ),
    mutant(
        63,
        "gains at another temperature than the turns",
        WIRING,
        ("train_igpo:score_truth", ", config.temperature)", ")"),
    ),
    mutant(
        63,
        "the lead-in that is scored is not the one that is saved",
        WIRING,
        ("train_igpo:save_rollouts", "config.recipe,", "type(config.recipe)(),"),
    ),
    mutant(
        63,
        "evaluations are graded as training is",
        WIRING,
        ("train_igpo:evaluate", 'WordGrader("em")', "WordGrader(run.config.outcome)"),
    ),
    mutant(
        63,
        "the questions' seed is that of the sampling",
        WIRING,
        ("minvenus.setup:question_source", "config.web_seed", "config.seed"),
    ),
    mutant(
        63,
        "the engine draws ids that the tokenizer does not have",
        WIRING,
        ("minvenus.setup:load_engines", "vocab_limit=tokenizer.size)", ")"),
    ),
    mutant(
        63,
        "log-probs of the start checkpoint are those of the policy",
        WIRING,
        ("minvenus.train.update:with_reference", "switched_off(reference)", "torch.no_grad()"),
    ),
    mutant(
        63,
        "SFT has the betas of IGPO",
        "test_wiring.py::test_train_sft",
        ("train_sft:main", "(0.9, 0.95)", "(0.9, 0.999)"),
    ),
    mutant(
        63,
        "validation is on what is trained on",
        "test_wiring.py::test_train_sft",
        "train_sft:main",
        'held_out, "validation_loss"',
        'training, "validation_loss"',
    ),
    mutant(
        63,
        "the second run of a question repeats the first",
        "test_wiring.py::test_eval",
        ("minvenus.evaluation.results:make_runs", "if run == 0 else", "if run >= 0 else"),
    ),
    mutant(
        63,
        "infer.py takes the toy web of another seed",
        "test_wiring.py::test_infer",
        ("infer:toyweb_question", "config.agent.web_seed", "config.agent.seed"),
    ),
    mutant(
        65,
        "the entropy is over tokens that did not run",
        NUMBERS + "[token-mean]",
        ("minvenus.train.batch:minibatch_stats", "/ tokens", "/ (2 * tokens)"),
    ),
    mutant(
        66,
        "a rollout that fills its context escapes the penalty",
        "train/test_igpo_step.py::"
        "test_a_rollout_that_fills_its_context_without_an_answer_does_not_escape_the_penalty",
        "minvenus.agent.rollout:RolloutLoop._add_turn",
        "episode.termination())",
        "episode.termination(), check_last=not episode.forced_by)",
    ),
    mutant(
        66,
        "a failed run with --json is a success",
        "test_infer.py::test_what_cannot_work_is_one_clear_line_and_exit_code_2",
        ("infer:main", "if error is not None:", "if error is not None and not config.json:"),
    ),
    mutant(
        66,
        "a held-out question without room is not refused early",
        "test_train_igpo_data.py::"
        "test_a_question_or_an_answer_without_room_is_refused_before_the_first_step",
        "minvenus.setup:check_questions",
        "*source.training, *source.held_out",
        "*source.training",
    ),
    mutant(
        67,
        "timing.jsonl repeats steps after a resume",
        "train/test_run.py::"
        "test_a_run_that_is_left_outside_of_an_update_saves_and_it_goes_on_to_the_same_bytes",
        "minvenus.train.run:Run.steps",
        "for path in (self.metrics, self.timing):",
        "for path in (self.metrics,):",
    ),
    mutant(
        69,
        "tokens per second without those of the rollouts",
        "train/test_run.py::test_the_time_of_a_step_and_of_its_phases",
        ("minvenus.train.run:Run.log", ' + numbers.get("rollout_tokens", 0)', ""),
    ),
    mutant(
        69,
        "the largest advantage is the largest above 0",
        HEALTH,
        ("minvenus.train.batch:signal_shares", "map(abs, credit.advantages[i])",
         "credit.advantages[i]"),
    ),
    mutant(
        69,
        "held-out trajectories are the first ones",
        "train/test_batch.py::"
        "test_held_out_trajectories_are_different_ones_and_never_trained_on",
        ("minvenus.train.sft:hold_out", "in reversed(examples)", "in examples"),
    ),
    mutant(
        51,
        "an answer that is right in part counts as correct",
        "train/test_batch.py::test_only_a_whole_outcome_is_a_correct_answer",
        ("minvenus.train.batch:health", "sample.outcome == 1.0 and", "sample.outcome and"),
    ),
    mutant(
        65,
        "the bound on the gap is for tokens that did not run",
        "train/test_precision.py::"
        "test_the_bound_is_for_the_tokens_that_ran_not_for_those_without_a_signal",
        ("minvenus.train.update:train_on", "(model, trained,", "(model, minibatch,"),
    ),
    mutant(
        63,
        "the weight decay is torch's",
        "train/test_sft.py::"
        "test_without_a_gradient_a_step_shrinks_all_parameters_by_rate_times_weight_decay",
        ("minvenus.train.optim:adamw", " weight_decay=weight_decay,", ""),
    ),
    mutant(
        63,
        "a question seed of 0 is none",
        "test_config.py::"
        "test_a_question_seed_of_0_is_one_and_without_one_it_is_that_of_the_sampling",
        (
            "minvenus.train.settings:IGPOConfig.web_seed",
            "self.seed if self.question_seed is None else self.question_seed",
            "self.question_seed or self.seed",
        ),
    ),
)
