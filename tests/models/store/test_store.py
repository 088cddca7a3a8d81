"""Installing, reading, verifying and removing, with files on this disk as sources."""

from __future__ import annotations

import datetime
import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from edgewise.core.errors import BadModelFile, DigestMismatch, InvalidRequest, ModelNotFound, SourceUnavailable
from edgewise.models.catalog import Catalog, CatalogEntry
from edgewise.models.encoders.record import ladder_folder
from edgewise.models.lock import StoreBusy
from edgewise.models.sources.file import FileSource
from edgewise.models.store import Store
from tests.fakes.gguf import gguf_bytes

EntryFor = Callable[..., CatalogEntry]
Tree = Callable[[Path], dict[str, int]]


@pytest.fixture
def original(tmp_path: Path, payload: bytes) -> Path:
    path = tmp_path / "stick" / "original.gguf"
    path.parent.mkdir()
    path.write_bytes(payload)
    return path


@pytest.fixture
def entry(entry_for: EntryFor, payload: bytes, original: Path) -> CatalogEntry:
    return entry_for(payload, FileSource(original))


def blob(store: Store, payload: bytes) -> Path:
    return store.root / "blobs" / "sha256" / hashlib.sha256(payload).hexdigest()


def damage(path: Path) -> None:
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_pulled_model_resolves_to_read_only_files(store: Store, entry: CatalogEntry, payload: bytes) -> None:
    manifest = store.pull(entry)
    files = store.resolve("made-up")
    assert (files.name, files.format, files.digest) == ("made-up", "gguf", manifest.digest)
    assert dict(files.paths) == {"made-up.gguf": blob(store, payload)}
    assert files.paths["made-up.gguf"].read_bytes() == payload
    assert files.paths["made-up.gguf"].stat().st_mode & 0o777 == 0o444
    assert store.manifests() == [manifest]


def test_an_empty_store_is_not_created_by_looking(store: Store) -> None:
    assert store.manifests() == []
    assert store.verify() == []
    assert store.leftovers() == 0
    with pytest.raises(ModelNotFound, match=r"installed: none\).*`edgewise models pull smollm2-135m-instruct`"):
        store.resolve("starter")
    assert not store.root.exists()


def test_an_unknown_model_is_answered_with_what_is_installed(store: Store, entry: CatalogEntry) -> None:
    store.pull(entry)
    with pytest.raises(ModelNotFound, match=r"'other' is not installed \(installed: made-up\).*models list") as caught:
        store.resolve("other")
    assert (caught.value.code, caught.value.http_status, caught.value.param) == ("model_not_found", 404, "model")


def test_a_broken_catalog_makes_an_unknown_model_no_other_error(store: Store) -> None:
    folder = store.root.parent / "catalog.d"
    folder.mkdir(parents=True)
    (folder / "x.toml").write_text("?")
    with pytest.raises(ModelNotFound, match=r"the catalog cannot be read .*x\.toml is refused"):
        store.resolve("other")


def test_a_model_is_not_used_in_another_role(store: Store, entry: CatalogEntry) -> None:
    store.pull(entry)
    with pytest.raises(InvalidRequest, match="is for llm, not for vision"):
        store.resolve("made-up", "vision")


def test_the_name_of_a_set_resolves_to_its_llm(store: Store, original: Path) -> None:
    store.import_path(original, "smollm2-135m-instruct")
    assert store.resolve("starter").name == "smollm2-135m-instruct"


def test_a_changed_entry_replaces_the_model_and_frees_the_old_blob(
    store: Store, entry: CatalogEntry, entry_for: EntryFor, payload: bytes, original: Path
) -> None:
    old = store.pull(entry)
    original.write_bytes(payload[::-1])
    new = store.pull(entry_for(payload[::-1], FileSource(original)))
    assert new.digest != old.digest
    assert store.manifests() == [new]
    assert not blob(store, payload).exists()


def test_a_source_with_other_bytes_leaves_nothing(
    store: Store, entry: CatalogEntry, original: Path, payload: bytes, tree: Tree
) -> None:
    original.write_bytes(payload[::-1])
    with pytest.raises(DigestMismatch):
        store.pull(entry)
    assert tree(store.root) == {}


def test_a_source_that_is_not_there_is_named(store: Store, entry: CatalogEntry, original: Path) -> None:
    original.unlink()
    with pytest.raises(SourceUnavailable, match=r"original\.gguf is not a file that can be read"):
        store.pull(entry)


def test_shared_blobs_live_as_long_as_one_model_needs_them(
    store: Store, entry: CatalogEntry, original: Path, payload: bytes, tree: Tree
) -> None:
    store.pull(entry)
    store.import_path(original, "second")
    assert len([name for name in tree(store.root) if name.startswith("blobs")]) == 1
    assert store.remove("made-up").freed == 0
    assert store.resolve("second").paths["original.gguf"].read_bytes() == payload
    assert store.remove("second").freed == len(payload)
    assert tree(store.root) == {}
    with pytest.raises(ModelNotFound):
        store.remove("second")


def test_verify_finds_puts_aside_and_pull_mends(store: Store, entry: CatalogEntry, payload: bytes, tree: Tree) -> None:
    store.pull(entry)
    assert [report.state for report in store.verify()] == ["ok"]
    damage(blob(store, payload))
    assert store.resolve("made-up"), "the size alone does not tell"
    (report,) = store.verify(["made-up"])
    assert (report.model, report.file, report.state) == ("made-up", "made-up.gguf", "damaged")
    assert not blob(store, payload).exists()
    assert store.leftovers() == len(payload)
    assert [report.state for report in store.verify()] == ["missing"]
    with pytest.raises(BadModelFile, match="edgewise models pull made-up"):
        store.resolve("made-up")
    store.pull(entry)
    assert store.resolve("made-up").paths["made-up.gguf"].read_bytes() == payload
    assert store.leftovers() == 0
    assert [report.state for report in store.verify()] == ["ok"]


def test_a_damaged_imported_model_is_mended_by_importing_again(store: Store, original: Path, payload: bytes) -> None:
    store.import_path(original)
    damage(blob(store, payload))
    assert store.verify()[0].state == "damaged"
    store.import_path(original)
    assert store.verify()[0].state == "ok"


def test_a_cut_blob_is_noticed_without_hashing_and_mended(store: Store, entry: CatalogEntry, payload: bytes) -> None:
    store.pull(entry)
    os.truncate(blob(store, payload), 10)
    with pytest.raises(BadModelFile, match="missing or cut"):
        store.resolve("made-up")
    store.pull(entry)
    assert store.resolve("made-up").paths["made-up.gguf"].read_bytes() == payload


def test_a_damaged_manifest_hides_no_other_model_and_stops_no_removal(
    store: Store, entry: CatalogEntry, original: Path, payload: bytes, tree: Tree
) -> None:
    store.pull(entry)
    store.import_path(original, "second")
    (store.root / "manifests" / "second.json").write_text("{}")
    assert [manifest.name for manifest in store.manifests()] == ["made-up"]
    assert list(store.damaged()) == ["second"]
    assert [report.state for report in store.verify()] == ["ok", "damaged"]
    with pytest.raises(BadModelFile, match="No blob was removed"):
        store.remove("made-up")
    assert blob(store, payload).exists(), "it may belong to the damaged one"
    assert store.remove("second").freed == len(payload)
    assert tree(store.root) == {}


def test_a_damaged_manifest_is_mended_by_a_pull(store: Store, entry: CatalogEntry) -> None:
    good = store.pull(entry)
    (store.root / "manifests" / "made-up.json").write_bytes(b"")
    assert store.pull(entry).digest == good.digest
    assert store.damaged() == {}


def test_only_one_process_changes_the_store(store: Store, entry: CatalogEntry, original: Path) -> None:
    store.pull(entry)
    script = (
        "import sys, pathlib\n"
        "from edgewise.models.lock import store_lock\n"
        "with store_lock(pathlib.Path(sys.argv[1]) / 'lock'):\n"
        "    print('held', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", script, str(store.root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        with pytest.raises(StoreBusy, match=f"process {child.pid}:"):
            store.import_path(original, "second")
        with pytest.raises(StoreBusy):
            store.remove("made-up")
        assert store.resolve("made-up"), "reading goes on"
        assert [report.state for report in store.verify()] == ["ok"]
        child.kill()
    store.import_path(original, "second")
    assert len(store.manifests()) == 2


def test_threads_exclude_each_other_too(store: Store, entry: CatalogEntry, original: Path) -> None:
    seen: list[str] = []

    def second() -> None:
        try:
            store.import_path(original, "second")
        except StoreBusy as error:
            seen.append(error.message)

    def during(report: object) -> None:
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()

    store.pull(entry, during)
    assert seen
    assert f"process {os.getpid()}:" in seen[0]


def test_damage_is_told_even_where_nothing_can_be_put_aside(store: Store, entry: CatalogEntry, payload: bytes) -> None:
    store.pull(entry)
    damage(blob(store, payload))
    (store.root / "lock").unlink()
    (store.root / "lock").mkdir()
    (report,) = store.verify()
    assert report.state == "damaged"
    assert "could not be put aside" in report.detail


def test_leftovers_are_given_up_on_request(store: Store, entry: CatalogEntry, payload: bytes, tree: Tree) -> None:
    partial = store.root / "partial" / entry.files[0].file.sha256
    partial.parent.mkdir(parents=True)
    partial.write_bytes(payload[:1000])
    (store.root / "partial" / "work" / "pip-x").mkdir(parents=True)
    (store.root / "partial" / "work" / "pip-x" / "half.whl").write_bytes(b"x" * 10)
    assert store.leftovers() == 1010
    assert store.clear_partial().freed == 1010
    assert tree(store.root) == {}


def test_what_killed_writers_left_is_swept(store: Store, entry: CatalogEntry, tree: Tree) -> None:
    store.pull(entry)
    before = tree(store.root)
    (store.root / "manifests" / ".made-up.json.abc.tmp").write_text("half")
    (store.root / "partial" / "import-abc").mkdir()
    (store.root / "partial" / "import-abc" / "file").write_text("half")
    assert [manifest.name for manifest in store.manifests()] == ["made-up"]
    store.clear_partial()
    assert tree(store.root) == before


def test_an_imported_model_is_not_replaced_by_a_pull_of_its_name(
    store: Store, entry: CatalogEntry, tmp_path: Path
) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(gguf_bytes(b"other"))
    store.import_path(other, "made-up")
    with pytest.raises(InvalidRequest, match="taken by another model"):
        store.pull(entry)
    assert store.resolve("made-up").paths["other.gguf"].read_bytes() == gguf_bytes(b"other")


def test_the_catalog_and_the_clock_can_be_given(tmp_path: Path, entry: CatalogEntry) -> None:
    moment = datetime.datetime(2031, 2, 3, 4, 5, 6, tzinfo=datetime.timezone.utc)
    store = Store(tmp_path / "m", catalog=lambda: Catalog({"made-up": entry}), reserve_bytes=0, now=lambda: moment)
    with pytest.raises(ModelNotFound, match="`edgewise models pull made-up` installs it"):
        store.resolve("made-up")
    assert store.pull(entry).installed_at == "2031-02-03T04:05:06Z"


def test_the_store_knows_no_torch() -> None:
    script = (
        "import sys, edgewise.models.store, edgewise.models.catalog\n"
        "assert not {'torch', 'numpy', 'httpx', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_removing_a_model_removes_its_ladders_and_no_others(store: Store, entry: CatalogEntry, original: Path) -> None:
    gone, stays = store.pull(entry), store.import_path(original, "second").manifest
    if gone.digest == stays.digest:
        pytest.skip("the same content under two names")
    for digest in (gone.digest, stays.digest):
        place = ladder_folder(store.root, digest) / "place"
        place.mkdir(parents=True)
        (place / "winner.onnx").write_bytes(bytes(1000))
    removed = store.remove(gone.name)
    assert removed.freed >= 1000
    assert not ladder_folder(store.root, gone.digest).exists()
    assert ladder_folder(store.root, stays.digest).exists()
