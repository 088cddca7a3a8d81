"""How a model that speaks does: `python -m scripts.bench_omni FOLDER [--beside N] [--tokens N] [--rounds N] [--json]`.

FOLDER is a Qwen2.5-Omni checkpoint with its spk_dict.pt. Each round asks for one spoken answer to a prompt of arbitrary tokens,
first alone, then with `--beside` answers in text alone at work all the time. What those take is measured without speech, too,
which shows what speech costs them. Times are those of the engine, without HTTP.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from edgewise.core.errors import ConfigError
from edgewise.engine.config import EngineConfig
from edgewise.engine.omni.build import build
from edgewise.engine.omni.engine import OmniEngine
from edgewise.engine.request import GenerateRequest, SamplingParams
from edgewise.engine.speech import Speech, SpeechStats
from edgewise.models.tiny import local_files

_PROMPT = 64
_ENDLESS = 1 << 14


@dataclass(slots=True)
class Figures:
    """Of one situation. Times in milliseconds; those of text are between tokens of one answer, medians and 95th percentiles."""

    situation: str
    first_audio_ms: float | None = None
    real_time_factor: float | None = None
    worst_gap_ms: float | None = None
    gaps: int | None = None
    speech_s: float | None = None
    text_ms: float | None = None
    text_p95_ms: float | None = None


@dataclass(slots=True)
class _Texts:
    """When tokens of answers in text alone came."""

    last: dict[str, float] = field(default_factory=dict)
    waits: list[float] = field(default_factory=list)

    def came(self, name: str, now: float) -> None:
        if name in self.last:
            self.waits.append(now - self.last[name])
        self.last[name] = now


class Bench:
    """Args:
    engine: With nothing at work.
    tokens: Of each spoken answer's text.
    """

    def __init__(self, engine: OmniEngine, tokens: int) -> None:
        self._engine = engine
        self._tokens = tokens
        self._asked = 0

    def spoken(self, situation: str, rounds: int, beside: int) -> Figures:
        """Answers in speech, one after the other."""
        texts = _Texts()
        told: list[SpeechStats | None] = []
        names = [self._ask(None, _ENDLESS) for _ in range(beside)]
        for _ in range(rounds):
            name = self._ask(self._engine.info.voices[0], self._tokens)
            while name not in (ends := self._step(texts)):
                pass
            told.append(ends[name])
        self._drop(names)
        return _figures(situation, [one for one in told if one is not None], texts)

    def text(self, situation: str, beside: int, seconds: float) -> Figures:
        """Answers in text alone."""
        texts, until = _Texts(), time.monotonic() + seconds
        names = [self._ask(None, _ENDLESS) for _ in range(beside)]
        while time.monotonic() < until:
            self._step(texts)
        self._drop(names)
        return _figures(situation, [], texts)

    def _ask(self, voice: str | None, tokens: int) -> str:
        self._asked += 1
        name = f"{self._asked}"
        prompt = tuple((self._asked * 31 + at * 7) % min(1000, self._engine.info.vocab_size) for at in range(_PROMPT))
        most = self._engine.info.max_context - _PROMPT
        self._engine.add(
            GenerateRequest(
                id=name,
                prompt=prompt,
                sampling=SamplingParams(max_tokens=min(tokens, most), seed=self._asked),
                speech=None if voice is None else Speech(voice=voice, seed=self._asked),
            )
        )
        return name

    def _step(self, texts: _Texts) -> dict[str, SpeechStats | None]:
        """Answers that ended with it, and how they were spoken."""
        chunks = self._engine.step()
        now = time.monotonic()
        for chunk in chunks:
            if chunk.tokens:
                texts.came(chunk.request_id, now)
        ended = [one for one in chunks if one.finish is not None]
        return {one.request_id: None if one.stats is None else one.stats.speech for one in ended}

    def _drop(self, names: list[str]) -> None:
        for name in names:
            self._engine.cancel(name)
        while self._engine.has_work:
            self._engine.step()


def _figures(situation: str, told: list[SpeechStats], texts: _Texts) -> Figures:
    figures = Figures(situation)
    if told:
        firsts = [one.first_audio_s for one in told if one.first_audio_s is not None]
        figures.first_audio_ms = round(1000 * statistics.median(firsts), 1) if firsts else None
        figures.real_time_factor = round(statistics.median(one.real_time_factor for one in told), 3)
        figures.worst_gap_ms = round(1000 * max(one.worst_gap_s for one in told), 1)
        figures.gaps = sum(one.gaps for one in told)
        figures.speech_s = round(sum(one.speech_s for one in told), 2)
    if len(texts.waits) > 1:
        figures.text_ms = round(1000 * statistics.median(texts.waits), 2)
        figures.text_p95_ms = round(1000 * statistics.quantiles(texts.waits, n=20)[-1], 2)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--beside", type=int, default=2, help="answers in text alone at the same time")
    parser.add_argument("--tokens", type=int, default=48, help="of each spoken answer's text")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    config = EngineConfig(
        model=local_files(options.folder),
        device=options.device,
        max_running=options.beside + 1,
        threads=int(os.environ.get("OMP_NUM_THREADS", 0)) or None,
    )
    engine = build(config, lambda *_: None)
    if not isinstance(engine, OmniEngine):
        raise ConfigError(f"{options.folder} holds no model that speaks.", param="folder")
    bench = Bench(engine, options.tokens)
    bench.spoken("warm-up", 1, 0)
    found = [
        bench.spoken("speech alone", options.rounds, 0),
        bench.text(f"{options.beside} texts alone", options.beside, 3.0),
        bench.spoken(f"speech beside {options.beside} texts", options.rounds, options.beside),
    ]
    for one in found:
        told = {name: value for name, value in asdict(one).items() if value is not None}
        print(json.dumps(told) if options.json else ", ".join(f"{name} {value}" for name, value in told.items()))


if __name__ == "__main__":
    main()
