"""kill -9: after a death at any point the old state is usable, and the next attempt finishes the work.

Deaths are real: a child process sends itself SIGKILL, either at its n-th change of the file system (seen by an audit hook,
for every n there is), or when a random number of bytes has passed.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgewise.core.errors import ModelNotFound
from edgewise.models.catalog import CatalogEntry
from edgewise.models.sources.file import FileSource
from edgewise.models.sources.https import HttpsSource
from edgewise.models.store import Store
from tests.fakes.gguf import gguf_bytes
from tests.fakes.model_server import Page

EntryFor = Callable[..., CatalogEntry]

CHILD = """
import os, pathlib, signal, sys
from edgewise.models.catalog_types import CatalogEntry, CatalogFile
from edgewise.models.manifest import ModelInfo, StoredFile
from edgewise.models.sources.file import FileSource
from edgewise.models.sources.https import HttpsSource
from edgewise.models.store import Store
import edgewise.core.files, edgewise.models.intake, json, tempfile, encodings.idna, http.client, ssl

root, task, argument, at_change, at_byte = sys.argv[1:]
changes = 0

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def count(event, arguments):
    global changes
    writes = event == "open" and (arguments[1] not in ("r", "rb", None) or (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR))
    if event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.link", "os.truncate", "fsync") or writes:
        changes += 1
        if changes == int(at_change):
            die()

def fsync(descriptor, real=os.fsync):
    sys.audit("fsync")
    real(descriptor)

def watch(report):
    if report.done >= int(at_byte) >= 0:
        die()

os.fsync = fsync
store = Store(pathlib.Path(root), reserve_bytes=0)
if int(at_change):
    sys.addaudithook(count)
if task == "pull":
    store.pull(eval(argument), watch)
elif task == "import":
    store.import_path(pathlib.Path(argument), "new", progress=watch)
else:
    store.remove("old")
"""


def run_child(store: Store, task: str, argument: object, *, at_change: int = 0, at_byte: int = -1) -> bool:
    """Runs one task in a process that dies at the given point; whether it lived to the end."""
    command = [sys.executable, "-c", CHILD, str(store.root), task, str(argument), str(at_change), str(at_byte)]
    child = subprocess.run(command, timeout=60, check=False, capture_output=True, text=True)
    assert child.returncode in (0, -signal.SIGKILL), child.stderr
    return child.returncode == 0


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "old.gguf"
    path.write_bytes(gguf_bytes(b"the model that was there before"))
    return path


@pytest.fixture
def original(tmp_path: Path, payload: bytes) -> Path:
    path = tmp_path / "new.gguf"
    path.write_bytes(payload)
    return path


def stock(root: Path, old: Path) -> Store:
    """A fresh store with the model `old`."""
    shutil.rmtree(root, ignore_errors=True)
    store = Store(root, reserve_bytes=0)
    store.import_path(old, "old")
    return store


def assert_old_is_usable(store: Store, old: Path) -> None:
    (path,) = store.resolve("old").paths.values()
    assert path.read_bytes() == old.read_bytes()
    assert store.damaged() == {}


def assert_new_is_absent_or_whole(store: Store, payload: bytes) -> None:
    try:
        (path,) = store.resolve("new").paths.values()
    except ModelNotFound:
        return
    assert path.read_bytes() == payload


def sweep(root: Path, old: Path, task: str, argument: object) -> Any:
    """Stores left by a death at the 1st, 2nd, 3rd ... change, until the task lives through."""
    for at_change in range(1, 200):
        store = stock(root, old)
        lived = run_child(store, task, argument, at_change=at_change)
        yield store, lived
        if lived:
            assert at_change > 5, "the hook saw the changes"
            return
    pytest.fail("the task never ends")


def test_a_pull_killed_at_any_change_leaves_a_usable_store(
    tmp_path: Path, old: Path, original: Path, payload: bytes, entry_for: EntryFor
) -> None:
    entry = entry_for(payload, FileSource(original), name="new", file="new.gguf")
    namespace = repr(entry).replace(f"PosixPath('{original}')", f"pathlib.Path('{original}')")
    for store, _ in sweep(tmp_path / "models", old, "pull", namespace):
        assert_old_is_usable(store, old)
        assert_new_is_absent_or_whole(store, payload)
        store.pull(entry)
        assert [report.state for report in store.verify()] == ["ok", "ok"]
        assert store.leftovers() == 0


def test_an_import_killed_at_any_change_leaves_a_usable_store(
    tmp_path: Path, old: Path, original: Path, payload: bytes
) -> None:
    for store, _ in sweep(tmp_path / "models", old, "import", original):
        assert_old_is_usable(store, old)
        assert_new_is_absent_or_whole(store, payload)
        store.import_path(original, "new")
        assert [report.state for report in store.verify()] == ["ok", "ok"]
        assert store.leftovers() == 0


def test_a_removal_killed_at_any_change_leaves_the_model_or_nothing(tmp_path: Path, old: Path, original: Path) -> None:
    for store, _ in sweep(tmp_path / "models", old, "rm", ""):
        if store.manifests():
            assert_old_is_usable(store, old)
            store.remove("old")
        store.import_path(original, "other")
        store.remove("other")  # collects what the dead one left
        assert [path for path in store.root.rglob("*") if path.is_file() and path.name != "lock"] == []


def test_a_download_killed_at_random_bytes_goes_on_from_there(
    tmp_path: Path, old: Path, payload: bytes, entry_for: EntryFor, server: Any
) -> None:
    rng = random.Random(11)
    payload = payload * 30
    server.pages["/m"] = Page(body=payload)
    source = HttpsSource(url=server.url("/m"), allow_http=True, allow_private=True)
    entry = entry_for(payload, source, name="new", file="new.gguf")
    partial = tmp_path / "models" / "partial" / hashlib.sha256(payload).hexdigest()
    store = stock(tmp_path / "models", old)
    held = 0
    for at_byte in sorted(rng.randrange(1, len(payload) - (1 << 20)) for _ in range(12)):
        run_child(store, "pull", repr(entry), at_byte=at_byte)
        assert_old_is_usable(store, old)
        with pytest.raises(ModelNotFound):
            store.resolve("new")
        assert partial.stat().st_size >= held, "nothing that had arrived is lost"
        held = partial.stat().st_size
        assert partial.read_bytes() == payload[:held]
    server.requests.clear()
    store.pull(entry)
    assert store.resolve("new").paths["new.gguf"].read_bytes() == payload
    assert [headers["Range"] for _, headers in server.requests] == [f"bytes={held}-"]


def test_a_model_whose_making_was_killed_counts_as_unfinished(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, signal, sys\n"
        "from edgewise.models.store import Store\n"
        "with Store(pathlib.Path(sys.argv[1]), reserve_bytes=0).workshop(10) as folder:\n"
        "    (folder / 'model.gguf').write_bytes(bytes(10))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "models")], check=False)
    assert done.returncode == -signal.SIGKILL
    store = Store(tmp_path / "models")
    assert store.leftovers() == 10
    assert store.clear_partial().freed == 10
    assert store.leftovers() == 0
