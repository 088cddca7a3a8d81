"""Piper: VITS networks (Kim et al. 2021) that speak phonemes of espeak-ng (github.com/rhasspy/piper)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from edgewise.core.errors import BadModelFile
from edgewise.models.speech.espeak import pronounce
from edgewise.models.speech.voice import Floats

NETWORK: Final = "voice.onnx"
CONFIG: Final = "voice.onnx.json"
_PAD, _BEGIN, _END = "_", "^", "$"
_LIMIT: Final = 400
"""The network takes any number; this bounds its memory, and how long others wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PiperConfig:
    """What a voice's JSON file says.

    Attributes:
        rate: Samples a second.
        language: Name of espeak-ng's voice.
        ids: Ids of each phoneme.
        noise, length, noise_width: The makers' scales: of the sound's noise, of all durations, and of the durations' noise.
    """

    rate: int
    language: str
    ids: Mapping[str, Sequence[int]]
    noise: float
    length: float
    noise_width: float


def read_config(path: Path) -> PiperConfig:
    """Raises `BadModelFile` if something is missing or of the wrong kind."""
    try:
        raw = json.loads(path.read_text("utf-8"))
        scales = raw["inference"]
        return PiperConfig(
            rate=int(raw["audio"]["sample_rate"]),
            language=str(raw["espeak"]["voice"]),
            ids={str(phoneme): [int(id) for id in ids] for phoneme, ids in raw["phoneme_id_map"].items()},
            noise=float(scales["noise_scale"]),
            length=float(scales["length_scale"]),
            noise_width=float(scales["noise_w"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadModelFile(f"{path.name} describes no Piper voice ({error!r}): pull the model again.") from error


class Piper:
    """Implements `speech.voice.Voice`.

    Args:
        session: Of ONNX Runtime.
        espeak: Path of the program.
    """

    limit = _LIMIT

    def __init__(self, session: Any, config: PiperConfig, name: str, espeak: str) -> None:
        self._session = session
        self._config = config
        self._espeak = espeak
        self.names = (name,)
        self.rate = config.rate

    def phonemes(self, clauses: Sequence[str]) -> list[str]:
        return pronounce(self._espeak, self._config.language, clauses)

    def speak(self, phonemes: str, name: str, speed: float) -> Floats:
        del name
        ids = self.ids(phonemes)
        config = self._config
        feeds = {
            "input": np.asarray([ids], dtype=np.int64),
            "input_lengths": np.asarray([len(ids)], dtype=np.int64),
            "scales": np.asarray([config.noise, config.length / speed, config.noise_width], dtype=np.float32),
        }
        sound: Floats = self._session.run(None, feeds)[0].reshape(-1)
        return sound

    def ids(self, phonemes: str) -> list[int]:
        """As the network was trained: begin, then each phoneme and a pad, then end. What it does not know is left out."""
        table = self._config.ids
        pad = table[_PAD]
        ids = [*table[_BEGIN], *pad]
        for phoneme in phonemes:
            ids += [*table.get(phoneme, ()), *pad] if phoneme in table else ()
        return [*ids, *table[_END]]
