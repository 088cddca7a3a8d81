"""Pages on disk come back bit for bit or not at all: cuts, flips, foreign files, full and read-only disks, two engines."""

import os
import random
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from edgewise.engine.tiers import folder, run_file
from edgewise.engine.tiers.disk import DiskSpec, DiskStore

PAGE = 1000
Page = tuple[bytes, memoryview]


def page(index: int, seed: int = 0) -> Page:
    rng = random.Random(f"{index} {seed}")
    return rng.randbytes(32), memoryview(rng.randbytes(PAGE))


def spec_of(root: Path, **changes: object) -> DiskSpec:
    key = folder.key_of("sha256:ab", "torch-1/cpu", 16, "template")
    base = DiskSpec(
        root=root,
        limit=2**20,
        model="tiny",
        model_digest="sha256:ab",
        numeric_class="torch-1/cpu",
        key=key,
        page_bytes=PAGE,
        reserve=0,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def opened(root: Path, notices: list[str] | None = None, **changes: object) -> DiskStore:
    told = [] if notices is None else notices
    store = DiskStore(spec_of(root, **changes), notify=lambda kind, message: told.append(kind))
    store.open()
    return store


def read(store: DiskStore, pages: list[Page]) -> list[Page]:
    got: list[Page] = []
    count = store.read([name for name, _ in pages], lambda name, content: got.append((name, content)))
    assert count == len(got)
    return got


def files(root: Path) -> list[Path]:
    return [file.path for file in folder.all_files(root)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "kv"


def test_pages_come_back_after_a_restart(root: Path) -> None:
    pages = [page(index) for index in range(5)]
    store = opened(root)
    assert store.write(pages[:3]) is not None
    assert store.write(pages[1:]) is not None  # two are there already
    assert store.write(pages) is None
    for again in (store, opened(root)):
        assert len(again) == 5
        assert again.known([name for name, _ in pages]) == 5
        assert read(again, pages) == pages
        assert read(again, [pages[0], page(77), pages[1]]) == [pages[0]]
        assert (again.counts.refused, again.counts.hits, again.counts.misses) == (0, 6, 2)


def test_files_are_the_owners_alone_and_hold_no_token(root: Path) -> None:
    path = opened(root).write([page(0)])
    assert path is not None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert path.stat().st_size == run_file.run_size(1, PAGE)


@pytest.mark.parametrize("seed", range(4))
def test_any_flipped_bit_is_refused_before_use(root: Path, seed: int) -> None:
    pages = [page(index) for index in range(3)]
    path = opened(root).write(pages)
    assert path is not None
    sound = path.read_bytes()
    used = 56 + 3 * 48 + 16
    rng = random.Random(seed)
    for at in [*rng.sample(range(used), 12), *rng.sample(range(4096, len(sound)), 12)]:
        damaged = bytearray(sound)
        damaged[at] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        store = opened(root)
        got = read(store, pages)
        assert got == pages[: len(got)]
        assert len(got) < 3
        assert store.counts.refused == 1
        assert not path.exists()
        assert read(store, pages) == []
        path.write_bytes(sound)
    assert read(opened(root), pages) == pages


def test_a_file_cut_anywhere_is_refused(root: Path) -> None:
    pages = [page(index) for index in range(3)]
    path = opened(root).write(pages)
    assert path is not None
    sound = path.read_bytes()
    for length in (0, 7, 55, 56, 100, 4000, 4096, 4097, len(sound) - 1, len(sound) + 1):
        path.write_bytes(sound[:length].ljust(length, b"x"))
        store = opened(root)
        assert len(store) == 0
        assert store.counts.refused == 1
        assert not path.exists()


def test_a_file_cut_while_it_is_in_use_is_refused(root: Path) -> None:
    pages = [page(index) for index in range(3)]
    store = opened(root)
    path = store.write(pages)
    assert path is not None
    os.truncate(path, path.stat().st_size - PAGE - 1)
    assert read(store, pages) == pages[:1]
    assert store.counts.refused == 1
    assert not path.exists()


def test_a_page_in_anothers_place_is_refused(root: Path) -> None:
    pages = [page(0), page(1)]
    path = opened(root).write(pages)
    assert path is not None
    data = bytearray(path.read_bytes())
    data[4096 : 4096 + PAGE], data[4096 + PAGE :] = data[4096 + PAGE :], data[4096 : 4096 + PAGE]
    path.write_bytes(data)
    assert read(opened(root), pages) == []


@pytest.mark.parametrize("change", ["digest", "class", "tokenizer", "page size", "version"])
def test_files_for_something_else_are_refused(root: Path, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if change == "version":
        monkeypatch.setattr(run_file, "VERSION", 2)
    path = opened(root).write([page(0)])
    monkeypatch.undo()
    assert path is not None
    key = {
        "digest": folder.key_of("sha256:cd", "torch-1/cpu", 16, "template"),
        "class": folder.key_of("sha256:ab", "torch-2/cpu", 16, "template"),
        "tokenizer": folder.key_of("sha256:ab", "torch-1/cpu", 16, "other"),
    }.get(change, spec_of(root).key)
    changes = {"key": key, "page_bytes": 500 if change == "page size" else PAGE}
    other = DiskStore(spec_of(root, **changes), notify=lambda kind, message: None)
    assert other._folder.exists() == (change in ("page size", "version"))
    other._folder.mkdir(exist_ok=True)
    moved = path.rename(other._folder / path.name)
    other.open()
    assert (len(other), other.counts.refused) == (0, 1)
    assert not moved.exists()


def test_names_that_mean_nothing_here_are_left_alone(root: Path) -> None:
    store = opened(root)
    for stranger in (root / "notes.txt", store._folder / "README", root / "file.kv"):
        stranger.write_text("keep")
    (store._folder / "link.kv").symlink_to("/etc/hostname")
    assert len(opened(root)) == 0
    assert (root / "notes.txt").exists()
    assert Path("/etc/hostname").exists()


def test_what_a_killed_writer_left_is_removed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(root)
    monkeypatch.setattr(Path, "rename", lambda *_: os._exit(9))
    child = os.fork()
    if child == 0:
        store.write([page(0)])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    (part,) = store._folder.glob("*.part")
    os.utime(part, (time.time() - 60,) * 2)
    again = opened(root)
    assert not part.exists()
    assert len(again) == 0
    assert again.counts.refused == 0


def test_a_file_being_written_by_another_engine_is_no_orphan(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(root)
    rename: Callable[[Path, Path], Path] = Path.rename

    def old_and_seen_by_others(part: Path, target: Path) -> Path:
        os.utime(part, (time.time() - 60,) * 2)
        assert len(opened(root)) == 0
        assert part.exists()
        return rename(part, target)

    monkeypatch.setattr(Path, "rename", old_and_seen_by_others)
    assert store.write([page(0)]) is not None
    assert len(opened(root)) == 1


def test_the_files_used_longest_ago_make_room(root: Path) -> None:
    size = run_file.run_size(2, PAGE)
    store = opened(root, limit=3 * size)
    runs = [[page(2 * index), page(2 * index + 1)] for index in range(4)]
    for age, run in enumerate(runs[:3]):
        path = store.write(run)
        assert path is not None
        os.utime(path, (1000 + age,) * 2)
    assert read(store, runs[0]) == runs[0]  # touched
    assert store.write(runs[3]) is not None
    assert [bool(store.known([run[0][0]])) for run in runs] == [True, False, True, True]
    assert store.used_bytes == sum(path.stat().st_size for path in files(root)) == 3 * size
    small = opened(root, limit=size)
    assert (len(files(root)), len(small)) == (1, 2)
    assert small.write([page(index) for index in range(50, 60)]) is None  # larger than all
    assert small.off


def test_the_limit_counts_all_models(root: Path) -> None:
    size = run_file.run_size(1, PAGE)
    other = spec_of(root, key="another", model_digest="sha256:cd", model="other")
    first = DiskStore(other, notify=lambda kind, message: None)
    first.open()
    first.write([page(0)])
    store = opened(root, limit=size)
    store.write([page(1)])
    assert len(files(root)) == 1
    assert read(first, [page(0)]) == []  # gone, and no error
    assert first.counts.refused == 0
    assert len(first) == 0


def test_two_engines_of_one_model_share_a_folder(root: Path) -> None:
    pages = [page(index) for index in range(4)]
    left, right = opened(root), opened(root)
    left.write(pages[:3])
    right.write(pages[1:])
    assert read(opened(root), pages) == pages
    for path in files(root):
        path.unlink()
    assert read(left, pages) == []
    assert len(left) == 0
    assert left.counts.refused == 0


def test_a_full_disk_switches_the_tier_off_and_space_brings_it_back(small_disk: Path) -> None:
    notices: list[str] = []
    clock = [0.0]
    store = DiskStore(
        spec_of(small_disk / "kv", limit=2**30),
        notify=lambda kind, message: notices.append(kind),
        now=lambda: clock[0],
    )
    store.open()
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * 900_000)
    assert store.write([page(index) for index in range(200)]) is None
    assert notices == ["disk_cache_off"]
    assert not store.accepts()
    assert store.counts.dropped == 200
    assert not list(small_disk.rglob("*.part"))
    filler.unlink()
    clock[0] += 30
    assert store.accepts()
    assert store.write([page(0)]) is not None
    assert notices == ["disk_cache_off", "disk_cache_on"]
    assert not store.off


def test_the_cache_gives_way_when_others_fill_the_disk(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(root, reserve=10_000)
    for index in range(6):
        path = store.write([page(index)])
        assert path is not None
        os.utime(path, (1000 + index,) * 2)
    size = run_file.run_size(1, PAGE)

    def free(_: object) -> object:
        return type("Usage", (), {"free": 10_000 + 6 * size - size * len(files(root)) - 2 * size})

    monkeypatch.setattr("shutil.disk_usage", free)
    assert store.write([page(9)]) is not None
    assert len(files(root)) == 4
    assert len(store) == 4


def test_a_disk_that_refuses_reads_is_a_miss(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(root)
    store.write([page(0)])

    def fault(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.preadv", fault)
    assert read(store, [page(0)]) == []
    assert store.counts.refused == 1


def test_a_file_that_cannot_be_opened_is_a_miss_and_costs_no_other(root: Path) -> None:
    store = opened(root)
    first, second = store.write([page(0)]), store.write([page(1)])
    assert first is not None
    assert second is not None
    second.unlink()
    second.symlink_to(first)
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert read(store, [page(0), page(1)]) == [page(0)]
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert store.counts.refused == 0
    assert read(store, [page(0)]) == [page(0)]
    assert len(store) == 1


def test_one_unreadable_file_at_the_start_does_not_hide_the_others(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(root)
    bad, good = store.write([page(0)]), store.write([page(1)])
    assert bad is not None
    assert good is not None
    os.utime(bad, (1000, 1000))
    honest, broken = os.pread, bad.stat()

    def fault(descriptor: int, *rest: int) -> bytes:
        if os.path.samestat(os.fstat(descriptor), broken):
            raise OSError(5, "Input/output error")
        return honest(descriptor, *rest)

    monkeypatch.setattr("os.pread", fault)
    again = opened(root)
    assert not again.off
    assert (len(again), again.counts.refused) == (1, 1)
    assert read(again, [page(1)]) == [page(1)]


def test_what_is_cleared_counts_no_longer(root: Path) -> None:
    store = opened(root)
    other = DiskStore(
        spec_of(root, key="k", model="other", model_digest="sha256:cd"), notify=lambda kind, message: None
    )
    other.open()
    other.write([page(2)])
    for index in range(2):
        store.write([page(index)])
        read(store, [page(index)])
    assert store.used_bytes == 3 * run_file.run_size(1, PAGE)
    assert store.forget_all() == 2
    folder.clear(root, "tiny")
    assert store.used_bytes == run_file.run_size(1, PAGE)
    assert not store._touched
    store.write([page(7)])
    assert store.used_bytes == 2 * run_file.run_size(1, PAGE)


def test_files_that_are_gone_are_forgotten_whole(root: Path) -> None:
    store = opened(root)
    for index in range(8):
        path = store.write([page(index)])
        assert path is not None
        assert read(store, [page(index)])
        store.discard(path)
    assert not store._touched
    assert not store._files


def test_a_root_that_cannot_be_made_switches_the_tier_off(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    notices: list[str] = []
    store = opened(tmp_path / "file" / "kv", notices)
    assert notices == ["disk_cache_off"]
    assert store.off
    assert len(store) == 0


def test_the_folder_tells_and_forgets_by_model(root: Path) -> None:
    opened(root).write([page(0), page(1)])
    other = DiskStore(
        spec_of(root, key="k", model="other", model_digest="sha256:cd"), notify=lambda kind, message: None
    )
    other.open()
    other.write([page(2)])
    assert {(item.model, item.files) for item in folder.stored(root)} == {("tiny", 1), ("other", 1)}
    assert folder.clear(root, "tiny") == (1, run_file.run_size(2, PAGE))
    assert [item.model for item in folder.stored(root)] == ["other"]
    assert folder.clear(root) == (1, run_file.run_size(1, PAGE))
    assert folder.stored(root) == []
    assert folder.clear(root / "nowhere") == (0, 0)
