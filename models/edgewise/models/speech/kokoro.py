"""Kokoro-82M (hexgrad, Apache-2.0): StyleTTS 2 (Li et al. 2023) with an inverse-STFT vocoder, in an ONNX export."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from edgewise.core.errors import BadModelFile
from edgewise.models.speech.g2p import Phonemizer
from edgewise.models.speech.voice import Floats

NETWORK: Final = "kokoro.onnx"
VOCABULARY: Final = "vocab.json"
VOICES: Final = "voices.npz"
DICTIONARY: Final = "us_gold.json"
MORE_WORDS: Final = "us_silver.json"
RATE: Final = 24_000
FIRST: Final = "jm_kumo"
"""Of the packaged voices one of the two whose English is read back word for word (docs/speech.md)."""
_LIMIT: Final = 200
"""Phonemes of one run. The network takes 510; so many take a third of the memory, and nobody waits for longer."""
_FLAP: Final = str.maketrans({"\u027e": "T", "\u0294": "t"})
"""What the dictionary writes otherwise than the network was trained with."""


class Kokoro:
    """Implements `speech.voice.Voice`.

    Args:
        session: Of ONNX Runtime.
        vocabulary: Id of each phoneme and mark.
        styles: Of each voice, [longest, 1, 256]: a style vector for every number of tokens.
    """

    rate = RATE

    def __init__(
        self, session: Any, vocabulary: Mapping[str, int], styles: Mapping[str, Floats], phonemizer: Phonemizer
    ) -> None:
        self._session = session
        self._vocabulary = vocabulary
        self._styles = styles
        self._phonemizer = phonemizer
        self.names: Sequence[str] = sorted(styles, key=lambda name: (name != FIRST, name))
        self.limit = min(_LIMIT, *(len(style) for style in styles.values()))

    def phonemes(self, clauses: Sequence[str]) -> list[str]:
        known = self._vocabulary
        said = (self._phonemizer.clause(clause).translate(_FLAP) for clause in clauses)
        return ["".join(phoneme for phoneme in clause if phoneme in known) for clause in said]

    def speak(self, phonemes: str, name: str, speed: float) -> Floats:
        ids = [self._vocabulary[phoneme] for phoneme in phonemes if phoneme in self._vocabulary]
        feeds = {
            "tokens": np.asarray([[0, *ids, 0]], dtype=np.int64),
            "style": self._styles[name][len(ids) - 1],
            "speed": np.asarray([speed], dtype=np.float32),
        }
        sound: Floats = self._session.run(None, feeds)[0].reshape(-1)
        return sound


def read_vocabulary(path: Path) -> dict[str, int]:
    """Raises `BadModelFile` if it is none."""
    try:
        return {str(phoneme): int(id) for phoneme, id in json.loads(path.read_text("utf-8"))["vocab"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadModelFile(f"{path.name} is no vocabulary ({error!r}): pull the model again.") from error


def read_styles(path: Path) -> dict[str, Floats]:
    """Raises `BadModelFile` if there are none."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            styles = {name: np.asarray(arrays[name], dtype=np.float32) for name in arrays.files}
    except (OSError, ValueError, KeyError) as error:
        raise BadModelFile(f"{path.name} has no voices ({error!r}): pull the model again.") from error
    if not styles or any(style.ndim != 3 or style.shape[1] != 1 for style in styles.values()):
        raise BadModelFile(f"{path.name} has no voices of the right shape: pull the model again.")
    return styles
