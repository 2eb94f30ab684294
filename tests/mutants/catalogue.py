"""Known mistakes as small wrong edits of our own code, and for each the test that must notice it.

Every one reached users of a public system of this field; the numbers are those of the project's list of such bugs. An edit whose
old text does not occur exactly once in its file is an error, so that a mutant cannot quietly go stale.
"""

from dataclasses import dataclass

GAIN, REWARDS, ADVANTAGE, LOSS = (f"minvenus.igpo.{name}" for name in ("gain", "rewards", "advantage", "loss"))
PROTOCOL = "minvenus.agent.protocol"


@dataclass(frozen=True)
class Mutant:
    bug: int                              # number in the list of bugs
    says: str                             # the mistake, in words
    module: str
    edits: tuple[tuple[str, str], ...]    # (old text, new text)
    test: str                             # the test that fails under it, below tests/


def mutant(bug: int, says: str, module: str, test: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(bug, says, module, edits, test)


NUMBERS, NORMAL, RETURNS = "igpo/test_worked_numbers.py::", "igpo/test_normalisation.py::", "igpo/test_returns.py::"
GAINS, VALUES, REWARD = "igpo/test_gain.py::", "igpo/test_rollout_values.py::", "igpo/test_rewards.py::"
LOSSES, GRADIENT, SCALE = "igpo/test_loss.py::", "igpo/test_loss_gradient.py::", "igpo/test_ig_scale.py::"
ADVANTAGES, WRAPPER = "igpo/test_advantage.py::", "igpo/test_wrapper.py::"

ADVANTAGE_MUTANTS = (
    mutant(1, "discount first, normalise second", ADVANTAGE, NUMBERS + "test_dense_batch_in_every_mode",
           ("    _check(rewards, groups)\n",
            "    _check(rewards, groups)\n"
            "    early = [turn_returns([*r.turns, r.outcome], r.is_penalty(), recipe) for r in rewards]\n"
            "    rewards = [TurnRewards([None if v is None else a for v, a in zip(r.turns, row)], r.outcome, r.penalties)\n"
            "               for r, row in zip(rewards, early)]\n"),
           ("[turn_returns(row, r.is_penalty(), recipe) for row",
            "[turn_returns(row, r.is_penalty(), Recipe(**{**recipe.__dict__, 'gamma': 0.0})) for row")),
    mutant(2, "discount per token (three to a turn) instead of per turn", ADVANTAGE, NUMBERS + "test_dense_batch_in_every_mode",
           ("gamma, result = recipe.gamma, []", "gamma, result = recipe.gamma ** 3, []")),
    mutant(2, "an unrewarded turn costs no discount over turns", ADVANTAGE,
           RETURNS + "test_over_turns_every_turn_costs_a_factor_gamma_rewarded_or_not",
           ("following = (0.0 if term is None else term) + gamma * following",
            "following = following if term is None else term + gamma * following")),
    mutant(2, "an unrewarded turn costs a discount over rewards", ADVANTAGE,
           RETURNS + "test_inserting_an_unrewarded_turn_changes_no_other_advantage",
           ("            result.append(shared)\n",
            "            following = shared = gamma * following\n            result.append(shared)\n")),
    mutant(3, "mean taken over the same turn index of the group", ADVANTAGE, NUMBERS + "test_dense_batch_in_every_mode",
           ("z_score(v, gain_mean, stats[g].gain_std, recipe) for v in r.turns]",
            "z_score(v, mean_std([q.turns[t] for q, h in zip(rewards, groups)"
            " if h == g and q.turns[t:t + 1] not in ([], [None])])[0],"
            " stats[g].gain_std, recipe) for t, v in enumerate(r.turns)]")),
    mutant(4, "std computed and not divided by", ADVANTAGE,
           NORMAL + "test_k_of_n_correct_gives_the_two_values_of_the_binary_formula",
           ("(value - mean) / (std + 1e-6)", "(value - mean)")),
    mutant(5, "sample std instead of population std", ADVANTAGE,
           NORMAL + "test_cloning_every_rollout_inside_its_group_changes_nothing",
           ("for v in values) / len(values)\n    return", "for v in values) / max(1, len(values) - 1)\n    return")),
    mutant(6, "statistics over the batch instead of the group", ADVANTAGE,
           NORMAL + "test_removing_a_group_leaves_the_others_as_they_were",
           ("group_stats([rewards[i] for i in rows], recipe)", "group_stats(rewards, recipe)")),
    mutant(7, "a zero gain left out of the statistics", ADVANTAGE, NUMBERS + "test_group_statistics_of_the_dense_batch",
           ("gains = [v for r in rewards for v in r.turns if v is not None]",
            "gains = [v for r in rewards for v in r.turns if v]")),
    mutant(7, "a zero gain treated as absent", ADVANTAGE, SCALE + "test_a_genuine_zero_gain_counts_and_an_absent_gain_does_not",
           ("turn_z.append([None if v is None else z_score", "turn_z.append([None if not v else z_score"),
           ("gains = [v for r in rewards for v in r.turns if v is not None]",
            "gains = [v for r in rewards for v in r.turns if v]")),
    mutant(7, "a turn whose z-score is zero loses its place", ADVANTAGE,
           NUMBERS + "test_a_z_score_of_exactly_zero_keeps_its_turn",
           ("terms = [[*(None if z is None else factor * z", "terms = [[*(None if z is None or abs(z) < 1e-12 else factor * z")),
    mutant(8, "an absent gain counted as 0 in the statistics", ADVANTAGE, NUMBERS + "test_browse_batch_under_the_released_recipe",
           ("gains = [v for r in rewards for v in r.turns if v is not None]",
            "gains = [v or 0.0 for r in rewards for v in r.turns]")),
    mutant(8, "an absent gain treated as a reward of 0", ADVANTAGE,
           SCALE + "test_a_genuine_zero_gain_counts_and_an_absent_gain_does_not",
           ("gains = [v for r in rewards for v in r.turns if v is not None]",
            "gains = [v or 0.0 for r in rewards for v in r.turns]"),
           ("turn_z.append([None if v is None else z_score(v, ", "turn_z.append([z_score(v or 0.0, ")),
    mutant(9, "IG-Scale per group instead of per batch", ADVANTAGE,
           NORMAL + "test_removing_a_group_changes_the_scale_of_the_others",
           ("terms = [[*(None if z is None else factor * z for z in row), last] "
            "for row, last in zip(turn_z, outcome_z, strict=True)]",
            "scales = {g: ig_scale([outcome_z[i] for i in m], [turn_z[i] for i in m])[2] for g, m in _members(groups).items()}\n"
            "    terms = [[*(None if z is None else scales[g] * recipe.ig_weight * z for z in row), last]\n"
            "             for row, last, g in zip(turn_z, outcome_z, groups)]")),
    mutant(9, "no floor of 0.3", ADVANTAGE, SCALE + "test_the_floor_and_the_cap_of_the_scale",
           ("max(m_outcome, SCALE_FLOOR)", "m_outcome")),
    mutant(9, "no cap of 10", ADVANTAGE, SCALE + "test_the_floor_and_the_cap_of_the_scale",
           (", SCALE_CAP)", ", 1e9)")),
    mutant(9, "the outcome is scaled too", ADVANTAGE,
           SCALE + "test_scaled_is_separate_with_the_turn_rewards_times_s_and_the_outcome_untouched",
           ("for z in row), last] for row", "for z in row), scale * last] for row")),
    mutant(9, "mean gain over all turns instead of rewarded ones", ADVANTAGE,
           NUMBERS + "test_browse_batch_scale_and_its_two_means_under_the_released_recipe",
           ("gains = [abs(z) for row in turn_z for z in row if z is not None]",
            "gains = [abs(z or 0.0) for row in turn_z for z in row]")),
    mutant(10, "a localised penalty is shared with the searches before it", ADVANTAGE,
           "igpo/test_penalty_reach.py::test_a_search_before_a_malformed_turn_keeps_belonging_to_its_visit",
           ('if not (penalty and recipe.penalty_scope == "turn"):', "if True:")),
    mutant(20, "advantages one token behind their turn", ADVANTAGE,
           ADVANTAGES + "test_every_token_of_a_turn_holds_its_advantage_and_the_others_hold_zero",
           ("tokens[start:end] =", "tokens[start + 1:end + 1] =")),
)

REWARD_MUTANTS = (
    mutant(10, "the penalty is added to the gain", REWARDS,
           REWARD + "test_a_malformed_visit_loses_its_gain_and_its_searches_keep_their_copies",
           ("rewards[t], penalties[t] = -recipe.format_penalty, True",
            "rewards[t], penalties[t] = (rewards[t] or 0.0) - recipe.format_penalty, True")),
    mutant(10, "the penalty leaks to the searches before it", REWARDS,
           REWARD + "test_making_one_turn_malformed_changes_the_reward_of_that_turn_only",
           ('if recipe.penalty_scope == "segment":', "if True:")),
    mutant(10, "no penalty on the answer turn", REWARDS,
           REWARD + "test_the_outcome_is_the_penalty_iff_the_last_turn_is_malformed_whatever_the_judge_said",
           ("-recipe.format_penalty if malformed[-1] else outcome", "outcome")),
    mutant(11, "a visit's gain copied past the visit before it", REWARDS,
           REWARD + "test_a_copied_gain_is_that_of_the_next_visit_and_goes_no_further_back_than_the_visit_before",
           ("if rewards[t] is not None:\n", "if rewards[t] is not None and reward is not None:\n            pass\n"
            "        elif rewards[t] is not None:\n")),
    mutant(11, "a visit's gain not copied", REWARDS, NUMBERS + "test_browse_batch_kinds_become_the_rewards_of_the_recipe",
           ('if recipe.browse == "replicate":', "if False:")),
    mutant(11, "a visit's gain copied to turns that were no search", REWARDS,
           REWARD + "test_a_copied_gain_is_that_of_the_next_visit_and_goes_no_further_back_than_the_visit_before",
           ('elif kinds[t] == "search":', "else:")),
    mutant(7, "a zero gain is not copied", REWARDS, REWARD + "test_a_zero_gain_is_copied_like_any_other",
           ("if rewards[t] is not None:\n", "if rewards[t]:\n")),
)

GAIN_MUTANTS = (
    mutant(12, "gain one turn late", GAIN, GAINS + "test_gains_of_a_small_trajectory_worked_by_hand",
           ("gains[after - 1] = new - old", "gains[after] = new - old")),
    mutant(12, "gain one turn early", GAIN, GAINS + "test_gains_of_a_small_trajectory_worked_by_hand",
           ("gains[after - 1] = new - old", "gains[max(0, after - 2)] = new - old")),
    mutant(12, "value taken before the visit instead of after it", GAIN,
           VALUES + "test_values_are_asked_for_at_the_start_of_the_turns_that_need_them",
           ("after = [t + 1 for t, kind", "after = [t for t, kind")),
    mutant(12, "context ends with the turn, before its observation", GAIN,
           VALUES + "test_values_are_asked_for_at_the_start_of_the_turns_that_need_them",
           ("[rollout.turns[t].start for t in needed]", "[rollout.turns[max(0, t - 1)].end for t in needed]")),
    mutant(12, "difference to the value just before instead of the previous visit's", GAIN,
           GAINS + "test_a_visits_gain_is_the_sum_over_its_segment_and_trailing_searches_are_dropped",
           ("old, new = values[previous], values[after]", "old, new = values[after - 1], values[after]")),
    mutant(13, "the answer turn has a gain", GAIN, GAINS + "test_the_answer_turn_has_no_gain_even_when_it_is_a_visit",
           ("enumerate(kinds[:-1]) if has_gain", "enumerate(kinds) if has_gain")),
    mutant(14, "baseline taken after the first turn", GAIN, GAINS + "test_gains_of_a_small_trajectory_worked_by_hand",
           ("    previous = 0\n", "    previous = 1\n")),
    mutant(14, "baseline measured after the first turn", GAIN,
           VALUES + "test_the_value_before_anything_was_done_is_that_of_the_prompt_alone",
           ("return [0, *after] if after else []", "return [1, *after] if after else []")),
    mutant(21, "last token of the truth, merged with the newline, dropped", GAIN,
           WRAPPER + "test_decoding_gives_the_lead_in_and_the_answer_back[tiny]",
           ("through = sum(1 for _, begin, _ in tail if begin < last)", "through = sum(1 for _, _, end in tail if end <= last)")),
    mutant(21, "truth encoded alone, without what follows it", GAIN,
           WRAPPER + "test_any_answer_without_added_tokens_is_the_head_of_one_encoding[tiny]",
           ('tokenizer.untrusted_offsets(opening + truth + "\\n</answer>")', "tokenizer.untrusted_offsets(opening + truth)")),
    mutant(21, "lead-in tokens averaged with the truth's", GAIN, VALUES + "test_the_lead_in_tokens_never_enter_the_mean",
           ("found[t] = after_prefix[wrapped.start:]", "found[t] = after_prefix")),
)

LOSS_MUTANTS = (
    mutant(15, "gradient flows through the advantage", LOSS,
           GRADIENT + "test_no_gradient_flows_through_advantages_or_old_or_reference_log_probs",
           ("advantages.detach())", "advantages)")),
    mutant(15, "gradient flows through the old log-probs", LOSS,
           GRADIENT + "test_no_gradient_flows_through_advantages_or_old_or_reference_log_probs",
           ("old_logp.detach()", "old_logp")),
    mutant(16, "prompt and tool tokens in the loss", LOSS,
           GRADIENT + "test_masked_positions_may_hold_anything_and_change_nothing",
           ("mask = mask.bool()", "mask = torch.ones_like(mask, dtype=torch.bool)")),
    mutant(16, "masked tokens counted in the mean", LOSS, LOSSES + "test_the_three_aggregations_worked_by_hand",
           ("tokens_B = mask.sum(dim=1)", "tokens_B = torch.ones_like(mask).sum(dim=1)")),
    mutant(16, "masked NaN reaches the gradient", LOSS, GRADIENT + "test_masked_positions_may_hold_anything_and_change_nothing",
           ("return torch.where(mask, x.to(_at_least_float32(x)), 0.0)", "return x.to(_at_least_float32(x)) * mask")),
    mutant(20, "log-probs off by one against their mask", LOSS, LOSSES + "test_loss_equals_the_definition",
           ("mask = mask.bool()", "mask = mask.bool().roll(1, dims=1)")),
    mutant(33, "token mean per micro-batch", LOSS,
           GRADIENT + "test_micro_batches_of_any_sizes_give_the_gradient_of_the_whole_step",
           ("int(tokens_B.sum()) if step_tokens is None else step_tokens", "int(tokens_B.sum())")),
    mutant(33, "sequence mean per micro-batch", LOSS,
           GRADIENT + "test_micro_batches_of_any_sizes_give_the_gradient_of_the_whole_step",
           ("int((tokens_B > 0).sum()) if step_sequences is None else step_sequences", "int((tokens_B > 0).sum())")),
    mutant(33, "padding rows counted as sequences", LOSS,
           GRADIENT + "test_a_row_without_a_single_trained_token_influences_nothing",
           ("int((tokens_B > 0).sum())", "len(tokens_B)")),
    mutant(33, "token mean where the sequence mean was asked for", LOSS, NUMBERS + "test_policy_loss_and_kl_in_every_aggregation",
           ('if aggregate == "token-mean":', 'if aggregate in ("token-mean", "seq-mean-token-mean"):')),
    mutant(34, "clip on the wrong side for negative advantages", LOSS,
           LOSSES + "test_clipping_stops_only_moves_that_went_far_enough_the_right_way",
           ("loss = torch.maximum(unclipped, clipped)",
            "loss = torch.where(advantages < 0, torch.minimum(unclipped, clipped), torch.maximum(unclipped, clipped))")),
    mutant(34, "the clipped loss always", LOSS, LOSSES + "test_clipping_stops_only_moves_that_went_far_enough_the_right_way",
           ("loss = torch.maximum(unclipped, clipped)", "loss = clipped")),
    mutant(34, "clip bounds swapped", LOSS, LOSSES + "test_the_two_clip_bounds_are_told_apart",
           ("ratio.clamp(1.0 - clip_low, 1.0 + clip_high)", "ratio.clamp(1.0 - clip_high, 1.0 + clip_low)")),
    mutant(34, "dual clip on good tokens too", LOSS, LOSSES + "test_dual_clip_bounds_the_loss_of_bad_tokens_only",
           ("dual = (advantages < 0) & (loss > ceiling)", "dual = loss > ceiling")),
    mutant(35, "KL with the wrong sign", LOSS, NUMBERS + "test_policy_loss_and_kl_in_every_aggregation",
           ("policy_loss + kl_coef * kl", "policy_loss - kl_coef * kl")),
    mutant(35, "KL in the wrong direction", LOSS, LOSSES + "test_k3_is_never_negative_and_pulls_towards_the_reference",
           ("x = (ref_logp - logp).clamp", "x = (logp - ref_logp).clamp")),
)

PROTOCOL_MUTANTS = (
    mutant(23, "an answer inside a tool response is the model's", PROTOCOL,
           "agent/test_protocol.py::test_everything_from_the_first_tool_response_on_is_dropped",
           ('text = text.split("<tool_response>", 1)[0]', "text = text")),
    mutant(23, "the observation is graded", PROTOCOL,
           "agent/test_protocol.py::test_only_the_last_turn_is_graded_and_never_an_observation",
           ("parse_turn(turns[-1].text).answer if turns",
            'parse_turn(turns[-1].text + (turns[-1].observation or "")).answer if turns')),
)

DATASET, SCRIPT = "minvenus.sft.dataset", "train_sft"
OPTIM, ORDER, CHECKPOINT, METRICS = (f"minvenus.train.{name}" for name in ("optim", "data", "checkpoint", "metrics"))
STEP, SCHEDULE, RESTORE = "train/test_sft.py::", "train/test_schedule.py::", "train/test_checkpoint.py::"
RUN = "test_train_sft.py::"

TRAINING_MUTANTS = (
    mutant(20, "the position of a token predicts the token itself", DATASET,
           STEP + "test_the_loss_is_the_mean_over_trajectories_of_their_mean_over_the_agents_tokens",
           ("positions - 1, tokens[positions]", "positions, tokens[positions]")),
    mutant(33, "trajectory mean per pack", DATASET, STEP + "test_one_two_or_five_packs_give_the_same_step[trajectory-mean]",
           ("[share(examples[i]) for i in row]", "[share(examples[i]) * len(examples) / len(row) for i in row]")),
    mutant(33, "token mean where each trajectory should weigh the same", DATASET,
           STEP + "test_the_loss_is_the_mean_over_trajectories_of_their_mean_over_the_agents_tokens",
           ("1.0 / (len(examples) * example.trained)", "1.0 / every_token")),
    mutant(36, "gradients not reset", OPTIM, STEP + "test_a_step_starts_from_no_gradient",
           ("optimizer.zero_grad(set_to_none=True)", "pass")),
    mutant(37, "the seed does not reach the order", ORDER, SCHEDULE + "test_the_seed_and_the_epoch_reach_the_order",
           ("(seed * 1_000_003 + epoch)", "epoch")),
    mutant(37, "every epoch in the same order", ORDER, SCHEDULE + "test_the_seed_and_the_epoch_reach_the_order",
           ("(seed * 1_000_003 + epoch)", "(seed * 1_000_003)")),
    mutant(38, "resume loses the moments", CHECKPOINT,
           RESTORE + "test_a_restored_run_takes_the_same_next_step_to_the_last_bit",
           ("    fill_optimizer(model, optimizer, tensors)\n", "")),
    mutant(38, "resume loses the moments of some parameters", CHECKPOINT,
           RESTORE + "test_a_damaged_checkpoint_is_refused_with_the_way_back_and_changes_nothing",
           ("(stored and stored != expected)", "stored - expected")),
    mutant(38, "resume loses the random state", CHECKPOINT,
           RESTORE + "test_a_restored_run_takes_the_same_next_step_to_the_last_bit",
           ('    torch.set_rng_state(tensors["random.cpu"])\n', "")),
    mutant(38, "resume starts the data and the schedule again", SCRIPT, RUN + "test_where_a_run_was_interrupted_changes_no_bit",
           ('start, seen = state.get("step", 0), ', "start, seen = 0, ")),
    mutant(38, "resume loses a counter", SCRIPT, RUN + "test_where_a_run_was_interrupted_changes_no_bit",
           ('state.get("tokens_seen", 0)', "0")),
    mutant(38, "resume repeats lines of metrics", METRICS,
           "train/test_metrics.py::test_going_on_after_any_tear_ends_with_the_bytes_of_an_unbroken_run",
           (' if row["step"] < step', "")),
    mutant(38, "the pointer moves before the checkpoint is there", CHECKPOINT,
           "train/test_crash.py::test_a_write_that_really_fails_half_way_loses_nothing",
           ("with replaced(folder) as new:\n", "point_to(run, folder.name)\n        with replaced(folder) as new:\n")),
    mutant(40, "over-long trajectories cut without being asked", DATASET,
           "sft/test_dataset.py::test_the_too_long_are_dropped_and_counted_or_cut_behind_a_whole_turn",
           ('cut_to(whole, max_tokens) if overlong == "truncate" else None', "cut_to(whole, max_tokens)")),
    mutant(40, "cut in the middle of a turn", DATASET, "sft/test_dataset.py::test_a_cut_keeps_as_many_whole_turns_as_fit",
           ("if end <= max_tokens)\n", "if end <= max_tokens) + (max_tokens,)\n")),
)

MUTANTS = ADVANTAGE_MUTANTS + REWARD_MUTANTS + GAIN_MUTANTS + LOSS_MUTANTS + PROTOCOL_MUTANTS + TRAINING_MUTANTS
