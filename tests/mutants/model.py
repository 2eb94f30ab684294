"""Wrong steps of the forward pass (59): each moves logits away from those of transformers. And
relatives (71, 73)."""

from tests.mutants.mutant import mutant

LOGITS = "model/test_parity.py::test_logits_and_every_layers_hidden_states_agree_with_transformers"
UNTIED, GROUPED = LOGITS + "[untied-2-queries-per-kv]", LOGITS + "[tied-4-queries-per-kv]"
ATTENTION, ROTATE, MLP = (
    f"minvenus.model.qwen3:{name}" for name in ("Attention.forward", "rotate", "MLP.forward")
)
FUSED = "minvenus.kernels.attention:attention_torch"

MUTANTS = (
    mutant(59, "queries are not normalised", LOGITS, (ATTENTION, "self.q_norm(q)", "q")),
    mutant(59, "keys are not normalised", LOGITS, (ATTENTION, "self.k_norm(k)", "k")),
    mutant(
        59,
        "values are normalised, too",
        LOGITS,
        (ATTENTION, "attend(q, k, v)", "attend(q, k, self.k_norm(v))"),
    ),
    mutant(
        59,
        "keys are normalised after they are rotated",
        LOGITS,
        (ATTENTION, "rotate(self.k_norm(k), cos, sin)", "self.k_norm(rotate(k, cos, sin))"),
    ),
    mutant(
        59,
        "the scale is that of hidden size / heads",
        GROUPED,
        ATTENTION,
        "attend(q, k, v)",
        "attend(q * (self.head_dim * q.shape[1] / x.shape[-1]) ** 0.5, k, v)",
    ),
    mutant(
        59,
        "rope turns neighbouring channels",
        LOGITS,
        ROTATE,
        "    half =",
        "    x = torch.cat((x[..., ::2], x[..., 1::2]), dim=-1)\n    half =",
    ),
    mutant(
        59,
        "rope turns backwards",
        LOGITS,
        (ROTATE, "x * cos + partners * sin", "x * cos - partners * sin"),
    ),
    mutant(59, "no rope", LOGITS, (ROTATE, "x * cos + partners * sin", "x")),
    mutant(
        59,
        "another theta",
        LOGITS,
        ("minvenus.model.qwen3:Decoder.forward", "self.theta", "5 * self.theta"),
    ),
    mutant(
        59,
        "query heads are dealt to the kv heads in turn",
        GROUPED,
        FUSED,
        "(qs, ks, vs,",
        "(qs, *(x.repeat(1, qs.shape[1] // x.shape[1], 1, 1) for x in (ks, vs)),",
    ),
    mutant(59, "tokens see the future", LOGITS, (FUSED, "is_causal=True", "is_causal=False")),
    mutant(59, "gelu for silu", LOGITS, (MLP, "F.silu", "F.gelu")),
    mutant(
        59,
        "gate and up are swapped",
        LOGITS,
        MLP,
        "F.silu(self.gate_proj(part)) * self.up_proj(part)",
        "F.silu(self.up_proj(part)) * self.gate_proj(part)",
    ),
    mutant(
        59,
        "a larger epsilon",
        LOGITS,
        ("minvenus.model.qwen3:RMSNorm.forward", "self.eps", "100 * self.eps"),
    ),
    mutant(
        59,
        "the head is the embedding although they are not tied",
        UNTIED,
        ("minvenus.model.qwen3:Qwen3.head_weight", "= self.config.tie_word_embeddings", "= True"),
    ),
    mutant(
        71,
        "on a GPU the norm of queries and keys is not rounded as in the engine",
        "model/test_qwen3.py::test_a_norm_is_computed_without_autocast",
        ("minvenus.model.qwen3:RMSNorm.forward", "enabled=False", "enabled=True"),
    ),
    mutant(
        73,
        "only the last piece of a tensor is looked at for NaN",
        "model/test_damaged_weights.py::"
        "test_a_weight_that_is_no_finite_number_is_refused_with_the_file_and_the_tensor",
        (
            "minvenus.model.weights:read_tensors",
            "if not finite:",
            "if not finite and start + step >= len(rows):",
        ),
    ),
    mutant(
        59,
        "null in a config.json is a value",
        "test_config.py::test_what_a_config_json_leaves_out_has_the_default_of_its_family",
        "minvenus.config:ModelConfig.from_json",
        "if value is not None",
        "if True",
    ),
    mutant(
        59,
        "the gradient of a weight is that of its transposed",
        "kernels/test_linear.py::test_values_and_gradients_are_those_of_f_linear",
        "minvenus.kernels.linear:OneDNNProduct.backward",
        "onednn_product(dy.T, x.T)",
        "onednn_product(x.T, dy.T).T.roll(1, 0)",
    ),
    mutant(
        71,
        "products of several rows do not follow autocast",
        "kernels/test_linear.py::test_onednn_multiplies_several_rows_of_float32",
        "minvenus.kernels.linear:uses_onednn",
        'and not torch.is_autocast_enabled("cpu")',
        "",
    ),
)
