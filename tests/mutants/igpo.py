"""Known bugs of rewards, advantages and the loss (1 to 16, 20, 21, 33 to 35)."""

from tests.mutants.mutant import mutant

ADVANTAGE, GAIN, LOSS, REWARDS = (
    f"minvenus.igpo.{name}:" for name in ("advantage", "gain", "loss", "rewards")
)
WORKED, IN_ADVANTAGE, IN_GAIN, IN_LOSS, IN_REWARDS = (
    f"igpo/test_{name}.py::" for name in ("worked_numbers", "advantage", "gain", "loss", "rewards")
)

MUTANTS = (
    mutant(
        1,
        "discount first, normalise second",
        WORKED + "test_dense_batch_in_every_mode",
        (
            ADVANTAGE + "advantage_record",
            "    stats = {}\n",
            "    stats = {}\n"
            "    early = [turn_returns([*r.turns, r.outcome], r.is_penalty(), recipe)\n"
            "             for r in rewards]\n"
            "    rewards = [TurnRewards([None if v is None else a for v, a in zip(r.turns, row)],\n"
            "                           r.outcome, r.penalties)\n"
            "               for r, row in zip(rewards, early)]\n",
        ),
        (
            ADVANTAGE + "advantage_record",
            "[turn_returns(row, r.is_penalty(), recipe)\n",
            "[turn_returns(row, r.is_penalty(), Recipe(**{**recipe.__dict__, 'gamma': 0.0}))\n",
        ),
    ),
    mutant(
        2,
        "discount per token (three to a turn) instead of per turn",
        WORKED + "test_dense_batch_in_every_mode",
        ADVANTAGE + "turn_returns",
        "+ recipe.gamma * following",
        "+ recipe.gamma ** 3 * following",
    ),
    mutant(
        2,
        "an unrewarded turn costs no discount over turns",
        IN_ADVANTAGE + "test_over_turns_every_turn_costs_a_factor_gamma_rewarded_or_not",
        ADVANTAGE + "turn_returns",
        " (0.0 if term is None else term) ",
        " following if term is None else term ",
    ),
    mutant(
        2,
        "an unrewarded turn costs a discount over rewards",
        IN_ADVANTAGE + "test_inserting_an_unrewarded_turn_changes_no_other_advantage",
        ADVANTAGE + "turn_returns",
        "            returns.append(shared)\n",
        "            following = shared = recipe.gamma * following\n"
        "            returns.append(shared)\n",
    ),
    mutant(
        3,
        "mean taken over the same turn index of the group",
        WORKED + "test_dense_batch_in_every_mode",
        ADVANTAGE + "advantage_record",
        "z_score(value, mean, spread, recipe)\n                       for value in r.turns]",
        "z_score(value, mean_std([q.turns[t] for q, h in zip(rewards, groups)\n"
        "                if h == name and q.turns[t:t + 1] not in ([], [None])])[0],\n"
        "                        spread, recipe)\n"
        "                       for t, value in enumerate(r.turns)]",
    ),
    mutant(
        4,
        "std computed and not divided by",
        IN_ADVANTAGE + "test_two_rollouts_with_gamma_half_worked_by_hand",
        (ADVANTAGE + "z_score", "(value - mean) / (spread + 1e-6)", "(value - mean)"),
    ),
    mutant(
        5,
        "sample std instead of population std",
        IN_ADVANTAGE + "test_two_rollouts_with_gamma_half_worked_by_hand",
        ADVANTAGE + "mean_std",
        " values) / len(values)\n    ",
        " values) / max(1, len(values) - 1)\n    ",
    ),
    mutant(
        4,
        "the root mean square of gains taken about their mean",
        IN_ADVANTAGE + "test_what_gains_are_divided_by_worked_by_hand",
        ADVANTAGE + "group_stats",
        "math.fsum(v * v for v in turns)",
        "math.fsum((v - mean) ** 2 for v in turns)",
    ),
    mutant(
        6,
        "statistics over the batch instead of the group",
        WORKED + "test_statistics_and_scale_of_the_dense_batch",
        ADVANTAGE + "advantage_record",
        "[r for r, group in zip(rewards, groups, strict=True) if group == name]",
        "rewards",
    ),
    mutant(
        7,
        "a zero gain left out of the statistics",
        WORKED + "test_statistics_and_scale_of_the_dense_batch",
        (ADVANTAGE + "group_stats", "in r.turns if value is not None]", "in r.turns if value]"),
    ),
    mutant(
        7,
        "a zero gain treated as absent",
        IN_ADVANTAGE + "test_a_genuine_zero_gain_counts_and_an_absent_gain_does_not",
        (
            ADVANTAGE + "advantage_record",
            "([None if value is None else z_score",
            "([None if not value else z_score",
        ),
        (ADVANTAGE + "group_stats", "in r.turns if value is not None]", "in r.turns if value]"),
    ),
    mutant(
        7,
        "a turn whose z-score is zero loses its place",
        WORKED + "test_dense_batch_in_every_mode",
        ADVANTAGE + "turn_terms",
        "if z is None else factor",
        "if z is None or abs(z) < 1e-12 else factor",
    ),
    mutant(
        8,
        "an absent gain counted as 0 in the statistics",
        WORKED + "test_browse_batch_in_every_mode",
        ADVANTAGE + "group_stats",
        "[value for value in r.turns if value is not None]",
        "[value or 0.0 for value in r.turns]",
    ),
    mutant(
        8,
        "an absent gain treated as a reward of 0",
        IN_ADVANTAGE + "test_a_genuine_zero_gain_counts_and_an_absent_gain_does_not",
        (
            ADVANTAGE + "group_stats",
            "[value for value in r.turns if value is not None]",
            "[value or 0.0 for value in r.turns]",
        ),
        (
            ADVANTAGE + "advantage_record",
            "([None if value is None else z_score(value, ",
            "([z_score(value or 0.0, ",
        ),
    ),
    mutant(
        9,
        "IG-Scale per group instead of per batch",
        WORKED + "test_dense_batch_in_every_mode",
        ADVANTAGE + "advantage_record",
        "turn_terms(row, z, scale * recipe.ig_weight, recipe)\n"
        "             for row, z in zip(turn_z, outcome_z, strict=True)]",
        "turn_terms(row, z, (ig_scale([outcome_z[i] for i, h in enumerate(groups) if h == g],\n"
        "                             [turn_z[i] for i, h in enumerate(groups) if h == g])[2]\n"
        "                    if recipe.normalize == 'scaled' else 1.0), recipe)\n"
        "             for row, z, g in zip(turn_z, outcome_z, groups, strict=True)]",
    ),
    mutant(
        9,
        "no floor of 0.3",
        IN_ADVANTAGE + "test_the_floor_and_the_cap_of_the_scale",
        (ADVANTAGE + "ig_scale", "max(outcome_size, SCALE_FLOOR)", "outcome_size"),
    ),
    mutant(
        9,
        "no cap of 10",
        IN_ADVANTAGE + "test_the_floor_and_the_cap_of_the_scale",
        (ADVANTAGE + "ig_scale", ", SCALE_CAP)", ", 1e9)"),
    ),
    mutant(
        9,
        "the outcome is scaled too",
        WORKED + "test_dense_batch_in_every_mode",
        (ADVANTAGE + "turn_terms", "[*terms, outcome_z]", "[*terms, factor * outcome_z]"),
    ),
    mutant(
        9,
        "mean gain over all turns instead of rewarded ones",
        WORKED + "test_browse_batch_of_the_paper",
        ADVANTAGE + "ig_scale",
        "[abs(z) for z in row if z is not None]",
        "[abs(z or 0.0) for z in row]",
    ),
    mutant(
        10,
        "a localised penalty is shared with the searches before it",
        IN_ADVANTAGE + "test_a_search_before_a_malformed_turn_keeps_belonging_to_its_visit",
        ADVANTAGE + "turn_returns",
        'if not (penalty and recipe.penalty_scope == "turn"):',
        "if True:",
    ),
    mutant(
        20,
        "advantages one token behind their turn",
        IN_ADVANTAGE + "test_every_token_of_a_turn_holds_its_advantage_and_the_others_hold_zero",
        (ADVANTAGE + "token_advantages", "tokens[start:end] =", "tokens[start + 1:end + 1] ="),
    ),
    mutant(
        10,
        "the penalty is added to the gain",
        IN_REWARDS + "test_who_gets_a_visits_gain_or_a_penalty",
        REWARDS + "_penalise",
        "rewards[t] = -penalty",
        "rewards[t] = (rewards[t] or 0.0) - penalty",
    ),
    mutant(
        10,
        "the penalty leaks to the searches before it",
        IN_REWARDS + "test_making_one_turn_malformed_changes_the_reward_of_that_turn_only",
        (REWARDS + "turn_rewards", 'if recipe.penalty_scope == "segment":', "if True:"),
    ),
    mutant(
        10,
        "no penalty on the answer turn",
        "igpo/test_credit.py::test_from_log_probs_to_advantages_everything_is_the_definition",
        (REWARDS + "turn_rewards", "        outcome = -penalty\n", "        pass\n"),
    ),
    mutant(
        10,
        "no penalty still takes gain and outcome of a malformed turn",
        IN_REWARDS + "test_a_penalty_of_zero_takes_gain_and_outcome_away_and_none_leaves_them",
        (REWARDS + "turn_rewards", "        malformed = [False] * len(kinds)\n", ""),
    ),
    mutant(
        11,
        "a visit's gain copied past the visit before it",
        IN_REWARDS + "test_a_copied_gain_is_that_of_the_next_visit_and_stays_in_its_segment",
        REWARDS + "_copy_to_searches",
        "if rewards[t] is not None:\n",
        "if rewards[t] is not None and reward is not None:\n"
        "            pass\n"
        "        elif rewards[t] is not None:\n",
    ),
    mutant(
        11,
        "a visit's gain not copied",
        WORKED + "test_browse_batch_kinds_become_the_rewards_of_the_recipe",
        (REWARDS + "turn_rewards", 'if recipe.browse == "replicate":', "if False:"),
    ),
    mutant(
        11,
        "a visit's gain copied to turns that were no search",
        IN_REWARDS + "test_a_copied_gain_is_that_of_the_next_visit_and_stays_in_its_segment",
        (REWARDS + "_copy_to_searches", 'elif kinds[t] == "search":', "else:"),
    ),
    mutant(
        7,
        "a zero gain is not copied",
        IN_REWARDS + "test_who_gets_a_visits_gain_or_a_penalty",
        (REWARDS + "_copy_to_searches", "if rewards[t] is not None:\n", "if rewards[t]:\n"),
    ),
    mutant(
        12,
        "gain one turn late",
        IN_GAIN + "test_gains_of_a_small_trajectory_worked_by_hand",
        (GAIN + "segment_gains", "gains[after - 1] = new - old", "gains[after] = new - old"),
    ),
    mutant(
        12,
        "gain one turn early",
        IN_GAIN + "test_gains_of_a_small_trajectory_worked_by_hand",
        GAIN + "segment_gains",
        "gains[after - 1] = new - old",
        "gains[max(0, after - 2)] = new - old",
    ),
    mutant(
        12,
        "value taken before the visit instead of after it",
        IN_GAIN + "test_the_truth_is_scored_where_beliefs_are_needed_and_the_lead_in_is_left_out",
        (GAIN + "scored_turns", "after.append(t + 1)", "after.append(t)"),
    ),
    mutant(
        12,
        "context ends with the turn, before its observation",
        IN_GAIN + "test_the_truth_is_scored_where_beliefs_are_needed_and_the_lead_in_is_left_out",
        GAIN + "scored_lengths",
        "rollout.turns[t].start for t in ",
        "rollout.turns[max(0, t - 1)].end for t in ",
    ),
    mutant(
        12,
        "difference to the value just before instead of the previous visit's",
        IN_GAIN
        + "test_a_visits_gain_is_the_sum_over_its_segment_and_trailing_searches_are_dropped",
        GAIN + "segment_gains",
        ", new = beliefs[before], beliefs[",
        ", new = beliefs[after - 1], beliefs[",
    ),
    mutant(
        13,
        "the answer turn has a gain",
        IN_GAIN + "test_the_answer_turn_has_no_gain_even_when_it_is_a_visit",
        (GAIN + "scored_turns", "enumerate(kinds[:-1])", "enumerate(kinds)"),
    ),
    mutant(
        14,
        "baseline taken after the first turn",
        IN_GAIN + "test_gains_of_a_small_trajectory_worked_by_hand",
        (GAIN + "segment_gains", "    before = 0\n", "    before = 1\n"),
    ),
    mutant(
        14,
        "baseline measured after the first turn",
        IN_GAIN + "test_the_belief_before_anything_was_done_is_that_of_the_prompt_alone",
        GAIN + "scored_turns",
        "return [0, *after] if after else []",
        "return [1, *after] if after else []",
    ),
    mutant(
        21,
        "last token of the truth, merged with the newline, dropped",
        "igpo/test_wrapper.py::test_decoding_gives_the_lead_in_and_the_answer_back[tiny]",
        (GAIN + "wrap_truth", "if first < len(opening)", "if end <= len(opening)"),
    ),
    mutant(
        21,
        "truth encoded alone, without what follows it",
        "igpo/test_wrapper.py::"
        "test_any_answer_without_added_tokens_is_the_head_of_one_encoding[tiny]",
        (GAIN + "wrap_truth", '(opening + truth + "\\n</answer>")', "(opening + truth)"),
    ),
    mutant(
        21,
        "lead-in tokens averaged with the truth's",
        IN_GAIN + "test_the_truth_is_scored_where_beliefs_are_needed_and_the_lead_in_is_left_out",
        (GAIN + "truth_logprobs", "logprobs[t] = row[wrapped.start:]", "logprobs[t] = row"),
    ),
    mutant(
        15,
        "gradient flows through the advantage",
        IN_LOSS + "test_no_gradient_flows_through_advantages_or_old_or_reference_log_probs",
        (LOSS + "policy_losses", "advantages = advantages.detach()", "pass"),
    ),
    mutant(
        15,
        "gradient flows through the old log-probs",
        IN_LOSS + "test_no_gradient_flows_through_advantages_or_old_or_reference_log_probs",
        (LOSS + "log_ratios", "old_logprobs.detach()", "old_logprobs"),
    ),
    mutant(
        33,
        "token mean per pack",
        IN_LOSS + "test_packs_of_any_sizes_give_the_loss_and_the_gradient_of_the_whole_step",
        (LOSS + "token_weights", "weights / tokens", "weights / len(segments)"),
    ),
    mutant(
        33,
        "rollout mean per pack",
        IN_LOSS + "test_packs_of_any_sizes_give_the_loss_and_the_gradient_of_the_whole_step",
        (LOSS + "token_weights", "weights / rollouts", "weights / len(set(segments.tolist()))"),
    ),
    mutant(
        33,
        "the tokens of the pack counted in place of those of a rollout",
        IN_LOSS + "test_the_three_aggregations_worked_by_hand",
        (LOSS + "token_weights", "torch.bincount(segments)[segments]", "len(segments)"),
    ),
    mutant(
        33,
        "token mean where the sequence mean was asked for",
        WORKED + "test_policy_loss_and_kl_in_every_aggregation",
        (LOSS + "token_weights", ' == "token-mean":', ' in ("token-mean", "seq-mean-token-mean"):'),
    ),
    mutant(
        34,
        "clip on the wrong side for negative advantages",
        IN_LOSS + "test_clipping_stops_only_moves_that_went_far_enough_the_right_way",
        LOSS + "policy_losses",
        "losses = torch.maximum(unclipped, clipped)",
        "losses = torch.where(advantages < 0, torch.minimum(unclipped, clipped), "
        "torch.maximum(unclipped, clipped))",
    ),
    mutant(
        34,
        "the clipped loss always",
        IN_LOSS + "test_clipping_stops_only_moves_that_went_far_enough_the_right_way",
        (LOSS + "policy_losses", "losses = torch.maximum(unclipped, clipped)", "losses = clipped"),
    ),
    mutant(
        34,
        "clip bounds swapped",
        IN_LOSS + "test_clipping_stops_only_moves_that_went_far_enough_the_right_way",
        LOSS + "policy_losses",
        ".clamp(1.0 - config.clip_low, 1.0 + config.clip_high)",
        ".clamp(1.0 - config.clip_high, 1.0 + config.clip_low)",
    ),
    mutant(
        34,
        "dual clip on good tokens too",
        IN_LOSS + "test_loss_and_statistics_equal_their_definitions",
        (LOSS + "policy_losses", "(advantages < 0) & (losses > ceiling)", "losses > ceiling"),
    ),
    mutant(
        35,
        "KL with the wrong sign",
        WORKED + "test_policy_loss_and_kl_in_every_aggregation",
        (LOSS + "igpo_loss", "policy_loss + config.kl_coef", "policy_loss - config.kl_coef"),
    ),
    mutant(
        35,
        "KL in the wrong direction",
        IN_LOSS + "test_k3_is_never_negative_and_pulls_towards_the_reference",
        (LOSS + "k3", "(ref_logprobs.detach() - logprobs)", "(logprobs - ref_logprobs.detach())"),
    ),
    mutant(
        9,
        "raw_ig: the outcome on turns without a reward, too",
        WORKED + "test_raw_ig_adds_the_outcome_to_every_rewarded_turn_and_nothing_of_later_turns",
        (ADVANTAGE + "turn_terms", "None if z is None else factor * z", "factor * (z or 0.0)"),
    ),
    mutant(
        9,
        "raw_ig: the outcome is weighed with the gains",
        WORKED + "test_raw_ig_worked_by_hand",
        (ADVANTAGE + "turn_terms", "term += outcome_z", "term += factor * outcome_z"),
    ),
)
