"""Vectors and ranks of a real device service with a tiny encoder, asked by OpenAI's own client."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from edgewise.models.encoders.text import load_tokenizer
from tests.e2e.service import edgewise, import_model, import_tiny, new_home, running
from tests.fakes.tiny_encoders import (
    MAX_TOKENS,
    WIDTH,
    encoder_files,
    expected,
    expected_scores,
    make_cross_encoder,
    make_encoder,
)

TEXTS = [
    "A tenant is a customer of the cloud.",
    "The device answers.",
    "One word",
    "Pages are kept on disk until they are asked for.",
]


@dataclass(frozen=True)
class Asked:
    url: str
    folder: Path
    scorer: Path
    home: Path

    def post(self, path: str, **body: Any) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", json={"model": "small", **body}, timeout=60)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    folder = make_encoder(tmp_path_factory.mktemp("encoder"), pooling="cls", matryoshka_dimensions=[32])
    with new_home(starter=False) as home:
        import_tiny(home)
        import_model(home, folder, "small", "embeddings")
        scorer = make_cross_encoder(tmp_path_factory.mktemp("scorer"))
        import_model(home, scorer, "scorer", "rerank")
        with running(model="tiny", home=home) as running_service:
            yield Asked(running_service.url, folder, scorer, home)


def truth(service: Asked, texts: list[str]) -> Any:
    """Of the first token's state: the folder says so."""
    return expected(service.folder, load_tokenizer(encoder_files(service.folder)).encode(texts), "cls")


def alike(got: np.ndarray[Any, Any], exact: np.ndarray[Any, Any]) -> bool:
    """By cosine: 8 bits may have taken the place of float32 by now."""
    return bool((got * exact).sum(1).min() >= 0.99)


def test_openais_client_gets_the_vectors_of_the_model_in_order(service: Asked) -> None:
    client = openai.OpenAI(base_url=f"{service.url}/v1", api_key="unused")
    found = client.embeddings.create(model="small", input=TEXTS)  # base64 on the wire
    assert alike(np.asarray([it.embedding for it in found.data]), truth(service, TEXTS))
    assert [it.index for it in found.data] == list(range(len(TEXTS)))
    rows = load_tokenizer(encoder_files(service.folder)).encode(TEXTS)
    assert found.usage.prompt_tokens == found.usage.total_tokens == sum(map(len, rows))
    plain = client.embeddings.create(model="small", input=TEXTS, encoding_format="float")
    assert [it.embedding for it in plain.data] == pytest.approx(
        np.asarray([it.embedding for it in found.data]), abs=2e-3
    )


def test_token_ids_and_the_encoder_that_is_there_without_its_name(service: Asked) -> None:
    rows = load_tokenizer(encoder_files(service.folder)).encode(TEXTS[:2])
    for given, count in ((rows, 2), (rows[0], 1)):
        answer = service.post("/v1/embeddings", input=given, model=None).json()
        assert answer["model"] == "small"
        assert len(answer["data"]) == count
        got = np.asarray([it["embedding"] for it in answer["data"]])
        assert alike(got, truth(service, TEXTS[:count]))


def test_many_texts_of_many_callers_come_back_to_whom_they_belong(service: Asked) -> None:
    texts = [f"{word} {number}" for number in range(20) for word in ("disk", "a cloud engine writes", "page")]
    exact = truth(service, texts)
    wrong: list[int] = []

    def ask(first: int) -> None:
        part = texts[first:] + texts[:first]
        answer = service.post("/v1/embeddings", input=part).json()
        got = np.asarray([it["embedding"] for it in answer["data"]])
        if not alike(got, np.concatenate([exact[first:], exact[:first]])):
            wrong.append(first)

    callers = [threading.Thread(target=ask, args=(first,)) for first in range(0, 40, 5)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert wrong == []


def test_what_is_too_long_is_refused_or_cut_when_asked(service: Asked) -> None:
    text = "disk " * 100
    refused = service.post("/v1/embeddings", input=["short", text])
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == "input"
    assert f"reads at most {MAX_TOKENS}" in error["message"]
    cut = service.post("/v1/embeddings", input=["short", text], truncate=True).json()
    assert cut["edgewise"]["truncated"] == [1]
    (encoder,) = cut["edgewise"]["encoders"]
    assert (encoder["unit"], encoder["rung"]) == ("embeddings", cut["edgewise"]["precision"])
    assert encoder["inputs"] == len(cut["data"])
    assert encoder["device_ms"] >= 0
    assert cut["usage"]["total_tokens"] < 100


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"input": "x", "dimensions": 16}, "dimensions", f"vectors of {WIDTH} numbers, which may be cut to 32."),
        ({"input": []}, "input", "none empty"),
        ({"input": [[1, 10**6]]}, "input", "token id"),
        ({"input": "x", "encoding_format": "hex"}, "encoding_format", "base64"),
        ({"input": ["x"] * 2049}, "input", "at most 2048"),
        ({"input": "x", "colour": 1}, "colour", "colour"),
        ({"input": "x", "model": "tiny"}, "model", "is for text"),
        ({"input": "x", "model": "scorer"}, "model", "is for ranking texts"),
        ({"input": "x", "model": "nobody"}, "model", "does not exist"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(service: Asked, body: dict[str, Any], param: str, says: str) -> None:
    answer = service.post("/v1/embeddings", **body)
    assert answer.status_code in (400, 404)
    error = answer.json()["error"]
    assert error["param"] == param
    assert says in error["message"]


def test_vectors_are_cut_to_a_length_that_the_model_was_trained_for(service: Asked) -> None:
    assert service.post("/v1/embeddings", input="x", dimensions=WIDTH).status_code == 200
    answer = service.post("/v1/embeddings", input=TEXTS, dimensions=32).json()
    got = np.asarray([it["embedding"] for it in answer["data"]])
    exact = truth(service, TEXTS)[:, :32]
    assert got.shape == (len(TEXTS), 32)
    assert alike(got, exact / np.linalg.norm(exact, axis=1, keepdims=True))
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1.0, atol=1e-5)


def test_documents_are_ranked_by_likeness(service: Asked) -> None:
    documents: list[Any] = [TEXTS[1], {"text": TEXTS[0]}, TEXTS[3]]
    answer = service.post("/v1/rerank", query=TEXTS[0], documents=documents, return_documents=True).json()
    assert answer["results"][0]["index"] == 1
    assert answer["results"][0]["relevance_score"] == pytest.approx(1.0, abs=1e-3)
    assert answer["results"][0]["document"] == {"text": TEXTS[0]}
    scores = [it["relevance_score"] for it in answer["results"]]
    assert scores == sorted(scores, reverse=True)
    vectors = truth(service, [TEXTS[0], TEXTS[1], TEXTS[0], TEXTS[3]])
    exact = {index: float(vectors[0] @ vectors[index + 1]) for index in range(3)}
    for it in answer["results"]:
        assert it["relevance_score"] == pytest.approx(exact[it["index"]], abs=5e-3)
    first = service.post("/v1/rerank", query=TEXTS[0], documents=documents, top_n=1).json()["results"]
    assert len(first) == 1
    assert "document" not in first[0]
    assert answer["edgewise"]["scored_by"] == "cosine"
    bad = service.post("/v1/rerank", query="x", documents=["y " * 100])
    assert bad.json()["error"]["param"] == "documents"


@pytest.mark.parametrize("model", ["scorer", None])
def test_a_cross_encoder_reads_query_and_document_together(service: Asked, model: str | None) -> None:
    """It is asked where no model is named, and its scores are those of sentence-transformers."""
    documents = [*TEXTS, "disk " * 90]
    refused = service.post("/v1/rerank", model=model, query=TEXTS[0], documents=documents)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "documents")
    assert "'documents' 4 is too long" in error["message"]
    answer = service.post("/v1/rerank", model=model, query=TEXTS[0], documents=documents, truncate=True).json()
    assert answer["model"] == "scorer"
    assert answer["edgewise"]["scored_by"] == "cross-encoder"
    assert answer["edgewise"]["truncated"] == [4]
    truth = 1 / (1 + np.exp(-expected_scores(service.scorer, TEXTS[0], documents, MAX_TOKENS)))
    for it in answer["results"]:
        assert it["relevance_score"] == pytest.approx(
            float(truth[it["index"]]), abs=0.024
        )  # what its ladder's gate allows
    scores = [it["relevance_score"] for it in answer["results"]]
    assert scores == sorted(scores, reverse=True)
    assert sorted(it["index"] for it in answer["results"]) == list(range(5))


def test_the_candidates_are_shown_once_they_were_measured(service: Asked) -> None:
    shown = json.loads(edgewise(service.home, "models", "encoders", "small", "--measure", "--json"))
    (encoder,) = shown["encoders"]
    assert encoder["name"] == "small"
    (place,) = encoder["places"]
    assert {"fp32", "int8-static", "int8-blocks"} <= {it["name"] for it in place["candidates"]}
    assert all(it["chosen"] or it["why"] for it in place["candidates"])
    assert "in use" in edgewise(service.home, "models", "encoders")
