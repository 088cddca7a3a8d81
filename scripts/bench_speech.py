"""How quickly voices speak: `python -m scripts.bench_speech [--home DIR] [--voice NAME ...] [--threads N] [--json]`.

Real-time factor: seconds of computing for a second of speech, over all sentences; by the clock and by the processor's time, which
other programs do not change. First sound: from the text to the samples of its first sentence, as a share of how long that is.
Rounds repeat, and the quickest counts.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from edgewise.core.settings import load_settings
from edgewise.models.speech.load import load_speaker
from edgewise.models.speech.speaker import Speaker
from edgewise.models.store import Store
from edgewise.pipeline.speech import SAMPLE_BYTES

TEXT = (
    "The train to Boston leaves at 7:30 from platform nine. Please close the window before you leave the office, and remember to "
    "charge the battery. My doctor said that I should drink more water every day. It costs $45."
)


@dataclass(frozen=True, slots=True)
class Figures:
    """Times in seconds; factors are without unit; `peak_mib` is of this process, the voice in it."""

    voice: str
    threads: int
    load_s: float
    speech_s: float
    factor_wall: float
    factor_cpu: float
    first_sound_s: float
    first_sentence_s: float
    peak_mib: int

    @property
    def first_share(self) -> float:
        return self.first_sound_s / self.first_sentence_s


@dataclass(frozen=True, slots=True)
class _Round:
    speech_s: float
    wall_s: float
    cpu_s: float
    first_sound_s: float
    first_sentence_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, help="state directory with the voices; that of the settings by default")
    parser.add_argument("--voice", action="append", help="a model; by default every one that speaks")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    store = Store((options.home or load_settings(None).settings.home) / "models")
    installed = [it.name for it in store.manifests() if it.info.role == "text-to-speech"]
    found = [measure(store, name, options.threads, options.rounds) for name in options.voice or installed]
    if options.json:
        print(json.dumps({"voices": [asdict(one) | {"first_share": one.first_share} for one in found]}, indent=2))
        return
    for one in found:
        print(
            f"{one.voice}, {one.threads} threads: {one.factor_wall:.2f} s for a second of speech ({one.factor_cpu:.2f} s of "
            f"processor), first sound after {one.first_sound_s:.2f} s = {one.first_share:.2f} of its sentence, loaded in "
            f"{one.load_s:.1f} s, {one.peak_mib} MiB at most"
        )


def measure(store: Store, name: str, threads: int, rounds: int) -> Figures:
    """Load a voice and have it speak `TEXT`."""
    began = time.monotonic()
    speaker, _ = load_speaker(store.resolve(name, "text-to-speech"), threads)
    load_s = time.monotonic() - began
    done = [_round(speaker) for _ in range(rounds)]
    return Figures(
        voice=name,
        threads=threads,
        load_s=load_s,
        speech_s=done[0].speech_s,
        factor_wall=min(one.wall_s / one.speech_s for one in done),
        factor_cpu=min(one.cpu_s / one.speech_s for one in done),
        first_sound_s=min(one.first_sound_s for one in done),
        first_sentence_s=done[0].first_sentence_s,
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    )


def _round(speaker: Speaker) -> _Round:
    began, cpu = time.monotonic(), time.process_time()
    lengths: list[float] = []
    first_s = 0.0
    for part in speaker.check(TEXT.encode(), {}).inputs:
        ((result, samples),) = speaker.compute([part])
        first_s = first_s or time.monotonic() - began
        lengths.append(len(samples) / SAMPLE_BYTES / int(result["rate"]))
    wall_s, cpu_s = time.monotonic() - began, time.process_time() - cpu
    return _Round(sum(lengths), wall_s, cpu_s, first_s, lengths[0])


if __name__ == "__main__":
    main()
