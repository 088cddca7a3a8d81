"""What an engine takes: a request is held against its model, and against what others hold, before it is queued."""

from __future__ import annotations

from collections.abc import Iterable

from edgewise.core.errors import InvalidRequest, UnsupportedField
from edgewise.engine.alignment import check_alignment
from edgewise.engine.api import EngineInfo
from edgewise.engine.request import GenerateRequest
from edgewise.engine.senses import Senses
from edgewise.engine.sequence import Sequence
from edgewise.engine.spans import check_media


class Admission:
    """Refuses by name; keeps nothing.

    Args:
        info: What the engine is.
        recording_tokens: Placeholders of the one recording that every prompt begins with; 0 where prompts may do without.
        most_whole: Most tokens that are computed in one step.
        senses: Encodes media; None where the model takes none.
    """

    def __init__(self, info: EngineInfo, *, recording_tokens: int, most_whole: int, senses: Senses | None) -> None:
        self._info = info
        self._recording_tokens = recording_tokens
        self._most_whole = most_whole
        self._senses = senses

    def check(self, request: GenerateRequest, live: Iterable[Sequence]) -> None:
        """Refuse what can never be computed here, or not beside `live`, the requests in work.

        Raises:
            InvalidRequest, UnsupportedField, ContextLengthExceeded: As `SamplingParams.validate`, `check_alignment` and
                `check_media`; a token that the model does not have; sound asked of a model that has no voice.
            QueueFull: As `Senses.check`.
        """
        info = self._info
        request.sampling.validate(info.vocab_size)
        for token in (*request.prompt, *request.output):
            if not 0 <= token < info.vocab_size:
                raise InvalidRequest(
                    f"The prompt has token id {token}: ids run from 0 to {info.vocab_size - 1}.", param="prompt"
                )
        if request.speech is not None:
            raise UnsupportedField(
                f"'modalities' asks for sound, and the model '{info.model}' answers in text alone: ask one that speaks "
                "(Qwen2.5-Omni), or have the text spoken by /v1/audio/speech.",
                param="modalities",
            )
        self._check_recording(request)
        if request.media:
            check_media(
                request,
                kinds=info.media,
                model=info.model,
                most_whole=self._most_whole,
                max_position=info.model_context,
            )
            if self._senses is not None:
                self._senses.check(request, [sequence.request for sequence in live])

    def _check_recording(self, request: GenerateRequest) -> None:
        needed = self._recording_tokens
        if needed and [(one.kind, one.start, one.count) for one in request.media] != [("audio", 0, needed)]:
            raise InvalidRequest(
                f"The model '{self._info.model}' writes down what is said: its prompts begin with one recording of {needed} "
                "tokens and have no other media. Send the recording to /v1/audio/transcriptions.",
                param="media",
            )
        if request.alignment is not None:
            check_alignment(request.alignment, recording=needed, prompt=len(request.prompt), model=self._info.model)
