"""Pipelines of diffusers through our loop: the same picture as their own loop draws, whatever is drawn beside it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import diffusers as untyped_diffusers
import numpy as np
import pytest
import torch
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from PIL import Image

from edgewise.core.errors import UnsupportedModel
from edgewise.kernels.noise import normal
from edgewise.models.diffusion.load import load_pictures
from edgewise.models.diffusion.protocol import Brief, Canvas, PictureModel
from edgewise.models.diffusion.sizes import picture_sizes
from edgewise.models.files import ModelFiles
from edgewise.models.store import Store
from tests.fakes import tiny_pipelines
from tests.fakes.tiny_pipelines import files_of

diffusers: Any = untyped_diffusers
STEPS = 4
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of diffusers itself


@pytest.fixture(scope="module", params=["sdxl", "sd3", "flux", "schnell", "qwen"])
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    folder = tmp_path_factory.mktemp(request.param)
    getattr(tiny_pipelines, request.param)(folder)
    return files_of(folder / "pipe")


@pytest.fixture(scope="module")
def model(files: ModelFiles) -> PictureModel:
    return load_pictures(files, device=torch.device("cpu"), dtype=torch.float32).model


def brief(model: PictureModel, seed: int = 3, **changes: Any) -> Brief:
    side = min(64, *model.traits.best)
    guidance = min(3.0, model.traits.guidance)  # one that was distilled without guidance draws without it
    values = {
        "prompt": "cat",
        "negative_prompt": "",
        "width": side,
        "height": side,
        "steps": STEPS,
        "guidance": guidance,
    }
    return Brief(**{**values, "seed": seed, **changes})


def guidance(pipe: Any, asked: Brief) -> dict[str, Any]:
    """As diffusers' own loop is told of it."""
    if type(pipe).__name__.startswith("Qwen"):
        return {"true_cfg_scale": asked.guidance, "negative_prompt": " "}
    return {"guidance_scale": asked.guidance}


def draw(model: PictureModel, *canvases: Canvas) -> None:
    with torch.inference_mode():
        while not canvases[0].done:
            for _slice in model.step(canvases):
                pass


def test_the_picture_is_that_of_diffusers_own_loop(model: PictureModel) -> None:
    asked = brief(model)
    with torch.inference_mode():
        canvas = model.begin(asked)
        pipe = model._family.pipe  # type: ignore[attr-defined]
        noise = model.begin(asked).latents
        given = noise[None] / float(getattr(canvas.memory.schedule, "init_noise_sigma", 1.0))
        if type(pipe).__name__ in ("FluxPipeline", "QwenImagePipeline"):
            given = pipe._pack_latents(given, 1, *noise.shape)
        reference = pipe(
            prompt="cat",
            width=asked.width,
            height=asked.height,
            num_inference_steps=STEPS,
            latents=given,
            output_type="np",
            **guidance(pipe, asked),
        ).images[0]
    draw(model, canvas)
    with torch.inference_mode():
        ours = model.decode(canvas)
    assert canvas.done
    assert np.abs(ours.astype(float) - reference * 255).max() <= 2


_SIGHT = {
    "FluxPipeline": "Flux",
    "QwenImagePipeline": "QwenImage",
    "StableDiffusion3Pipeline": "StableDiffusion3",
    "StableDiffusionXLPipeline": "StableDiffusionXL",
}


def scene(asked: Brief) -> tuple[np.ndarray[Any, np.dtype[np.uint8]], np.ndarray[Any, np.dtype[np.uint8]]]:
    """A picture, and a mask that keeps its upper half."""
    places = np.indices((asked.height, asked.width))
    image = np.stack([places[0] * 3, places[1] * 2, places.sum(0)], -1).astype(np.uint8)
    mask = np.zeros((asked.height, asked.width), np.uint8)
    mask[asked.height // 2 :] = 255
    return image, mask


@pytest.mark.parametrize("kind", ["Img2Img", "Inpaint"])
def test_an_edit_is_that_of_diffusers_own_loop(model: PictureModel, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    image, mask = scene(brief(model))
    masked = kind == "Inpaint"
    asked = brief(model, image=image, mask=mask if masked else None, start=STEPS // 2)
    pipe = model._family.pipe  # type: ignore[attr-defined]
    own = getattr(diffusers, _SIGHT[type(pipe).__name__] + kind + "Pipeline")
    shape = model._family.shape(asked.width, asked.height)  # type: ignore[attr-defined]
    noise = torch.from_numpy(normal(asked.seed, int(np.prod(shape)))).view(shape)
    monkeypatch.setattr(sys.modules[own.__module__], "randn_tensor", lambda size, **_: noise.reshape(size))
    monkeypatch.setattr(DiagonalGaussianDistribution, "sample", lambda self, generator=None: self.mode())
    with torch.inference_mode():
        latents = own(**pipe.components)(
            prompt="cat",
            image=Image.fromarray(image),
            width=asked.width,
            height=asked.height,
            strength=0.5,
            num_inference_steps=STEPS,
            output_type="latent",  # its decoder for edits of Stable Diffusion 3 leaves the shift out
            **({"mask_image": Image.fromarray(mask)} if masked else {}),
            **guidance(pipe, asked),
        ).images
        if latents.ndim == 3:
            latents = pipe._unpack_latents(latents, asked.height, asked.width, pipe.vae_scale_factor)
        reference = model._pixels(latents.reshape(shape)).astype(float)  # type: ignore[attr-defined]
        canvas = model.begin(asked)
    assert canvas.step == STEPS // 2
    draw(model, canvas)
    with torch.inference_mode():
        ours = model.decode(canvas)
        fresh = model.begin(brief(model))
    assert np.abs(ours.astype(float) - reference).max() <= 2
    draw(model, fresh)
    with torch.inference_mode():
        assert not np.array_equal(model.decode(fresh), ours)


def test_what_a_mask_keeps_is_what_the_coder_makes_of_it(model: PictureModel) -> None:
    image, mask = scene(brief(model))
    with torch.inference_mode():
        canvas = model.begin(brief(model, image=image, mask=mask, start=1))
        picture, _, stays = canvas.memory.kept
    draw(model, canvas)
    half = canvas.latents.shape[1] // 2
    assert torch.equal(stays[0, :half], torch.ones_like(stays[0, :half]))
    assert torch.equal(stays[0, half:], torch.zeros_like(stays[0, half:]))
    assert torch.allclose(canvas.latents[:, :half], picture[:, :half], atol=1e-5)
    assert not torch.allclose(canvas.latents[:, half:], picture[:, half:], atol=0.1)


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
        restored = model.restore(model.export(canvas), canvas.brief.width, canvas.brief.height)
        assert np.abs(restored.astype(int) - model.decode(canvas).astype(int)).max() <= 1


def test_the_device_can_be_given_away_between_layers(files: ModelFiles, model: PictureModel) -> None:
    cuts = 0

    def cut() -> None:
        nonlocal cuts
        cuts += 1

    divided = load_pictures(files, device=torch.device("cpu"), dtype=torch.float32, cut=cut).model
    with torch.inference_mode():
        canvas = divided.begin(brief(divided))
        told, cuts = cuts, 0
        call = iter(divided.step([canvas]))
        next(call)
        drawn, cuts = cuts, 0
        call.close()  # type: ignore[attr-defined]
        divided.decode(canvas)
    assert min(told, drawn, cuts) >= 2
    draw(divided, canvas)
    with torch.inference_mode():
        whole = model.begin(brief(model))
    draw(model, whole)
    assert torch.equal(canvas.latents, whole.latents)


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


def test_networks_with_inputs_for_a_mask_are_refused(tmp_path: Path) -> None:
    tiny_pipelines.sdxl(tmp_path, channels=9)
    with pytest.raises(UnsupportedModel, match="takes 9 channels"):
        load_pictures(files_of(tmp_path / "pipe"), device=torch.device("cpu"), dtype=torch.float32)


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
