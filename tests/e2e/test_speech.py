"""What the device says, it hears: sentences spoken by Kokoro are read back word for word by its own transcription."""

from __future__ import annotations

import httpx
import pytest

from tests.accept.speech_sentences import SENTENCES, said_words
from tests.e2e.service import import_tiny, new_home, running
from tests.recordings import add_models

FEW = (SENTENCES[3], SENTENCES[5], SENTENCES[13])
"""With a time, an amount of money, and an abbreviation and a year."""


@pytest.mark.slow
def test_what_is_spoken_is_heard_word_for_word() -> None:
    with new_home(starter=False) as home:
        add_models(home, "whisper-base", "silero-vad", "kokoro")
        with running(model=import_tiny(home), home=home) as service:
            for text in FEW:
                spoken = httpx.post(f"{service.url}/v1/audio/speech", json={"input": text}, timeout=120)
                assert spoken.status_code == 200, spoken.text
                heard = httpx.post(
                    f"{service.url}/v1/audio/transcriptions",
                    files={"file": ("spoken.mp3", spoken.content)},
                    data={"model": "whisper-base", "language": "en"},
                    timeout=120,
                )
                assert heard.status_code == 200, heard.text
                assert said_words(heard.json()["text"]) == said_words(text)
