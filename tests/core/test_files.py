from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgewise.core.errors import StorageError
from edgewise.core.files import atomic_write, atomic_writer, fsync_dir, translate_os_errors

WRITER = """
import sys
from pathlib import Path
from edgewise.core.files import atomic_write
print("go", flush=True)
n = 0
while True:
    n += 1
    atomic_write(Path(sys.argv[1]), str(n % 10) * 200_000)
"""


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_atomic_write_replaces_and_sets_the_mode(tmp_path: Path) -> None:
    target = tmp_path / "new" / "file"
    atomic_write(target, "ä")
    atomic_write(target, b"two", mode=0o600)
    assert target.read_bytes() == b"two"
    assert target.stat().st_mode & 0o777 == 0o600
    assert names(target.parent) == ["file"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "file"
    atomic_write(target, "old")

    def interrupted() -> None:
        with atomic_writer(target) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert target.read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="the disk is full"):
        atomic_write(tmp_path / "file", "x")
    assert names(tmp_path) == []


def test_long_names_can_be_written(tmp_path: Path) -> None:
    atomic_write(tmp_path / ("n" * 255), "x")
    assert names(tmp_path) == ["n" * 255]


@pytest.mark.parametrize(
    ("code", "word"),
    [
        (errno.ENOSPC, "full"),
        (errno.EDQUOT, "quota"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "denied"),
        (errno.EPERM, "not permitted"),
        (errno.EIO, "fault"),
    ],
)
def test_disk_errors_become_storage_errors_with_their_cause(code: int, word: str) -> None:
    with (
        pytest.raises(StorageError, match=rf"cannot open /x: .*{word}") as caught,
        translate_os_errors("open", Path("/x")),
    ):
        raise OSError(code, "no")
    assert isinstance(caught.value.__cause__, OSError)


def test_other_errors_pass(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), translate_os_errors("open", tmp_path):
        (tmp_path / "gone").read_bytes()


def test_a_file_in_the_way_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for target in (tmp_path / "file" / "x", tmp_path / "file" / "deep" / "x"):
        with pytest.raises(StorageError, match="a file stands in the way"):
            atomic_write(target, "x")


def test_fsync_dir_wants_a_folder(tmp_path: Path) -> None:
    fsync_dir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        fsync_dir(tmp_path / "file")


def test_kill_during_writes_leaves_a_whole_file(tmp_path: Path) -> None:
    target = tmp_path / "file"
    atomic_write(target, "0" * 200_000)
    for _ in range(5):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(target)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            for _ in range(50):
                assert len(target.read_bytes()) == 200_000
            process.kill()
        content = target.read_text()
        assert content == content[0] * 200_000


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_root_hands_new_files_to_the_owner_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "service"
    folder.mkdir()
    os.chown(folder, 12345, 12346)
    atomic_write(folder / "file", "x")
    status = (folder / "file").stat()
    assert (status.st_uid, status.st_gid) == (12345, 12346)
