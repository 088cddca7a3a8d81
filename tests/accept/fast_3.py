"""The engine's own tests, unchanged, on the native kernels. (On a card: engine_8 and the tests marked for CUDA.)"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from edgewise.kernels.native.library import why_not
from tests.accept.kernels_plugin import KERNELS, REPORT
from tests.accept.line import Line, NotRun, Verdict, main, progress

ROOT = Path(__file__).resolve().parents[2]
FILES = (
    "tests/engine/test_engine.py",
    "tests/engine/test_same_tokens.py",
    "tests/engine/test_engine_tiers.py",
    "tests/engine/test_everything_on.py",
    "tests/engine/test_families.py",
    "tests/engine/test_engine_media.py",
    "tests/engine/test_media_families.py",
    "tests/engine/test_constraint.py",
    "tests/engine/test_handover.py",
    "tests/engine/test_networks_served.py",
)
"""With greedy answers alone and in company, resumed, preempted, from every cache tier, of every family."""


def tested(file: str, kernels: str) -> dict[str, Any]:
    """What became of a file's tests, and which engines they built."""
    with tempfile.TemporaryDirectory(prefix="edgewise-") as folder:
        report = Path(folder) / "report.json"
        environment = {**os.environ, KERNELS: kernels, REPORT: str(report)}
        flags = ["-q", "-p", "no:cacheprovider", "-p", "tests.accept.kernels_plugin"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *flags, file],
            cwd=ROOT,
            env=environment,
            check=False,
            capture_output=True,
            text=True,
        )
        found: dict[str, Any] = json.loads(report.read_text()) if report.exists() else {}
    return {"code": done.returncode, "end": done.stdout[-2000:] if done.returncode else "", **found}


def measure(count: int) -> Verdict:
    """`count`: how many of the files."""
    if (reason := why_not()) is not None:
        raise NotRun(f"the native kernels cannot be loaded: {reason}")
    found: dict[str, dict[str, Any]] = {}
    for file in FILES[:count]:
        found[file] = tested(file, "native")
        progress(f"{file}: {found[file].get('outcomes')}")
    passed = sum(one.get("outcomes", {}).get("passed", 0) for one in found.values())
    failed = sum(one.get("outcomes", {}).get("failed", 0) for one in found.values())
    native = sum(n for one in found.values() for name, n in one.get("numeric_classes", {}).items() if "native" in name)
    good = all(one["code"] == 0 for one in found.values()) and native > 0
    figure = f"{passed} tests pass, {failed} fail, on {native} engines with native kernels"
    return Verdict(figure=figure, passed=good, details=found)


LINE = Line(
    number=3,
    title="The engine's tests pass unchanged on the native kernels",
    bar="all pass",
    count=len(FILES),
    small=1,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.fast_3")
