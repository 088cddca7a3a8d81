"""Whisper tiny.en as it is pulled: its files load in transformers, and on real speech both compute the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import WhisperForConditionalGeneration

from edgewise.models.files import ModelFiles
from edgewise.models.store import Store
from edgewise.models.tokenizer import load_tokenizer
from edgewise.models.whisper.config import read_tokens
from edgewise.models.whisper.features import log_mel, mel_filters
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
