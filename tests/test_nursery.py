"""What is forked is as what is executed."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from scripts.service import DeviceService, edgewise_command, edgewise_environment, is_engine
from tests.e2e.service import import_tiny, running
from tests.nursery import ANEW, NURSERY

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.skipif(
    os.environ.get("OMP_NUM_THREADS") != "1", reason="nothing is forked beside several threads"
)


def said(home: Path, *args: str) -> tuple[int, str, str]:
    done = subprocess.run(
        edgewise_command(*args), env=edgewise_environment(home), check=False, capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "args", [("--version",), ("keys", "list", "--json"), ("keys", "revoke", "none"), ("nonsense",)]
)
def test_a_command_says_the_same_and_ends_with_the_same_code(tmp_path: Path, args: tuple[str, ...]) -> None:
    forked = said(tmp_path, *args)
    with NURSERY.executed():
        assert said(tmp_path, *args) == forked


IGNORED = ("/tmp/pytest-", str(Path.home() / ".cache" / "Microsoft"))
"""Files of the service's home, which it opens as it comes to them, and ONNX Runtime's telemetry."""


def facts(process: psutil.Process, *known: int) -> dict[str, Any]:
    """What the system tells of a process, without numbers of processes, descriptors and ports.

    Behind a command line that was written by hand some systems show the empty rest of its place.
    """
    line = process.cmdline()
    return {
        "line": [it for it in line if it and not it.isdecimal()],
        "name": process.name(),
        "parent": process.ppid() in known,
        "session": os.getsid(process.pid) == process.pid,
        "folder": process.cwd(),
        "errors": os.readlink(f"/proc/{process.pid}/fd/2"),  # noqa: PTH115 - of what has no path
        "files": sorted(it.path for it in process.open_files() if not it.path.startswith(IGNORED)),
        "signals": [it for it in Path(f"/proc/{process.pid}/status").read_text().splitlines() if it.startswith("Sig")][
            2:
        ],
    }


def family(service: DeviceService) -> list[dict[str, Any]]:
    engine = psutil.Process(service.engine_pid())
    assert is_engine(engine)
    return [facts(psutil.Process(service.pid), os.getpid()), facts(engine, service.pid)]


def test_a_service_and_its_engine_look_as_if_executed_and_end_together(tmp_path: Path) -> None:
    import_tiny(tmp_path)
    log = tmp_path / "service.log"
    with running(model="tiny", home=tmp_path, log=log) as service:
        shared = {it.path for it in psutil.Process(service.pid).memory_maps()}
        assert any("libtorch" in path for path in shared), "it was executed"
        forked, below = family(service), service.children()
        service.kill()
        gone, alive = psutil.wait_procs(below, timeout=60)
        assert (len(gone), alive) == (len(below), [])
    with NURSERY.executed(), running(model="tiny", home=tmp_path, log=log) as service:
        assert family(service) == forked


def test_what_is_drawn_at_an_import_is_drawn_anew() -> None:
    """Two processes would be known by the same name otherwise."""
    drawing = re.compile(r"^\w+(: [\w\[\], ]+)? = (uuid|secrets|random|time)\.", re.MULTILINE)
    sources = [
        path for root in ("appliance", "cloud", "edge", "kernels", "models") for path in (ROOT / root).rglob("*.py")
    ]
    drawn = {path for path in sources if drawing.search(path.read_text())}
    assert {named(path) for path in drawn} == {"edgewise.edge.agent.presence"}
    taking = {path for path in sources if "import STARTED" in path.read_text()}
    assert {named(path) for path in drawn | taking} <= {*ANEW}


def named(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts[1:])
