"""Places of words asked of an engine: the network's own, whatever else is computed, cached or put aside; and what is refused."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from edgewise.core.errors import EdgewiseError
from edgewise.engine.alignment import Alignment
from edgewise.engine.build import build
from edgewise.engine.config import EngineConfig
from edgewise.engine.engine import Engine
from edgewise.engine.merging import ChunkMerger
from edgewise.engine.messages import Chunks, Submit, decode_to_engine, decode_to_service, encode
from edgewise.engine.request import GenerateRequest, SamplingParams, TokenChunk
from edgewise.models.files import ModelFiles
from edgewise.models.multimodal.media import Media
from edgewise.models.whisper.loading import load_whisper
from tests.engine.test_engine_media import config_of, run
from tests.models.multimodal.tiny_llava import tiny_llava
from tests.models.whisper.small import folder, small_whisper
from tests.models.whisper.test_alignment import TEXT, table, written
from tests.models.whisper.test_network import AUDIO, noise

ASKED = Alignment(first=AUDIO + 3, frames=45)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return folder(small_whisper(), tmp_path_factory.mktemp("whisper"))


@pytest.fixture(params=["float32", "bfloat16", "int8"])
def core(files: ModelFiles, request: Any) -> Iterator[Engine]:
    built = build(_config(files, kv_dtype=request.param), lambda phase, done: None)
    yield built
    built.close()


def _config(files: ModelFiles, **changes: Any) -> EngineConfig:
    return replace(config_of(files, max_step_tokens=AUDIO + 8), **changes)


def asking(name: str, *, seed: int = 1, **fields: Any) -> GenerateRequest:
    content = noise(seed).numpy().tobytes()
    digest = hashlib.sha256(content).digest()
    medium = Media(kind="audio", start=0, count=AUDIO, digest=digest, content=content, shape=(16_000,))
    request = GenerateRequest(
        id=name,
        prompt=(0,) * AUDIO + tuple(TEXT),
        sampling=SamplingParams(max_tokens=1, temperature=0.0),
        media=(medium,),
        alignment=ASKED,
    )
    return replace(request, **fields)


def test_frames_are_the_networks(files: ModelFiles) -> None:
    network = load_whisper(files, device=torch.device("cpu"), dtype=torch.float32)
    assert network.prove_rows()
    pages = written(network, noise(1), TEXT)
    wanted = network.alignment(
        torch.tensor(TEXT), pages.kv, table(pages), first=2, last=len(TEXT) - 1, frames=ASKED.frames
    )
    core = build(_config(files), lambda phase, done: None)
    found = run(core, asking("a"))["a"][1].frames
    core.close()
    assert list(found) == wanted
    chunks = Chunks(epoch=1, chunks=(TokenChunk(request_id="a", offset=0, tokens=(1,), finish="length", frames=found),))
    assert decode_to_service(encode(chunks)) == chunks
    assert len(found) == len(TEXT) - 3


def test_frames_are_the_same_alone_in_company_and_from_the_cache(core: Engine) -> None:
    alone = run(core, asking("a"))["a"][1]
    cached = run(core, asking("b"))["b"][1]
    assert alone.stats is not None
    assert cached.stats is not None
    assert (alone.stats.cached_tokens, cached.stats.cached_tokens > 0) == (0, True)
    assert cached.frames == alone.frames
    core.clear_cache(None)
    writing = asking("w", seed=3, alignment=None, sampling=SamplingParams(max_tokens=20, temperature=0.0))
    both = run(core, writing, asking("c"), asking("d", seed=2))
    assert both["c"][1].frames == alone.frames
    assert both["d"][1].frames != alone.frames
    assert both["w"][1].frames == ()


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (Alignment(first=AUDIO, frames=5), "behind the recording's 64"),
        (Alignment(first=AUDIO + len(TEXT), frames=5), "before 76"),
        (Alignment(first=AUDIO + 1, frames=0), "at least 1"),
    ],
)
def test_what_cannot_be_told_is_refused(files: ModelFiles, asked: Alignment, why: str) -> None:
    core = build(_config(files), lambda phase, done: None)
    with pytest.raises(EdgewiseError, match=why) as refused:
        core.add(asking("a", alignment=asked))
    assert refused.value.param == "alignment"
    assert not core.has_work
    core.close()


def test_a_model_without_recordings_is_refused(tmp_path: Any) -> None:
    core = build(config_of(tiny_llava(tmp_path)), lambda phase, done: None)
    with pytest.raises(EdgewiseError, match="writes down no recordings"):
        core.add(GenerateRequest(id="a", prompt=(1, 2), sampling=SamplingParams(max_tokens=1), alignment=ASKED))
    core.close()


def test_the_question_and_the_answer_cross_the_process_border() -> None:
    request = asking("a")
    sent = decode_to_engine(encode(Submit.of(request)))
    assert isinstance(sent, Submit)
    assert sent.request() == request
    merger = ChunkMerger()
    merger.add(TokenChunk(request_id="a", offset=0, tokens=(1,), finish="length", frames=(3, 4, 9)), ())
    assert [chunk.frames for chunk in merger.take()] == [(3, 4, 9)]
