"""Known bugs of engines (26 to 32, 41 to 44, 61, 68, 70, 72, 73)."""

from tests.mutants.mutant import mutant

MUTANTS = (
    mutant(
        26,
        "pages are still found after a weight update",
        "engine/test_engine.py::test_new_weights_make_new_tokens_and_new_scores[plain]",
        ("minvenus.engine.engine:Engine.free_pages", "        self.pool.clear_index()\n", ""),
    ),
    mutant(
        26,
        "forgetting leaves the index as it was",
        "engine/test_pages.py::test_nothing_is_found_after_forgetting",
        "minvenus.engine.pages:PagePool.clear_index",
        "        self._index.clear()\n"
        "        self._key = [None] * self.count\n"
        "        self._content = [None] * self.count\n",
        "",
    ),
    mutant(
        26,
        "merged copies of the weights survive a weight update",
        "engine/test_engine.py::test_new_weights_make_new_tokens_and_new_scores[merged]",
        "minvenus.engine.runner:Runner.forget_weights",
        "self.merged: Any = None",
        "self.merged = getattr(self, 'merged', None)",
    ),
    mutant(
        26,
        "a packed copy of an old weight is used",
        "engine/test_engine.py::test_new_weights_make_new_tokens_and_new_scores[packed]",
        "minvenus.engine.engine:Engine.load_weights",
        "        self.runner.forget_weights()\n",
        "",
    ),
    mutant(
        29,
        "the parts of a step come back in another order than the work",
        "engine/test_decode.py::test_a_step_in_parts_gives_every_sequence_its_own_tokens",
        ("minvenus.engine.runner:Runner._parts", "return parts", "return parts[::-1]"),
    ),
    mutant(
        27,
        "a reused page keeps its old key",
        "engine/test_pages.py::TestPool::runTest",
        "minvenus.engine.pages:PagePool._reuse",
        "        self._remove_from_index(page)\n        self._holders[page] = 1\n",
        "        self._holders[page] = 1\n",
    ),
    mutant(
        27,
        "a listed page is written in place and stays listed",
        "engine/test_pages.py::"
        "test_writing_into_a_listed_page_whose_other_holders_are_gone_unlists_it",
        "minvenus.engine.pages:PagePool.extend",
        "            self._remove_from_index(table.pages[place])  ",
        "            pass  ",
    ),
    mutant(
        28,
        "a prompt of full pages is taken whole",
        "engine/test_pages.py::test_a_fully_known_prompt_leaves_a_token_to_run",
        "minvenus.engine.pages:PagePool.open",
        "range(0, len(tokens) - size, ",
        "range(0, len(tokens) - size + 1, ",
    ),
    mutant(
        28,
        "scoring takes the last token of its prefix from the cache",
        "engine/test_score.py::"
        "test_the_boundaries_of_a_living_sequence_cost_the_continuations_only",
        "minvenus.engine.scheduler:Scheduler._admit",
        "fork(job.source.block_table, known)",
        "fork(job.source.block_table, min(known + 1, job.source.num_computed))",
    ),
    mutant(
        29,
        "appended tokens see each other both ways",
        "engine/test_engine.py::"
        "test_greedy_tokens_are_those_of_the_model_for_every_page_and_chunk_size[16-7]",
        ("minvenus.kernels.paged:attend_last", "if 1 < queries < keys:", "if False:"),
    ),
    mutant(
        29,
        "a scored continuation sees its own future",
        "engine/test_score.py::"
        "test_the_boundaries_of_a_living_sequence_cost_the_continuations_only",
        ("minvenus.kernels.paged:attend_last", "triu_(keys - queries + 1)", "triu_(keys)"),
    ),
    mutant(
        29,
        "a scored continuation sees the sequence after its prefix",
        "engine/test_score.py::"
        "test_the_boundaries_of_a_living_sequence_cost_the_continuations_only",
        "minvenus.engine.scheduler:Scheduler._admit",
        "fork(job.source.block_table, known)",
        "fork(job.source.block_table, job.source.num_computed)",
    ),
    mutant(
        29,
        "the parts of a long chunk see all of its keys",
        "kernels/test_paged.py::"
        "test_the_torch_path_is_the_definition_however_its_chunks_are_cut[1]",
        "minvenus.kernels.paged:paged_attention_torch",
        "seen = length - (end - last)",
        "seen = length",
    ),
    mutant(
        29,
        "every sequence is taken for as long as the first",
        "engine/test_engine.py::"
        "test_greedy_tokens_are_those_of_the_model_for_every_page_and_chunk_size[16-7]",
        "minvenus.kernels.paged:paged_attention_torch",
        "int(lengths[s])",
        "int(lengths[0])",
    ),
    mutant(
        30,
        "positions restart with every chunk",
        "engine/test_engine.py::"
        "test_greedy_tokens_are_those_of_the_model_for_every_page_and_chunk_size[16-7]",
        "minvenus.engine.runner:Runner._flatten",
        "positions += new_positions",
        "positions += range(new)",
    ),
    mutant(
        30,
        "positions restart where a preempted sequence comes back",
        "engine/test_engine.py::test_preempted_sequences_give_the_same_tokens_and_log_probs[20]",
        (
            "minvenus.engine.runner:Runner._flatten",
            "positions += new_positions",
            "positions += [p - (p >= first) * first for p in new_positions]",
        ),
        (
            "minvenus.engine.runner:Runner._flatten",
            "            pages =",
            "            first = len(sequence.tokens) - len(sequence.written)\n            pages =",
        ),
    ),
    mutant(
        31,
        "unwritten slots of the last page are read",
        "engine/test_score.py::"
        "test_the_boundaries_of_a_living_sequence_cost_the_continuations_only",
        "minvenus.kernels.paged:paged_attention_torch",
        "seen = length - (end - last)",
        "seen = k.shape[1]",
    ),
    mutant(
        31,
        "one slot too many is read",
        "engine/test_engine.py::"
        "test_greedy_tokens_are_those_of_the_model_for_every_page_and_chunk_size[16-7]",
        "minvenus.engine.runner:Runner._forward",
        "lengths.append(length)",
        "lengths.append(min(length + 1, self.page_size * len(sequence.block_table.pages)))",
    ),
    mutant(
        31,
        "the slots after a sequence's end are not masked",
        "engine/test_engine.py::"
        "test_greedy_tokens_are_those_of_the_model_for_every_page_and_chunk_size[16-7]",
        "minvenus.engine.decode:DecodeCache.attend",
        "if min(self.lengths) < longest:",
        "if False:",
    ),
    mutant(
        31,
        "a decoding sequence is read from another one's row",
        "engine/test_decode.py::"
        "test_sequences_that_come_and_go_decode_to_the_tokens_of_the_model[plain]",
        ("minvenus.engine.decode:DecodeCache.hold", " and self.tables[row] is table", ""),
    ),
    mutant(
        32,
        "the temperature is applied when sampling and not in the stored log-prob",
        "engine/test_sampler.py::"
        "test_draws_of_the_engine_follow_the_distribution_across_sequences_and_steps"
        "[sampling0-kept0]",
        "minvenus.engine.sampler:plain_logprobs",
        "scaled(logits.float(), temperature)",
        "logits.float()",
    ),
    mutant(
        32,
        "the temperature is applied to top-k and not to what is drawn",
        "engine/test_sampler.py::"
        "test_draws_of_the_engine_follow_the_distribution_across_sequences_and_steps"
        "[sampling1-kept1]",
        ("minvenus.engine.sampler:drawn_logits", "return z", "return z * sampling.temperature"),
    ),
    mutant(
        32,
        "the temperature is not applied when scoring",
        "engine/test_score.py::"
        "test_any_batch_of_prefixes_and_continuations_equals_a_forward_for_each",
        "minvenus.engine.runner:Runner.logprobs",
        "targets, temperature)",
        "targets)",
    ),
    mutant(
        32,
        "top-p is applied when drawing and in the stored log-prob",
        "engine/test_sampler.py::"
        "test_draws_of_the_engine_follow_the_distribution_across_sequences_and_steps"
        "[sampling2-kept2]",
        "minvenus.engine.sampler:Sampler.draw",
        "plain_logprobs(member_logits,",
        "plain_logprobs(member_logits.masked_fill("
        "member_logits < member_logits.amax(-1, True) - 1, -1e9),",
    ),
    mutant(
        41,
        "top-p is cut before the temperature is applied",
        "engine/test_sampler.py::test_top_p_is_cut_after_the_temperature_worked_by_hand",
        (
            "minvenus.engine.sampler:drawn_logits",
            "z = scaled(z, sampling.plain_temperature)",
            "pass",
        ),
        (
            "minvenus.engine.sampler:drawn_logits",
            "return z",
            "return scaled(z, sampling.plain_temperature)",
        ),
    ),
    mutant(
        41,
        "one id too many where the mass is reached exactly",
        "engine/test_sampler.py::"
        "test_where_the_mass_is_reached_exactly_no_further_id_is_kept[0.5-2]",
        ("minvenus.engine.sampler:keep_most_probable", "reached >= top_p", "reached > top_p"),
    ),
    mutant(
        41,
        "top-p looks at the whole vocabulary, not at the top k",
        "engine/test_sampler.py::test_top_p_counts_within_the_top_k",
        "minvenus.engine.sampler:keep_most_probable",
        "p = best.softmax(dim=-1)",
        "p = z.softmax(dim=-1).gather(1, ids)",
    ),
    mutant(
        41,
        "a presence penalty counts every occurrence",
        "engine/test_sampler.py::"
        "test_a_presence_penalty_counts_an_id_once_however_often_it_was_written",
        "minvenus.engine.sampler:drawn_logits",
        "z[tuple(index)] -= sampling.presence_penalty",
        "z -= sampling.presence_penalty * torch.tensor("
        "[[turn.count(i) for i in range(width)] for turn in written]).float()",
    ),
    mutant(
        31,
        "each query head of a group reads the values of another one",
        "engine/test_decode.py::"
        "test_sequences_that_come_and_go_decode_to_the_tokens_of_the_model[merged]",
        "minvenus.engine.decode:DecodeCache.attend",
        "(weights @ values[layer])",
        "(weights.flip(2) @ values[layer])",
    ),
    mutant(
        31,
        "rows of a larger decode cache are taken for filled",
        "engine/test_decode.py::test_what_is_held_is_read_again_when_rows_become_longer_or_more",
        ("minvenus.engine.decode:DecodeCache._grow", "        self.tables = []\n", ""),
    ),
    mutant(
        43,
        "a fork takes a page for its copy although none is free",
        "engine/test_pages.py::test_too_few_pages_change_nothing",
        ("minvenus.engine.pages:PagePool.extend", "if missing + shared >", "if missing >"),
    ),
    mutant(
        41,
        "turns that differ in their penalty are drawn with one of them",
        "engine/test_sampler.py::test_a_turn_draws_the_same_beside_one_with_other_settings",
        ("minvenus.engine.sampler:Sampling.distribution", ", self.presence_penalty", ""),
    ),
    mutant(
        41,
        "a penalty is divided by nothing",
        "engine/test_sampler.py::test_a_penalty_is_subtracted_before_the_temperature",
        "minvenus.engine.sampler:drawn_logits",
        "-= sampling.presence_penalty",
        "-= sampling.plain_temperature * sampling.presence_penalty",
    ),
    mutant(
        41,
        "the stop id is cut off the turn's length",
        "engine/test_machine.py::TestEngine::runTest",
        "minvenus.engine.scheduler:Sequence.add",
        "self.job = None",
        "self.job = self.tokens.pop() and None",
    ),
    mutant(
        42,
        "a preempted scoring keeps what it had and adds the rest again",
        "engine/test_score.py::test_a_preempted_scoring_starts_again_with_nothing_kept",
        "minvenus.engine.scheduler:Scheduler._preempt",
        "sequence.logprobs.clear()",
        "pass",
    ),
    mutant(
        43,
        "a sequence that exactly fills the pool is refused",
        "engine/test_engine.py::test_a_sequence_may_fill_the_pool_exactly_and_no_more",
        "minvenus.engine.checks:check_room",
        "pages_for(length + more - 1)",
        "pages_for(length + more)",
    ),
    mutant(
        43,
        "a sequence that does not fit the pool is started",
        "engine/test_engine.py::test_a_sequence_may_fill_the_pool_exactly_and_no_more",
        ("minvenus.engine.checks:check_room", "(length + more - 1)", "(length + more - 2)"),
    ),
    mutant(
        43,
        "a fork that ends at a page border takes the next page, too",
        "engine/test_pages.py::"
        "test_a_fork_that_ends_at_a_page_border_copies_nothing_and_leaves_the_page_findable",
        "minvenus.engine.pages:PagePool.fork",
        "self.pages_for(length)]",
        "length // self.page_size + 1]",
    ),
    mutant(
        43,
        "the page that a fork has filled whole is copied",
        "engine/test_pages.py::"
        "test_a_fork_that_ends_at_a_page_border_copies_nothing_and_leaves_the_page_findable",
        "minvenus.engine.pages:PagePool.extend",
        "divmod(table.num_computed, self.page_size)",
        "divmod(max(1, table.num_computed) - 1, self.page_size); filled += 1",
    ),
    mutant(
        44,
        "the step is missing from the name of the noise",
        "engine/test_sampler.py::"
        "test_noise_depends_on_seed_step_question_and_rollout_and_on_nothing_else",
        ("minvenus.engine.sampler:Noise.__init__", "{seed}/{step} {question}", "{seed}/{question}"),
    ),
    mutant(
        44,
        "the parts of the name of the noise run together",
        "engine/test_sampler.py::"
        "test_noise_depends_on_seed_step_question_and_rollout_and_on_nothing_else",
        "minvenus.engine.sampler:Noise.__init__",
        "{seed}/{question}/{rollout}",
        "{seed}{question}{rollout}",
    ),
    mutant(
        44,
        "a group's rollouts forget the step",
        "engine/test_sampler.py::test_every_part_of_the_name_reaches_the_samples_of_the_engine",
        "minvenus.engine.engine:Engine.open_group",
        "question, number, step)",
        "question, number)",
    ),
    mutant(
        61,
        "a scored fork keeps its pages until all are scored",
        "engine/test_score.py::test_a_scored_fork_gives_its_pages_to_those_that_wait",
        ("minvenus.engine.engine:Engine._commit", "if job.source:", "if not job:"),
    ),
    mutant(
        68,
        "of two lengths of one prefix the last one counts",
        "engine/test_score.py::"
        "test_one_prefix_in_two_requests_is_computed_once_and_as_far_as_the_longer_needs[lengths0]",
        "minvenus.engine.engine:Engine._prefill",
        "sequence.job.goal if sequence.job else sequence.num_computed",
        "sequence.num_computed",
    ),
    mutant(
        68,
        "one text with two borders is scored after one of them",
        "engine/test_score.py::test_one_text_with_two_borders_is_scored_after_each",
        ("minvenus.engine.engine:Engine._open_once", "(n, *tokens)", "(n > 0, *tokens)"),
    ),
    mutant(
        43,
        "a scoring is checked for room after its shortest length",
        "engine/test_score.py::"
        "test_impossible_requests_are_refused_with_the_numbers_and_leave_nothing_behind",
        ("minvenus.engine.checks:check_request", "max(lengths), len", "min(lengths), len"),
    ),
    mutant(
        61,
        "admission forgets the page of a copy",
        "engine/test_scheduler.py::"
        "test_forks_wait_for_the_page_of_their_copy_and_take_none_from_their_source",
        ("minvenus.engine.scheduler:Scheduler._admit", "needed += 1", "needed += 0"),
    ),
    mutant(
        61,
        "the oldest gives way",
        "engine/test_scheduler.py::test_of_two_idle_sequences_the_younger_gives_way",
        "minvenus.engine.scheduler:Scheduler._victim",
        "reversed(self.sequences)",
        "self.sequences",
    ),
    mutant(
        61,
        "hits of the cache are not counted",
        "engine/test_scheduler.py::test_tokens_that_are_found_in_the_cache_are_counted",
        "minvenus.engine.scheduler:Scheduler._admit",
        "self.counters.shared += table.num_computed",
        "pass",
    ),
    mutant(
        70,
        "torch keeps the memory of the pages, and what stays after an update lies in it",
        "train/test_precision.py::test_pages_take_no_memory_between_freeing_and_the_next_step",
        ("minvenus.engine.runner:Runner.free_pages", "torch.cuda.empty_cache()", "pass"),
    ),
    mutant(
        72,
        "a copy of the integers that the host waits for",
        "engine/test_waits.py::test_a_decoding_step_waits_once_whatever_its_rows",
        "minvenus.engine.runner:Runner._tensors",
        "self.device, non_blocking=True",
        "self.device",
    ),
    mutant(
        72,
        "the uniform numbers are copied in a way that blocks",
        "engine/test_waits.py::test_a_decoding_step_waits_once_whatever_its_rows",
        "minvenus.engine.sampler:Sampler.tokens",
        "z.device, non_blocking=True",
        "z.device",
    ),
    mutant(
        72,
        "tokens are read before their log-probs",
        "engine/test_waits.py::test_a_decoding_step_waits_once_whatever_its_rows",
        "minvenus.engine.sampler:Sampler.draw",
        "tokens = self.tokens(members, member_logits)",
        "tokens = torch.tensor(self.tokens(members, member_logits).tolist())",
    ),
    mutant(
        72,
        "the statistics of the loss are read one by one",
        "engine/test_waits.py::test_a_pack_waits_once_for_all_of_its_statistics",
        "minvenus.train.batch:pack_stats",
        "x.double() for x in stats.values()",
        "torch.tensor(x.item()).double() for x in stats.values()",
    ),
    mutant(
        72,
        "rows of one distribution are picked by an index of the host",
        "engine/test_waits.py::"
        "test_turns_with_other_settings_and_scores_in_one_step_cost_one_wait_more",
        "minvenus.engine.sampler:select",
        "torch.stack([x[row] for row in rows])",
        "x[list(rows)]",
    ),
    mutant(
        32,
        "a turn gets the token of a turn with other settings",
        "engine/test_sampler.py::test_a_turn_draws_the_same_beside_one_with_other_settings",
        "minvenus.engine.sampler:Sampler.draw",
        "order = chain(*alike.values())",
        "order = range(len(sequences))",
    ),
    mutant(
        32,
        "a scoring beside turns reads the hidden states of the first rows",
        "engine/test_score.py::test_scores_beside_a_turn_that_runs_are_those_of_a_fresh_forward",
        "minvenus.engine.engine:Engine._score",
        "select(hidden, [*scoring])",
        "hidden[:len(scoring)]",
    ),
    mutant(
        30,
        "a small model's operations are divided among torch's threads",
        "engine/test_threads.py::test_operations_of_a_small_model_run_in_one_thread_each",
        "minvenus.engine.runner:Runner.threads",
        "            torch.set_num_threads(1)\n",
        "            pass\n",
    ),
    mutant(
        30,
        "an error in a step leaves torch with one thread",
        "engine/test_threads.py::test_an_error_in_a_step_leaves_torch_its_threads",
        "minvenus.engine.runner:Runner.threads",
        "        try:\n            yield\n        finally:\n"
        "            torch.set_num_threads(threads)",
        "        yield\n        torch.set_num_threads(threads)",
    ),
    mutant(
        73,
        "text is taken for a list of ids",
        "engine/test_engine.py::test_a_prompt_that_is_no_list_of_ids_is_refused_in_words",
        "minvenus.engine.checks:check_tokens",
        "not {*map(type, tokens)} <= {int}",
        "False",
    ),
    mutant(
        73,
        "what was appended to a sequence is scored unchecked",
        "engine/test_engine.py::"
        "test_an_id_outside_of_the_vocabulary_is_refused_before_anything_runs",
        "minvenus.engine.checks:check_request",
        "    check_tokens(engine, prefix[computed:] + continuation)\n",
        "",
    ),
    mutant(
        73,
        "a sequence without finite logits goes on beside one that has them",
        "engine/test_sampler.py::"
        "test_one_sequence_with_logits_that_are_not_finite_is_an_error_beside_others_too",
        ("minvenus.engine.sampler:Sampler.draw", "not all(map", "not any(map"),
    ),
    mutant(
        69,
        "counters that were read go on counting",
        "engine/test_scheduler.py::test_counters_that_were_read_stay_as_they_were",
        ("minvenus.engine.engine:Engine.counters", "replace(self.scheduler.counters)",
         "self.scheduler.counters"),
    ),
)
