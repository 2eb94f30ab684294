"""Known bugs of grading, evaluation numbers and the results file (39, 44 to 46, 49 to 51, and
relatives)."""

from tests.mutants.mutant import mutant

AGGREGATE = "minvenus.evaluation.aggregate:"
JUDGE = "minvenus.evaluation.judge:"
RESULTS = "minvenus.evaluation.results:"
NUMBERS = "evaluation/test_aggregate.py::"
SAVED = "evaluation/test_results.py::"
JUDGED = "evaluation/test_judge.py::"
READ = "evaluation/test_read_verdict.py::"
FINGERPRINT = (
    "train/test_checkpoint.py::"
    "test_a_models_fingerprint_follows_the_content_of_its_files_and_nothing_else"
)
FIXED = (
    SAVED
    + "test_all_settings_that_change_what_a_run_does_are_fixed_and_files_count_by_their_content"
)
KEPT = (
    JUDGED
    + "test_a_verdict_is_kept_across_runs_and_another_model_question_truth_or_answer_is_asked_anew"
)
FAILS = (
    JUDGED
    + "test_a_judge_that_fails_is_unknown_never_kept_and_asked_again_only_where_that_helps"
    + "[bad request]"
)

MUTANTS = (
    mutant(
        39,
        "an unknown verdict is wrong",
        FAILS,
        (JUDGE + "Judge._ask", "grades[case] = None", "grades[case] = 0.0"),
    ),
    mutant(
        39,
        "a reply without a verdict is a no",
        READ + "test_what_is_no_verdict_is_not_read_as_one",
        (JUDGE + "read_verdict", "else None", 'else "no"'),
    ),
    mutant(
        39,
        "a verdict counts wherever it stands in a line",
        READ + "test_answers_that_forged_a_verdict_once",
        (JUDGE + "read_verdict", "VERDICT.findall", 're.compile("correct: (yes|no)").findall'),
    ),
    mutant(
        39,
        "of two verdicts a yes wins",
        READ + "test_what_is_no_verdict_is_not_read_as_one",
        (JUDGE + "read_verdict", "return words.pop() if", "return max(words) if words or"),
    ),
    mutant(
        39,
        "a verdict inside a thought counts",
        READ + "test_a_thought_holds_no_verdict",
        (JUDGE + "without_thought", 'reply.rpartition("</think>")', '"", "", reply'),
    ),
    mutant(
        39,
        "the end of a thought that an answer spells begins a line",
        READ + "test_a_thought_holds_no_verdict",
        (JUDGE + "without_thought", "if only_thought:", "if True:"),
    ),
    mutant(
        39,
        "a repair of JSON takes the judge's verdict for a comment",
        READ + "test_json_is_read_as_json_and_never_repaired",
        JUDGE + "json_as_lines",
        "json.loads(text[start.start():end]",
        "from minvenus.text.json_repair import as_strict_json as strict\n"
        "        json.loads(strict(text[start.start():end])",
    ),
    mutant(
        22,
        "control tokens of an answer reach the judge",
        JUDGED + "test_an_answer_that_attacks_the_judge_gets_the_verdict_of_the_judge",
        (JUDGE + "judge_messages", "break_up(answer)", "answer"),
    ),
    mutant(
        54,
        "an answer that the judge quotes line by line spells the verdict",
        READ + "test_quoted_as_it_was_shown_an_answer_spells_no_verdict_on_any_number_of_lines",
        (JUDGE + "judge_messages", "break_up(answer)", "answer.replace('<', '<¦')"),
    ),
    mutant(
        39,
        "a reply without a verdict is kept as one",
        FAILS.replace("bad request", "nonsense"),
        (JUDGE + "Judge._grade", "if word is None:", "if False:"),
    ),
    mutant(
        39,
        "unknown runs count as wrong in the accuracy",
        NUMBERS + "test_unknown_verdicts_are_neither_right_nor_wrong_and_are_counted",
        (AGGREGATE + "accuracy", " if result.correct is not None]", "]"),
    ),
    mutant(
        39,
        "a run without a verdict is wrong",
        SAVED + "test_grades_become_verdicts_and_an_unknown_one_has_its_reason",
        (RESULTS + "graded", "note=note", "note=note, correct=False"),
    ),
    mutant(
        54,
        "runs that have ended are lost when the evaluation stops",
        SAVED + "test_when_tools_stop_the_evaluation_the_runs_that_have_ended_are_saved",
        RESULTS + "make_runs",
        "results.add(running.pop(episode), rollout)",
        "result_of(running.pop(episode), rollout, source)",
    ),
    mutant(
        39,
        "a question counts in pass@k as soon as one run is right, although another is unknown",
        NUMBERS + "test_whether_a_question_counts_does_not_depend_on_its_results",
        (AGGREGATE + "pass_share", "if n >= k:  ", "if n >= k or True in verdicts:  "),
        (AGGREGATE + "pass_share", "math.comb(n, k)", "math.comb(len(runs), k)"),
    ),
    mutant(
        39,
        "unknown runs count as wrong in pass@k",
        NUMBERS + "test_whether_a_question_counts_does_not_depend_on_its_results",
        (AGGREGATE + "pass_share", " if run.correct is not None]", "]"),
        (AGGREGATE + "pass_share", "sum(verdicts)", "verdicts.count(True)"),
    ),
    mutant(
        45,
        "equal answers to equal texts with different truths share a verdict",
        JUDGED + "test_two_questions_of_one_text_with_different_truths_are_judged_apart",
        (JUDGE + "Judge.grade", "tuple(split_aliases(*question.answers))", "('Ann',)"),
    ),
    mutant(
        45,
        "the cache forgets the truth",
        KEPT,
        JUDGE + "Judge._grade",
        '"messages": messages}',
        '"case": [case.question, case.answer]}',
    ),
    mutant(
        45,
        "the cache forgets the judge's model",
        KEPT,
        (JUDGE + "Judge._grade", '"model": self.endpoint.model, ', ""),
    ),
    mutant(
        46,
        "another temperature is accepted on resume",
        FIXED,
        (RESULTS + "fixed_settings", "MAY_CHANGE", '[*MAY_CHANGE, "temperature"]'),
    ),
    mutant(
        46,
        "settings of the agent are not compared",
        FIXED,
        (RESULTS + "fixed_settings", " | asdict(config.agent)", ""),
    ),
    mutant(
        46,
        "a setting that was not set before is not compared",
        SAVED + "test_a_fixed_setting_with_another_value_is_refused",
        RESULTS + "refuse_other_settings",
        "if before.get(name) != ",
        "if before.get(name) is not None and before.get(name) != ",
    ),
    mutant(
        46,
        "another content of a file is accepted on resume",
        FIXED,
        (RESULTS + "fixed_settings", "| fingerprints", ""),
    ),
    mutant(
        46,
        "a report does not say how it was graded",
        "test_eval.py::test_two_evaluations_are_compared_as_they_were_graded",
        ("eval:evaluate", "summarise(verdicts, grader.name)", 'summarise(verdicts, "a grader")'),
    ),
    mutant(
        39,
        "a failed run stays failed when it is made again",
        SAVED + "test_only_runs_that_ended_in_an_error_are_made_again_and_the_newest_line_counts",
        RESULTS + "ResultsFile._count",
        "self.runs[result.question.id, run] = result",
        "self.runs.setdefault((result.question.id, run), result)",
    ),
    mutant(
        46,
        "evaluations that were graded differently are compared",
        NUMBERS + "test_evaluations_that_were_graded_differently_or_have_other_questions_"
        "or_truths_are_refused",
        (AGGREGATE + "compare", 'if a["graded_by"] != b["graded_by"]:', "if False:"),
    ),
    mutant(
        46,
        "other weights under the same name are the same model",
        FINGERPRINT,
        ("minvenus.files:model_fingerprint", "{content.hexdigest()}", ""),
    ),
    mutant(
        49,
        "a model's fingerprint depends on the order of its folder",
        FINGERPRINT,
        ("minvenus.files:model_fingerprint", "paths = sorted([*root", "paths = ([*root"),
    ),
    mutant(
        50,
        "a torn line stays in the file",
        SAVED + "test_a_torn_last_line_is_dropped_and_the_others_stay_to_the_byte",
        (RESULTS + "drop_torn_line", ' if line.endswith(b"\\n")', ""),
    ),
    mutant(
        51,
        "format errors per run instead of per turn",
        NUMBERS + "test_eight_runs_by_hand",
        (AGGREGATE + "summarise", '/ means["turns"]', ""),
    ),
    mutant(
        51,
        "runs without a call lower the browse ratio",
        NUMBERS + "test_runs_without_a_call_change_no_browse_ratio",
        ("minvenus.evaluation.answers:browse_ratio", "fmean(ratios)", "sum(ratios) / len(calls)"),
    ),
    mutant(
        51,
        "a call that nothing came back from counts",
        NUMBERS + "test_a_call_counts_if_something_came_back_and_the_answer_is_no_call",
        ("minvenus.evaluation.answers:executed_calls", " if turn.observation is not None", ""),
    ),
    mutant(
        51,
        "the interval counts runs and not questions",
        NUMBERS + "test_the_interval_counts_questions_and_not_their_runs",
        (AGGREGATE + "accuracy", "len(questions))", "len(known))"),
    ),
    mutant(
        51,
        "the interval depends on the order of the questions in the file",
        NUMBERS
        + "test_swapping_the_two_negates_the_difference_and_the_order_of_the_lines_changes_nothing",
        (
            AGGREGATE + "compare",
            "sorted(questions_a.keys() & questions_b.keys())",
            "[name for name in questions_a if name in questions_b]",
        ),
    ),
    mutant(
        51,
        "F1 of sets of words",
        "evaluation/test_answers.py::test_exact_match_and_f1_worked_by_hand",
        "minvenus.evaluation.answers:token_f1",
        "overlap = (",
        "predicted, accepted = [*set(predicted)], [*set(accepted)]\n    overlap = (",
    ),
    mutant(
        55,
        "a run without an answer gets a second chance as if it had failed",
        SAVED + "test_only_runs_that_ended_in_an_error_are_made_again_and_the_newest_line_counts",
        (RESULTS + "ResultsFile.forget_failed", '!= "error"', '== "answered"'),
    ),
    mutant(
        44,
        "the second and the third run of a question have one name",
        SAVED + "test_what_a_run_samples_depends_on_seed_question_and_number_alone",
        (RESULTS + "make_runs", " run {run}", " run"),
    ),
    mutant(
        44,
        "the first run has another name than infer.py gives it",
        SAVED + "test_the_first_run_is_the_rollout_that_infer_makes",
        (RESULTS + "make_runs", "if run == 0 else", "if run < 0 else"),
    ),
    mutant(
        46,
        "the seed of the questions does not reach them",
        "test_wiring.py::test_eval",
        ("eval:questions_of", "agent.web_seed", "0"),
    ),
    mutant(
        46,
        "an X-ray scores the answer after another thought than the model has learned",
        "test_eval.py::test_a_question_of_an_evaluation_becomes_an_x_ray_page",
        ("eval:xray", "format_of(config.agent).lead_in", "''"),
    ),
    mutant(
        46,
        "all runs have the tools of the first question",
        "test_eval.py::test_the_report_counts_what_the_runs_did",
        (RESULTS + "make_runs", "source.tools_for,", "lambda _: source.tools_for(missing[0][0]),"),
    ),
    mutant(
        50,
        "the torn line of a full disk stays in front of the next run",
        SAVED + "test_a_line_that_did_not_fit_the_disk_is_dropped_and_the_others_are_saved",
        (RESULTS + "make_runs", "drop_torn_line(results.path)", "pass"),
    ),
    mutant(
        54,
        "five failed runs stop an evaluation although others between them are well",
        "test_eval.py::test_failures_that_do_not_follow_each_other_do_not_stop_an_evaluation",
        (RESULTS + "make_runs", "FAILURES, 1 - 1 / FAILURES", "50, 4 / 50"),
    ),
    mutant(
        54,
        "an evaluation takes the place of a training run's settings",
        "test_eval.py::test_what_cannot_work_is_one_clear_line_and_exit_code_2",
        ("minvenus.files:refuse_training_run", '"checkpoints").exists()', '"nothing").exists()'),
    ),
    mutant(
        46,
        "another tokenizer or shape counts as the same model",
        FINGERPRINT,
        ("minvenus.files:model_fingerprint", ', *root.glob("*.json")]', "]"),
    ),
)
