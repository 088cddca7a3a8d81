"""The host tier holds what was used last, within its limit."""

from edgewise.engine.tiers.host import HostCache


def name(index: int) -> bytes:
    return index.to_bytes(32, "big")


def content(index: int, size: int = 8) -> memoryview:
    return memoryview(bytes([index]) * size)


def filled(count: int, limit: int) -> HostCache:
    cache = HostCache(8, limit)
    for index in range(count):
        cache.put(name(index), content(index))
    return cache


def test_the_least_recently_used_page_goes_first() -> None:
    cache = filled(3, limit=24)
    assert cache.get(name(0)) == content(0)
    cache.put(name(3), content(3))
    assert [index for index in range(4) if name(index) in cache] == [0, 2, 3]
    assert cache.nbytes == 24


def test_known_counts_from_the_start() -> None:
    cache = filled(3, limit=80)
    assert cache.known([name(0), name(1), name(7), name(2)]) == 2
    assert cache.known([name(7)]) == 0
    assert cache.known([]) == 0


def test_it_gives_back_what_is_asked_and_grows_again() -> None:
    cache = filled(5, limit=40)
    cache.shrink(10)
    assert (len(cache), cache.limit) == (3, 30)
    cache.put(name(9), content(9))
    assert len(cache) == 3
    cache.shrink(-6)
    assert cache.limit == 36
    cache.shrink(-1000)
    assert cache.limit == 40
    cache.shrink(10_000)
    assert (len(cache), cache.limit, cache.capacity) == (0, 0, 0)
    cache.put(name(1), content(1))
    assert len(cache) == 0


def test_clear_says_how_many() -> None:
    cache = filled(4, limit=80)
    assert cache.clear() == 4
    assert len(cache) == 0
    assert cache.get(name(0)) is None
