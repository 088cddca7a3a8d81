"""The page pool as a state machine: whatever happens, every page is in exactly one state and shared pages agree."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from edgewise.engine.pages import PagePool
from edgewise.engine.prefix import chain_start, extend_chain, page_hash

PAGES = 12


class PoolMachine(RuleBasedStateMachine):
    """Users allocate, name, share and release; a model remembers who holds what."""

    holdings = Bundle("holdings")

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(PAGES)
        self.users = [0] * PAGES
        self.content: dict[bytes, int] = {}

    @rule(target=holdings, count=st.integers(1, PAGES))
    def allocate(self, count: int) -> list[int]:
        free_before = self.pool.available
        pages = self.pool.allocate(count)
        if pages is None:
            assert count > free_before
            assert self.pool.available == free_before
            return []
        assert len(set(pages)) == count
        for page in pages:
            assert self.users[page] == 0
            self.users[page] = 1
            self.content = {name: held for name, held in self.content.items() if held != page}
        return pages

    @rule(pages=holdings, data=st.data())
    def name(self, pages: list[int], data: st.DataObject) -> None:
        if not pages or any(self.users[page] == 0 for page in pages):
            return
        page = data.draw(st.sampled_from(pages))
        name = page_hash(b"", [data.draw(st.integers(0, 5))])
        self.pool.name(page, name)
        if name not in self.content and page not in self.content.values():
            self.content[name] = page

    @rule(target=holdings, words=st.lists(st.integers(0, 5), max_size=4))
    def share(self, words: list[int]) -> list[int]:
        chain = [page_hash(b"", [word]) for word in words]
        expected = []
        for name in chain:
            if name not in self.content:
                break
            expected.append(self.content[name])
        pages = self.pool.acquire_prefix(chain)
        assert pages == expected
        for page in pages:
            self.users[page] += 1
        return pages

    @rule(pages=consumes(holdings))
    def release(self, pages: list[int]) -> None:
        self.pool.release(pages)
        for page in pages:
            self.users[page] -= 1

    @invariant()
    def states_add_up(self) -> None:
        in_use = sum(1 for count in self.users if count)
        assert self.pool.in_use == in_use
        assert self.pool.free + self.pool.cached + in_use == PAGES
        cached = [page for page in self.content.values() if self.users[page] == 0]
        assert self.pool.cached == len(cached)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def test_release_twice_is_an_error() -> None:
    pool = PagePool(2)
    pages = pool.allocate(1)
    assert pages is not None
    pool.release(pages)
    with pytest.raises(ValueError, match="more often"):
        pool.release(pages)


def test_the_tail_of_a_prefix_is_evicted_first() -> None:
    pool = PagePool(3)
    pages = pool.allocate(3)
    assert pages is not None
    chain: list[bytes] = []
    extend_chain(chain, chain_start(""), list(range(48)), 16, 48)
    for page, name in zip(pages, chain, strict=True):
        pool.name(page, name)
    pool.release(pages)
    assert pool.allocate(1) == [pages[2]]
    assert pool.acquire_prefix(chain) == pages[:2]


def test_salts_separate_tenants() -> None:
    tokens = list(range(32))
    ours: list[bytes] = []
    theirs: list[bytes] = []
    extend_chain(ours, chain_start("a"), tokens, 16, 32)
    extend_chain(theirs, chain_start("b"), tokens, 16, 32)
    assert not set(ours) & set(theirs)


def test_without_a_cache_nothing_is_kept() -> None:
    pool = PagePool(2, keep_cached=False)
    pages = pool.allocate(2)
    assert pages is not None
    pool.name(pages[0], page_hash(b"", [1]))
    pool.release(pages)
    assert (pool.free, pool.cached) == (2, 0)


def test_dropping_the_cache_frees_all_of_it() -> None:
    pool = PagePool(2)
    pages = pool.allocate(2)
    assert pages is not None
    pool.name(pages[0], page_hash(b"", [1]))
    pool.release(pages)
    assert pool.cached == 1
    assert pool.drop_cached() == 1
    assert (pool.free, pool.cached) == (2, 0)
    assert pool.acquire_prefix([page_hash(b"", [1])]) == []
