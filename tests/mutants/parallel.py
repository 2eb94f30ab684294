"""Known traps of training in several processes (64): wrong sums, wrong shares, wrong order, stale copies."""

from tests.mutants.mutant import mutant

SFT = "train/test_parallel.py::test_sft_in_two_processes_has_the_gradient_of_one"
IGPO = "train/test_parallel.py::test_igpo_in_two_processes_has_the_gradients_and_numbers_of_one"
LONG = "train/test_parallel.py::test_two_ranks_that_share_a_pack_give_its_log_probs_and_gradient[False]"
COPY = "train/test_precision.py::test_as_on_a_gpu_the_engine_has_a_bfloat16_copy_that_follows_the_master_weights"
GROUP = "train/test_parallel.py::test_the_rollouts_of_a_question_stay_on_one_rank"
ERROR = "train/test_parallel.py::test_an_error_of_one_rank_comes_to_all_with_what_it_says"
FILES = "train/test_parallel.py::test_a_checkpoint_has_the_same_bytes_whoever_wrote_it_and_whoever_read_it[False]"
ORDER = "train/test_parallel.py::test_shares_gathered_are_the_items_in_their_order_on_every_rank"
ROUNDED = (
    "train/test_parallel.py::test_as_on_a_gpu_gradients_of_bfloat16_products_are_summed_in_float32"
)
PARALLEL = "minvenus.train.parallel:"

MUTANTS = (
    mutant(
        64,
        "gradients averaged over the ranks instead of summed",
        SFT,
        (PARALLEL + "shard", "module.set_gradient_divide_factor(1.0)", "pass"),
    ),
    mutant(
        64,
        "ranks that share a pack each count its whole gradient",
        LONG,
        ("minvenus.train.sequence:Join.backward", "grad[", "dist.get_world_size() * grad["),
    ),
    mutant(
        64,
        "angles of positions rounded to bfloat16",
        ROUNDED,
        (PARALLEL + "shard", "cast_forward_inputs=False", "cast_forward_inputs=True"),
    ),
    mutant(
        64,
        "gradients summed in bfloat16",
        ROUNDED,
        (
            PARALLEL + "shard",
            "precision_of(model).compute, torch.float32",
            "precision_of(model).compute, None",
        ),
    ),
    mutant(
        64,
        "the loss divided by one rank's rollouts",
        IGPO,
        (
            "minvenus.train.update:backward",
            '"step_sequences": len(rows)',
            '"step_sequences": len([row for row in share_packs(rows, 1) if row])',
        ),
    ),
    mutant(
        64,
        "numbers counted once for every rank that shares a pack",
        IGPO,
        ("minvenus.train.update:backward", "gather(packs, width=model.width)", "gather(packs)"),
    ),
    mutant(
        64,
        "a group split over the ranks",
        GROUP,
        ("train_igpo:add_questions", "share(source.of_step(step))", "source.of_step(step)"),
        ("train_igpo:add_questions", "config.group, name", "config.group // 2, name"),
    ),
    mutant(
        64,
        "the engine keeps the weights of the step before",
        COPY,
        ("minvenus.engine.engine:Engine.load_weights", "fill(self.runner.model, model)", "pass"),
    ),
    mutant(
        64,
        "every rank credits its own rollouts first",
        ORDER,
        (
            PARALLEL + "gather",
            "everywhere(mine)[::width]",
            "sorted(everywhere(mine), key=lambda own: str(own) != str(mine))",
        ),
    ),
    mutant(
        64,
        "results rank after rank instead of in the order of the questions",
        ORDER,
        (
            PARALLEL + "gather",
            "range(0, longest, each) for own in lists for result in own[i:i + each]",
            "[0] for own in lists for result in own",
        ),
    ),
    mutant(
        64,
        "positions begin again in every part of a pack",
        LONG,
        (
            "minvenus.model.qwen3:packed_positions",
            "torch.arange(start, end,",
            "torch.arange(0, end - start,",
        ),
    ),
    mutant(
        64,
        "heads of all ranks in the wrong order",
        LONG,
        (
            "minvenus.train.sequence:to_tokens",
            ".unflatten(0, (width, own)).transpose(0, 1)",
            ".unflatten(0, (own, width))",
        ),
    ),
    mutant(
        64,
        "every rank reads the first rows of a checkpoint",
        FILES,
        ("minvenus.model.split:own_rows", "* mesh.get_local_rank()", "* 0"),
    ),
    mutant(64, "every rank asks the judge", ORDER, (PARALLEL + "on_rank_0", "rank() == 0", "True")),
    mutant(
        64,
        "an error of one rank stays there",
        ERROR,
        (PARALLEL + "together", "everywhere(kept)", "[None, kept]"),
    ),
    mutant(
        64,
        "every rank tells the error of all",
        "train/test_parallel_runs.py::test_a_second_run_in_the_folder_is_refused_once",
        (PARALLEL + "processes", "(failed_alone() or 0)", "rank()"),
    ),
)
