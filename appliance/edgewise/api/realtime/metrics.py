"""What /metrics publishes of voice sessions."""

from __future__ import annotations

from edgewise.core.metrics import Metrics
from edgewise.pipeline.voice.protocols import Response

_GAPS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_FACTORS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0)


class VoiceMetrics:
    """A `pipeline.voice.protocols.VoiceObserver`."""

    def __init__(self, metrics: Metrics) -> None:
        self.sessions = metrics.gauge("voice_sessions", "Voice sessions that are open")
        self._first = metrics.histogram("voice_first_sound_seconds", "From a speaker's last word to the first sound")
        self._gap = metrics.histogram(
            "voice_worst_gap_seconds", "Longest silence within an answer for lack of sound", buckets=_GAPS
        )
        self._factor = metrics.histogram(
            "voice_real_time_factor", "Seconds to make one second of speech", buckets=_FACTORS
        )
        self._answers = metrics.counter("voice_answers", "Answers of voice sessions", ("status",))
        for status in ("completed", "cancelled", "incomplete", "failed"):
            self._answers.labels(status)
        self._interruptions = metrics.counter("voice_barge_ins", "Answers that a speaker interrupted")

    def answered(self, response: Response, /) -> None:
        self._answers.labels(response.status).inc()
        if response.first_sound_s is not None:
            self._first.observe(response.first_sound_s)
            self._gap.observe(response.worst_gap_s)
            self._factor.observe(response.speak_s / response.speech_s)

    def interrupted(self) -> None:
        self._interruptions.inc()
