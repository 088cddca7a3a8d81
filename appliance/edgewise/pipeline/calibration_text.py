"""The text on which models are calibrated, another than the one by which they are judged (`gate_text`)."""

from __future__ import annotations

import importlib

from edgewise.core.errors import InvalidRequest


def calibration_text() -> str:
    """Chapters of Python's reference manual, English with some code, as every Python carries them for its `help()`
    (`pydoc_data.topics`; Python Software Foundation License).

    Raises:
        InvalidRequest: This Python came without them.
    """
    try:
        topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    except ImportError as error:
        raise InvalidRequest(
            "This Python has no pydoc_data.topics to calibrate on: give a text of your own with --text.", param="text"
        ) from error
    # the longest are about special names and types; shorter ones first give a wider choice of subjects
    return "\n".join(sorted(topics.values(), key=lambda text: (abs(len(text) - 6000), text)))
