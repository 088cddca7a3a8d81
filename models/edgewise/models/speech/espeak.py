"""Pronunciation by espeak-ng, called as a program: it is under the GPL 3, so nothing of it is linked or shipped."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from typing import Final

from edgewise.core.errors import EngineFault, UnsupportedModel

PROGRAM: Final = "espeak-ng"
_TIMEOUT_S: Final = 30.0


def find_espeak(model: str) -> str:
    """Where the program is.

    Raises:
        UnsupportedModel: It is not installed; the message names the package.
    """
    path = shutil.which(PROGRAM)
    if path is None:
        raise UnsupportedModel(
            f"'{model}' takes the pronunciation of words from the program {PROGRAM}, which is not installed: "
            f"`apt install {PROGRAM}`, or use the voice 'kokoro', which needs no such program."
        )
    return path


def pronounce(program: str, voice: str, clauses: Sequence[str]) -> list[str]:
    """Phonemes of each clause in the International Phonetic Alphabet, stress marks included, as espeak-ng's `voice` says them.

    Args:
        clauses: Without punctuation, so that the program makes one line of each.

    Raises:
        EngineFault: The program failed.
    """
    lines = _run(program, voice, "\n".join(clauses))
    if len(lines) == len(clauses):
        return lines
    return [" ".join(_run(program, voice, clause)) for clause in clauses]  # it has cut one that was very long


def _run(program: str, voice: str, text: str) -> list[str]:
    """The text goes in by standard input: it may begin with "-"."""
    command = [program, "-q", "--ipa", "-b", "1", "-v", voice]
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, timeout=_TIMEOUT_S, check=True, encoding="utf-8"
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise EngineFault(f"{PROGRAM} did not say how to pronounce a text: {error}.") from error
    return [line.strip() for line in done.stdout.splitlines()]
