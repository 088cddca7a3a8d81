"""The starter picture model: one picture for one seed, batches, edits, latents, abandoned steps, files that do not fit."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edgewise.core.errors import BadModelFile, InvalidRequest
from edgewise.models.diffusion.protocol import Brief, Canvas, Pixels
from edgewise.models.diffusion.starter.files import CONFIG, WEIGHTS, load_starter
from edgewise.models.diffusion.starter.model import StarterPictures
from edgewise.models.diffusion.starter.tiny import TINY, make_tiny_pictures
from edgewise.models.tiny import local_files

SIZE = TINY.size
BRIEF = Brief(prompt="a red cat", negative_prompt="", width=SIZE, height=SIZE, steps=5, guidance=3.0, seed=11)


def tiny_picture_model(directory: Path, *, seed: int = 0, **load: Any) -> StarterPictures:
    """`load` are the options of `load_starter`."""
    return load_starter(local_files(make_tiny_pictures(directory, seed=seed)), **load)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> StarterPictures:
    return tiny_picture_model(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(autouse=True)
def _inference() -> object:
    with torch.inference_mode():
        yield


def finish(model: StarterPictures, *canvases: Canvas) -> list[Pixels]:
    while not canvases[0].done:
        for _ in model.step(canvases):
            pass
    return [model.decode(canvas) for canvas in canvases]


def draw(model: StarterPictures, **changes: Any) -> Pixels:
    return finish(model, model.begin(dataclasses.replace(BRIEF, **changes)))[0]


def test_a_seed_gives_one_picture_and_everything_asked_for_matters(model: StarterPictures) -> None:
    first = draw(model)
    assert first.shape == (SIZE, SIZE, 3)
    assert first.dtype == np.uint8
    assert np.array_equal(first, draw(model))
    for change in (
        {"seed": 12},
        {"prompt": "a blue dog"},
        {"guidance": 2.0},
        {"steps": 6},
        {"negative_prompt": "house"},
    ):
        assert not np.array_equal(first, draw(model, **change)), change


def test_a_picture_does_not_depend_on_what_is_drawn_beside_it(model: StarterPictures) -> None:
    other = dataclasses.replace(BRIEF, prompt="the house", seed=5, guidance=6.0, negative_prompt="a dog")
    late = dataclasses.replace(other, steps=7, start=2, image=np.full((SIZE, SIZE, 3), 200, np.uint8))
    canvases = [model.begin(brief) for brief in (BRIEF, other, late)]
    assert len({model.batch_key(canvas) for canvas in canvases}) == 1
    together = finish(model, *canvases)
    for brief, drawn in zip((BRIEF, other, late), together, strict=True):
        alone = finish(model, model.begin(brief))[0]
        assert np.abs(alone.astype(int) - drawn.astype(int)).max() <= 1


def test_without_guidance_the_network_runs_once(model: StarterPictures) -> None:
    plain = model.begin(dataclasses.replace(BRIEF, guidance=1.0))
    assert model.batch_key(plain) != model.batch_key(model.begin(BRIEF))
    assert np.array_equal(finish(model, plain)[0], draw(model, guidance=1.0, negative_prompt="house"))


def test_an_abandoned_step_leaves_no_trace(model: StarterPictures) -> None:
    canvas = model.begin(BRIEF)
    for pauses in range(1, TINY.depth + 1):
        walk = model.step([canvas])
        for _ in range(pauses):
            next(walk)
        walk.close()
        assert canvas.step == 0
    assert np.array_equal(finish(model, canvas)[0], draw(model))


def test_an_edit_keeps_what_the_mask_keeps(model: StarterPictures) -> None:
    image = np.arange(SIZE * SIZE * 3, dtype=np.uint32).reshape(SIZE, SIZE, 3).astype(np.uint8)
    mask = np.zeros((SIZE, SIZE), np.uint8)
    mask[:, SIZE // 2 :] = 255
    drawn = draw(model, image=image, mask=mask, start=1)
    assert np.abs(drawn[:, : SIZE // 2].astype(int) - image[:, : SIZE // 2].astype(int)).max() <= 1
    assert not np.array_equal(drawn[:, SIZE // 2 :], image[:, SIZE // 2 :])
    assert not np.array_equal(drawn, draw(model, image=image, mask=mask, start=3))


def test_previews_and_latents(model: StarterPictures) -> None:
    canvas = model.begin(BRIEF)
    assert model.decode(canvas).shape == (SIZE, SIZE, 3)
    picture = finish(model, canvas)[0]
    latents = model.export(canvas)
    assert len(latents) < 2 * 3 * SIZE**2 + 256
    assert np.abs(model.restore(latents, SIZE, SIZE).astype(int) - picture.astype(int)).max() <= 1
    for damaged in (b"", latents[:-4], latents[:40], latents.replace(b"latents", b"batents"), b"\xff" * 64):
        with pytest.raises(InvalidRequest):
            model.restore(damaged, SIZE, SIZE)


def test_latents_of_another_model_are_refused(model: StarterPictures, tmp_path: Path) -> None:
    other = tiny_picture_model(tmp_path / "other", seed=3)
    with pytest.raises(InvalidRequest, match="made by"):
        model.restore(other.export(other.begin(BRIEF)), SIZE, SIZE)
    canvas = model.begin(BRIEF)
    with pytest.raises(InvalidRequest, match=f"those of such a picture are .3, {2 * SIZE}"):
        model.restore(model.export(canvas), SIZE, 2 * SIZE)
    canvas.latents = canvas.latents * torch.nan
    with pytest.raises(InvalidRequest, match="finite"):
        model.restore(model.export(canvas), SIZE, SIZE)


def test_half_precision_draws_nearly_the_same(model: StarterPictures, tmp_path: Path) -> None:
    narrow = tiny_picture_model(tmp_path / "narrow", dtype=torch.bfloat16)
    assert narrow.numeric_class != model.numeric_class
    assert np.abs(draw(narrow).astype(int) - draw(model).astype(int)).mean() < 8


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_draws_the_same_picture(model: StarterPictures, tmp_path: Path) -> None:
    there = tiny_picture_model(tmp_path / "cuda", device="cuda")
    assert np.abs(draw(there).astype(int) - draw(model).astype(int)).max() <= 2


def test_weights_are_stored_in_8_bits(tmp_path: Path) -> None:
    folder = make_tiny_pictures(tmp_path / "model")
    assert (folder / WEIGHTS).read_bytes() == (make_tiny_pictures(tmp_path / "again") / WEIGHTS).read_bytes()
    header = (folder / WEIGHTS).read_bytes()[8:20_000].split(b"}}", 1)[0]
    assert b'"layers.0.qkv.weight":{"dtype":"I8"' in header
    assert b'"layers.0.qkv.weight_scale":{"dtype":"F32","shape":[96,1]' in header


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "text_encoder.safetensors", "tokenizer.json"])
def test_a_missing_or_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    folder = make_tiny_pictures(tmp_path / "model")
    (folder / name).write_bytes((folder / name).read_bytes()[:40])
    with pytest.raises(BadModelFile, match=name.partition(".")[0]):
        load_starter(local_files(folder))
    (folder / name).unlink()
    with pytest.raises(BadModelFile, match=f"{name} is missing"):
        load_starter(local_files(folder))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 36}, "'width'"),
        ({"depth": 3}, "layers.2"),
        ({"hidden": "48"}, "'hidden'"),
        ({"text_width": 64}, "text"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    folder = make_tiny_pictures(tmp_path / "model")
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(config | change))
    with pytest.raises(BadModelFile, match=message):
        load_starter(local_files(folder))
