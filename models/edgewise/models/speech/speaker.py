"""A voice for an engine process: texts in, sound out, sentence by sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from edgewise.core.errors import InvalidRequest
from edgewise.models.parts import Parts
from edgewise.models.speech.normalize import DASH
from edgewise.models.speech.sentences import Clause, Sentence, sentences
from edgewise.models.speech.voice import Floats, Voice

_SILENCE: Final = 0.004
"""Below this a sample counts as silence at the ends of a run."""
_LOUDEST: Final = 0.98
_MARGIN_S: Final = 0.03
_PAUSES: Final[Mapping[str, float]] = {"": 0.05, ",": 0.12, ";": 0.2, ":": 0.2, DASH: 0.2}
_SHORTEST: Final = 12
"""Phonemes of one run that any voice takes at any speed."""
_SENTENCE_S: Final = 0.3
_PARAGRAPH_S: Final = 0.55

Result = tuple[Mapping[str, Any], bytes]


@dataclass(frozen=True, slots=True)
class Utterance:
    """What is spoken in one run.

    Attributes:
        pause_s: Silence after it at normal speed.
        unspoken: Characters of the whole text that nothing is said for.
    """

    phonemes: str
    voice: str
    speed: float
    pause_s: float
    unspoken: str


class Speaker:
    """Implements `engine.encoders.engine.Encoder`."""

    def __init__(self, voice: Voice) -> None:
        self._voice = voice

    @property
    def names(self) -> Sequence[str]:
        """Of its voices; the first is used where nobody names one."""
        return self._voice.names

    def check(self, content: bytes, options: Mapping[str, Any]) -> Parts:
        """A run for each sentence, several for a long one. Raises `InvalidRequest`."""
        name = options.get("voice") or self._voice.names[0]
        if name not in self._voice.names:
            known = ", ".join(f"'{one}'" for one in self._voice.names)
            raise InvalidRequest(
                f"'voice' is '{str(name)[:100]}', and this model has {known}: name one of them, or leave it out for the first.",
                param="voice",
            )
        speed = float(options.get("speed", 1.0))
        said, unspoken = sentences(content.decode("utf-8"))
        runs = [Utterance(phonemes, name, speed, pause_s, unspoken) for phonemes, pause_s in self._runs(said, speed)]
        if not runs:
            raise InvalidRequest("'input' has nothing that can be spoken: send words or numbers.", param="input")
        return Parts(runs)

    def weigh(self, one: Utterance) -> float:
        """See `engine.encoders.engine.Weighs`: length of the sound, nearly."""
        return (1 + len(one.phonemes)) / one.speed

    def compute(self, inputs: Sequence[Utterance]) -> list[Result]:
        """One after the other: their lengths differ."""
        return [self._speak(one) for one in inputs]

    def _runs(self, found: Sequence[Sentence], speed: float) -> Iterator[tuple[str, float]]:
        """What is spoken slowly is cut earlier: memory goes with the length of the sound."""
        limit = max(_SHORTEST, int(self._voice.limit * min(1.0, speed)))
        clauses = [clause for sentence in found for clause in sentence.clauses]
        sounds = iter(self._voice.phonemes([clause.words for clause in clauses]) if clauses else ())
        for sentence in found:
            end_s = _PARAGRAPH_S if sentence.ends_paragraph else _SENTENCE_S
            yield from _fitted([(next(sounds), clause) for clause in sentence.clauses], limit, end_s)

    def _speak(self, one: Utterance) -> Result:
        sound = _trimmed(self._voice.speak(one.phonemes, one.voice, one.speed), self._voice.rate)
        silence = np.zeros(int(one.pause_s / one.speed * self._voice.rate), dtype=np.float32)
        whole = np.concatenate([sound, silence])
        peak = float(np.abs(whole).max(initial=0.0))
        if (
            peak > _LOUDEST
        ):  # a network may say a syllable louder than samples can be: the run becomes softer, not distorted
            whole *= _LOUDEST / peak
        samples = (whole * 32767.0).astype(np.int16)
        return {"voice": one.voice, "rate": self._voice.rate, "unspoken": one.unspoken}, samples.tobytes()


def _fitted(sounds: Sequence[tuple[str, Clause]], limit: int, end_s: float) -> Iterator[tuple[str, float]]:
    """The runs of one sentence, each of at most `limit` phonemes, with the pause after it: cut between clauses, or where one is
    too long between words."""
    run, pause_s = "", end_s
    for phonemes, clause in sounds:
        for piece in _pieces(phonemes, limit - len(clause.mark)):
            if run and len(run) + 1 + len(piece) + len(clause.mark) > limit:
                yield run, pause_s
                run = ""
            run = f"{run} {piece}" if run else piece
            pause_s = _PAUSES[""]
        run, pause_s = run + clause.mark, _PAUSES.get(clause.mark, _PAUSES[","])
    if run.strip():
        yield run, end_s


def _pieces(phonemes: str, limit: int) -> Iterator[str]:
    while len(phonemes) > limit:
        cut = phonemes.rfind(" ", 1, limit + 1)
        cut = limit if cut < 0 else cut
        yield phonemes[:cut]
        phonemes = phonemes[cut:].strip()
    if phonemes:
        yield phonemes


def _trimmed(sound: Floats, rate: int) -> Floats:
    """Without the silence at its ends, whose length is the network's whim: pauses are the speaker's."""
    loud = np.flatnonzero(np.abs(sound) > _SILENCE)
    if not len(loud):
        return sound[:0]
    margin = int(_MARGIN_S * rate)
    return sound[max(0, int(loud[0]) - margin) : int(loud[-1]) + 1 + margin]
