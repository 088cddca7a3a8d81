"""The demo's three acts: an answer from here, a picture from the cloud, an answer whose link is cut in the middle."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgewise.cli.chat_client import Answer, ChatClient

QUESTION = "What is the capital of France?"
LONG_QUESTION = "Tell me how bread is made, step by step."
PICTURE_PROMPT = "a red apple"
CUT_AFTER = 24
"""Pieces of text after which the link is cut."""

Say = Callable[[str], None]
POLICY_HEADER = "X-Edgewise-Policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """What an act brought.

    Attributes:
        receipt: The `edgewise` object of its answer.
        facts: What is worth a line: text, seconds, path of the picture.
    """

    name: str
    receipt: Mapping[str, Any]
    facts: Mapping[str, Any]


def local_answer(url: str, model: str, say: Say) -> Act:
    """One question, answered on the device."""
    client = ChatClient(url, headers={POLICY_HEADER: "prefer-local"})
    return _answer("local", client, model, QUESTION, 64, say, cut=None)


def cut_answer(url: str, model: str, say: Say, cut: Callable[[], None]) -> Act:
    """One question for the cloud; `cut` is called in the middle of its answer, which must go on all the same."""
    client = ChatClient(url, headers={POLICY_HEADER: "prefer-cloud"})
    return _answer("cut", client, model, LONG_QUESTION, 120, say, cut=cut)


def picture(url: str, model: str, folder: Path) -> Act:
    """One picture, drawn by the cloud and written to `folder`."""
    body = {"model": model, "prompt": PICTURE_PROMPT, "seed": 7, "response_format": "b64_json"}
    began = time.monotonic()
    with ChatClient(url, headers={POLICY_HEADER: "prefer-cloud"}) as client:
        answer = client.post("/v1/images/generations", body)
    path = folder / "edgewise-picture.png"
    path.write_bytes(base64.b64decode(answer["data"][0]["b64_json"]))
    facts = {"prompt": PICTURE_PROMPT, "path": str(path), "seconds": round(time.monotonic() - began, 2)}
    return Act(name="picture", receipt=answer["edgewise"], facts=facts)


def _answer(
    name: str, client: ChatClient, model: str, question: str, tokens: int, say: Say, *, cut: Callable[[], None] | None
) -> Act:
    answer = Answer()
    pieces = 0
    first_s = None
    messages = [{"role": "user", "content": question}]
    began = time.monotonic()
    with client:
        for piece in client.stream(messages, answer, model=model, temperature=0, max_completion_tokens=tokens):
            first_s = time.monotonic() - began if first_s is None else first_s
            pieces += 1
            say(piece)
            if cut is not None and pieces == CUT_AFTER:
                cut()
    total_s = time.monotonic() - began
    count = int((answer.usage or {}).get("completion_tokens", 0))
    facts = {
        "question": question,
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        "tokens": count,
        "first_s": round(first_s or 0.0, 3),
        "tokens_per_s": round((count - 1) / (total_s - first_s), 1) if first_s and count > 1 else None,
    }
    return Act(name=name, receipt=answer.receipt or {}, facts=facts)
