"""Where in a recording the words of a text are spoken, as a caller asks it of an engine. Torch-free.

The text comes as the prompt behind the recording, and one token is drawn, which nobody needs: then the sequence's pages hold all
of its keys and values. From those the network computes the text once more and looks at its attention
(`WhisperNetwork.alignment`).
"""

from __future__ import annotations

from dataclasses import dataclass

from edgewise.core.errors import InvalidRequest, UnsupportedField

_PARAM = "alignment"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """What is asked about a prompt's text.

    Attributes:
        first: Index in the prompt of the first token whose place is told; the last one is that of the end token behind the text.
        frames: Of the recording that the text covers, from its beginning; each is 20 ms.
    """

    first: int
    frames: int


def check_alignment(asked: Alignment, *, recording: int, prompt: int, model: str) -> None:
    """Refuse what cannot be told.

    Args:
        recording: Placeholders that the model's prompts begin with; 0 for a model that hears no recording.
        prompt: Tokens of the prompt.

    Raises:
        UnsupportedField: The model writes down no recordings.
        InvalidRequest: A number is out of range.
    """
    if not recording:
        raise UnsupportedField(
            f"The model '{model}' writes down no recordings: it has no times of words.", param=_PARAM
        )
    if not recording < asked.first < prompt:
        raise InvalidRequest(
            f"'alignment' asks from token {asked.first} of the prompt on: it must be behind the recording's {recording} and one "
            f"more, and before {prompt}.",
            param=_PARAM,
        )
    if asked.frames < 1:
        raise InvalidRequest(f"'alignment' has {asked.frames} frames: at least 1 is needed.", param=_PARAM)
