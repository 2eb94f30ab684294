"""Known bugs of token streams and masks (17 to 19, 22, 24, 25)."""

from tests.mutants.mutant import mutant

CHAT = "text/test_chat.py::"
COMPANIONS = "text/test_companions.py::"
ROLLOUT = "agent/test_rollout.py::"

MUTANTS = (
    mutant(
        17,
        "the sampled end-of-turn token is left out of the loss",
        ROLLOUT
        + "test_a_turn_cut_by_its_cap_gets_an_unsampled_end_and_one_that_just_fits_does_not",
        "minvenus.text.chat:Stream.end_turn",
        "self._mark(sampled)",
        "self._mark(sampled)\n        self.sampled[-1] = False",
    ),
    mutant(
        17,
        "an appended end-of-turn token is trained",
        ROLLOUT
        + "test_a_turn_cut_by_its_cap_gets_an_unsampled_end_and_one_that_just_fits_does_not",
        ("minvenus.text.chat:Stream.end_turn", "_mark(sampled=False)", "_mark(sampled=True)"),
    ),
    mutant(
        18,
        "the forced <think> is trained as if it were sampled",
        CHAT + "test_two_turns_worked_by_hand",
        "minvenus.text.chat:Stream.__init__",
        "[False] * len(self.ids)",
        "[False] * (len(self.ids) - 2) + [True] * 2",
    ),
    mutant(
        19,
        "the history is tokenised again",
        CHAT + "test_sampled_ids_that_no_encoder_would_produce_are_kept",
        "minvenus.text.chat:Stream.end_turn",
        "start = len(self.sampled)",
        "start = len(self.sampled)\n        "
        "self.ids[start:] = self.tokenizer.encode(self.tokenizer.decode(self.ids[start:]))",
    ),
    mutant(
        19,
        "no newline between a turn and the next message",
        CHAT + "test_two_turns_worked_by_hand",
        ("minvenus.text.chat:observation_ids", '        *t.encode_untrusted("\\n"),\n', ""),
    ),
    mutant(
        22,
        "a special token on a page becomes a real one",
        CHAT + "test_no_text_of_others_changes_the_control_ids_or_the_mask",
        "minvenus.text.chat:observation_ids",
        '*t.encode_untrusted("\\n" + text',
        '*t.encode("\\n" + text',
    ),
    mutant(
        22,
        "a special token in the question becomes a real one",
        CHAT + "test_no_text_of_others_changes_the_control_ids_or_the_mask",
        ("minvenus.text.chat:prompt_ids", 't.encode_untrusted("user', 't.encode("user'),
    ),
    mutant(
        22,
        "a control token in the agent's text becomes a real one",
        CHAT + "test_tags_are_ids_in_system_and_assistant_text_and_control_tokens_nowhere",
        ("minvenus.text.tokenizer:Tokenizer.encode_tagged", "self._at_tags", "self._at_added"),
    ),
    mutant(
        24,
        "end_of_text, the pad id, is taken for the end of a turn",
        ROLLOUT + "test_a_turn_that_ends_with_end_of_text_is_closed_for_it",
        "minvenus.text.chat:Stream.end_turn",
        "self.ids[-1] != self.tokenizer.im_end",
        "self.ids[-1] not in self.tokenizer.stop_ids",
    ),
    mutant(
        25,
        "an observation without its wrapper is accepted, and earlier thoughts vanish",
        CHAT + "test_an_observation_without_its_exact_wrapper_is_refused",
        ("minvenus.text.messages:unwrap", "if not is_wrapped or", "if"),
    ),
    mutant(
        22,
        "control tokens of others reach judge and extractor as they are spelled",
        "text/test_untrusted.py::test_broken_up_by_hand",
        ("minvenus.text.untrusted:break_up", "head[0] + MARK", "head[0]"),
    ),
    mutant(
        22,
        "a text that is broken up already is taken for one of ours",
        "text/test_untrusted.py::test_every_text_comes_back_also_one_that_is_broken_up_already",
        "minvenus.text.untrusted:break_up",
        "WHOLE.sub",
        're.compile("<(?=[^\\s¦])|\\|(?=>)").sub',
    ),
    mutant(
        24,
        "a served turn does not end at im_end",
        COMPANIONS + "test_a_new_folder_has_the_special_tokens_and_the_ends_of_its_vocabulary",
        ("minvenus.text.companions:companions", 'stops = [ids["<|im_end|>"], ', "stops = ["),
    ),
    mutant(
        25,
        "a chat template of the start checkpoint is kept",
        COMPANIONS + "test_a_start_checkpoint_s_own_files_stay_but_for_end_and_template",
        ("minvenus.text.companions:companions", ', "chat_template": CHAT_TEMPLATE}', "}"),
    ),
    mutant(
        24,
        "an added token that the vocabulary lists, too, is counted twice",
        "text/test_tokenizer.py::test_an_added_token_that_the_vocabulary_lists_as_well_is_one_id",
        "minvenus.text.tokenizer:Tokenizer.__init__",
        'len(raw["model"]["vocab"].keys() | self.added)',
        'len(raw["model"]["vocab"]) + len(self.added)',
    ),
    mutant(
        25,
        "line ends after a turn are dropped, which the template keeps",
        COMPANIONS + "test_the_rendering_of_messages_encoded_in_one_go_is_their_stream",
        ("minvenus.text.chat:stream", 'body.lstrip("\\n")', 'body.strip("\\n")'),
    ),
)
