"""Known traps of training in several processes (64): wrong sums, wrong shares, wrong order, stale
copies."""

from tests.mutants.mutant import mutant

SFT = "train/test_parallel.py::test_sft_in_two_processes_has_the_gradient_of_one"
IGPO = "train/test_parallel.py::test_igpo_in_two_processes_has_the_gradients_and_numbers_of_one"
COPY = (
    "train/test_precision.py::"
    "test_as_on_a_gpu_the_engine_has_a_bfloat16_copy_that_follows_the_master_weights"
)
GROUP = (
    "train/test_parallel.py::"
    "test_a_run_in_two_processes_has_the_rollouts_and_advantages_of_one[3-current-3]"
)
ERROR = "train/test_parallel.py::test_an_error_of_one_rank_comes_to_all_with_what_it_says"
FILES = (
    "train/test_parallel.py::"
    "test_a_checkpoint_has_the_same_bytes_whoever_wrote_it_and_whoever_read_it[False]"
)
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
        "angles of positions rounded to bfloat16",
        ROUNDED,
        (PARALLEL + "shard", "cast_forward_inputs=False", "cast_forward_inputs=True"),
    ),
    mutant(
        64,
        "gradients summed in bfloat16",
        ROUNDED,
        PARALLEL + "shard",
        "precision_of(model).compute, torch.float32",
        "precision_of(model).compute, None",
    ),
    mutant(
        64,
        "the loss divided by one rank's rollouts",
        IGPO,
        "minvenus.train.update:backward",
        "len(minibatch), tokens)",
        "len(rank_packs([row.example for row in rows], 100)), tokens)",
    ),
    mutant(
        64,
        "a group split over the ranks",
        GROUP,
        (
            "train_igpo:rollouts",
            "share(list(enumerate(source.of_step(step))))",
            "enumerate(source.of_step(step))",
        ),
        ("train_igpo:rollouts", "group_size, name", "group_size // 2, name"),
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
        PARALLEL + "gather",
        "lists = everywhere(results)",
        "lists = sorted(everywhere(results), key=lambda other: str(other) != str(results))",
    ),
    mutant(
        64,
        "results rank after rank instead of in the order of the questions",
        ORDER,
        PARALLEL + "gather",
        "return ordered",
        "return [result for results in lists for result in results]",
    ),
    mutant(
        64,
        "every rank reads the first rows of a checkpoint",
        FILES,
        ("minvenus.model.weights:local_rows", "* mesh.get_local_rank()", "* 0"),
    ),
    mutant(64, "every rank asks the judge", ORDER, (PARALLEL + "on_rank_0", "rank() == 0", "True")),
    mutant(
        64,
        "an error of one rank stays there",
        ERROR,
        (PARALLEL + "together", "everywhere(message)", "[None, message]"),
    ),
    mutant(
        64,
        "every rank tells the error of all",
        "train/test_parallel_runs.py::test_a_second_run_in_the_folder_is_refused_once",
        (PARALLEL + "processes", "(failed_alone() or 0)", "rank()"),
    ),
)
