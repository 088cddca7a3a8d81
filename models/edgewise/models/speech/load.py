"""Voices for an engine process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx

from edgewise.core.errors import BadModelFile, UnsupportedModel
from edgewise.models.files import ModelFiles
from edgewise.models.onnx_session import RUNTIME, open_session, options_for
from edgewise.models.speech import kokoro, piper
from edgewise.models.speech.espeak import find_espeak
from edgewise.models.speech.g2p import Phonemizer
from edgewise.models.speech.lexicon import read_lexicon
from edgewise.models.speech.products import convolutions_as_products, has_vnni
from edgewise.models.speech.speaker import Speaker


def load_speaker(files: ModelFiles, threads: int) -> tuple[Speaker, str]:
    """The family whose files these are, and its numeric class.

    Raises:
        BadModelFile: A file is missing or damaged.
        UnsupportedModel: They are of no family known here, or a program is missing that it needs.
    """
    if kokoro.NETWORK in files.paths:
        return Speaker(_kokoro(files, threads)), f"{RUNTIME}/cpu/int8"
    if piper.NETWORK in files.paths:
        return Speaker(_piper(files, threads)), f"{RUNTIME}/cpu/float32"
    raise UnsupportedModel(
        f"{files.name}: a voice is {kokoro.NETWORK} (Kokoro) or {piper.NETWORK} (Piper) with its other files; these are "
        f"{', '.join(sorted(files.paths))}."
    )


def _kokoro(files: ModelFiles, threads: int) -> kokoro.Kokoro:
    lexicon = read_lexicon(_path(files, kokoro.DICTIONARY), _path(files, kokoro.MORE_WORDS))
    return kokoro.Kokoro(
        _session(_path(files, kokoro.NETWORK), threads, products=has_vnni()),
        kokoro.read_vocabulary(_path(files, kokoro.VOCABULARY)),
        kokoro.read_styles(_path(files, kokoro.VOICES)),
        Phonemizer(lexicon),
    )


def _piper(files: ModelFiles, threads: int) -> piper.Piper:
    program = find_espeak(files.name)
    config = piper.read_config(_path(files, piper.CONFIG))
    return piper.Piper(_session(_path(files, piper.NETWORK), threads), config, files.name, program)


def _path(files: ModelFiles, name: str) -> Path:
    path = files.paths.get(name)
    if path is None:
        raise BadModelFile(f"{files.name} has no file {name}: pull the model again.")
    return path


def _session(path: Path, threads: int, *, products: bool = False) -> Any:
    """Measured (docs/speech.md): without its arena ONNX Runtime takes three times as much at its peak; patterns of memory are
    kept for every length that comes; and threads that spin burn the time of others while little is to be done."""
    options = options_for(threads)
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return open_session(_with_products(path) if products else path, options)
    except Exception as error:  # its errors have no common class but this
        raise BadModelFile(f"A network cannot be loaded ({error}): pull the model again.") from error


def _with_products(path: Path) -> bytes:
    model = onnx.load(str(path))
    convolutions_as_products(model)
    graph: bytes = model.SerializeToString()
    return graph
