"""Nothing that was said is left once a result was acknowledged: files and log are searched for it."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import pytest

from edgewise.wire.http import JOBS
from tests.cloud.service import body, cloud_engine, resumable
from tests.fakes.engine import FakeEngine, Fault

PROMPT = [*range(70_001, 70_011)]
WORD = "heliotrope"
MARKERS = (b"70001", b"70010", WORD.encode(), b"102,103,104")


def found(home: Path) -> set[tuple[str, bytes]]:
    """Which marker is in which file; the store of keys apart, everything under the state directory."""
    contents = {path.name: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    return {(name, marker) for name, content in contents.items() for marker in MARKERS if marker in content}


@pytest.mark.parametrize("fault", [None, Fault(request=0, at=30, code="constraint_failed", message="A dead end.")])
async def test_no_trace_is_left(tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: Fault | None) -> None:
    caplog.set_level(logging.DEBUG)
    engine = FakeEngine(script=resumable, fault=fault, chunk_tokens=8)
    async with cloud_engine(tmp_path, engine) as cloud:
        content = WORD.encode() * 100
        await cloud.put(hashlib.sha256(content).hexdigest(), content)
        assert cloud.part is not None
        intake = cloud.part.intake
        work = {"prompt": PROMPT, "text": f"the {WORD}", "constraint": f'root ::= "{WORD}"'}
        id = await cloud.submit(body(work=work))
        final = (await cloud.tokens(id))[1]
        assert final["state"] == ("rejected" if fault else "succeeded")
        assert {marker for _, marker in found(tmp_path)} == {*MARKERS}
        place = f"{final['attempt']}.{final['count']}"
        await cloud.post(f"{JOBS}/{id}/ack", {"after": place, "done": True})
        await intake._table.sweep()
        blob = [name for name, _ in found(tmp_path)]
        assert blob == [hashlib.sha256(content).hexdigest()]  # no job named it: it goes after an hour
        said = caplog.text + "".join(str(record.__dict__) for record in caplog.records)
        assert not [marker for marker in MARKERS if marker.decode() in said]
        assert id in said
