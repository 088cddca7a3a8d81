"""Pipelines of diffusers, step by step; which ones, `families` says. Imported in engine processes only.

The parts are diffusers' own (text encoders, denoiser, image decoder, noise schedule); the loop is ours. Each picture has a copy
of the schedule, so pictures at different steps share one call of the denoiser. Latents are kept in float32. Only schedules that
draw no noise of their own are used: everything random comes from the counter-based generator.

A picture to begin with is encoded, and given as much noise as the schedule has at the first step that is computed (Meng et al.
2022, SDEdit). Where a mask keeps a part of it, that is laid over the latents after every step, with as much noise as the rest has
(as diffusers does for networks that have no inputs for a mask); it passes through the picture coder and is nearly the same then.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import diffusers
import numpy as np
import numpy.typing as npt
import torch

from edgewise.core.errors import BadModelFile, UnsupportedModel
from edgewise.kernels.noise import normal
from edgewise.models.diffusion.families import FAMILIES, Family, Tensors
from edgewise.models.diffusion.latents import pack_latents, unpack_latents
from edgewise.models.diffusion.protocol import Brief, Canvas, PictureModel, PictureTraits, Pixels
from edgewise.models.diffusion.step_cache import plan_steps
from edgewise.models.files import ModelFiles
from edgewise.models.importing import PIPELINE
from edgewise.models.small_files import read_object

_WAIT_EACH_S = 0.003
_LAYERS = frozenset({"QwenImageResidualBlock"})  # its coder does not name its layers


@dataclass(slots=True)
class _Memory:
    """Beside the latents: what the denoiser is told of both prompts, the schedule, which steps are computed, what an edit keeps,
    the denoiser's last answer, and the present guess of the picture."""

    wanted: Tensors
    unwanted: Tensors | None
    schedule: Any
    plan: tuple[bool, ...]
    kept: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None
    """Latents of the picture, noise, and 1 where the picture stays [1, h, w]."""
    direction: torch.Tensor | None = None
    guess: torch.Tensor | None = None


class DiffusersPictures:
    """`PictureModel` over a pipeline of diffusers."""

    def __init__(self, family: Family, *, device: torch.device, dtype: torch.dtype, made_by: str) -> None:
        self._family = family
        self._device = device
        self._dtype = dtype
        self._made_by = made_by

    @property
    def traits(self) -> PictureTraits:
        family = self._family
        return PictureTraits(
            grid=family.grid,
            sizes=(family.grid, 2 * family.side),
            best=(family.side, family.side),
            steps=family.steps,
            guidance=family.guidance,
            edits=True,
            negative=family.negative,
            latent_bytes_per_pixel=2.0 * family.channels / family.scale**2,
        )

    @property
    def numeric_class(self) -> str:
        dtype = str(self._dtype).removeprefix("torch.")
        return f"diffusers-{diffusers.__version__}/{self._device.type}-{dtype}"

    def begin(self, brief: Brief) -> Canvas:
        family = self._family
        shape = family.shape(brief.width, brief.height)
        wanted, unwanted = family.encode(brief, self._device)
        tokens = brief.height * brief.width // family.grid**2
        schedule = family.schedule(brief.steps, tokens, self._device)
        noise = torch.from_numpy(normal(brief.seed, int(np.prod(shape)))).view(shape).to(self._device)
        schedule.set_begin_index(brief.start)
        kept = None
        if brief.image is None:
            latents = noise * float(getattr(schedule, "init_noise_sigma", 1.0))
        else:
            picture = self._latents_of(brief.image)
            latents = family.noisy(picture, noise, schedule.sigmas[brief.start].to(self._device))
            if brief.mask is not None:
                kept = (picture, noise, self._stays(brief.mask, shape))
        plan = (True,) * brief.steps
        if brief.cache:
            plan = plan_steps(family.conditions(schedule.timesteps, wanted), brief.cache, brief.start)
        memory = _Memory(wanted, unwanted, schedule, plan, kept)
        return Canvas(brief=brief, step=brief.start, latents=latents, memory=memory)

    def batch_key(self, canvas: Canvas) -> object:
        memory = _memory(canvas)
        told = (memory.wanted, memory.unwanted or {})
        texts = tuple(tuple(value.shape) for one in told for value in one.values())
        return tuple(canvas.latents.shape), memory.unwanted is not None, texts

    def step(self, canvases: Sequence[Canvas]) -> Iterator[None]:
        due = [canvas for canvas in canvases if _memory(canvas).plan[canvas.step]]
        drawn = (yield from self._directions(due)) if due else ()
        fresh = {id(canvas): direction for canvas, direction in zip(due, drawn, strict=True)}
        for canvas in canvases:
            self._move(canvas, fresh.get(id(canvas)))

    def _directions(self, canvases: Sequence[Canvas]) -> Generator[None, None, torch.Tensor]:
        """The denoiser's answers, guidance included."""
        memories = [_memory(canvas) for canvas in canvases]
        times = [memory.schedule.timesteps[canvas.step] for canvas, memory in zip(canvases, memories, strict=True)]
        inputs = torch.stack(
            [
                memory.schedule.scale_model_input(canvas.latents, time)
                if hasattr(memory.schedule, "scale_model_input")
                else canvas.latents
                for canvas, memory, time in zip(canvases, memories, times, strict=True)
            ]
        ).to(self._dtype)
        time = torch.stack(times).to(self._device)
        guess = self._family(inputs, time, _batch([memory.wanted for memory in memories], self._dtype)).float()
        yield
        without = [memory.unwanted for memory in memories]
        if all(one is not None for one in without):
            told = _batch([one for one in without if one is not None], self._dtype)
            other = self._family(inputs, time, told).float()
            yield
            scale = torch.tensor([canvas.brief.guidance for canvas in canvases], device=self._device)
            guess = self._family.guided(guess, other, scale[:, None, None, None])
        return guess

    def _move(self, canvas: Canvas, direction: torch.Tensor | None) -> None:
        """One step on; in the last direction where none was computed, which is Euler's method with a longer step."""
        memory = _memory(canvas)
        canvas.predicted += direction is None
        if direction is not None:
            memory.direction = direction
        schedule, direction = memory.schedule, memory.direction
        memory.guess = canvas.latents - schedule.sigmas[canvas.step].to(self._device) * direction
        at = schedule.timesteps[canvas.step]
        latents = schedule.step(direction, at, canvas.latents, return_dict=False)[0]
        canvas.step += 1
        if memory.kept is not None:
            picture, noise, stays = memory.kept
            level = schedule.sigmas[canvas.step].to(self._device)
            latents = torch.lerp(latents, self._family.noisy(picture, noise, level), stays)
        canvas.latents = latents

    def decode(self, canvas: Canvas) -> Pixels:
        guess = _memory(canvas).guess
        return self._pixels(canvas.latents if canvas.done or guess is None else guess)

    def export(self, canvas: Canvas) -> bytes:
        return pack_latents(canvas.latents, self._made_by)

    def restore(self, latents: bytes, width: int, height: int) -> Pixels:
        values = unpack_latents(latents, self._made_by, self._family.shape(width, height))
        return self._pixels(values.to(self._device))

    def _pixels(self, latents: torch.Tensor) -> Pixels:
        colours = self._family.decode(latents, self._dtype)
        levels = ((colours.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
        found: Pixels = levels.permute(1, 2, 0).cpu().numpy()
        return found

    def _latents_of(self, pixels: Pixels) -> torch.Tensor:
        colours = torch.from_numpy(pixels.copy()).to(self._device).permute(2, 0, 1).float() / 127.5 - 1
        return self._family.encode_picture(colours, self._dtype).to(self._device)

    def _stays(self, mask: npt.NDArray[np.uint8], shape: tuple[int, int, int]) -> torch.Tensor:
        drawn = torch.from_numpy(mask.astype(np.float32) / 255).to(self._device)
        return 1 - torch.nn.functional.interpolate(drawn[None, None], size=shape[1:])[0]


def load_pipeline(
    files: ModelFiles,
    *,
    device: torch.device,
    dtype: torch.dtype,
    offload: bool = False,
    cut: Callable[[], None] | None = None,
) -> PictureModel:
    """A pipeline of diffusers in memory, ready to draw. Nothing is fetched, and no code of the model is run.

    Args:
        offload: Keep each part in host memory while another one is at work; on a GPU only.
        cut: Called after every layer of every part, once it is computed.

    Raises:
        UnsupportedModel: Its kind is none of `families.FAMILIES`, or its network has inputs beside those of its kind.
        BadModelFile: diffusers cannot read it.
    """
    index = read_object(files.paths[PIPELINE], PIPELINE)
    kind = str(index.get("_class_name"))
    family = FAMILIES.get(kind)
    if family is None:
        raise UnsupportedModel(
            f"{PIPELINE}: pipelines of kind '{kind[:80]}' are not supported: {', '.join(FAMILIES)} are."
        )
    with tempfile.TemporaryDirectory(prefix="edgewise-pipeline-") as folder:
        for name, path in files.paths.items():
            place = Path(folder) / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(path)
        left_out = {name: None for name, part in index.items() if part == [None, None]}
        try:
            pipe: Any = getattr(diffusers, kind).from_pretrained(
                folder, dtype=dtype, local_files_only=True, use_safetensors=True, **left_out
            )
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise BadModelFile(f"{files.name}: diffusers cannot read it: {error}") from error
    pipe.set_progress_bar_config(disable=True)
    pipe.vae.enable_slicing()
    pipe.vae.enable_tiling()
    if offload and device.type == "cuda":
        pipe.enable_model_cpu_offload(device=device)
    else:
        pipe.to(device)
    made = family(pipe)
    coded = pipe.vae.config.get("latent_channels", pipe.vae.config.get("z_dim"))
    if made.channels != coded:
        raise UnsupportedModel(
            f"{files.name}: its network takes {made.channels} channels of latents and its picture coder makes {coded}. Networks "
            "with inputs for a mask or another picture are not supported."
        )
    if cut is not None:
        _divide(pipe, cut, device)
    return DiffusersPictures(made, device=device, dtype=dtype, made_by=files.digest)


def _divide(pipe: Any, cut: Callable[[], None], device: torch.device) -> None:
    """Call `cut` after each layer of the pipeline's parts, as they name them themselves. On a GPU they are only begun when they
    return: every few milliseconds what was begun is waited for, no more often, since that costs time."""
    waited_s = 0.0

    def after(module: torch.nn.Module, given: Any, found: Any) -> None:
        del module, given, found
        nonlocal waited_s
        if device.type == "cuda":
            if monotonic() - waited_s < _WAIT_EACH_S:
                return
            torch.cuda.synchronize(device)
            waited_s = monotonic()
        cut()

    for part in pipe.components.values():
        if isinstance(part, torch.nn.Module):
            kinds = _LAYERS.union(getattr(part, "_no_split_modules", None) or ())
            for module in part.modules():
                if type(module).__name__ in kinds:
                    module.register_forward_hook(after)


def _memory(canvas: Canvas) -> _Memory:
    assert isinstance(canvas.memory, _Memory)
    return canvas.memory


def _batch(told: Sequence[Tensors], dtype: torch.dtype) -> Tensors:
    return {name: torch.cat([one[name] for one in told]).to(dtype) for name in told[0]}
