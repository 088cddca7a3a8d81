"""Results of a pytest run in an environment of its own, and the reasons that explain its failures."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

from tests.foreign.suite import Explained


def read_junit(file: Path, prefix: str) -> tuple[int, dict[str, str]]:
    """Number of passed cases, and the message of each failed one by its name without `prefix`."""
    passed, failed = 0, {}
    for case in ElementTree.parse(file).iter("testcase"):
        name = f"{case.get('classname', '').removeprefix(prefix)}.{case.get('name')}"
        problem = next((found for found in case if found.tag in ("failure", "error")), None)
        if problem is not None:
            failed[name] = (problem.get("message") or "")[:600]
        elif case.find("skipped") is None:
            passed += 1
    return passed, failed


def sort_failures(
    failed: dict[str, str], known: Sequence[Explained]
) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """Failures by the reason that explains them, and those that nothing explains."""
    explained: dict[str, tuple[str, ...]] = {}
    unexplained: dict[str, str] = {}
    for name, message in failed.items():
        reason = next((one.why for one in known if re.search(one.match, f"{name}: {message}", re.DOTALL)), None)
        if reason is None:
            unexplained[name] = message
        else:
            explained[reason] = (*explained.get(reason, ()), name)
    return explained, unexplained
