"""Code2Wav beside transformers on small random weights, and in chunks beside itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from edgewise.models.files import ModelFiles
from edgewise.models.omni.code2wav import GUIDANCE, Code2Wav, Wave, noise
from edgewise.models.omni.voices import read_voices
from tests.models.omni.small import CODES, VOICES, code2wav_of, config_of, folder, small_omni

TOLERANCE = 1e-3
SEED = 12


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ModelFiles]:
    model = small_omni()
    return model, folder(model, tmp_path_factory.mktemp("omni"))


@pytest.fixture(scope="module")
def net(both: tuple[Any, ModelFiles]) -> Code2Wav:
    net = code2wav_of(both[1])
    assert isinstance(net, Code2Wav)
    return net


def codes(count: int) -> list[int]:
    return torch.randint(0, CODES, (count,), generator=torch.Generator().manual_seed(count)).tolist()


def told(files: ModelFiles, net: Code2Wav, name: str = VOICES[0]) -> torch.Tensor:
    return net.condition(read_voices(files, config_of(files))[name])


def spoken(wave: Wave, sizes: list[int]) -> torch.Tensor:
    parts = []
    for size in sizes:
        conversion = wave.begin(size)
        while not conversion.step():
            pass
        parts.append(wave.sound(conversion))
    return torch.cat(parts)


def said(net: Code2Wav, condition: torch.Tensor, tokens: list[int], sizes: list[int], **margins: int) -> torch.Tensor:
    wave = Wave(net, condition, SEED, **margins)
    wave.add(tokens)
    wave.end()
    return spoken(wave, sizes)


def test_one_evaluation_is_that_of_transformers(both: tuple[Any, ModelFiles], net: Code2Wav) -> None:
    model, files = both
    tokens = torch.tensor(codes(19))
    x = torch.randn(38, 8)
    for name in VOICES:
        voice = model.speaker_map[name]
        with torch.inference_mode():
            output = model.token2wav.code2wav_dit_model(
                hidden_states=x[None],
                condition_vector=voice["ref_mel"],
                speaker_embedding=voice["cond"][:, None].expand(1, 38, -1),
                quantized_code=tokens[None],
                time_step=torch.tensor(0.3),
            )
        guided, plain = output
        own = net.dit.velocity(x, tokens, told(files, net, name), torch.tensor(0.3), GUIDANCE)
        wanted = guided + (guided - plain) * GUIDANCE
        assert wanted.std() > 0.1
        torch.testing.assert_close(own, wanted, atol=TOLERANCE, rtol=0)


def test_the_vocoder_is_that_of_transformers(both: tuple[Any, ModelFiles], net: Code2Wav) -> None:
    mel = torch.randn(37, 8)
    with torch.inference_mode():
        wanted = both[0].token2wav.code2wav_bigvgan_model(mel.T[None])
    assert wanted.std() > 0.01
    torch.testing.assert_close(net.vocoder(mel), wanted, atol=TOLERANCE, rtol=0)


def test_an_answer_sounds_as_it_does_in_transformers(
    both: tuple[Any, ModelFiles], net: Code2Wav, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same noise."""
    model, files = both
    tokens = codes(26)
    begin = noise(net.dit.config, SEED, 0, 52)
    monkeypatch.setattr(torch, "randn", lambda *_, **__: begin[None].clone())
    voice = model.speaker_map["Ben"]
    wanted = model.token2wav(torch.tensor([tokens]), voice["cond"], voice["ref_mel"])
    own = said(net, told(files, net, "Ben"), tokens, [7])
    assert own.shape == wanted.shape == (26 * 2 * 15,)
    torch.testing.assert_close(own, wanted, atol=TOLERANCE, rtol=0)


def test_the_vocoder_reaches_no_further_than_it_says(net: Code2Wav) -> None:
    reach, frames, hop = net.vocoder.reach, 120, net.vocoder.config.hop
    mel = torch.randn(frames, 8)
    whole = net.vocoder(mel)
    part = net.vocoder(mel[60 - reach : 70 + reach])
    torch.testing.assert_close(part[reach * hop : (reach + 10) * hop], whole[60 * hop : 70 * hop], atol=1e-5, rtol=0)


def test_chunks_joined_are_the_whole_where_margins_cover_it(both: tuple[Any, ModelFiles], net: Code2Wav) -> None:
    tokens, condition = codes(50), told(both[1], net)
    whole = said(net, condition, tokens, [13])
    for sizes in ([1, 2, 4, 6], [12, 1]):
        torch.testing.assert_close(said(net, condition, tokens, sizes, back=99, ahead=99), whole, atol=1e-4, rtol=0)


def test_chunks_joined_are_nearly_the_whole(both: tuple[Any, ModelFiles], net: Code2Wav) -> None:
    """With the margins that serve: within 1e-3 of its power (60 dB), and 5e-3 at any sample."""
    tokens, condition = codes(48), told(both[1], net)
    whole = said(net, condition, tokens, [12])
    assert (whole.abs() < 0.99).float().mean() > 0.5
    for sizes in ([1] * 12, [2, 4, 6]):
        parts = said(net, condition, tokens, sizes)
        assert parts.shape == whole.shape
        assert not torch.equal(parts, whole)
        assert (parts - whole).square().mean().sqrt() < 1e-3 * whole.square().mean().sqrt()
        torch.testing.assert_close(parts, whole, atol=5e-3, rtol=0)


def test_sound_waits_for_what_it_depends_on(both: tuple[Any, ModelFiles], net: Code2Wav) -> None:
    wave = Wave(net, told(both[1], net), SEED)
    wave.add(codes(7))
    assert (wave.ready, wave.missing(1)) == (0, 1)
    wave.add(codes(1))
    assert (wave.ready, wave.missing(1), wave.missing(2)) == (1, 0, 4)
    wave.end()
    assert (wave.ready, wave.missing(5), wave.finished) == (2, 0, False)
    assert len(spoken(wave, [2])) == 8 * 2 * 15
    assert wave.finished
