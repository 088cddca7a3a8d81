"""Real-time factor of transcription on this machine: `python -m scripts.bench_transcribe [FILE ...] [--model NAME]`.

Without files, the five LibriVox clips of the tests, whose words are compared. A service of its own is started, and each file is
heard twice; the second time counts, since the first one loads the models.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.service import import_tiny, new_home, running
from tests.recordings import add_models, librivox, words

_TIMEOUT_S = 3600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--model", default="whisper-base")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    clips = [] if given.files else librivox()
    files = given.files or [clip.path for clip in clips]
    right = {clip.path: clip.text for clip in clips}
    with new_home(starter=False) as home:
        add_models(home, given.model, "silero-vad")
        with running(model=import_tiny(home), home=home) as service:
            rows = [_measured(service.url, path, given.model, right.get(path)) for path in files]
    total = {
        "model": given.model,
        "real_time_factor": round(sum(row["took_s"] for row in rows) / sum(row["audio_s"] for row in rows), 3),
        "right": sum(bool(row["right"]) for row in rows) if clips else None,
        "files": rows,
    }
    if given.json:
        print(json.dumps(total))
        return
    for row in rows:
        print(f"{row['file']}: {row['audio_s']:.1f} s in {row['took_s']:.2f} s: {row['text']}")
    print(f"{given.model}: real-time factor {total['real_time_factor']}")


def _measured(url: str, path: Path, model: str, right: str | None) -> dict[str, Any]:
    for _ in range(2):
        answer = httpx.post(
            f"{url}/v1/audio/transcriptions",
            files={"file": (path.name, path.read_bytes())},
            data={"model": model, "response_format": "verbose_json"},
            timeout=_TIMEOUT_S,
        )
        answer.raise_for_status()
        found = answer.json()
    return {
        "file": path.name,
        "audio_s": found["duration"],
        "took_s": found["edgewise"]["total_ms"] / 1000,
        "text": found["text"],
        "right": None if right is None else words(found["text"]) == right,
    }


if __name__ == "__main__":
    main()
