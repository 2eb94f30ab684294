"""The known bugs of engines (26 to 32) as small wrong edits of our own code, each with the test that must notice it.

    python -m tests.mutants.engine [words of a mutant's description]

As in run.py, but the edited code sits in methods: the code of every function and method of the module is replaced in place.
"""

import contextlib
import importlib
import inspect
import sys
import types
from unittest import mock

from tests.mutants import run
from tests.mutants.catalogue import Mutant, mutant
from tests.mutants.run import edited_source

PAGES, ENGINE, RUNNER, SAMPLER, DENSE, SEQUENCE, PACKED = (
    f"minvenus.engine.{name}" for name in ("pages", "engine", "runner", "sampler", "dense", "sequence", "score_packed"))
PAGED = "minvenus.kernels.paged"
POOL, WHOLE, SCORE, DRAW = (f"engine/test_{name}.py::" for name in ("pages", "engine", "score", "sampler"))
CHUNKS = WHOLE + "test_greedy_tokens_are_those_of_the_model_for_every_page_and_chunk_size[16-7]"
BOUNDARIES = SCORE + "test_the_boundaries_of_a_living_sequence_cost_the_continuations_only"

MUTANTS = (
    mutant(26, "pages are still found after a weight update", ENGINE, WHOLE + "test_new_weights_make_new_tokens_and_new_scores",
           ("        self.pool.forget()\n", "")),
    mutant(26, "forgetting leaves the index as it was", PAGES,
           POOL + "test_nothing_is_found_after_forgetting_and_open_tables_are_refused",
           ("        self._index.clear()\n        self._key, self._content = [None] * self.count, [None] * self.count\n", "")),
    mutant(26, "fused copies of the weights survive a weight update", RUNNER,
           WHOLE + "test_new_weights_make_new_tokens_and_new_scores", ("        self._fused = None\n", "")),
    mutant(27, "a reused page keeps its old key", PAGES, POOL + "test_a_reused_page_is_not_found_under_its_old_tokens",
           ("        self._unlist(page)\n        self._references[page] = 1\n", "        self._references[page] = 1\n")),
    mutant(27, "a listed page is written in place and stays listed", PAGES,
           POOL + "test_writing_into_a_listed_page_whose_other_holders_are_gone_unlists_it",
           ("            self._unlist(table.pages[first])  ", "            pass  ")),
    mutant(28, "a prompt of full pages is taken whole", PAGES, POOL + "test_a_fully_known_prompt_leaves_a_token_to_run",
           ("range(0, len(tokens) - self.page_size, ", "range(0, len(tokens) - self.page_size + 1, ")),
    mutant(28, "a job may take everything from the cache", SEQUENCE,
           WHOLE + "test_new_weights_make_new_tokens_and_new_scores",
           ("else self.goal - 1", "else self.goal")),
    mutant(29, "appended tokens see each other both ways", PAGED, CHUNKS,
           ("    seen = lengths - new + index + 1  ", "    seen = lengths + 0 * index  ")),
    mutant(29, "a packed continuation sees its own future", PACKED,
           SCORE + "test_the_packed_form_runs_the_trajectory_once_and_every_continuation_once",
           (".tril(total - count)", "")),
    mutant(29, "a packed continuation sees the trajectory behind its prefix", PACKED,
           SCORE + "test_the_packed_form_runs_the_trajectory_once_and_every_continuation_once",
           ("torch.cat((k[:n - 1], k[a:b])), torch.cat((v[:n - 1], v[a:b]))",
            "torch.cat((k[:length], k[a:b])), torch.cat((v[:length], v[a:b]))")),
    mutant(30, "positions restart with every chunk", RUNNER, CHUNKS,
           ("self._tensor(positions), attend, rows)", "self._tensor(positions - starts[owner]), attend, rows)")),
    mutant(30, "positions restart where a preempted sequence comes back", RUNNER,
           WHOLE + "test_preemption_in_the_middle_of_a_turn_goes_on_where_it_was",
           ("self._tensor(positions), attend, rows)",
            "self._tensor(positions - first[owner] * (positions >= first[owner])), attend, rows)"),
           ("        def attend(layer, q, k, v):\n            k_pages",
            "        first = numpy.array([len(c.sequence.tokens) - len(getattr(c.sequence.job, 'tokens', ())) for c in piece])\n"
            "        def attend(layer, q, k, v):\n            k_pages")),
    mutant(31, "unwritten slots of a gathered page are only masked", PAGED, BOUNDARIES,
           ("tokens.index_fill_(0, group.dead, 0.0)", "pass")),
    mutant(31, "one slot too many is read", RUNNER, CHUNKS,
           ("self._tensor(lengths)\n",
            "self._tensor(numpy.minimum(lengths + 1, [size * len(c.sequence.table.pages) for c in piece]))\n")),
    mutant(31, "rows behind a sequence's end are not masked", DENSE, CHUNKS,
           ("if mask is not None:", "if mask is not None and not len(mask):")),
    mutant(32, "the temperature is applied when sampling and not in the stored log-prob", SAMPLER,
           DRAW + "test_both_log_probs_are_at_the_sampling_temperature",
           ("logprobs = checked(p.gather(1,", "logprobs = checked(logits.softmax(dim=-1).gather(1,")),
    mutant(32, "the temperature is applied to top-k and not to the log-prob of the plain softmax", SAMPLER,
           DRAW + "test_both_log_probs_are_at_the_sampling_temperature",
           ("plain = scaled(logits, sampling.plain_temperature).log_softmax(dim=-1)", "plain = logits.log_softmax(dim=-1)")),
    mutant(32, "the temperature is not applied when scoring", RUNNER, SCORE + "test_scores_are_taken_at_the_given_temperature",
           ("self._tensor(targets), temperature).tolist()", "self._tensor(targets)).tolist()")),
    mutant(32, "top-p is applied when drawing and not in the log-prob of the draw", SAMPLER,
           DRAW + "test_both_log_probs_are_at_the_sampling_temperature",
           ("for x in (plain, drawn))", "for x in (plain, plain))")),
)


def functions(module) -> dict[str, types.FunctionType]:
    """Every function of a module and every method of its classes, by qualified name, without decorators."""
    found = {}
    for holder in [module, *(c for c in vars(module).values() if inspect.isclass(c) and c.__module__ == module.__name__)]:
        for value in vars(holder).values():
            f = inspect.unwrap(value.fget if isinstance(value, property) else value)
            if inspect.isfunction(f) and f.__module__ == module.__name__:
                found[f.__qualname__] = f
    return found


@contextlib.contextmanager
def applied(m: Mutant):
    module, source = importlib.import_module(m.module), edited_source(m)
    wrong = types.ModuleType(m.module)
    with mock.patch.dict(sys.modules, {m.module: wrong}):              # dataclasses look their module up while it is executed
        exec(compile(source, f"<mutant of {m.module}>", "exec"), wrong.__dict__)
    originals, edited = functions(module), functions(wrong)
    codes = {name: f.__code__ for name, f in originals.items()}
    try:
        for name, f in originals.items():
            f.__code__ = edited[name].__code__
        yield
    finally:
        for name, f in originals.items():
            f.__code__ = codes[name]


def main(words: list[str]) -> int:
    with mock.patch.object(run, "MUTANTS", MUTANTS), mock.patch.object(run, "applied", applied):
        return run.main(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
