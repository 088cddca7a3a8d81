"""Our Whisper beside transformers' on small random weights: spectrogram, encoder, logits of every position, greedy text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

from edgewise.core.errors import BadModelFile, UnsupportedModel
from edgewise.kernels.paging import PAGE_TOKENS, AttentionMeta, KVLayer
from edgewise.models.multimodal.layout import medium
from edgewise.models.multimodal.protocol import SlicedEncoder, StepMedia
from edgewise.models.whisper.config import read_whisper
from edgewise.models.whisper.features import log_mel, mel_filters
from edgewise.models.whisper.loading import load_whisper
from edgewise.models.whisper.network import WhisperNetwork
from tests.models.whisper.small import folder, small_whisper

FRAMES, AUDIO = 50, 64


@pytest.fixture(scope="module")
def theirs() -> WhisperForConditionalGeneration:
    return small_whisper()


@pytest.fixture(scope="module")
def ours(theirs: WhisperForConditionalGeneration, tmp_path_factory: pytest.TempPathFactory) -> WhisperNetwork:
    files = folder(theirs, tmp_path_factory.mktemp("whisper"))
    network = load_whisper(files, device=torch.device("cpu"), dtype=torch.float32)
    assert network.prove_rows()
    return network


def noise(seed: int, count: int = 16_000) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed)) * 0.1


class Pages:
    """A cache of several sequences, every slot first not a number, so that whatever is read without being written shows."""

    def __init__(self, network: WhisperNetwork, sequences: int) -> None:
        config = network.config
        self.network = network
        self.each = (config.audio_tokens + config.max_text + PAGE_TOKENS - 1) // PAGE_TOKENS
        shape = (sequences * self.each, config.decoder_heads, PAGE_TOKENS, config.head_dim)
        self.kv = [KVLayer(*(torch.full(shape, torch.nan) for _ in range(2))) for _ in range(config.decoder_layers)]

    def step(self, *parts: tuple[int, list[int], int], rows: torch.Tensor | None = None) -> torch.Tensor:
        """Hidden states of (sequence, tokens, start) parts; `rows`: of recordings, for the tokens that are theirs, in order."""
        tables = torch.stack(
            [torch.arange(self.each, dtype=torch.int32).flip(0) + one * self.each for one, _, _ in parts]
        )
        positions = torch.cat([torch.arange(start, start + len(tokens)) for _, tokens, start in parts])
        owner = torch.tensor([at for at, (_, tokens, _) in enumerate(parts) for _ in tokens])
        meta = AttentionMeta(
            query_lens=tuple(len(tokens) for _, tokens, _ in parts),
            context_lens=tuple(start + len(tokens) for _, tokens, start in parts),
            positions=positions,
            slots=tables[owner, positions // PAGE_TOKENS].long() * PAGE_TOKENS + positions % PAGE_TOKENS,
            block_tables=tables,
        )
        heard = (positions < self.network.config.audio_tokens).nonzero().flatten()
        media = None if rows is None else StepMedia(heard, rows)
        tokens = torch.tensor([token for _, tokens, _ in parts for token in tokens])
        return self.network.forward(tokens, self.kv, meta, media)


def encoded(network: WhisperNetwork, samples: torch.Tensor) -> torch.Tensor:
    (rows,) = network.encoder.encode([medium("audio", samples.numpy(), network.config.audio_tokens)])
    return rows


@torch.inference_mode()
def wanted(theirs: WhisperForConditionalGeneration, samples: torch.Tensor, text: list[int]) -> torch.Tensor:
    features = log_mel(samples, mel_filters(80), 2 * FRAMES)[None]
    logits: torch.Tensor = theirs(input_features=features, decoder_input_ids=torch.tensor([text])).logits[0]
    return logits


@pytest.mark.parametrize("bands", [80, 128])
def test_spectrogram_is_that_of_transformers(bands: int) -> None:
    made: Any = WhisperFeatureExtractor
    extractor = made(feature_size=bands)
    for count in (0, 1600, 480_000, 500_000):
        samples = noise(bands, count)
        expected = extractor(samples[:480_000].numpy(), sampling_rate=16_000, return_tensors="np").input_features[0]
        found = log_mel(samples, mel_filters(bands), 3000).numpy()
        assert np.abs(found - expected).max() < 2e-4


def test_encoder_is_that_of_transformers(theirs: WhisperForConditionalGeneration, ours: WhisperNetwork) -> None:
    samples = noise(1)
    with torch.inference_mode():
        features = log_mel(samples, mel_filters(80), 2 * FRAMES)[None]
        expected = theirs.model.encoder(features).last_hidden_state[0]
    rows = encoded(ours, samples)
    assert rows.shape == (AUDIO, 64)
    assert torch.allclose(rows[:FRAMES], expected, atol=1e-4)
    assert not rows[FRAMES:].any()


def test_a_recording_is_encoded_layer_by_layer(ours: WhisperNetwork) -> None:
    assert isinstance(ours.encoder, SlicedEncoder)
    recording = medium("audio", noise(1).numpy(), ours.config.audio_tokens)
    assert sum(1 for _ in ours.encoder.slices(recording)) == ours.config.encoder_layers


@pytest.mark.parametrize("cuts", [(64, 70), (20, 64, 66, 70), (16, 67, 70), (70,)])
def test_logits_however_the_prompt_is_cut(
    theirs: WhisperForConditionalGeneration, ours: WhisperNetwork, cuts: tuple[int, ...]
) -> None:
    samples, text = noise(2), [1, 17, 42, 5, 99, 3]
    rows, prompt = encoded(ours, samples), [0] * AUDIO + text
    pages, found, start = Pages(ours, 1), [], 0
    for end in cuts:
        heard = rows[start : min(end, AUDIO)]
        hidden = pages.step((0, prompt[start:end], start), rows=heard if heard.shape[0] else None)
        found.append(hidden)
        start = end
    logits = ours.logits(torch.cat(found)[AUDIO:])
    assert (logits - wanted(theirs, samples, text)).abs().max() < 1e-3


def test_sequences_in_one_batch_have_the_same_bits_as_alone(
    theirs: WhisperForConditionalGeneration, ours: WhisperNetwork
) -> None:
    sounds, texts = [noise(3), noise(4)], [[1, 7, 8], [1, 9]]
    rows = [encoded(ours, sound) for sound in sounds]
    alone = []
    for sound, text in zip(rows, texts, strict=True):
        pages = Pages(ours, 1)
        pages.step((0, [0] * AUDIO, 0), rows=sound)
        alone.append(pages.step((0, text, AUDIO)))
    pages = Pages(ours, 2)
    pages.step((0, [0] * AUDIO, 0), rows=rows[0])
    mixed = pages.step(
        (0, texts[0], AUDIO), (1, [0] * AUDIO, 0), rows=rows[1]
    )  # one writes while the other is still heard
    assert torch.equal(mixed[: len(texts[0])], alone[0])
    second = pages.step((0, [11], AUDIO + 3), (1, texts[1], AUDIO))
    assert torch.equal(second[1:], alone[1])
    expected = wanted(theirs, sounds[0], [*texts[0], 11])[-1]
    assert (ours.logits(second[:1])[0] - expected).abs().max() < 1e-3


def test_greedy_text_is_that_of_transformers(theirs: WhisperForConditionalGeneration, ours: WhisperNetwork) -> None:
    samples = noise(5)
    expected = [1]
    for _ in range(20):
        expected.append(int(wanted(theirs, samples, expected)[-1].argmax()))
    pages, text = Pages(ours, 1), [1]
    pages.step((0, [0] * AUDIO, 0), rows=encoded(ours, samples))
    for _ in range(20):
        hidden = pages.step((0, text[-1:], AUDIO + len(text) - 1))
        text.append(int(ours.logits(hidden)[0].argmax()))
    assert text == expected


def test_places_of_a_recording_without_rows_are_refused(ours: WhisperNetwork) -> None:
    with pytest.raises(ValueError, match="64 tokens of recordings"):
        Pages(ours, 1).step((0, [0] * AUDIO, 0))


def test_other_variants_and_missing_tensors_are_refused_by_name(tmp_path: Path) -> None:
    model = small_whisper()
    files = folder(model, tmp_path / "a")
    text = files.paths["config.json"].read_text()
    files.paths["config.json"].write_text(
        text.replace('"activation_function": "gelu"', '"activation_function": "relu"')
    )
    with pytest.raises(UnsupportedModel, match="'activation_function' is 'relu'"):
        read_whisper(files)
    files.paths["config.json"].write_text(text.replace('"decoder_ffn_dim": 96', '"decoder_ffn_dim": 97'))
    with pytest.raises(BadModelFile, match=r"'model\.decoder\.layers\.0\.fc1\.weight' is \(96, 64\); \(97, 64\)"):
        load_whisper(files, device=torch.device("cpu"), dtype=torch.float32)
