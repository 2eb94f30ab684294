"""Known bugs of the protocol (23), of what a rollout samples (16, 44), of its limits (43) and of how it is cut (54)."""

from tests.mutants.mutant import mutant

ROLLOUT, MANY, LIMITS = "agent/test_rollout.py::", "agent/test_many.py::", "agent/test_limits.py::"

MUTANTS = (
    mutant(23, "an answer inside a tool response is the model's",
           "agent/test_protocol.py::test_everything_from_the_first_tool_response_on_is_dropped",
           ("minvenus.agent.protocol:parse_turn", 'text = text.split("<tool_response>", 1)[0]', "text = text")),
    mutant(23, "the observation is graded",
           "agent/test_protocol.py::test_only_the_last_turn_is_graded_and_never_an_observation",
           ("minvenus.agent.protocol:final_answer",
            "parse_turn(turns[-1].text).answer if turns",
            'parse_turn(turns[-1].text + (turns[-1].observation or "")).answer if turns')),
    mutant(16, "ids that were made from text count as sampled",
           "agent/test_remote.py::test_nothing_of_a_remote_rollout_counts_as_sampled",
           ("minvenus.agent.episode:Episode.add_turn", "[False] * (end - start)", "[True] * (end - start)")),
    mutant(43, "an observation that exactly fits is not shown",
           LIMITS + "test_the_context_limit_is_exact_to_the_token",
           ("minvenus.agent.episode:Episode.fit", "+ self.notice_tokens + self.turn_tokens <= left",
            "+ self.notice_tokens + self.turn_tokens < left")),
    mutant(43, "no room is kept for the last turn",
           LIMITS + "test_the_context_limit_is_exact_to_the_token",
           ("minvenus.agent.episode:Episode.fit", "+ self.notice_tokens + self.turn_tokens <= left",
            "+ self.notice_tokens <= left")),
    mutant(43, "the last turn starts one observation late",
           LIMITS + "test_the_last_allowed_turn_is_announced_after_the_observation_and_ends_the_rollout_whatever_comes",
           ("minvenus.agent.episode:Episode.fit", "len(self.turns) + 1 == self.limits",
            "len(self.turns) == self.limits")),
    mutant(44, "the step is missing from the name of the sampling",
           MANY + "test_equal_seeds_give_equal_rollouts_and_names_separate_them",
           ("minvenus.agent.policy:EnginePolicy.open", "[name], step)", "[name], None)")),
    mutant(44, "another attempt at a turn draws the same tokens",
           ROLLOUT + "test_another_attempt_of_a_random_policy_is_another_draw",
           ("minvenus.agent.policy:EnginePolicy.start", "question} again", "question}")),
    mutant(54, "an error between an observation and the next turn leaves a record that cannot be read",
           LIMITS + "test_an_error_at_any_moment_leaves_a_whole_rollout",
           ("minvenus.agent.rollout:RolloutLoop._cut", "if episode.stream.awaits_turn:", "if episode.writing:")),
    mutant(54, "the result of a tool is shown after its rollout was cut",
           MANY + "test_a_call_that_still_waits_for_a_thread_when_its_rollout_ends_never_runs",
           ("minvenus.agent.rollout:RolloutLoop._cut", "episode.call = None", "pass")),
)
