"""The last judge of an encoder that hears: no candidate may change what the whole model writes of the recordings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Final

import torch

from edgewise.models.encoders.network import Session
from edgewise.models.encoders.weights import Array
from edgewise.models.files import ModelFiles
from edgewise.models.tokenizer import load_tokenizer
from edgewise.models.whisper.config import read_tokens
from edgewise.models.whisper.encoder import WhisperEncoder
from edgewise.models.whisper.greedy import greedy_text
from edgewise.models.whisper.loading import load_whisper

_WORD: Final = re.compile(r"\w+(?:'\w+)*")


def right_words(said: str, written: str) -> tuple[int, int]:
    """How many words are said, and how many of these are written, in their order; marks and capitals do not count."""
    wanted, found = (_WORD.findall(text.casefold().replace("\u2019", "'")) for text in (said, written))
    matched = SequenceMatcher(None, wanted, found, autojunk=False).get_matching_blocks()
    return len(wanted), sum(block.size for block in matched)


class Texts:
    """What a Whisper writes of spectrograms.

    Args:
        files: The model.
        heard: [1, mels, 2 * frames] each.
        exact: Computes their states in float32.

    Attributes:
        wanted: What it writes of each with those.
    """

    def __init__(self, files: ModelFiles, heard: Sequence[Array], exact: Session) -> None:
        self._network = load_whisper(files, device=torch.device("cpu"), dtype=torch.float32)
        self._network.prove_rows()
        self._tokens, self._tokenizer = read_tokens(files), load_tokenizer(files)
        self._heard = heard
        self.wanted = [self._text(exact, one) for one in heard]

    def objection(self, session: Session) -> str:
        """What a candidate would change, "" for nothing."""
        for one, wanted in zip(self._heard, self.wanted, strict=True):
            found = self._text(session, one)
            if found != wanted:
                return f"it changes words: {wanted.strip()!r} becomes {found.strip()!r}"
        return ""

    def _text(self, session: Session, spectrogram: Array) -> str:
        states = torch.from_numpy(session.run([spectrogram])[0])
        return self._tokenizer.decode(greedy_text(self._network, self._tokens, states))


class TorchSession:
    """The encoder as an engine computes it without a ladder; implements `network.Session`."""

    def __init__(self, encoder: WhisperEncoder) -> None:
        self._encoder = encoder

    def run(self, inputs: Sequence[Array]) -> Array:
        """One after the other: an engine computes recordings alone."""
        found = [self._encoder.of_spectrogram(torch.from_numpy(one[0])) for one in inputs]
        states: Array = torch.stack(found).float().numpy()
        return states


def torch_session(files: ModelFiles, dtype: str, threads: int) -> tuple[str, TorchSession]:
    """Its name in the ladder, and itself. Raises as `load_whisper`."""
    torch.set_num_threads(threads)
    network = load_whisper(files, device=torch.device("cpu"), dtype=getattr(torch, dtype))
    return f"torch-{dtype}", TorchSession(network.encoder)
