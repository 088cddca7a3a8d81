"""Texts to vectors without a process: order over several requests, errors of one of them, and hooks."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import tokenizers

from edgewise.core.errors import EngineFault, InvalidRequest, QueueFull
from edgewise.engine.encoders.request import EncodeChunk, EncodeRequest
from edgewise.models.encoders.rows import unpack_rows
from edgewise.models.encoders.text import EncoderTokenizer, TextFace
from edgewise.pipeline.embeddings import ROWS, EmbedTask, Text, embed, shortened
from edgewise.pipeline.hooks.hooks import Hooks
from edgewise.pipeline.hooks.protocol import AuditRecord, Hook
from edgewise.pipeline.model import ServedEncoder
from tests.fakes.tiny_encoders import make_tokenizer


class LengthEncoder:
    """A double of an encoder's engine: a text's vector is (its number of tokens, its first id)."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.requests: list[EncodeRequest] = []

    async def submit(self, request: EncodeRequest) -> AsyncIterator[EncodeChunk]:
        self.requests.append(request)
        return self._answer(request)

    async def _answer(self, request: EncodeRequest) -> AsyncIterator[EncodeChunk]:
        if self.fails and request.id.endswith("/1"):
            yield EncodeChunk(request_id=request.id, finish="error", error_code="engine_error", error_message="burnt")
            return
        numbers = array("f", [value for row in unpack_rows(request.content) for value in (len(row), row[0])])
        result = {"precision": "fp32", "width": 2}
        yield EncodeChunk(request_id=request.id, finish="done", result=result, content=numbers.tobytes())


def task(engine: LengthEncoder, texts: tuple[Text, ...], prompt: str = "") -> EmbedTask:
    backend = tokenizers.Tokenizer.from_str(make_tokenizer().to_str())
    face = TextFace(EncoderTokenizer(backend), cast("Any", SimpleNamespace(numbers=2, max_tokens=200, prompt=prompt)))
    model = ServedEncoder(
        name="double", role="embeddings", engine=cast("Any", engine), digest="sha256:0", created=0, face=face
    )
    return EmbedTask(id="r", model=model, texts=texts, field="input")


async def test_vectors_come_in_the_order_of_the_texts_over_several_requests() -> None:
    engine = LengthEncoder()
    lengths = [(number * 37) % 150 + 1 for number in range(2 * ROWS + 5)]
    found = await embed(task(engine, tuple(tuple([number + 5] * size) for number, size in enumerate(lengths))), Hooks())
    assert [list(vector) for vector in found.vectors] == [[size, at + 5] for at, size in enumerate(lengths)]
    assert len(engine.requests) == 3
    assert found.tokens == sum(lengths)
    assert found.precision == "fp32"


async def test_what_stands_before_every_text_is_read_with_it() -> None:
    engine = LengthEncoder()
    plain, led = [await embed(task(engine, ("a page",), prompt), Hooks()) for prompt in ("", "of disk and ")]
    assert led.tokens > plain.tokens
    ids = await embed(task(engine, ((7, 8, 9),), "of disk and "), Hooks())
    assert ids.tokens == 3


def test_a_vector_that_is_cut_has_the_length_one() -> None:
    assert list(shortened(array("f", [0.6, 0.0, 0.8]), 2)) == pytest.approx([1.0, 0.0])
    assert list(shortened(array("f", [0.0, 0.0, 1.0]), 2)) == [0.0, 0.0]


async def test_the_fault_of_one_request_is_that_of_all() -> None:
    with pytest.raises(EngineFault, match="burnt"):
        await embed(task(LengthEncoder(fails=True), tuple((7,) for _ in range(2 * ROWS))), Hooks())


async def test_hooks_are_not_passed_by_as_token_ids() -> None:
    hook = SimpleNamespace(name="reader", wants_text=False)
    engine = LengthEncoder()
    with pytest.raises(InvalidRequest, match="hooks that read"):
        await embed(task(engine, ((1, 2),)), Hooks([cast("Any", hook)]))
    assert engine.requests == []


class Noting(Hook):
    """A hook double that remembers what it was told."""

    name = "noting"

    def __init__(self) -> None:
        self.records: list[AuditRecord] = []

    async def audit(self, record: AuditRecord) -> None:
        self.records.append(record)


class Ending(LengthEncoder):
    """Ends a request by an exception of its own."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    async def submit(self, request: EncodeRequest) -> AsyncIterator[EncodeChunk]:
        raise self.error


@pytest.mark.parametrize(
    ("engine", "code"),
    [
        (LengthEncoder(fails=True), "engine_error"),
        (Ending(QueueFull("full")), "rate_limit_exceeded"),
        (Ending(RuntimeError("a fault of our own")), "engine_error"),
        (Ending(asyncio.CancelledError()), "cancelled"),
    ],
)
async def test_hooks_hear_which_error_ended_it(engine: LengthEncoder, code: str) -> None:
    hook = Noting()
    with pytest.raises((EngineFault, QueueFull, RuntimeError, asyncio.CancelledError)):
        await embed(task(engine, ("a page",) * (ROWS + 1)), Hooks([hook]))
    assert [(one.event, one.outcome) for one in hook.records] == [("asked", None), ("answered", code)]
