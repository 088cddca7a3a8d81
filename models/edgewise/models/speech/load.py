"""Voices for an engine process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgewise.core.errors import BadModelFile, UnsupportedModel
from edgewise.models.files import ModelFiles
from edgewise.models.onnx_session import RUNTIME, open_session, options_for
from edgewise.models.speech import piper
from edgewise.models.speech.espeak import find_espeak
from edgewise.models.speech.speaker import Speaker


def load_speaker(files: ModelFiles, threads: int) -> tuple[Speaker, str]:
    """The family whose files these are, and its numeric class.

    Raises:
        BadModelFile: A file is missing or damaged.
        UnsupportedModel: They are of no family known here, or a program is missing that it needs.
    """
    if piper.NETWORK in files.paths:
        return _piper(files, threads), f"{RUNTIME}/cpu/float32"
    raise UnsupportedModel(f"{files.name}: no code here speaks with these files ({', '.join(sorted(files.paths))}).")


def _piper(files: ModelFiles, threads: int) -> Speaker:
    program = find_espeak(files.name)
    config = piper.read_config(_path(files, piper.CONFIG))
    return Speaker(piper.Piper(_session(_path(files, piper.NETWORK), threads), config, files.name, program))


def _path(files: ModelFiles, name: str) -> Path:
    path = files.paths.get(name)
    if path is None:
        raise BadModelFile(f"{files.name} has no file {name}: pull the model again.")
    return path


def _session(path: Path, threads: int) -> Any:
    options = options_for(threads)
    options.enable_cpu_mem_arena = False  # lengths vary: an arena keeps the largest for ever
    return open_session(path, options)
