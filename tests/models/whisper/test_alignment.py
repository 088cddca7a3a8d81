"""Places of tokens in a recording: filter, warping and whole beside transformers', and what the pages hold stays as it is."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import WhisperForConditionalGeneration
from transformers.models.whisper import generation_whisper as theirs_code

from edgewise.core.errors import BadModelFile
from edgewise.kernels.attention_scores import attention_scores
from edgewise.kernels.kv_write import write_kv
from edgewise.kernels.paging import PAGE_TOKENS, KVLayer
from edgewise.models.whisper.alignment import first_frames, median_filter, token_frames
from edgewise.models.whisper.alignment_heads import alignment_heads
from edgewise.models.whisper.config import read_whisper
from edgewise.models.whisper.features import log_mel, mel_filters
from edgewise.models.whisper.loading import load_whisper
from edgewise.models.whisper.network import WhisperNetwork
from tests.models.whisper.small import folder, small_whisper
from tests.models.whisper.test_network import AUDIO, FRAMES, Pages, encoded, noise

UPPER = ((1, 0), (1, 1), (1, 2), (1, 3))
TEXT = [1, 17, 42, 5, 99, 3, 60, 61, 7, 20, 150, 8]


@pytest.fixture(scope="module")
def theirs() -> WhisperForConditionalGeneration:
    model = small_whisper()
    model.set_attn_implementation("eager")  # the only one that tells its weights
    with torch.no_grad():
        for layer in model.model.decoder.layers:  # so that attention has peaks, and a path is not chosen by rounding
            layer.encoder_attn.q_proj.weight.mul_(4.0)
    return model


@pytest.fixture(scope="module")
def ours(theirs: WhisperForConditionalGeneration, tmp_path_factory: pytest.TempPathFactory) -> WhisperNetwork:
    files = folder(theirs, tmp_path_factory.mktemp("whisper"))
    network = load_whisper(files, device=torch.device("cpu"), dtype=torch.float32)
    assert network.prove_rows()
    return network


def written(network: WhisperNetwork, samples: torch.Tensor, text: list[int]) -> Pages:
    """Pages that hold a recording and its text."""
    pages = Pages(network, 1)
    pages.step((0, [0] * AUDIO, 0), rows=encoded(network, samples))
    pages.step((0, text, AUDIO))
    return pages


def table(pages: Pages) -> torch.Tensor:
    return torch.arange(pages.each, dtype=torch.int32).flip(0)


def expected(
    theirs: WhisperForConditionalGeneration, samples: torch.Tensor, text: list[int], heads: Any, frames: int
) -> list[int]:
    """Frames as transformers reads them off all rows of `text`."""
    features = log_mel(samples, mel_filters(80), 2 * FRAMES)[None]
    with torch.inference_mode():
        told = theirs(input_features=features, decoder_input_ids=torch.tensor([text]), output_attentions=True)
    outputs: Any = type("Outputs", (SimpleNamespace,), {"__contains__": lambda self, key: False})(
        cross_attentions=(told.cross_attentions,), sequences=torch.tensor([text])
    )
    extract: Any = theirs._extract_token_timestamps
    seconds = extract(outputs, heads, num_frames=2 * frames, num_input_ids=0)[0]
    return [round(float(second) / 0.02) for second in seconds[: len(text)]]


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5, 6])
def test_frames_of_tokens_are_those_of_transformers(
    theirs: WhisperForConditionalGeneration, ours: WhisperNetwork, seed: int
) -> None:
    samples = noise(seed)
    text = TEXT[seed % 3 :]
    pages = written(ours, samples, text)
    found = ours.alignment(torch.tensor(text), pages.kv, table(pages), first=0, last=len(text), frames=FRAMES)
    wanted = expected(theirs, samples, text, UPPER, FRAMES)
    assert ours.alignment_heads == UPPER
    assert max(abs(a - b) for a, b in zip(found, wanted, strict=True)) <= 1
    assert sum(a != b for a, b in zip(found, wanted, strict=True)) <= 1


def test_nothing_is_written_and_the_cut_of_the_prompt_does_not_matter(ours: WhisperNetwork) -> None:
    samples = noise(7)
    whole = written(ours, samples, TEXT)
    pieces = Pages(ours, 1)
    pieces.step((0, [0] * AUDIO, 0), rows=encoded(ours, samples))
    for at, token in enumerate(TEXT):
        pieces.step((0, [token], AUDIO + at))
    before = [layer.k.clone() for layer in whole.kv]
    asked: dict[str, Any] = {"first": 2, "last": len(TEXT) - 1, "frames": 40}
    found = [ours.alignment(torch.tensor(TEXT), one.kv, table(one), **asked) for one in (whole, pieces)]
    assert found[0] == found[1]
    assert len(found[0]) == len(TEXT) - 3
    assert found[0] == sorted(found[0])
    assert 0 <= found[0][0] <= found[0][-1] < 40
    for layer, kept in zip(whole.kv, before, strict=True):
        assert torch.equal(layer.k.nan_to_num(), kept.nan_to_num())


def test_the_median_is_that_of_transformers() -> None:
    for frames in (2, 3, 4, 7, 50):
        rows = torch.randn(3, frames, generator=torch.Generator().manual_seed(frames))
        wanted = theirs_code._median_filter(rows[None, None], 7)[0, 0]
        assert torch.equal(median_filter(rows), wanted)


@pytest.mark.parametrize(("rows", "frames"), [(1, 1), (1, 9), (6, 1), (4, 4), (12, 5), (7, 60), (30, 200)])
def test_the_path_is_that_of_transformers(rows: int, frames: int) -> None:
    rng = np.random.default_rng(rows * 1000 + frames)
    for ties in (False, True):
        evidence = rng.normal(size=(rows, frames))
        if ties:
            evidence = np.round(evidence)
        text, time = theirs_code._dynamic_time_warping(-evidence)
        jumps = np.pad(np.diff(text), (1, 0), constant_values=1).astype(bool)
        assert first_frames(evidence) == time[jumps].tolist()


def test_frames_that_nobody_attends_to_give_no_nan() -> None:
    scores = torch.zeros(4, 20)
    scores[:, 10:] = -1e4
    scores[:, 3] = torch.tensor([9.0, 0.0, 0.0, 0.0])
    found = token_frames([scores], 1, 4)
    assert found[0] == 0
    assert found == sorted(found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn])
def test_scores_are_products_with_the_stored_keys(dtype: torch.dtype) -> None:
    maker = torch.Generator().manual_seed(0)
    shape = (3, 2, PAGE_TOKENS, 8)
    scaled = dtype.itemsize == 1
    scales = [torch.zeros(shape[:3]) if scaled else None for _ in range(2)]
    kv = KVLayer(torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype), *scales)
    pages, count = torch.tensor([2, 0]), 20
    keys = torch.randn(count, 2, 8, generator=maker)
    at = torch.arange(count)
    write_kv(kv, keys, keys, pages[at // PAGE_TOKENS] * PAGE_TOKENS + at % PAGE_TOKENS)
    q = torch.randn(5, 2, 8, generator=maker)
    found = attention_scores(q, kv, pages, heads=(1,), count=count, scale=0.5)
    wanted = 0.5 * torch.einsum("qd,kd->qk", q[:, 1], keys[:, 1])
    assert found.shape == (1, 5, count)
    assert (found[0] - wanted).abs().max() < (1e-5 if dtype == torch.float32 else 0.2)
    for head, wrong in ((2, 4), (0, 33)):
        with pytest.raises(ValueError, match="must be in"):
            attention_scores(q, kv, pages, heads=(head,), count=wrong, scale=1.0)


@pytest.mark.parametrize(
    ("named", "found"),
    [(None, UPPER), ([], UPPER), ([[1, 2], [0, 3]], ((0, 3), (1, 2))), ([[0, 1], [5, 0]], UPPER), ([[0, 4]], UPPER)],
)
def test_heads_are_named_or_those_of_the_upper_half(named: Any, found: Any, tmp_path: Path) -> None:
    files = folder(small_whisper(), tmp_path)
    files.paths["generation_config.json"].write_text(json.dumps({} if named is None else {"alignment_heads": named}))
    assert alignment_heads(files, read_whisper(files)) == found


def test_damaged_heads_are_refused(tmp_path: Path) -> None:
    files = folder(small_whisper(), tmp_path)
    files.paths["generation_config.json"].write_text('{"alignment_heads": [3]}')
    with pytest.raises(BadModelFile, match="no list of"):
        alignment_heads(files, read_whisper(files))
