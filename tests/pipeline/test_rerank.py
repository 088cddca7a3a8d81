"""Scores of pairs without a process: their scale, what hooks let through, and the order of the documents."""

from __future__ import annotations

import math
from array import array
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from edgewise.core.errors import ContextLengthExceeded
from edgewise.engine.encoders.request import EncodeChunk, EncodeRequest
from edgewise.models.encoders.rows import unpack_pairs, unpack_rows
from edgewise.models.encoders.shape import EncoderShape, Head
from edgewise.models.encoders.text import EncoderTokenizer, TextFace
from edgewise.pipeline.embeddings import EmbedTask
from edgewise.pipeline.hooks.hooks import Hooks
from edgewise.pipeline.model import ServedEncoder
from edgewise.pipeline.rerank import rank, rerank, scaled
from tests.fakes.tiny_encoders import make_tokenizer

SIGMOID = Head(activation="tanh", normed=False, scale="sigmoid")
IDENTITY = Head(activation="tanh", normed=False, scale="identity")


class SecondEncoder:
    """A double of a cross-encoder's engine: a pair's number is how many tokens its second text has, less 5."""

    async def submit(self, request: EncodeRequest) -> AsyncIterator[EncodeChunk]:
        return self._answer(request)

    async def _answer(self, request: EncodeRequest) -> AsyncIterator[EncodeChunk]:
        pairs = unpack_pairs(unpack_rows(request.content))
        numbers = array("f", [len(pair.ids) - pair.second - 5 for pair in pairs])
        result = {"precision": "fp32", "width": 1}
        yield EncodeChunk(request_id=request.id, finish="done", result=result, content=numbers.tobytes())


def task(head: Head, *texts: str, truncate: bool = False) -> EmbedTask:
    shape = EncoderShape(
        family="bert",
        vocab=600,
        width=8,
        layers=1,
        heads=1,
        hidden=8,
        eps=1e-12,
        max_tokens=40,
        pooling="cls",
        head=head,
    )
    face = TextFace(EncoderTokenizer(make_tokenizer()), shape)
    engine = cast("Any", SecondEncoder())
    model = ServedEncoder(name="double", role="rerank", engine=engine, digest="sha256:0", created=0, face=face)
    return EmbedTask(id="r", model=model, texts=texts, field="documents", truncate=truncate)


async def test_documents_come_by_score_over_several_requests() -> None:
    """The double counts tokens: the longer, the better; 70 documents are three requests."""
    documents = ["disk " * (at % 7 + 1) for at in range(70)]
    found = await rerank(task(IDENTITY, "page", *documents), Hooks())
    assert found.scored_by == "cross-encoder"
    assert [index for index, _ in found.order] == sorted(range(70), key=lambda at: -(at % 7))
    assert [score for _, score in found.order] == sorted((at % 7 - 3.0 for at in range(70)), reverse=True)
    scored = await rerank(task(SIGMOID, "page", *documents), Hooks())
    assert [index for index, _ in scored.order] == [index for index, _ in found.order]
    assert scored.order[0][1] == pytest.approx(1 / (1 + math.exp(-3)))


async def test_what_is_too_long_is_refused_or_cut_and_told() -> None:
    texts = ["page", "disk", "disk " * 50]
    with pytest.raises(ContextLengthExceeded, match=r"'documents' 1 is too long.*at most 40 tokens"):
        await rerank(task(IDENTITY, *texts), Hooks())
    found = await rerank(task(IDENTITY, *texts, truncate=True), Hooks())
    assert found.found.truncated == (1,)


def test_scores_lie_between_none_and_one_however_large_the_number() -> None:
    assert [scaled(number, SIGMOID) for number in (-1000.0, 0.0, 1000.0)] == [0.0, 0.5, 1.0]
    assert scaled(-12.5, IDENTITY) == -12.5


def test_equal_documents_keep_their_order() -> None:
    assert [index for index, _ in rank([1.0, 0.0], [[0.0, 1.0], [1.0, 0.0], [1.0, 0.0], [0.6, 0.8]])] == [1, 2, 3, 0]
