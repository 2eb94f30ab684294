"""Bugs of adapters, of the plan and of presets: relatives of 35, 38, 46 and 58, and a run that
cannot fit (63)."""

from tests.mutants.mutant import mutant

LORA, PLAN = "minvenus.model.lora:", "minvenus.train.plan:"
TESTS, RUNS, PLANS = "model/test_lora.py::", "train/test_lora.py::", "train/test_plan.py::"
PRINTED = PLANS + "test_the_tables_of_the_documentation_are_what_the_scripts_print"

AT_TRUE_SIZE = (
    PLANS + "test_layers_head_and_scoring_at_true_size_are_within_a_tenth_of_the_plan"
)

MUTANTS = (
    mutant(
        58,
        "the engine gets weights without the adapters",
        TESTS + "test_merged_equals_unmerged[True]",
        (LORA + "plain_weight", "isinstance(module, AdaptedLinear)", "False"),
    ),
    mutant(
        58,
        "the engine runs the module with its adapters",
        RUNS + "test_adapters_in_two_processes_have_the_gradient_of_one",
        ("minvenus.model.precision:engine_model", "adapters(model)", "[]"),
    ),
    mutant(
        58,
        "merged without their scale",
        TESTS + "test_one_adapter_worked_by_hand",
        (LORA + "AdaptedLinear.merged", "self.scale * ", ""),
    ),
    mutant(
        58,
        "alpha is not divided by the rank",
        TESTS + "test_one_adapter_worked_by_hand",
        (LORA + "AdaptedLinear.__init__", "ALPHA / rank", "ALPHA"),
    ),
    mutant(
        58,
        "adapters begin with something",
        TESTS + "test_at_the_start_and_switched_off_the_log_probs_are_the_bases_to_the_last_bit",
        (LORA + "AdaptedLinear.__init__", "torch.zeros(outputs", "torch.ones(outputs"),
    ),
    mutant(
        58,
        "the weights beside the adapters are trained, too",
        TESTS + "test_every_matrix_of_the_blocks_has_an_adapter_and_nothing_else_is_trained",
        (LORA + "add_adapters", "model.requires_grad_(False)", "pass"),
    ),
    mutant(
        35,
        "the reference moves with the policy",
        RUNS + "test_the_reference_is_the_model_itself_with_its_adapters_switched_off",
        ("minvenus.train.update:with_reference", "with switched_off(reference):", "if True:"),
    ),
    mutant(
        35,
        "adapters that were switched off stay off",
        TESTS + "test_switching_off_ends_with_an_error_too",
        (LORA + "switched_off", "adapter.active = True", "pass"),
    ),
    mutant(
        38,
        "resume begins a new adapter",
        RUNS + "test_sft_changes_adapters_only_and_saves_them_merged_and_goes_on_to_the_same_bytes",
        "minvenus.train.checkpoint:restore",
        "weights.read_tensors(stored, adapter_tensors(model))",
        "pass",
    ),
    mutant(
        46,
        "an adapter goes on beside other weights",
        RUNS + "test_an_adapter_goes_on_only_with_the_weights_that_it_was_trained_beside",
        ("minvenus.train.run:Run.steps", "digest([data, start])", "data"),
    ),
    mutant(
        46,
        "a real model is trained with the toy's settings",
        "test_config.py::test_a_real_model_without_a_preset_is_refused_and_the_presets_are_named",
        ("minvenus.train.settings:check_training", 'config.preset == "tiny" and', "False and"),
    ),
    mutant(
        46,
        "a preset in name only: the values of another one's file",
        "test_flags.py::test_a_saved_config_overrides_a_preset_and_that_the_defaults"
        "_and_a_misspelt_one_is_refused",
        ("minvenus.flags:parse_flags", 'saved.get("preset", preset) != preset', "False"),
    ),
    mutant(
        63,
        "the plan gives every weight a gradient",
        PLANS + "test_weights_gradients_and_moments_are_the_bytes_that_exist[4]",
        (PLAN + "memory_plan", '"gradients": 4 * (adapters or size)', '"gradients": 4 * (size)'),
    ),
    mutant(
        63,
        "the plan splits the engine's copy",
        PRINTED,
        PLAN + "memory_plan",
        'always["engine copy"] = number',
        'always["engine copy"] = 1 / processes * number',
    ),
    mutant(
        63,
        "the plan forgets what the layers keep",
        AT_TRUE_SIZE + "[dr-venus-4b]",
        (PLAN + "memory_plan", "(9 * shape.hidden_size + 4 *", "(1 * shape.hidden_size + 4 *"),
    ),
    mutant(
        63,
        "the plan forgets the second tensor of the head's gradient",
        AT_TRUE_SIZE + "[qwen3-0.6b]",
        (PLAN + "memory_plan", "8 * head", "4 * head"),
    ),
    mutant(
        63,
        "an MLP runs all its tokens at once",
        AT_TRUE_SIZE + "[dr-venus-4b]",
        ("minvenus.model.qwen3:MLP.forward", "x.split(MLP_TOKENS)", "[x]"),
    ),
    mutant(
        63,
        "a run whose rollouts cannot fit starts",
        PRINTED,
        (PLAN + "memory_plan", "max(update_sum, sum(rollouts.values()))", "update_sum"),
    ),
    mutant(
        63,
        "inputs in host memory count on the device",
        PRINTED,
        (PLAN + "memory_plan", "0 if config.offload else inputs", "inputs"),
    ),
    mutant(
        58,
        "adapters drop the biases of their base",
        TESTS + "test_biases_of_the_base_stay_and_are_saved",
        (LORA + "AdaptedLinear.forward", "self.weight, self.bias", "self.weight"),
    ),
    mutant(
        44,
        "every matrix begins with the same random numbers",
        TESTS + "test_the_random_matrix_is_that_of_the_seed",
        (LORA + "add_adapters", "(child, rank, generator)",
         "(child, rank, torch.Generator().manual_seed(seed))"),
    ),
)
