"""Every family that sees, hears or speaks gives what transformers gives: the tests that hold it to transformers, by family.

They compare placeholders, positions, rows of the encoders and logits on small random weights; this line runs all of them in a
process of their own and tells which belong to which family. A family without a test has not passed.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from tests.accept.line import Line, Verdict, main, progress

ROOT: Final = Path(__file__).resolve().parents[2]
FAMILIES: Final = {
    "LLaVA-1.5": ("test_llava", r"\[llava\b"),
    "LLaVA with SigLIP": ("test_llava", r"\[siglip\b"),
    "LLaVA-NeXT": ("test_llava", r"\[next\b|tiled"),
    "Qwen2-VL": ("test_qwen", r"\[qwen2_vl\b"),
    "Qwen2.5-VL": ("test_qwen", r"\[qwen2_5_vl\b"),
    "Idefics3": ("test_idefics3", r"\[idefics3\b"),
    "SmolVLM": ("test_idefics3", r"\[smolvlm\b"),
    "Gemma 3": ("test_gemma3", r""),
    "Whisper": ("whisper.test_network", r""),
    "Qwen2-Audio": ("test_qwen2_audio", r""),
    "Qwen2.5-Omni Thinker": ("test_thinker", r""),
    "Qwen2.5-Omni Talker": ("omni.test_answers", r""),
    "Qwen2.5-Omni Code2Wav": ("test_code2wav", r""),
}
"""Module of its tests, and what the names of its own say."""
PATHS: Final = (
    "tests/models/multimodal",
    "tests/models/whisper/test_network.py",
    "tests/models/omni",
    "tests/engine/omni/test_answers.py",
)
ONE: Final = "Gemma 3"
"""Asked for alone at the small count: the suite, whose count that is, runs the tests of all families anyway."""
_LIMIT_S = 1800


def run(paths: Sequence[str], families: Mapping[str, tuple[str, str]]) -> tuple[dict[str, list[tuple[str, bool]]], str]:
    """(test, whether it passed) by family; and pytest's last line."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-n", "0"]
        command += [f"--junitxml={report}", *paths]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=_LIMIT_S)
        if not report.is_file():
            raise RuntimeError(f"pytest made no report:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        cases = list(ElementTree.parse(report).getroot().iter("testcase"))  # our own pytest wrote it
    found: dict[str, list[tuple[str, bool]]] = {family: [] for family in families}
    for case in cases:
        name, module = case.get("name", ""), case.get("classname", "")
        good = not any(case.find(kind) is not None for kind in ("failure", "error", "skipped"))
        for family, (file, mark) in families.items():
            if module.endswith(file) and re.search(mark, name):
                found[family].append((name, good))
    return found, (done.stdout.strip().splitlines() or [""])[-1]


def measure(count: int) -> Verdict:
    """Beyond 1, all families; at 1 the tests of one."""
    if count > 1:
        found, summary = run(PATHS, FAMILIES)
    else:
        found, summary = run([f"tests/models/multimodal/{FAMILIES[ONE][0]}.py"], {ONE: FAMILIES[ONE]})
    progress(summary)
    table, failed = [], []
    for family, tests in found.items():
        bad = [name for name, good in tests if not good]
        table.append(f"{family:<24} {len(tests) - len(bad):>3} of {len(tests):>3} tests passed")
        failed += [f"{family}: {name}" for name in bad] or ([] if tests else [f"{family}: no test"])
    total = sum(map(len, found.values()))
    return Verdict(
        figure=f"{len(found)} of {len(FAMILIES)} families, {total} tests, {len(failed)} failed or missing",
        passed=not failed,
        details={"table": table, "failed": failed},
    )


LINE = Line(
    number=2,
    title="Parity with transformers for every family that sees, hears or speaks",
    bar="every test of every family passes; logits within 1e-3",
    count=2,
    small=1,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.senses_2")
