"""The page pool on its own: worked cases, then a machine with the memory as a dictionary."""

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from minvenus.engine.pages import PagePool
from tests.engine.models import check_pool


def compute(pool, table, tokens):
    """What an engine does: make room for the new tokens, compute them, commit."""
    count = len(tokens) - table.num_computed
    copies = pool.extend(table, count)
    pool.commit(table, tokens, count)
    return copies


def test_a_known_prefix_is_found_page_by_page_and_only_with_the_same_tokens_before_it():
    pool = PagePool(pages=8, page_size=2)
    compute(pool, first := pool.open([1, 2, 3, 4, 5]), [1, 2, 3, 4, 5])
    second = pool.open([1, 2, 3, 4, 9])
    assert (
        second.pages == first.pages[:2] and second.num_computed == 4
    )  # the partial third page is not shared
    assert pool.open([1, 2, 8, 8]).pages == first.pages[:1]
    assert pool.open([3, 4, 5]).pages == []  # the same two tokens, but at another place


def test_a_fully_known_prompt_leaves_a_token_to_run():
    pool = PagePool(pages=8, page_size=2)
    compute(pool, pool.open([1, 2, 3, 4]), [1, 2, 3, 4])
    assert pool.open([1, 2, 3, 4]).num_computed == 2
    assert pool.open([1, 2]).num_computed == 0
    assert pool.open([1]).num_computed == 0


def test_a_fork_that_ends_at_a_page_border_copies_nothing_and_leaves_the_page_findable():
    pool = PagePool(pages=8, page_size=2)
    compute(pool, table := pool.open([1, 2, 3, 4, 5]), [1, 2, 3, 4, 5])
    fork = pool.fork(table, 4)
    assert fork.pages == table.pages[:2]
    assert compute(pool, fork, [1, 2, 3, 4, 9]) == []
    assert fork.pages[:2] == table.pages[:2] and fork.pages[2] != table.pages[2]
    assert pool.open([1, 2, 3, 4, 7]).num_computed == 4


def test_writing_into_a_listed_page_whose_other_holders_are_gone_unlists_it():
    pool = PagePool(pages=8, page_size=4)
    compute(pool, table := pool.open([1, 2, 3, 4]), [1, 2, 3, 4])
    fork = pool.fork(table, 2)
    pool.free(table)
    assert compute(pool, fork, [1, 2, 9]) == []  # in place: nobody else holds it
    assert pool.open([1, 2, 3, 4, 5]).num_computed == 0  # and so 1 2 3 4 is no longer there


def test_freed_pages_stay_findable_until_reused_and_the_tail_is_reused_first():
    pool = PagePool(pages=3, page_size=2)
    compute(pool, table := pool.open([1, 2, 3, 4, 5, 6]), [1, 2, 3, 4, 5, 6])
    pool.free(table)
    compute(pool, other := pool.open([9, 9]), [9, 9])  # takes one page: that of 5 6
    again = pool.open([1, 2, 3, 4, 5, 6, 7])
    assert again.num_computed == 4
    pool.free(again)
    pool.free(other)
    compute(pool, pool.open([7, 7]), [7, 7])  # 3 4 goes: given back first, because it is the tail
    assert pool.open([1, 2, 3, 4, 5]).num_computed == 2
    assert pool.open([9, 9, 9]).num_computed == 2


def test_a_page_that_nobody_could_find_is_reused_before_one_that_can_be_found():
    pool = PagePool(pages=3, page_size=2)
    compute(pool, table := pool.open([1, 2, 3, 4]), [1, 2, 3, 4])
    pool.free(table)
    for half in ([8], [9]):  # the second takes the page of the first
        compute(pool, table := pool.open(half), half)
        pool.free(table)
    assert pool.open([1, 2, 3, 4, 5]).num_computed == 4


def test_nothing_is_found_after_forgetting():
    pool = PagePool(pages=4, page_size=2)
    compute(pool, table := pool.open([1, 2, 3]), [1, 2, 3])
    pool.free(table)
    pool.clear_index()
    assert pool.open([1, 2, 3]).num_computed == 0


def test_too_few_pages_change_nothing():
    pool = PagePool(pages=2, page_size=2)
    compute(pool, table := pool.open([1, 2, 3]), [1, 2, 3])
    assert pool.extend(table, 5) is None
    assert table.num_computed == 3 and len(table.pages) == 2
    assert pool.extend(pool.fork(table, 3), 1) is None  # there is room, but no page for a copy


class PoolMachine(RuleBasedStateMachine):
    """Tokens are 0 and 1, so prefixes meet often. `memory[page, slot]` is the whole prefix that the
    slot's value depends on, as with keys and values: every slot that a table counts as computed
    must hold the prefix of that very sequence."""

    tables = Bundle("tables")
    some = st.lists(st.integers(0, 1), min_size=1, max_size=9)

    def __init__(self):
        super().__init__()
        self.pool = PagePool(pages=7, page_size=2)
        self.memory, self.live = {}, {}

    def write(self, table, tokens):
        start = table.num_computed
        copies = self.pool.extend(table, len(tokens) - start)
        if copies is None:
            return
        for source, target in copies:
            for slot in range(self.pool.page_size):
                self.memory[target, slot] = self.memory.get((source, slot))
        for i in range(start, len(tokens)):
            page = table.pages[i // 2]
            assert sum(page in other.pages for other in self.live) == 1, (
                "written while another table reads it"
            )
            self.memory[page, i % 2] = tuple(tokens[: i + 1])
        self.pool.commit(table, tokens, len(tokens) - start)
        self.live[table] = tokens

    @rule(target=tables, tokens=some)
    def open(self, tokens):
        table = self.pool.open(tokens)
        assert table.num_computed < len(tokens)
        self.live[table] = tokens[: table.num_computed]
        self.write(table, tokens)
        return table

    @rule(table=tables, more=some)
    def grow(self, table, more):
        self.write(table, self.live[table] + more)

    @rule(target=tables, table=tables, share=st.floats(0, 1))
    def fork(self, table, share):
        length = round(share * table.num_computed)
        copy = self.pool.fork(table, length)
        self.live[copy] = self.live[table][:length]
        return copy

    @rule(table=consumes(tables))
    def free(self, table):
        self.pool.free(table)
        del self.live[table]

    @rule()
    def forget(self):
        if not self.live:
            self.pool.clear_index()
            self.memory.clear()  # a page found now would have no content

    @invariant()
    def every_table_reads_its_own_sequence(self):
        check_pool(self.pool, self.live)
        for table, tokens in self.live.items():
            assert table.num_computed == len(tokens)
            for i in range(len(tokens)):
                assert self.memory[table.pages[i // 2], i % 2] == tuple(tokens[: i + 1])

    def teardown(self):
        for table in list(self.live):
            self.pool.free(table)
        assert self.pool.used == 0


TestPool = PoolMachine.TestCase
