"""Whisper tiny.en as it is pulled: its files load in transformers, and on real speech both compute the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import WhisperForConditionalGeneration
from transformers.models.whisper import generation_whisper

from edgewise.models.encoders.sound_texts import Texts, TorchSession
from edgewise.models.files import ModelFiles
from edgewise.models.store import Store
from edgewise.models.tokenizer import load_tokenizer
from edgewise.models.whisper.config import read_tokens
from edgewise.models.whisper.features import log_mel, mel_filters
from edgewise.models.whisper.greedy import greedy_text
from edgewise.models.whisper.loading import load_whisper
from tests.models.whisper.test_network import Pages, encoded
from tests.recordings import hearing_home, librivox, words

NAME = "whisper-tiny.en"


@pytest.fixture(scope="module")
def files() -> ModelFiles:
    return Store(hearing_home(NAME) / "models").resolve(NAME, "speech-to-text")


@torch.inference_mode()
def test_logits_and_greedy_text_of_a_clip_are_those_of_transformers(files: ModelFiles, tmp_path: Path) -> None:
    for name, path in files.paths.items():
        (tmp_path / name).symlink_to(path)
    theirs: Any = WhisperForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.float32)
    ours = load_whisper(files, device=torch.device("cpu"), dtype=torch.float32)
    ours.prove_rows()
    clip, tokens = librivox()[4], read_tokens(files)
    samples = torch.from_numpy(clip.samples.copy())
    text = [tokens.start, tokens.no_times]
    sound = theirs.model.encoder(log_mel(samples, mel_filters(80), 3000)[None])
    pages = Pages(ours, 1)
    count = ours.config.audio_tokens
    pages.step((0, [tokens.end] * count, 0), rows=encoded(ours, samples))
    hidden = pages.step((0, text, count))[-1:]
    while len(text) < 40:
        found = ours.logits(hidden)[0]
        expected = theirs(encoder_outputs=sound, decoder_input_ids=torch.tensor([text])).logits[0, -1]
        assert (found - expected).abs().max() < 2e-3 * float(expected.abs().max())
        assert int(found.argmax()) == int(expected.argmax())
        if int(found.argmax()) == tokens.end:
            break
        text.append(int(found.argmax()))
        hidden = pages.step((0, text[-1:], count + len(text) - 1))
    said = load_tokenizer(files).decode([token for token in text if token < tokens.end])
    assert words(said) == clip.text


@torch.inference_mode()
def test_words_of_a_clip_are_where_transformers_attends(files: ModelFiles, tmp_path: Path) -> None:
    """Held to OpenAI's recipe over transformers' weights, and to transformers' own times of the same text.

    Those come from the row of a token that was read, not from the row that foretold it: one token later, and over fewer rows.
    """
    for name, path in files.paths.items():
        (tmp_path / name).symlink_to(path)
    theirs: Any = WhisperForConditionalGeneration.from_pretrained(
        tmp_path, dtype=torch.float32, attn_implementation="eager"
    )
    ours = load_whisper(files, device=torch.device("cpu"), dtype=torch.float32)
    ours.prove_rows()
    clip, tokens = librivox()[3], read_tokens(files)
    samples = torch.from_numpy(clip.samples.copy())
    features, frames = log_mel(samples, mel_filters(80), 3000)[None], samples.shape[0] // 320
    told = theirs.generate(
        features,
        return_token_timestamps=True,
        return_timestamps=False,
        num_frames=2 * frames,
        return_dict_in_generate=True,
    )
    said = [token for token in told["sequences"][0].tolist() if token < tokens.end]
    text = [tokens.start, tokens.no_times, *said, tokens.end]
    pages, count = Pages(ours, 1), ours.config.audio_tokens
    pages.step((0, [tokens.end] * count, 0), rows=encoded(ours, samples))
    pages.step((0, text, count))
    table = torch.arange(pages.each, dtype=torch.int32).flip(0)
    found = ours.alignment(torch.tensor(text), pages.kv, table, first=1, last=len(text) - 1, frames=frames)

    assert ours.alignment_heads == tuple(tuple(head) for head in theirs.generation_config.alignment_heads)
    weights = theirs(
        input_features=features, decoder_input_ids=torch.tensor([text]), output_attentions=True
    ).cross_attentions
    assert found == _recipe([weights[layer][0, head, :, :frames].numpy() for layer, head in ours.alignment_heads])

    later = [round(float(second) / 0.02) for second in told["token_timestamps"][0]][-len(said) - 1 : -1]
    near = [abs(a - b) <= 3 for a, b in zip(found[1:-1], later, strict=False)]
    assert sum(near) >= 0.8 * len(near)


def test_a_form_that_changes_words_is_objected_to(files: ModelFiles) -> None:
    network = load_whisper(files, device=torch.device("cpu"), dtype=torch.float32)
    clip = librivox()[4]
    heard = log_mel(torch.from_numpy(clip.samples.copy()), mel_filters(80), 3000)[None].numpy()
    exact = TorchSession(network.encoder)
    texts = Texts(files, [heard], exact)
    network.prove_rows()
    said = greedy_text(network, read_tokens(files), torch.from_numpy(exact.run([heard])[0]))
    assert words(load_tokenizer(files).decode(said)) == clip.text
    assert texts.objection(exact) == ""

    class Deaf:
        """A named double of a form that lost the sound."""

        def run(self, inputs: Any) -> Any:
            return np.zeros_like(exact.run(inputs))

    assert re.match(r"it changes words: 'He might even .* himself\.' becomes ", texts.objection(Deaf()))


def _recipe(heads: list[np.ndarray[Any, Any]]) -> list[int]:
    """OpenAI's `timing.py` in plain numpy, with transformers' path: rows between the start and the end token."""
    filtered = []
    for weights in heads:
        shares = weights / weights.sum(axis=1, keepdims=True)
        normed = (shares - shares.mean(axis=0)) / shares.std(axis=0)
        wide = np.pad(normed, ((0, 0), (3, 3)), mode="reflect")
        filtered.append(np.median(np.stack([wide[:, at : at + normed.shape[1]] for at in range(7)]), axis=0))
    evidence = np.stack(filtered).astype(np.float64).mean(axis=0)[1:-1]
    rows, times = generation_whisper._dynamic_time_warping(-evidence)
    return [int(times[rows == row][0]) for row in range(evidence.shape[0])]
