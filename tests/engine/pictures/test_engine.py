"""The picture engine's loop around a tiny random model, in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edgewise.core.errors import InvalidRequest, OutOfMemory
from edgewise.core.priority import Priority
from edgewise.engine.pictures.build import build
from edgewise.engine.pictures.config import PictureConfig
from edgewise.engine.pictures.engine import PictureCore
from edgewise.engine.pictures.request import DiffuseChunk, DiffuseParams, DiffuseRequest
from edgewise.engine.turns import PictureTurns
from edgewise.models.diffusion.pictures import read_pixels
from edgewise.models.diffusion.protocol import Canvas
from edgewise.models.diffusion.starter.tiny import make_tiny_pictures
from edgewise.models.files import ModelFiles
from edgewise.models.tiny import local_files
from tests.fakes import tiny_pipelines


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return local_files(make_tiny_pictures(tmp_path_factory.mktemp("pictures")))


@pytest.fixture
def core(files: ModelFiles) -> PictureCore:
    return build(PictureConfig(model=files, device="cpu", threads=1), lambda stage, done: None)


def ask(name: str, *, priority: Priority = Priority.INTERACTIVE, **params: Any) -> DiffuseRequest:
    return DiffuseRequest(id=name, params=DiffuseParams(prompt="a red cat", **params), priority=priority)


def run(core: PictureCore) -> dict[str, list[DiffuseChunk]]:
    found: dict[str, list[DiffuseChunk]] = {}
    while core.has_work:
        for chunk in core.step():
            found.setdefault(chunk.request_id, []).append(chunk)
    return found


def picture(chunks: Sequence[DiffuseChunk]) -> bytes:
    assert chunks[-1].finish == "done", chunks[-1].error_message
    assert chunks[-1].picture is not None
    assert [chunk.offset for chunk in chunks] == list(range(len(chunks)))
    assert sum(chunk.count for chunk in chunks) == chunks[-1].total
    return chunks[-1].picture


def test_a_seed_gives_one_picture_whatever_is_drawn_beside_it(core: PictureCore) -> None:
    core.add(ask("alone", seed=5))
    alone = picture(run(core)["alone"])
    for seed in range(4, 8):
        core.add(ask(f"seed {seed}", seed=seed))
    together = run(core)
    near = read_pixels(picture(together["seed 5"]), 16, 16).astype(int) - read_pixels(alone, 16, 16).astype(int)
    assert np.abs(near).max() <= 2
    assert len({picture(chunks) for chunks in together.values()}) == 4


def test_a_slower_pace_rests_between_slices_and_draws_the_same(
    core: PictureCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    core.add(ask("free", seed=5))
    free = picture(run(core)["free"])
    rested: list[float] = []
    passed = [0.0]

    def rest(seconds: float) -> None:
        rested.append(seconds)
        passed[0] += seconds

    real = core._now
    monkeypatch.setattr(core, "_wait", rest)
    monkeypatch.setattr(core, "_now", lambda: real() + passed[0])
    core.limit(1, 0.25)
    core.add(ask("slow", seed=5))
    began = core._now()
    assert picture(run(core)["slow"]) == free
    assert sum(rested) > 0.5 * (core._now() - began)
    assert max(rested) <= 0.05
    core.limit(1, 1.0)
    rested.clear()
    core.add(ask("free again", seed=5))
    assert picture(run(core)["free again"]) == free
    assert not rested


def test_previews_lie_between_the_steps(core: PictureCore) -> None:
    core.add(ask("a", previews=3))
    chunks = run(core)["a"]
    assert [chunk.preview is not None for chunk in chunks] == [True, True, True, False]


def test_the_step_cache_is_told_in_the_account(core: PictureCore) -> None:
    for name, cache in (("saving", 1.0), ("whole", 0.0)):
        core.add(ask(name, steps=50, cache=cache))
    stats = {name: chunks[-1].stats for name, chunks in run(core).items()}
    assert stats["saving"] is not None
    assert stats["whole"] is not None
    assert (stats["whole"].computed_steps, stats["whole"].steps, stats["saving"].steps) == (50, 50, 50)
    assert stats["saving"].computed_steps < 40


def test_latents_instead_of_a_picture(core: PictureCore) -> None:
    core.add(ask("a", seed=1, latents=True))
    core.add(ask("b", seed=1))
    found = run(core)
    latents = found["a"][-1].latents
    assert latents is not None
    booked, steps = core.memory().booked, core.stats().steps
    core.add(replace(ask("c", seed=1), decode=latents))
    (made,) = run(core)["c"]
    assert (made.finish, made.offset, made.count, made.total) == ("done", 0, 0, 0)
    assert made.picture is not None
    near = read_pixels(made.picture, 16, 16).astype(int) - read_pixels(picture(found["b"]), 16, 16).astype(int)
    assert np.abs(near).max() <= 1
    assert (core.memory().booked, core.stats().steps) == (booked, steps)


def test_latents_of_another_model_are_refused_and_the_engine_goes_on(core: PictureCore) -> None:
    core.add(ask("a", latents=True))
    latents = run(core)["a"][-1].latents
    assert latents is not None
    before = core.memory().booked
    core.add(replace(ask("b"), decode=latents.replace(b"sha256:", b"sha512:")))
    core.add(ask("c"))
    found = run(core)
    (refused,) = found["b"]
    assert (refused.finish, refused.error_code) == ("error", "invalid_value")
    assert "cannot decode them" in (refused.error_message or "")
    assert picture(found["c"])
    assert core.memory().booked == before


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of diffusers itself
def test_layers_of_a_pipeline_of_diffusers_are_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cuts: list[PictureTurns] = []
    monkeypatch.setattr(PictureTurns, "cut", lambda turns: cuts.append(turns))
    tiny_pipelines.sdxl(tmp_path)
    files = tiny_pipelines.files_of(tmp_path / "pipe")
    config = PictureConfig(model=files, device="cpu", threads=1, turns=str(tmp_path / "turns"))
    core = build(config, lambda stage, done: None)
    cuts.clear()
    core.add(ask("a", steps=1, guidance=1.0))
    picture(run(core)["a"])
    assert len(cuts) > 10


def test_a_cancelled_picture_takes_no_further_step_and_frees_its_memory(core: PictureCore) -> None:
    before = core.memory().booked
    core.add(ask("a", steps=50))
    for _ in range(10):
        core.step()
    core.cancel("a")
    steps = core.stats().steps
    (last,) = run(core)["a"]
    assert last.finish == "cancelled"
    assert core.stats().steps == steps
    assert core.memory().booked == before


def test_a_more_urgent_picture_does_not_wait_for_the_step_under_way(core: PictureCore) -> None:
    core.add(ask("bulk", seed=2, priority=Priority.BULK))
    core.step()
    core.step()  # its first step is under way
    core.add(ask("now", priority=Priority.REALTIME, steps=1, guidance=1.0))
    order: list[str] = []
    found: dict[str, list[DiffuseChunk]] = {}
    while core.has_work:
        for chunk in core.step():
            order.append(chunk.request_id)
            found.setdefault(chunk.request_id, []).append(chunk)
    assert order[0] == "now"
    stats = found["bulk"][-1].stats
    assert stats is not None
    assert stats.preemptions == 1
    core.add(ask("again", seed=2))
    assert picture(run(core)["again"]) == picture(found["bulk"])


def test_a_deadline_ends_a_picture_by_name(core: PictureCore) -> None:
    core.add(DiffuseRequest(id="a", params=DiffuseParams(prompt="x", steps=100), deadline_s=0.0))
    (last,) = run(core)["a"]
    assert (last.finish, last.error_code) == ("error", "deadline_exceeded")


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({"width": 600, "height": 600}, "size"),
        ({"steps": 1000}, "steps"),
        ({"guidance": float("nan")}, "guidance"),
        ({"strength": 0.0}, "strength"),
        ({"mask": b"x"}, "mask"),
        ({"cache": 1.5}, "step_cache"),
        ({"image": b"no picture"}, "image"),
    ],
)
def test_what_cannot_be_drawn_is_refused_by_name(core: PictureCore, params: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        core.add(ask("a", **params))
    assert caught.value.param == named
    assert not core.has_work


def test_a_model_that_does_not_fit_says_numbers(files: ModelFiles) -> None:
    config = PictureConfig(model=files, device="cpu", memory_budget_bytes=2**20)
    with pytest.raises(OutOfMemory, match=r"weights .* MiB"):
        build(config, lambda stage, done: None)


class Overflowing:
    """A test double: the real model, but its numbers overflow or its picture is of one colour, as in half precision."""

    def __init__(self, real: Any, kind: str) -> None:
        self._real = real
        self._kind = kind

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def step(self, canvases: Sequence[Canvas]) -> Iterator[None]:
        yield from self._real.step(canvases)
        if self._kind == "inf":
            canvases[0].latents = torch.full_like(canvases[0].latents, float("inf"))

    def decode(self, canvas: Canvas) -> Any:
        return np.zeros_like(self._real.decode(canvas)) if self._kind == "black" else self._real.decode(canvas)


@pytest.mark.parametrize("kind", ["inf", "black"])
def test_half_precision_that_overflows_is_drawn_again_in_a_wider_type(core: PictureCore, kind: str) -> None:
    told: list[str] = []
    core.listen(lambda word, sentence: told.append(word))
    real = core._model
    core._model, core._widen = Overflowing(real, kind), lambda: real
    core.add(ask("a", seed=3))
    chunks = run(core)["a"]
    assert chunks[-1].finish == "done"
    assert chunks[-1].stats is not None
    assert chunks[-1].stats.retried
    assert told == ["half_precision_overflow"]


def test_a_model_that_overflows_in_its_widest_type_says_so(core: PictureCore) -> None:
    core._model = Overflowing(core._model, "inf")
    core.add(ask("a"))
    last = run(core)["a"][-1]
    assert (last.finish, last.error_code) == ("error", "engine_error")


def test_the_engine_leaves_nothing_booked(core: PictureCore) -> None:
    before = core.memory().booked
    core.add(ask("a"))
    core.add(ask("b", steps=2))
    run(core)
    assert core.memory().booked == before
