"""Which kind of work comes first when there is too little of anything: voice, then chat, then pictures, then film.

A voice that stutters is useless at once, a chat that is slow is slow, a picture is waited for anyway, and film is watched later.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final


class Modality(IntEnum):
    """First come first: a smaller number is served first and gives way last."""

    VOICE = 0
    CHAT = 1
    IMAGE = 2
    VIDEO = 3

    @property
    def word(self) -> str:
        return self.name.lower()


_OF_ROLE: Final[Mapping[str, Modality]] = {
    "speech-to-text": Modality.VOICE,
    "text-to-speech": Modality.VOICE,
    "vad": Modality.VOICE,
    "vision": Modality.IMAGE,
    "ocr": Modality.IMAGE,
    "diffusion": Modality.IMAGE,
}


def modality_of_role(role: str) -> Modality:
    """Of a model by what it is for (`models.manifest.Role`); language models and encoders of text belong to chats."""
    return _OF_ROLE.get(role, Modality.CHAT)
