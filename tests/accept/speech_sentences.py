"""Sentences that are spoken and read back, and how two texts are compared: by what is said, not by how it is written."""

from __future__ import annotations

import re
from typing import Final

from edgewise.models.speech.normalize import normalize

SENTENCES: Final = (
    "The weather report says that rain is likely tomorrow morning.",
    "Please close the window before you leave the office.",
    "My doctor said that I should drink more water every day.",
    "The train to Boston leaves at 7:30 from platform nine.",
    "She bought three apples, two lemons, and a loaf of bread.",
    "The repair will cost $45 and take about two weeks.",
    "Can you tell me where the nearest pharmacy is?",
    "The meeting was moved from Tuesday to Friday afternoon.",
    "A small device can answer questions without the internet.",
    "He opened the letter slowly and read every word of it.",
    "The children played in the garden until the sun went down.",
    "Turn left at the church, then walk straight for 200 meters.",
    "Your pictures and your voice stay on this machine at home.",
    "Dr. Brown has worked at this hospital since 1998.",
    "Our neighbors painted their house a bright shade of blue.",
    "Scientists found a new kind of beetle in the desert.",
    "I would like a cup of coffee with milk but no sugar.",
    "The bridge is 120 years old and still carries traffic.",
    "Remember to charge the battery before the long journey.",
    "Music and laughter filled the crowded room all evening.",
)


def said_words(text: str) -> list[str]:
    """The words that are said for a text: "7:30", "7.30" (as Whisper writes it) and "seven thirty" are the same."""
    text = re.sub(r"\b(\d{1,2})\.([0-5]\d)\b", r"\1:\2", text)
    said = normalize(text).text.lower().replace("-", " ")
    return re.findall(r"[a-z']+", said)
