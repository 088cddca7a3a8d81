"""An encoder whose winner comes, is replaced and fails while recordings are in work: none is ever encoded by two forms."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from edgewise.core.errors import EngineUnavailable, OutOfMemory
from edgewise.models.encoders.exported import export
from edgewise.models.encoders.record import CandidateRecord, LadderRecord, place_name, write_winner
from edgewise.models.encoders.sound_network import read_module
from edgewise.models.files import ModelFiles
from edgewise.models.multimodal.layout import medium
from edgewise.models.multimodal.media import RUNG, Media
from edgewise.models.multimodal.protocol import finished
from edgewise.models.onnx_session import RUNTIME
from edgewise.models.whisper import rungs
from edgewise.models.whisper.encoder import WhisperEncoder
from edgewise.models.whisper.loading import load_whisper
from edgewise.models.whisper.rungs import Form, Kept, RungEncoder
from tests.models.whisper.small import folder, small_whisper
from tests.models.whisper.test_network import AUDIO, FRAMES, noise

DEVICE, THREADS = "here", 1


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return folder(small_whisper(), tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def plain(files: ModelFiles) -> WhisperEncoder:
    return load_whisper(files, device=torch.device("cpu"), dtype=torch.float32).encoder


@pytest.fixture(scope="module")
def graph(files: ModelFiles) -> bytes:
    return export(read_module(files)[1], np.zeros((1, 80, 2 * FRAMES), np.float32))


def candidate(name: str, size: int) -> CandidateRecord:
    return CandidateRecord(
        name=name,
        forms={},
        cosine_min=1.0,
        cosine_mean=1.0,
        ms_one=1.0,
        ms_many=2.0,
        bytes=size,
        passed=True,
        chosen=True,
        why="",
    )


def ladder_record(name: str, model: bytes | None) -> LadderRecord:
    """With one candidate, which won."""
    return LadderRecord(
        model="small",
        digest="sha256:0",
        runtime=RUNTIME,
        device=DEVICE,
        threads=THREADS,
        measured_at="2026-01-01T00:00:00Z",
        took_s=1.0,
        gate=0.999,
        inputs=2,
        many=2,
        file="" if model is None else f"{name}.onnx",
        candidates=(candidate(name, 0 if model is None else len(model)),),
    )


def keep(root: Path, name: str, model: bytes | None) -> None:
    """A record of this place, as a climb writes it."""
    write_winner(root / place_name(RUNTIME, DEVICE, THREADS), ladder_record(name, model), model)


class Booked:
    """Memory for forms beside torch."""

    def __init__(self, room: float = inf) -> None:
        self.size, self.most, self.room = 0, 0, room

    def __call__(self, size: int) -> None:
        if size > self.room:
            raise OutOfMemory(f"no room for {size} bytes")
        self.size, self.most = size, max(self.most, size)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "encoders" / "sha256-0"


def encoder(plain: WhisperEncoder, root: Path, book: Any = None) -> RungEncoder:
    kept = Kept(folder=root, digest="sha256:0", device=DEVICE, threads=THREADS)
    return RungEncoder(plain, torch.float32, kept, book or Booked())


def other_bits(graph: bytes, why: str = "measured again") -> bytes:
    """A graph that computes the same."""
    other = onnx.load_from_string(graph)
    other.doc_string = why
    return bytes(other.SerializeToString())


def recording(key: str | None = None, seed: int = 1) -> Media:
    made = medium("audio", noise(seed).numpy(), AUDIO)
    return made if key is None else replace(made, options={RUNG: key})


def until_serves(made: RungEncoder, name: str) -> str:
    for _ in range(500):
        if made.serving.startswith(name):
            return made.serving
        time.sleep(0.01)
    raise AssertionError(f"{name} never came to serve; {made.serving} does")


def test_without_a_record_torch_serves(plain: WhisperEncoder, root: Path) -> None:
    made = encoder(plain, root)
    assert made.serving == made.rung == "torch-float32"
    (rows,) = made.encode([recording(made.serving)])
    assert torch.equal(rows, plain.encode([recording()])[0])
    made.close()


def test_a_winner_that_is_there_serves_from_the_first_recording_on(
    plain: WhisperEncoder, root: Path, graph: bytes
) -> None:
    keep(root, "int8-mixed", graph)
    booked = Booked()
    made = encoder(plain, root, booked)
    key = made.serving
    assert key.startswith("int8-mixed@")
    assert booked.size == booked.most == 2 * len(graph)
    rows = finished(made.slices(recording(key)))
    assert rows.shape == (AUDIO, 64)
    assert not rows[FRAMES:].any()
    assert torch.allclose(rows, plain.encode([recording()])[0], atol=1e-4)
    assert made.rung == "int8-mixed"
    assert torch.equal(finished(made.slices(recording(key))), rows)
    made.close()


def test_a_winner_that_comes_later_takes_over_and_what_began_before_goes_on_as_it_began(
    plain: WhisperEncoder, root: Path, graph: bytes
) -> None:
    booked = Booked()
    made = encoder(plain, root, booked)
    before = made.serving
    keep(root, "int8-mixed", graph)
    first = until_serves(made, "int8-mixed@")
    assert torch.equal(finished(made.slices(recording(before))), plain.encode([recording()])[0])
    assert made.rung == "torch-float32"

    others = other_bits(graph)
    keep(root, "int8-mixed", others)
    for _ in range(500):
        if made.serving != first:
            break
        time.sleep(0.01)
    second = made.serving
    assert second.startswith("int8-mixed@")
    assert second != first
    finished(made.slices(recording(first)))  # the one before is kept for what names it
    assert booked.size == 2 * len(graph) + 2 * len(others)  # both are there
    keep(root, "torch-float32", None)
    assert until_serves(made, "torch-float32") == before
    with pytest.raises(EngineUnavailable, match="has been replaced: ask again"):
        finished(made.slices(recording(first)))
    assert booked.size == 2 * len(others)
    made.close()


def test_never_more_than_two_winners_are_open(plain: WhisperEncoder, root: Path, graph: bytes) -> None:
    keep(root, "int8-mixed", graph)
    booked = Booked()
    made = encoder(plain, root, booked)
    for round_ in range(3):
        keep(root, f"int8-{round_}", other_bits(graph, str(round_)))
        until_serves(made, f"int8-{round_}@")
        assert len(made._forms) == 3
    assert booked.most < 5 * len(other_bits(graph))
    made.close()


def test_what_was_booked_for_a_file_that_cannot_be_opened_is_given_back(plain: WhisperEncoder, root: Path) -> None:
    keep(root, "int8-mixed", b"no graph")
    booked = Booked()
    made = encoder(plain, root, booked)
    assert made.serving == "torch-float32"
    assert (booked.size, booked.most) == (0, 2 * len(b"no graph"))
    made.close()


def test_a_winner_without_room_is_tried_again_after_a_while(plain: WhisperEncoder, root: Path, graph: bytes) -> None:
    keep(root, "int8-mixed", graph)
    booked = Booked(room=0)
    made = encoder(plain, root, booked)
    booked.room = inf
    made._look(wait=True)
    assert made._best.name == "torch-float32"  # not yet
    made._again = 0.0
    until_serves(made, "int8-mixed@")
    made.close()


@pytest.mark.parametrize("error", [FileNotFoundError("gone"), ImportError("no onnxruntime")])
def test_what_fails_beside_the_graph_leaves_torch_serving(
    plain: WhisperEncoder,
    root: Path,
    graph: bytes,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A file that is dropped between its record and its bytes, or a runtime that is not there."""

    def fails(path: Path) -> str:
        raise error

    monkeypatch.setattr(rungs, "_digest", fails)
    keep(root, "int8-mixed", graph)
    made = encoder(plain, root)
    assert made.serving == "torch-float32"
    assert "encoder_rung_not_opened" in caplog.text
    assert (made._again is not None) == isinstance(error, OSError)
    made.close()


def test_a_file_that_is_replaced_while_it_is_opened_never_has_the_key_of_the_other(
    plain: WhisperEncoder, root: Path, graph: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(root, "int8-mixed", graph)
    hashed, others = rungs._digest, other_bits(graph)

    def replaced(path: Path) -> str:
        found = hashed(path)
        monkeypatch.setattr(rungs, "_digest", hashed)
        path.write_bytes(others)  # its record comes later
        return found

    monkeypatch.setattr(rungs, "_digest", replaced)
    booked = Booked()
    made = encoder(plain, root, booked)
    assert made.serving == "torch-float32"
    assert booked.size == 0
    made._again = 0.0
    assert until_serves(made, "int8-mixed@") == f"int8-mixed@{hashlib.sha256(others).hexdigest()[:16]}"
    made.close()


class Gated:
    """A session that waits until it is let go, and fails if it is told to."""

    def __init__(self, fails: bool = False) -> None:
        self.go, self.fails = threading.Event(), fails

    def __call__(self, batch: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        assert self.go.wait(30)
        if self.fails:
            raise RuntimeError("a node failed")
        return np.ones((1, FRAMES, 64), np.float32)


@pytest.fixture
def gated(plain: WhisperEncoder, root: Path) -> Iterator[tuple[RungEncoder, Gated]]:
    made, session = encoder(plain, root), Gated()
    made._best = Form("slow", "slow@1", session)
    made._forms["slow@1"] = made._best
    yield made, session
    session.go.set()
    made.close()


def test_others_go_on_while_it_computes(gated: tuple[RungEncoder, Gated]) -> None:
    made, session = gated
    slices = made.slices(recording("slow@1"))
    for _ in range(3):
        next(slices)  # comes back each time although nothing is done
    session.go.set()
    assert finished(slices)[:FRAMES].eq(1).all()


def test_a_form_that_fails_is_dropped_and_its_recording_is_told(gated: tuple[RungEncoder, Gated]) -> None:
    made, session = gated
    session.fails = True
    session.go.set()
    with pytest.raises(EngineUnavailable, match="failed and is no longer used"):
        finished(made.slices(recording("slow@1")))
    assert made.serving == "torch-float32"


def test_only_the_form_that_fails_is_dropped(plain: WhisperEncoder, root: Path, graph: bytes) -> None:
    keep(root, "int8-mixed", graph)
    booked = Booked()
    made = encoder(plain, root, booked)
    best, before = made.serving, Form("before", "before@1", Gated(fails=True), 1000)
    made._forms["before@1"] = before
    made._drop(before, RuntimeError("a node failed"))
    assert made.serving == best
    finished(made.slices(recording(best)))
    assert booked.size == 2 * len(graph)
    made._drop(made._best, RuntimeError("a node failed"))
    assert made.serving == "torch-float32"
    assert booked.size == 0
    made.close()
