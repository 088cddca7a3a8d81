"""Networks of one tensor: exported graphs compute what torch does, 8 bits stay near, and what loses too much stays float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from edgewise.core.errors import EngineUnavailable, UnsupportedModel
from edgewise.models.encoders.exported import export, to_half
from edgewise.models.encoders.ladder import Ladder
from edgewise.models.encoders.record import drop_ladders, ladder_folder
from edgewise.models.encoders.sound_network import MANY, read_module, spectrograms
from edgewise.models.encoders.tensor_network import Samples, TensorNetwork, TensorSession
from edgewise.models.onnx_session import CUDA, open_on_card, options_for
from edgewise.models.whisper.loading import load_whisper
from tests.accept.cards import Vit
from tests.models.whisper.small import folder as whisper_folder
from tests.models.whisper.small import small_whisper
from tests.recordings import librivox

RNG = np.random.default_rng(1)
PICTURES = [RNG.normal(size=(1, 3, 224, 224)).astype(np.float32) for _ in range(6)]


class Wild(nn.Module):
    """A network whose first product 8 bits ruin: a few channels are ten thousand times as large as the others."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first = nn.Conv2d(4, 8, 1, bias=False)
        self.rest = nn.Sequential(*(nn.Conv2d(8, 8, 3, padding=1) for _ in range(4)))
        self.scale = nn.Parameter(torch.logspace(0, 4, 8)[None, :, None, None], requires_grad=False)
        with torch.no_grad():
            self.first.weight.mul_(self.scale.reshape(8, 1, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.rest(torch.relu(self.first(x)) / self.scale).flatten(1)
        return out


@pytest.fixture(scope="module")
def vit() -> nn.Module:
    return Vit(width=64, layers=2, heads=4, inner=128).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def graph(vit: nn.Module) -> bytes:
    return export(vit, PICTURES[0])


def test_an_exported_graph_computes_what_torch_does_for_any_number(vit: nn.Module, graph: bytes) -> None:
    kinds = [node.op_type for node in onnx.load_from_string(graph).graph.node]
    assert kinds.count("MultiHeadAttention") == 2
    assert not {"Attention", "Softmax"} & set(kinds)
    session = TensorSession(graph, 1)
    for count in (1, 3):
        wanted = vit(torch.from_numpy(np.concatenate(PICTURES[:count]))).numpy()
        np.testing.assert_allclose(session.run(PICTURES[:count]), wanted, atol=2e-5)


def test_half_precision_takes_and_gives_float32(vit: nn.Module, graph: bytes) -> None:
    half = to_half(graph)
    assert len(half) < 0.6 * len(graph)
    found = TensorSession(half, 1).run(PICTURES[:2])
    assert found.dtype == np.float32
    assert np.abs(found - vit(torch.from_numpy(np.concatenate(PICTURES[:2]))).numpy()).max() < 0.02


def test_a_module_of_a_fixed_number_of_inputs_is_refused() -> None:
    class Fixed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.ones(len(x), 1)

    with pytest.raises(UnsupportedModel, match="fixed number"):
        export(Fixed(), np.zeros((1, 4), np.float32))


@pytest.mark.parametrize("name", ["int8-static", "int8-blocks"])
def test_eight_bits_stay_near_and_are_smaller(vit: nn.Module, graph: bytes, name: str) -> None:
    network = TensorNetwork(graph, Samples(calibration=PICTURES[:3], judged=PICTURES[3:]), gate=0.99, threads=1, many=2)
    network.calibrate()
    model = network.build(dict.fromkeys(network.groups, network.wholes[name]))
    assert len(model) < 0.7 * len(graph)
    found = network.open(model).run(PICTURES[3:])
    wanted = vit(torch.from_numpy(np.concatenate(PICTURES[3:]))).numpy()
    assert float((found * wanted).sum() / np.linalg.norm(found) / np.linalg.norm(wanted)) > 0.99
    assert np.abs(found - wanted).max() > 0


def test_what_loses_too_much_stays_float32_and_the_record_says_why() -> None:
    inputs = [RNG.normal(size=(1, 4, 24, 24)).astype(np.float32) for _ in range(8)]
    network = TensorNetwork(
        export(Wild().eval(), inputs[0]),
        Samples(calibration=inputs[:4], judged=inputs[4:]),
        gate=0.999,
        threads=1,
        many=2,
    )
    ladder = Ladder(network)
    best, records = ladder.climb(lambda *_: None)
    static = next(it for it in records if it.name == "int8-static")
    assert not static.passed
    assert "below 0.999" in static.why
    assert best.passes(0.999)
    assert "MatMulNBits" not in str(onnx.load_from_string(best.model).graph.node)
    blocks = next(it for it in records if it.name == "int8-blocks")
    assert blocks.why.startswith("not built: no product is a matrix")
    assert all(it.why for it in records if not it.chosen)


def test_what_computes_it_already_is_a_candidate_and_one_that_changes_results_may_not_serve(
    vit: nn.Module, graph: bytes
) -> None:
    class Quick:
        """A named double of the quickest candidate: results that it was told, at once."""

        def run(self, inputs: Any) -> Any:
            return kept[: len(inputs)]

    asked: list[object] = []

    def objection(session: object) -> str:
        asked.append(session)
        return "it changes words" if isinstance(session, Quick) else ""

    kept = TensorSession(graph, 1).run(PICTURES[3:])
    samples = Samples(calibration=PICTURES[:3], judged=PICTURES[3:])
    network = TensorNetwork(graph, samples, gate=0.9, threads=1, many=2, objects=objection)
    best, records = Ladder(network, {"torch-float32": Quick()}).climb(lambda *_: None)
    quick = next(it for it in records if it.name == "torch-float32")
    assert (quick.cosine_min, quick.passed, quick.chosen, quick.why) == (1.0, False, False, "it changes words")
    assert best.name != "torch-float32"
    assert isinstance(asked[0], Quick)

    network = TensorNetwork(graph, samples, gate=0.9, threads=1, many=2)
    best, records = Ladder(network, {"torch-float32": Quick()}).climb(lambda *_: None)
    assert best.name == "torch-float32"
    assert next(it for it in records if it.chosen).bytes == 0


def test_whispers_encoder_is_that_of_the_engine_and_of_its_graph(tmp_path: Path) -> None:
    files = whisper_folder(small_whisper(), tmp_path)
    config, module = read_module(files)
    network = load_whisper(files, device=torch.device("cpu"), dtype=torch.float32)
    heard = spectrograms([clip.path for clip in librivox()[:2]], config)
    assert len(heard) == 4
    assert {it.shape for it in heard} == {(1, config.mels, 2 * config.frames)}
    wanted = torch.stack([network.encoder.of_spectrogram(torch.from_numpy(it[0])) for it in heard]).numpy()
    np.testing.assert_allclose(module(torch.from_numpy(np.concatenate(heard))).numpy(), wanted, atol=2e-5)
    exported = TensorSession(export(module, heard[0]), 1)
    np.testing.assert_allclose(exported.run(heard[:MANY]), wanted[:MANY], atol=5e-5)


def test_a_provider_that_is_not_there_is_refused_and_nothing_runs_on_the_cpu(graph: bytes) -> None:
    with pytest.raises(EngineUnavailable, match=r"CUDAExecutionProvider.*(onnxruntime-gpu|cannot be loaded)"):
        open_on_card(graph, {CUDA: {}}, options_for(1))


def test_ladders_of_models_that_are_gone_are_dropped(tmp_path: Path) -> None:
    for digest in ("sha256:aa", "sha256:bb"):
        place = ladder_folder(tmp_path, digest) / "place"
        place.mkdir(parents=True)
        (place / "winner.onnx").write_bytes(b"12345")
    assert drop_ladders(tmp_path, ["sha256:bb"]) == 5
    assert [it.name for it in (tmp_path / "encoders").iterdir()] == ["sha256-bb"]
    assert drop_ladders(tmp_path / "nowhere", []) == 0
