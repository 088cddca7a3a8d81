"""A fresh clone in an empty environment: `make run ONCE=1` does the demo's three acts."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image

from tests.accept.answers_1 import ROOT, answer_in, make
from tests.accept.line import Line, Verdict, main, progress

ACTS = 3


def receipts_in(output: str) -> list[dict[str, Any]]:
    """The receipts that were printed, in order."""

    def found() -> Iterator[dict[str, Any]]:
        for match in re.finditer(r"^receipt \d+: ", output, re.MULTILINE):
            receipt, _ = json.JSONDecoder().raw_decode(output, match.end())
            yield receipt

    return list(found())


def picture_in(output: str) -> str | None:
    """Why the picture of the second act is none; None for a good one."""
    match = re.search(r"^(/\S+\.png) \(", output, re.MULTILINE)
    if match is None:
        return "no path printed"
    with Image.open(match[1]) as picture:
        picture.load()
        extremes = picture.convert("L").getextrema()
    return None if extremes[0] != extremes[1] else "the picture is one colour"


def faults(code: int, output: str) -> list[str]:
    """What is missing of the three acts; empty if all is there."""
    receipts = receipts_in(output)
    found = [] if code == 0 else [f"code {code}"]
    if "Paris" not in answer_in(output):
        found.append("act 1: no 'Paris'")
    picture = picture_in(output)
    if picture is not None:
        found.append(f"act 2: {picture}")
    cut = re.search(r"\S[^\n]* \[the link is cut\] (.*?)\n\d+ tokens, ", output, re.DOTALL)
    if cut is None or not re.search(r"\w", cut[1]):
        found.append("act 3: nothing after the cut")
    if len(receipts) != ACTS:
        return [*found, f"{len(receipts)} receipts"]
    places = [[stage["where"] for stage in receipt["stages"]] for receipt in receipts]
    if places[0] != ["local"]:
        found.append(f"receipt 1 says {places[0]}")
    if "cloud" not in places[1]:
        found.append(f"receipt 2 says {places[1]}")
    segments = [segment for stage in receipts[2]["stages"] for segment in stage["segments"]]
    if [segment["where"] for segment in segments] != ["cloud", "local"] or segments[1]["offset"] == 0:
        found.append(f"receipt 3 says {segments}")
    return found


def measure(count: int) -> Verdict:
    del count
    with tempfile.TemporaryDirectory(prefix="edgewise-clone-", ignore_cleanup_errors=True) as folder:
        clone, home = Path(folder, "clone"), Path(folder, "home")
        home.mkdir()
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True, timeout=300)
        progress("make run ONCE=1")
        code, output = make(clone, home, "run", "ONCE=1")
        wrong = faults(code, output)
    took = re.search(r"^from start to answer: (\S+ s)", output, re.MULTILINE)
    figure = "; ".join(wrong) if wrong else f"three acts, first answer {took[1] if took else '?'} after make was called"
    return Verdict(figure=figure, passed=not wrong, details={"run": output[-6000:]})


LINE = Line(
    number=1,
    title="Fresh clone, empty environment: make run ONCE=1 does the three acts of the demo",
    bar="code 0; 'Paris' from here, a picture from the cloud, an answer that goes on after the cut; three receipts that say so",
    count=1,
    small=1,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.cloud_1")
