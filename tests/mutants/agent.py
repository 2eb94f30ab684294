"""Known bugs of the protocol (22, 23), of what a rollout samples (16, 44), its limits (43) and how
it is cut (54)."""

from tests.mutants.mutant import mutant

ROLLOUT, MANY, LIMITS = "agent/test_rollout.py::", "agent/test_many.py::", "agent/test_limits.py::"

MUTANTS = (
    mutant(
        61,
        "rollouts start whether there is room or not",
        "agent/test_admission.py::test_a_pool_that_holds_no_group_runs_what_it_holds_of_it",
        ("minvenus.agent.policy:LocalWriter.fitting", "pages > pool.count", "False"),
    ),
    mutant(
        61,
        "one more rollout than there is room for always starts",
        "agent/test_admission.py::test_a_pool_that_holds_no_group_runs_what_it_holds_of_it",
        ("minvenus.agent.policy:LocalWriter.fitting", "max(0, place", "max(1, place"),
    ),
    mutant(
        61,
        "every rollout of a group counts the pages of their prompt",
        "agent/test_admission.py::"
        "test_a_group_counts_the_full_pages_of_its_prompt_once_but_for_the_page_of_the_last_token",
        ("minvenus.agent.policy:LocalWriter.fitting", "if episode.name in names:", "if False:"),
    ),
    mutant(
        61,
        "the clock of a rollout runs while it waits for room",
        "agent/test_admission.py::"
        "test_those_that_wait_start_in_their_order_and_their_clock_starts_then",
        "minvenus.agent.rollout:RolloutLoop._open_waiting",
        "episode.started = time.monotonic()",
        "pass",
    ),
    mutant(
        61,
        "the rest of a group samples what its first rollouts have sampled",
        "agent/test_admission.py::test_a_pool_that_holds_no_group_runs_what_it_holds_of_it",
        ("minvenus.agent.policy:LocalWriter.open", "first.number, first.step", "0, first.step"),
    ),
    mutant(
        23,
        "an answer inside a tool response is the model's",
        "agent/test_protocol_properties.py::"
        "test_nothing_after_a_tool_response_tag_is_ever_read",
        "minvenus.agent.protocol:parse_turn",
        'text = text.split("<tool_response>", 1)[0]',
        "text = text",
    ),
    mutant(
        23,
        "the observation is graded",
        "agent/test_protocol.py::test_only_the_last_turn_is_graded_and_never_an_observation",
        "minvenus.agent.protocol:final_answer",
        "parse_turn(turns[-1].text).answer if turns",
        'parse_turn(turns[-1].text + (turns[-1].observation or "")).answer if turns',
    ),
    mutant(
        16,
        "ids that were made from text count as sampled",
        "agent/test_remote.py::"
        "test_the_same_loop_runs_against_an_endpoint_and_nothing_of_it_counts_as_sampled",
        ("minvenus.agent.episode:Episode.end_turn", "end_turn(sampled)", "end_turn(True)"),
    ),
    mutant(
        43,
        "an observation that exactly fits is not shown",
        LIMITS + "test_the_context_limit_is_exact_to_the_token",
        "minvenus.agent.observation:Limits._fits",
        "<= self.format.max_context",
        "< self.format.max_context",
    ),
    mutant(
        43,
        "no room is kept for the last turn",
        LIMITS + "test_the_context_limit_is_exact_to_the_token",
        "minvenus.agent.observation:Limits.reserve",
        "self.turn_tokens + self.notice_tokens + self.last_tokens",
        "self.turn_tokens + self.notice_tokens",
    ),
    mutant(
        43,
        "the last turn starts one observation late",
        LIMITS + "test_the_last_allowed_turn_is_announced_and_ends_the_rollout_whatever_comes",
        "minvenus.agent.observation:Limits.with_notice",
        "len(episode.turns) + 1 ==",
        "len(episode.turns) ==",
    ),
    mutant(
        44,
        "the step is missing from the name of the sampling",
        MANY + "test_equal_seeds_give_equal_rollouts_and_names_separate_them",
        "minvenus.agent.policy:LocalWriter.open",
        "first.number, first.step",
        "first.number, None",
    ),
    mutant(
        44,
        "another attempt at a turn draws the same tokens",
        ROLLOUT + "test_another_attempt_of_a_random_policy_is_another_draw",
        ("minvenus.agent.policy:LocalWriter.discard", "question} again", "question}"),
    ),
    mutant(
        54,
        "an error between an observation and the next turn leaves a record that cannot be read",
        LIMITS + "test_an_error_at_any_moment_leaves_a_whole_rollout",
        "minvenus.agent.rollout:RolloutLoop._cut",
        "if episode.stream.needs_turn:",
        "if episode.writing:",
    ),
    mutant(
        54,
        "the result of a tool is shown after its rollout was cut",
        MANY + "test_after_a_cut_no_waiting_call_runs_and_no_result_is_shown",
        (
            "minvenus.agent.rollout:RolloutLoop.running",
            "episode.rollout is None",
            "episode.rollout is None or episode in self.tools.running",
        ),
        ("minvenus.agent.rollout:RolloutLoop._cut", "self.tools.drop(episode)", "pass"),
    ),
    mutant(
        54,
        "a call that waited for a thread runs after its rollout was cut",
        MANY + "test_after_a_cut_no_waiting_call_runs_and_no_result_is_shown",
        "minvenus.agent.rollout:RolloutLoop.running",
        "episode.rollout is None",
        "episode.rollout is None or episode.call and episode.number",
    ),
    mutant(
        54,
        "the turn that an endpoint's error cut off counts as a format error",
        "agent/test_remote.py::"
        "test_an_endpoint_that_fails_ends_the_rollout_with_the_reason_and_keeps_its_turns",
        (
            "minvenus.agent.episode:Episode.end",
            "malformed and (check_last or not last)",
            "malformed",
        ),
    ),
    mutant(
        54,
        "a server that says too long is an error",
        "agent/test_remote.py::"
        "test_a_prompt_that_the_server_calls_too_long_is_the_context_limit_and_may_be_answered",
        "minvenus.agent.rollout:RolloutLoop._turn_failed",
        "not is_too_long(error)",
        "True",
    ),
    mutant(
        54,
        "a prompt alone that is too long for the server ends like a full context",
        "agent/test_remote.py::"
        "test_a_prompt_that_stays_too_long_ends_the_rollout_without_a_format_error",
        ("minvenus.agent.rollout:RolloutLoop._turn_failed", " or not episode.turns:", ":"),
    ),
    mutant(
        44,
        "every attempt at a turn has the same seed",
        "agent/test_remote.py::"
        "test_the_seed_of_every_rollout_turn_and_attempt_is_another_and_the_same_again",
        ("minvenus.agent.remote:RemoteWriter.start", "/{len(episode.discarded)}", ""),
    ),
    mutant(
        43,
        "malformed turns end a rollout though a call stood between them",
        LIMITS
        + "test_so_many_turns_in_a_row_that_cannot_be_read_end_a_rollout_with_a_name_of_its_own",
        ("minvenus.agent.episode:Episode.end_turn", "else 0", "else self.unreadable"),
    ),
    mutant(
        54,
        "a server that is started again costs the runs that it was writing",
        "agent/test_remote.py::"
        "test_a_server_that_is_gone_for_a_while_costs_no_run",
        ("minvenus.agent.remote:RemoteWriter._ask", "if self.answered:", "if not self.answered:"),
    ),
    mutant(
        43,
        "a context that exactly reaches the budget is beyond it",
        "agent/test_like.py::"
        "test_the_context_from_which_an_answer_is_asked_for_is_exact_to_the_token",
        ("minvenus.agent.observation:Limits._fits", "> answer_from", ">= answer_from"),
    ),
    mutant(
        43,
        "a last turn with less room than others writes beyond the context",
        "agent/test_like.py::test_the_last_turn_writes_what_is_left_and_never_beyond_the_context",
        "minvenus.agent.observation:Limits.turn_room",
        "min(self.format.max_new_tokens, room)",
        "self.format.max_new_tokens",
    ),
    mutant(
        55,
        "a model is not told what its folder says",
        "agent/test_load.py::"
        "test_a_model_is_told_what_its_folder_says_at_an_endpoint_and_with_any_tools_alike",
        ("minvenus.agent.prompt:read_format", "if folder and (folder", "if not folder and (folder"),
    ),
    mutant(
        61,
        "runs of a question that were opened apart count as sharing their prompt",
        "agent/test_admission.py::"
        "test_a_group_counts_the_full_pages_of_its_prompt_once_but_for_the_page_of_the_last_token",
        (
            "minvenus.agent.policy:LocalWriter.fitting",
            "if episode.name in names:",
            "if names:",
        ),
    ),
    mutant(
        61,
        "a rollout that is longer than expected is counted as expected",
        "agent/test_admission.py::"
        "test_rollouts_are_admitted_by_their_expected_length_and_counted_as_long_as_they_are",
        (
            "minvenus.agent.policy:LocalWriter.fitting",
            "max(length, len(stream.ids))",
            "length",
        ),
    ),
    mutant(
        61,
        "rollouts are admitted at full length whatever is expected",
        "agent/test_admission.py::"
        "test_by_the_expected_length_more_run_at_once_for_few_tokens_and_the_same_come_out",
        (
            "minvenus.agent.policy:LocalWriter.fitting",
            "self.expected_context or length",
            "length",
        ),
    ),
    mutant(
        63,
        "the expected length of the settings reaches no writer",
        "test_train_igpo_data.py::test_only_tools_that_may_hang_run_in_threads",
        ("minvenus.setup:rollout_loop", "sampling, config.expected_context", "sampling"),
    ),
    mutant(
        54,
        "a rollout that waits when the user stops ends twice",
        "agent/test_admission.py::test_those_that_wait_when_the_user_stops_end_once",
        ("minvenus.agent.rollout:RolloutLoop.cut_all", "        self.waiting = []\n", ""),
    ),
    mutant(
        16,
        "an attempt that was thrown away stays in the stream",
        ROLLOUT + "test_another_attempt_of_a_random_policy_is_another_draw",
        ("minvenus.text.chat:Stream.discard_turn", "del self.ids[len(self.sampled):]", "pass"),
    ),
    mutant(
        16,
        "the log-probs of an attempt that was thrown away stay",
        ROLLOUT + "test_another_attempt_of_a_random_policy_is_another_draw",
        ("minvenus.text.chat:Stream.discard_turn", "del self.logprobs[sum(self.sampled):]", "pass"),
    ),
    mutant(
        61,
        "rollouts that have ended lose their pages before they are scored",
        MANY + "test_sequences_stay_open_to_be_scored_and_are_closed_then",
        (
            "minvenus.agent.rollout:RolloutLoop.run",
            "yield self.ended",
            "yield self._close_ended()",
        ),
    ),
    mutant(
        54,
        "only failed calls count in the share of those that failed",
        ROLLOUT + "test_calls_that_succeed_count_in_the_share_of_those_that_failed",
        "minvenus.tools.base:ToolRunner.poll",
        "self.guard.add(",
        "result.fault and self.guard.add(",
    ),
    mutant(
        54,
        "an answer takes the place of a training run's settings",
        "test_infer.py::test_the_folder_of_a_training_run_keeps_its_settings",
        ("infer:main", "refuse_training_run(config.out)", "pass"),
    ),
)
