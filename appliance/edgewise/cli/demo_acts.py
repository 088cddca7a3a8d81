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
CUT_CHARACTERS = 40
"""What has come when the link is cut. Pieces would not say how far an answer is: a quick engine puts many tokens into one."""
CUT_TOKENS = 240
"""Length of the answer that is cut: its middle must last longer than a cut takes, on the quickest engine too."""

Say = Callable[[str], None]
POLICY_HEADER = "X-Edgewise-Policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """What an act brought.

    Attributes:
        receipt: The `edgewise` object of its answer.
        facts: What is worth a line: text, seconds, path of the picture, whether the link was cut before the answer's end.
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
    return _answer("cut", client, model, LONG_QUESTION, CUT_TOKENS, say, cut=cut)


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
    first_s, was_cut = None, False
    messages = [{"role": "user", "content": question}]
    began = time.monotonic()
    with client:
        for piece in client.stream(messages, answer, model=model, temperature=0, max_completion_tokens=tokens):
            first_s = time.monotonic() - began if first_s is None else first_s
            say(piece)
            if cut is not None and not was_cut and len(answer.text) >= CUT_CHARACTERS:
                cut()
                was_cut = True
    total_s = time.monotonic() - began
    count = int((answer.usage or {}).get("completion_tokens", 0))
    facts = {
        "question": question,
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        "tokens": count,
        "first_s": round(first_s or 0.0, 3),
        "tokens_per_s": round((count - 1) / (total_s - first_s), 1) if first_s and count > 1 else None,
        **({} if cut is None else {"cut": was_cut}),
    }
    return Act(name=name, receipt=answer.receipt or {}, facts=facts)
