"""A decoder with rounded weights and activations: near the exact one, the more bits the nearer; activations count too."""

from typing import cast

import pytest
import torch

from edgewise.kernels.reference.fp8_linear import round_rows
from edgewise.models.decoder.loading import load_decoder
from edgewise.models.decoder.model import Decoder
from edgewise.models.decoder.rounded import RoundedDecoder, RoundedFormat
from edgewise.models.files import ModelFiles
from tests.conftest import TinyModelFactory
from tests.models.decoder.driver import Driver

TOKENS = [(7 * place + place * place) % 500 for place in range(64)]


def loaded(files: ModelFiles) -> Decoder:
    return load_decoder(files, device=torch.device("cpu"), dtype=torch.float32)


def logits(files: ModelFiles, form: RoundedFormat | None) -> torch.Tensor:
    decoder = loaded(files)
    network = decoder if form is None else cast("Decoder", RoundedDecoder(decoder, files, form))
    return Driver(network).whole(TOKENS)


@pytest.mark.parametrize("form", ["int8", "int4"])
def test_matrices_and_nothing_else_are_rounded(tiny_model: ModelFiles, form: RoundedFormat) -> None:
    decoder, exact = loaded(tiny_model), loaded(tiny_model)
    rounded = RoundedDecoder(decoder, tiny_model, form)
    assert rounded.bits == 8.5 if form == "int8" else 5 < rounded.bits < 8.5  # embedding and head keep 8 bits
    for mine, theirs in zip(decoder.parameters.layers, exact.parameters.layers, strict=True):
        for a, b in zip(mine.matrices(), theirs.matrices(), strict=True):
            assert 0 < float((a - b).abs().max()) < float(b.abs().max()) / (50 if form == "int8" else 8)
        assert torch.equal(mine.ffn_norm, theirs.ffn_norm)
    assert not torch.equal(decoder.parameters.embedding, exact.parameters.embedding)


def test_the_fewer_bits_the_farther_from_exact(tiny_model: ModelFiles) -> None:
    exact = logits(tiny_model, None)
    forms: tuple[RoundedFormat, ...] = ("int8", "Q8_0", "int4", "Q4_0")
    error = {form: float((logits(tiny_model, form) - exact).square().mean()) for form in forms}
    assert 0 < error["int8"] < error["int4"] < error["Q4_0"]
    assert 0 < error["Q8_0"] < error["int4"]


@pytest.mark.parametrize("tied", [True, False])
def test_fp8_rounds_rows_of_what_is_multiplied(tiny_model_factory: TinyModelFactory, tied: bool) -> None:
    """The embedding stays, with a head of its own where both were one."""
    files = tiny_model_factory(tie_embeddings=tied)
    decoder, exact = loaded(files), loaded(files)
    rounded = RoundedDecoder(decoder, files, "fp8")
    mine, theirs = decoder.parameters, exact.parameters
    for layer, true in zip(mine.layers, theirs.layers, strict=True):
        for a, b in zip(layer.matrices(), true.matrices(), strict=True):
            codes, scale = round_rows(b)
            assert torch.equal(a, codes.float() * scale[:, None])
            assert 0 < float((a - b).abs().max()) <= float(b.abs().max()) / 28
    assert torch.equal(mine.embedding, theirs.embedding)
    head = rounded._decoder.parameters.head
    assert not torch.equal(head, theirs.head)
    assert 8 < rounded.bits < 9
    found = Driver(cast("Decoder", rounded)).whole(TOKENS)
    assert 0 < float((found - Driver(exact).whole(TOKENS)).square().mean()) < float(found.square().mean()) / 10


def test_activations_are_rounded_too(tiny_model: ModelFiles) -> None:
    """The same rounded matrices, once with exact activations."""
    decoder = loaded(tiny_model)
    rounded = RoundedDecoder(decoder, tiny_model, "int8")
    with_exact = Driver(decoder).whole(TOKENS)
    with_rounded = Driver(cast("Decoder", rounded)).whole(TOKENS)
    error = float((with_exact - with_rounded).abs().max())
    assert 0 < error < 0.1 * float(with_exact.abs().max())
