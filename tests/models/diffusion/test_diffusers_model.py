"""Pipelines of diffusers through our loop: the same picture as their own loop draws, whatever is drawn beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edgewise.core.errors import UnsupportedModel
from edgewise.models.diffusion.load import load_pictures
from edgewise.models.diffusion.protocol import Brief, Canvas, PictureModel
from edgewise.models.diffusion.sizes import picture_sizes
from edgewise.models.files import ModelFiles
from edgewise.models.store import Store
from tests.fakes import tiny_pipelines

STEPS = 4
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of diffusers itself


def files_of(folder: Path) -> ModelFiles:
    paths = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return ModelFiles(name="tiny", digest="sha256:00", format="safetensors", paths=paths)


@pytest.fixture(scope="module", params=["sdxl", "sd3", "flux"])
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    folder = tmp_path_factory.mktemp(request.param)
    getattr(tiny_pipelines, request.param)(folder)
    return files_of(folder / "pipe")


@pytest.fixture(scope="module")
def model(files: ModelFiles) -> PictureModel:
    return load_pictures(files, device=torch.device("cpu"), dtype=torch.float32).model


def brief(model: PictureModel, seed: int = 3, **changes: Any) -> Brief:
    width, height = model.traits.best
    values = {"prompt": "cat", "negative_prompt": "", "width": width, "height": height, "steps": STEPS, "guidance": 3.0}
    return Brief(**{**values, "seed": seed, **changes})


def draw(model: PictureModel, *canvases: Canvas) -> None:
    with torch.inference_mode():
        for _ in range(STEPS):
            for _slice in model.step(canvases):
                pass


def test_the_picture_is_that_of_diffusers_own_loop(model: PictureModel) -> None:
    asked = brief(model)
    with torch.inference_mode():
        canvas = model.begin(asked)
        pipe = model._family.pipe  # type: ignore[attr-defined]
        noise = model.begin(asked).latents
        flux = type(pipe).__name__ == "FluxPipeline"
        given = noise[None] / float(getattr(canvas.memory.schedule, "init_noise_sigma", 1.0))
        if flux:
            given = pipe._pack_latents(given, 1, *noise.shape)
        reference = pipe(
            prompt="cat",
            width=asked.width,
            height=asked.height,
            num_inference_steps=STEPS,
            guidance_scale=3.0,
            latents=given,
            output_type="np",
        ).images[0]
    draw(model, canvas)
    with torch.inference_mode():
        ours = model.decode(canvas)
    assert canvas.done
    assert np.abs(ours.astype(float) - reference * 255).max() <= 2


def test_a_picture_does_not_depend_on_its_company(model: PictureModel) -> None:
    with torch.inference_mode():
        alone, beside, other = model.begin(brief(model)), model.begin(brief(model)), model.begin(brief(model, seed=4))
    assert model.batch_key(beside) == model.batch_key(other)
    draw(model, alone)
    draw(model, beside, other)
    assert torch.allclose(alone.latents, beside.latents, atol=1e-4)
    assert not torch.allclose(alone.latents, other.latents, atol=1e-2)


def test_a_step_that_is_abandoned_leaves_everything_as_it_was(model: PictureModel) -> None:
    with torch.inference_mode():
        canvas = model.begin(brief(model))
        before = canvas.latents.clone()
        step = iter(model.step([canvas]))
        next(step)
        step.close()  # type: ignore[attr-defined]
        assert torch.equal(canvas.latents, before)
        assert canvas.step == 0
        whole = model.begin(brief(model))
    draw(model, canvas)
    draw(model, whole)
    assert torch.equal(canvas.latents, whole.latents)


def test_latents_can_be_decoded_elsewhere(model: PictureModel) -> None:
    with torch.inference_mode():
        canvas = model.begin(brief(model))
        draw(model, canvas)
        restored = model.restore(model.export(canvas), *model.traits.best)
        assert np.abs(restored.astype(int) - model.decode(canvas).astype(int)).max() <= 1


def test_sizes_are_read_from_the_headers(files: ModelFiles, model: PictureModel) -> None:
    sizes = picture_sizes(files, "float32")
    pipe = model._family.pipe  # type: ignore[attr-defined]
    parts = [part for part in pipe.components.values() if isinstance(part, torch.nn.Module)]
    held = sum(value.numel() * 4 for part in parts for value in part.state_dict().values())
    assert 0.95 * held <= sizes.weights <= 1.1 * held
    assert picture_sizes(files, "bfloat16").weights == sizes.weights // 2


def test_other_pipelines_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text('{"_class_name": "MarigoldDepthPipeline"}')
    with pytest.raises(UnsupportedModel, match="MarigoldDepthPipeline"):
        load_pictures(files_of(tmp_path), device=torch.device("cpu"), dtype=torch.float32)


def test_a_pipeline_is_imported_and_resolved(files: ModelFiles, tmp_path: Path) -> None:
    folder = files.paths["model_index.json"].parent
    store = Store(tmp_path / "models")
    imported = store.import_path(folder, "pipe", role="diffusion")
    assert imported.left_out == ()
    resolved = store.resolve("pipe", "diffusion")
    assert set(resolved.paths) == set(files.paths)
    loaded = load_pictures(resolved, device=torch.device("cpu"), dtype=torch.float32).model
    with torch.inference_mode():
        canvas = loaded.begin(brief(loaded))
    draw(loaded, canvas)
    assert canvas.done


def test_predicted_steps_are_not_computed(model: PictureModel, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    denoise = model._directions  # type: ignore[attr-defined]

    def counted(canvases: Any) -> Any:
        calls.append(len(canvases))
        return (yield from denoise(canvases))

    monkeypatch.setattr(model, "_directions", counted)
    with torch.inference_mode():
        saving, whole, alone = (model.begin(brief(model, cache=cache)) for cache in (99.0, 0.0, 99.0))
    draw(model, saving, whole)
    assert (saving.predicted, whole.predicted) == (STEPS - 2, 0)
    assert calls == [2, 1, 1, 2]
    draw(model, alone)
    assert calls[4:] == [1, 1]
    assert torch.allclose(alone.latents, saving.latents, atol=1e-4)
    assert not torch.allclose(whole.latents, saving.latents, atol=1e-4)
