"""The audit trail: chained, without text unless wanted, whole after a crash and on a full disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgewise.core.errors import ConfigError, StorageError
from edgewise.pipeline.hooks.audit_log import AuditLog, verify_chain
from edgewise.pipeline.hooks.protocol import Answer, AuditRecord, Call, HookSetup
from tests.security.test_full_disk import fill

CALL = Call(request_id="r", key="k", model="m", digest="d")


def record(**changes: Any) -> AuditRecord:
    values: dict[str, Any] = {"event": "asked", "time": 1.5, "call": CALL, "prompt_sha256": "00"}
    return AuditRecord(**values | changes)


def make(home: Path, **options: str) -> AuditLog:
    return AuditLog(HookSetup(home=home, options=options))


async def write(home: Path, *records: AuditRecord, **options: str) -> Path:
    log = make(home, **options)
    for one in records:
        await log.audit(one)
    await log.aclose()
    return home / options.get("file", "audit.jsonl")


async def test_records_are_chained_over_restarts(tmp_path: Path) -> None:
    path = await write(tmp_path, record(), record(event="answered", answers=(Answer(finish="stop", sha256="11"),)))
    await write(tmp_path, record(), sync="never")
    assert verify_chain(path) == 3
    assert path.stat().st_mode & 0o777 == 0o600
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["number"] for line in lines] == [1, 2, 3]
    assert lines[1]["answers"] == [{"finish": "stop", "sha256": "11"}]
    assert "prompt_text" not in lines[0]


@pytest.mark.parametrize("change", ["edit", "remove", "swap", "forge"])
async def test_a_change_is_found(tmp_path: Path, change: str) -> None:
    path = await write(tmp_path, *(record(time=float(number)) for number in range(4)))
    lines = path.read_text().splitlines(keepends=True)
    if change == "edit":
        lines[1] = lines[1].replace('"key":"k"', '"key":"x"')
    elif change == "remove":
        del lines[1]
    elif change == "swap":
        lines[1], lines[2] = lines[2], lines[1]
    else:
        lines[1] = "not json\n"
    path.write_text("".join(lines))
    with pytest.raises(ValueError, match="line 2"):
        verify_chain(path)


async def test_a_line_that_a_crash_left_unfinished_is_cut_off(tmp_path: Path) -> None:
    path = await write(tmp_path, record(), record())
    with path.open("ab") as file:
        file.write(b'{"number":3,"previous":"')
    await write(tmp_path, record())
    assert verify_chain(path) == 3


async def test_a_full_disk_refuses_leaves_no_half_record_and_heals(small_disk: Path) -> None:
    log = make(small_disk)
    await log.audit(record())
    ballast = fill(small_disk)

    async def many() -> None:
        for _ in range(100):
            await log.audit(record())

    with pytest.raises(StorageError, match="disk is full"):
        await many()
    whole = verify_chain(small_disk / "audit.jsonl")
    ballast.unlink()
    await log.audit(record())
    await log.aclose()
    assert verify_chain(small_disk / "audit.jsonl") == whole + 1


def test_options(tmp_path: Path) -> None:
    assert make(tmp_path, text="yes").wants_text
    assert not make(tmp_path).wants_text
    for options in ({"text": "maybe"}, {"sync": "sometimes"}, {"flie": "x"}):
        with pytest.raises(ConfigError, match="audit-log"):
            make(tmp_path, **options)
