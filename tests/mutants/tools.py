"""Known bugs of tools and of the toy web (44, 49, 54, 55)."""

from tests.mutants.mutant import mutant

WORLD = "tools/test_toyweb.py::"
LESSONS = "tools/test_toyweb_lessons.py::"
FOLDER = "tools/test_folder.py::"
ENDPOINT = "tools/test_endpoint.py::"
CASSETTE = "tools/test_cassette.py::"
WEB = "tools/test_web.py::"
URLS = "tools/test_urls.py::"
SHOWN = "agent/test_observation.py::"
TAUGHT = LESSONS + (
    "test_every_text_of_a_seed_is_the_one_that_the_committed_base_model_was_trained_on"
)
EXTRACT = "tools/test_extract.py::"

MUTANTS = (
    mutant(
        44,
        "the splits of the toy web draw alike",
        TAUGHT,
        "minvenus.tools.toyweb:make_case",
        "toy web {seed} {split}-{index}",
        "toy web {seed} {index}",
    ),
    mutant(
        44,
        "every seed of the toy web draws alike",
        TAUGHT,
        "minvenus.tools.toyweb:make_case",
        "toy web {seed} {split}-{index}",
        "toy web {split}-{index}",
    ),
    mutant(
        44,
        "a question is demonstrated the same way each time around",
        TAUGHT,
        "minvenus.tools.toyweb_lessons:demonstrations",
        "{web.seed} {seed} {i}",
        "{web.seed} {seed}",
    ),
    mutant(
        44,
        "the seed does not reach the demonstrations",
        TAUGHT,
        ("minvenus.tools.toyweb_lessons:demonstrations", "{web.seed} {seed} {i}", "{web.seed} {i}"),
    ),
    mutant(
        44,
        "one draw more in a web: another base model",
        TAUGHT,
        "minvenus.tools.toyweb:make_case",
        "rng.sample(VERBS, hops)",
        "rng.sample(VERBS, hops + 1)",
    ),
    mutant(
        49,
        "the file system orders the documents",
        FOLDER + "test_pages_of_equal_score_are_ordered_by_path_whatever_the_file_system_says",
        ("minvenus.tools.folder:read_documents", 'sorted(root.rglob("*"))', 'root.rglob("*")'),
    ),
    mutant(
        54,
        "a dropped connection is not tried again",
        ENDPOINT + "test_a_connection_that_breaks_is_tried_again[reset]",
        "minvenus.tools.endpoint:Endpoint.request",
        "error.status is None or",
        "error.status is not None and",
    ),
    mutant(
        54,
        "errors that the model causes stop a run",
        "tools/test_base.py::test_only_a_service_that_failed_counts_as_a_fault",
        "minvenus.tools.base:ToolResult.fault",
        "self.error in FAULTS",
        "self.error is not None",
    ),
    mutant(
        54,
        "a request is begun after the deadline",
        ENDPOINT
        + "test_after_the_deadline_no_request_is_made_and_the_earlier_of_the_two_limits_counts",
        "minvenus.tools.endpoint:Endpoint._exchange",
        "if left <= 0:",
        "if not (left := left + 9.0):",
    ),
    mutant(
        54,
        "a refused address hides that a service failed",
        SHOWN + "test_a_search_is_one_line_of_json_and_an_error_only_if_every_query_failed",
        ("minvenus.tools.base:ToolResult.error", " if kind in FAULTS]", "]"),
    ),
    mutant(
        54,
        "headers that drip outlast the deadline",
        ENDPOINT + "test_the_deadline_holds_against_a_server_that_never_ends[drips headers]",
        "minvenus.tools.base:Call.result",
        "timeout=max(0.0, self.deadline - time.monotonic())",
        "timeout=30",
    ),
    mutant(
        55,
        "a search that failed as a whole is a normal result",
        SHOWN + "test_a_search_is_one_line_of_json_and_an_error_only_if_every_query_failed",
        ("minvenus.tools.base:ToolResult.error", "if None in kinds:", "if kinds:"),
    ),
    mutant(
        55,
        "a visit that failed as a whole is a normal result",
        FOLDER + "test_nothing_but_the_documents_can_be_visited[cities]",
        "minvenus.tools.base:run_tool",
        "content = Failure(error.kind, str(error))",
        "content = Text(str(error))",
    ),
    mutant(
        55,
        "a visit of which one page failed is an error",
        WORLD + "test_several_pages_are_shown_one_on_a_line_and_the_call_is_an_error_if_all_are",
        ("minvenus.tools.base:ToolResult.error", "if None in kinds:", "if kinds == [None]:"),
    ),
    mutant(
        55,
        "an empty result is recorded for ever",
        WEB + "test_a_reply_without_results_is_a_typed_error_with_words",
        ("minvenus.tools.web:LiveTools._search", "if not hits:", "if hits is None:"),
    ),
    mutant(
        55,
        "a failure is recorded for ever",
        CASSETTE + "test_a_failure_is_recorded_as_one_and_asked_again_until_it_succeeds",
        "minvenus.tools.cassette:Cassette.fetch",
        "and self.record:",
        'and self.record and not self._get(f"failed {key}"):',
    ),
    mutant(
        55,
        "a failure takes the place of a recorded result",
        CASSETTE + "test_a_failure_is_recorded_as_one_and_asked_again_until_it_succeeds",
        ("minvenus.tools.cassette:Cassette.fetch", 'f"failed {key}", [', "key, ["),
    ),
    mutant(
        55,
        "two threads see two results of one recorded call",
        CASSETTE + "test_threads_that_make_the_same_call_at_once_all_see_what_is_recorded",
        (
            "minvenus.tools.cassette:Cassette.fetch",
            'self._put("INSERT OR IGNORE", key, call())',
            'result = call(); self._put("INSERT OR IGNORE", key, result)',
        ),
        (
            "minvenus.tools.cassette:Cassette.fetch",
            "            result = self._get(key)      #",
            "            result = result or self._get(key)      #",
        ),
    ),
    mutant(
        55,
        "a page that is too long for the extractor is not sent again, shorter",
        EXTRACT
        + "test_an_unreadable_reply_or_too_long_is_asked_again_with_less_of_the_page[useless4]",
        ("minvenus.tools.extract:Extractor.extract", "and not is_too_long(error)", ""),
    ),
    mutant(
        55,
        "any refusal of the extractor reads as a page that is too long",
        EXTRACT + "test_another_refusal_is_an_error_with_its_text_and_never_a_reason_to_send_less",
        "minvenus.tools.extract:Extractor.extract",
        "if error.status != 200 and not is_too_long(error):",
        "if error.status not in (200, 400, 422):",
    ),
    mutant(
        22,
        "control tokens of a page reach the extractor, and it can close its frame",
        EXTRACT
        + "test_a_page_cannot_close_its_frame_nor_spell_a_control_token_and_quotations_come_back",
        ("minvenus.tools.extract:Extractor.extract", "page=break_up(page[:length])", "page=page"),
    ),
    mutant(
        22,
        "control tokens of a goal reach the extractor",
        EXTRACT
        + "test_a_page_cannot_close_its_frame_nor_spell_a_control_token_and_quotations_come_back",
        ("minvenus.tools.extract:Extractor.extract", "goal=break_up(goal)", "goal=goal"),
    ),
    mutant(
        55,
        "a brace in the extractor's thought costs the page",
        EXTRACT + "test_a_reply_is_read_forgivingly",
        ("minvenus.tools.extract:read_reply", 'reply.rpartition("</think>")[2]', "reply"),
    ),
    mutant(
        55,
        "a key that the server echoes reaches the model",
        ENDPOINT + "test_a_key_that_the_server_echoes_appears_nowhere[200]",
        "minvenus.tools.endpoint:Endpoint._attempt",
        "if len(key) >= SHORTEST_SECRET:",
        "if not key:",
    ),
    mutant(
        55,
        "one private address among public ones is visited",
        URLS + "test_one_forbidden_address_among_public_ones_refuses_the_name[10.1.2.3]",
        ("minvenus.tools.web:is_public_url", "all(is_public", "any(is_public"),
    ),
    mutant(
        55,
        "dots in a path lead the reader to another host",
        WEB + "test_the_reader_is_asked_for_public_pages_only",
        ("minvenus.tools.web:is_public_url", " or UNSAFE.search(url)", ""),
    ),
    mutant(
        54,
        "a second signal ends a process that saves",
        "test_console.py::"
        "test_the_second_signal_raises_if_asked_and_no_other_one_does_so_saving_ends",
        "minvenus.console:stop_on_signals",
        "if len(stop) == 2 and once_more:",
        "if len(stop) >= 2:",
    ),
    mutant(
        54,
        "a run that ends in the step that stops the evaluation is lost",
        "evaluation/test_results.py::"
        "test_when_tools_stop_the_evaluation_the_runs_that_have_ended_are_saved",
        "minvenus.evaluation.results:make_runs",
        "if episode.rollout is not None:",
        "if episode.rollout is None:",
    ),
    mutant(
        54,
        "a page that does not exist is a fault of the reader",
        "tools/test_web.py::"
        "test_an_error_of_a_page_is_told_from_one_of_the_reader_which_is_asked_again",
        "minvenus.tools.web:LiveTools._read",
        'raise ToolError("page", str(error))',
        "raise error",
    ),
    mutant(
        55,
        "an escaped echo of the key reaches the model",
        ENDPOINT
        + "test_an_echo_of_the_key_is_found_in_other_spellings[JSON-planted-endpoint-5b1e]",
        ("minvenus.tools.endpoint:spellings", "u00{code:02x}", "u{code:02x}"),
    ),
    mutant(
        55,
        "a password in the address of the policy is saved",
        "test_infer.py::test_an_address_with_a_password_is_refused_and_neither_shown_nor_saved",
        "minvenus.settings:AgentConfig.__post_init__",
        "check_address(self",
        "0 and check_address(self",
    ),
    mutant(
        55,
        "a long text of few tokens is shown whole, though only its beginning was counted",
        SHOWN + "test_a_long_text_of_few_tokens_is_cut_all_the_same",
        ("minvenus.agent.observation:cap_text", " and len(text) <= longest", ""),
    ),
    mutant(
        54,
        "a reply that says there was no error counts as one",
        ENDPOINT
        + "test_a_chat_and_a_completion_send_model_settings_and_key_and_return_the_first_choice",
        ("minvenus.tools.endpoint:Endpoint.post", 'not value.get("error")', '"error" not in value'),
    ),
    mutant(
        55,
        "every page is said to be cut",
        WEB + "test_a_visit_asks_the_reader_and_shows_the_passages_of_the_goal",
        "minvenus.tools.web:LiveTools._visit",
        "if len(text) > len(page):",
        "if len(text) >= len(page):",
    ),
    mutant(
        55,
        "a page that is read again counts as right",
        "tools/test_almanac.py::test_visits_are_labelled_by_title",
        ("minvenus.agent.observation:visit_labels", "elif url in read:", "elif not url:"),
    ),
    mutant(
        44,
        "asked for the last pet, the toy web asks for every one",
        WORLD + "test_every_question_is_answered_by_walking_its_path_through_the_tools",
        ("minvenus.tools.toyweb:ToyWeb.case", "self.hops, self.asks", "self.hops"),
    ),
    mutant(
        44,
        "in English, the owner of a pet is always the first",
        "tools/test_toyweb_words.py::test_questions_answers_and_pages_by_hand",
        ("minvenus.tools.toyweb_words:sentence", 'name = f"that {relation}"', "pass"),
    ),
)
