"""What formats are judged by is what the native kernels compute."""

import pytest
import torch

from edgewise.kernels.native.library import why_not
from edgewise.models.decoder.loading import load_decoder
from edgewise.models.decoder.native.loading import load_native
from edgewise.models.decoder.rounded import RoundedDecoder, RoundedFormat
from tests.conftest import TinyModelFactory
from tests.models.decoder.driver import Driver

TOKENS = [(7 * place + place * place) % 500 for place in range(64)]


@pytest.mark.skipif(why_not() is not None, reason=f"no native kernels: {why_not()}")
@pytest.mark.parametrize("form", ["int8", "int4"])
@pytest.mark.parametrize("stored", ["safetensors", "gguf"])
def test_native_kernels_compute_what_the_gate_measures(
    tiny_model_factory: TinyModelFactory, form: RoundedFormat, stored: str
) -> None:
    files = tiny_model_factory(format=stored)
    decoder = load_decoder(files, device=torch.device("cpu"), dtype=torch.float32)
    exact = Driver(decoder).whole(TOKENS)
    judged = Driver(RoundedDecoder(decoder, files, form)).whole(TOKENS)  # type: ignore[arg-type]
    native = Driver(load_native(files, dtype="float32", quantize=form)).whole(TOKENS)  # type: ignore[arg-type]
    apart, cost = float((native - judged).square().mean()), float((judged - exact).square().mean())
    assert cost > 0
    assert apart < 0.02 * cost
