"""Pipelines of diffusers, step by step: Stable Diffusion XL, Stable Diffusion 3, FLUX.1. Imported in engine processes only.

The parts are diffusers' own (text encoders, denoiser, image decoder, noise schedule); the loop is ours. Each picture has a copy
of the schedule, so pictures at different steps share one call of the denoiser. Latents are kept in float32. Only schedules that
draw no noise of their own are used: everything random comes from the counter-based generator.
"""

from __future__ import annotations

import copy
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import torch

from edgewise.core.errors import BadModelFile, InvalidRequest, UnsupportedModel
from edgewise.kernels.noise import normal
from edgewise.models.diffusion.latents import pack_latents, unpack_latents
from edgewise.models.diffusion.protocol import Brief, Canvas, PictureModel, PictureTraits, Pixels
from edgewise.models.diffusion.step_cache import plan_steps
from edgewise.models.files import ModelFiles
from edgewise.models.importing import PIPELINE
from edgewise.models.small_files import read_object

Tensors = Mapping[str, torch.Tensor]


@dataclass(slots=True)
class _Memory:
    """Beside the latents: what the denoiser is told of both prompts, the schedule, which steps are computed, the denoiser's
    last answer, and the present guess of the picture."""

    wanted: Tensors
    unwanted: Tensors | None
    schedule: Any
    plan: tuple[bool, ...]
    direction: torch.Tensor | None = None
    guess: torch.Tensor | None = None


class _Family(ABC):
    """What differs between kinds of pipelines. `pipe` is diffusers' own."""

    steps = 28
    guidance = 5.0
    negative = True

    def __init__(self, pipe: Any) -> None:
        self.pipe = pipe
        self.scale: int = 2 ** (len(pipe.vae.config.block_out_channels) - 1)

    @property
    @abstractmethod
    def denoiser(self) -> Any: ...

    @property
    def grid(self) -> int:
        return self.scale

    @property
    def channels(self) -> int:
        return int(self.denoiser.config.in_channels)

    @property
    def side(self) -> int:
        """Width and height that the model was trained for, in pixels."""
        return int(self.denoiser.config.sample_size) * self.scale

    def shape(self, width: int, height: int) -> tuple[int, int, int]:
        """Of the latents of a picture: [channels, height, width]."""
        return self.channels, height // self.scale, width // self.scale

    @abstractmethod
    def encode(self, brief: Brief, device: torch.device) -> tuple[Tensors, Tensors | None]:
        """What the denoiser is told of the prompt, and of the negative one where guidance is on; each [1, ...]."""

    @abstractmethod
    def schedule(self, steps: int, tokens: int, device: torch.device) -> Any:
        """A schedule that is ready for its first step."""

    @abstractmethod
    def conditions(self, times: torch.Tensor, told: Tensors) -> torch.Tensor:
        """What the denoiser's layers are modulated with at the times [n] of a schedule, for one prompt: [n, width]."""

    def __call__(self, latents: torch.Tensor, time: torch.Tensor, told: Tensors) -> torch.Tensor:
        """One call of the denoiser: latents [n, channels, h, w], times [n]."""
        out: torch.Tensor = self.denoiser(hidden_states=latents, timestep=time, return_dict=False, **told)[0]
        return out


class _Flow(_Family):
    def conditions(self, times: torch.Tensor, told: Tensors) -> torch.Tensor:
        embed, pooled = self.denoiser.time_text_embed, told["pooled_projections"]
        weight = next(embed.parameters())  # where parts take turns on a GPU, it may lie elsewhere than the prompt
        given = [times] if "guidance" not in told else [times, 1000 * told["guidance"].expand(len(times))]
        found: torch.Tensor = embed(*(one.to(weight.device) for one in given), pooled.to(weight))
        return found

    def schedule(self, steps: int, tokens: int, device: torch.device) -> Any:
        if not isinstance(self.pipe.scheduler, diffusers.FlowMatchEulerDiscreteScheduler):
            raise UnsupportedModel(
                f"The schedule {type(self.pipe.scheduler).__name__} is not supported: only FlowMatchEulerDiscreteScheduler is."
            )
        made: Any = copy.deepcopy(self.pipe.scheduler)
        config = made.config
        if config.use_dynamic_shifting:
            slope = (config.max_shift - config.base_shift) / (config.max_image_seq_len - config.base_image_seq_len)
            shift = config.base_shift + slope * (tokens - config.base_image_seq_len)
            made.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), device=device, mu=shift)
        else:
            made.set_timesteps(steps, device=device)
        made.set_begin_index(0)
        return made


class _StableDiffusion3(_Flow):
    """Esser et al. 2024."""

    guidance = 7.0

    @property
    def denoiser(self) -> Any:
        return self.pipe.transformer

    @property
    def grid(self) -> int:
        return self.scale * int(self.denoiser.config.patch_size)

    def encode(self, brief: Brief, device: torch.device) -> tuple[Tensors, Tensors | None]:
        guided = brief.guidance != 1.0
        states, unwanted, pooled, unwanted_pooled = self.pipe.encode_prompt(
            prompt=brief.prompt,
            prompt_2=None,
            prompt_3=None,
            negative_prompt=brief.negative_prompt,
            device=device,
            do_classifier_free_guidance=guided,
        )
        wanted = {"encoder_hidden_states": states, "pooled_projections": pooled}
        if not guided:
            return wanted, None
        return wanted, {"encoder_hidden_states": unwanted, "pooled_projections": unwanted_pooled}


class _Flux(_Flow):
    """FLUX.1: guidance is an input of the network where it was distilled into it; there is no negative prompt."""

    negative = False

    def __init__(self, pipe: Any) -> None:
        super().__init__(pipe)
        self.distilled = bool(self.denoiser.config.guidance_embeds)
        self.steps, self.guidance = (28, 3.5) if self.distilled else (4, 1.0)

    @property
    def denoiser(self) -> Any:
        return self.pipe.transformer

    @property
    def grid(self) -> int:
        return 2 * self.scale

    @property
    def channels(self) -> int:
        return int(self.denoiser.config.in_channels) // 4

    @property
    def side(self) -> int:
        return int(self.pipe.default_sample_size) * self.scale

    def encode(self, brief: Brief, device: torch.device) -> tuple[Tensors, Tensors | None]:
        if brief.guidance != 1.0 and not self.distilled:
            raise InvalidRequest(
                "This model draws without guidance: leave 'guidance' out, or send 1.", param="guidance"
            )
        states, pooled, _ = self.pipe.encode_prompt(prompt=brief.prompt, prompt_2=None, device=device)
        told = {"encoder_hidden_states": states, "pooled_projections": pooled}
        if self.distilled:
            told["guidance"] = torch.full((1,), brief.guidance, device=device, dtype=states.dtype)
        return told, None

    def __call__(self, latents: torch.Tensor, time: torch.Tensor, told: Tensors) -> torch.Tensor:
        count, channels, height, width = latents.shape
        packed = self.pipe._pack_latents(latents, count, channels, height, width)
        places = self.pipe._prepare_latent_image_ids(count, height // 2, width // 2, latents.device, latents.dtype)
        texts = torch.zeros(told["encoder_hidden_states"].shape[1], 3, device=latents.device, dtype=latents.dtype)
        out: torch.Tensor = self.denoiser(
            hidden_states=packed, timestep=time / 1000, img_ids=places, txt_ids=texts, return_dict=False, **told
        )[0]
        whole: torch.Tensor = self.pipe._unpack_latents(out, height * self.scale, width * self.scale, self.scale)
        return whole


class _StableDiffusionXL(_Family):
    """Podell et al. 2023, with Euler's method (Karras et al. 2022), which draws no noise."""

    steps = 30

    @property
    def denoiser(self) -> Any:
        return self.pipe.unet

    def encode(self, brief: Brief, device: torch.device) -> tuple[Tensors, Tensors | None]:
        guided = brief.guidance != 1.0
        states, unwanted, pooled, unwanted_pooled = self.pipe.encode_prompt(
            prompt=brief.prompt,
            negative_prompt=brief.negative_prompt or None,  # it has a state of its own for none
            device=device,
            do_classifier_free_guidance=guided,
        )
        size = (brief.height, brief.width)
        place = self.pipe._get_add_time_ids(
            size,
            (0, 0),
            size,
            dtype=states.dtype,
            text_encoder_projection_dim=self.pipe.text_encoder_2.config.projection_dim,
        ).to(device)
        wanted = {"encoder_hidden_states": states, "text_embeds": pooled, "time_ids": place}
        if not guided:
            return wanted, None
        return wanted, {"encoder_hidden_states": unwanted, "text_embeds": unwanted_pooled, "time_ids": place}

    def schedule(self, steps: int, tokens: int, device: torch.device) -> Any:
        del tokens
        euler: Any = diffusers.EulerDiscreteScheduler
        made = euler.from_config(self.pipe.scheduler.config)
        made.set_timesteps(steps, device=device)
        made.set_begin_index(0)
        return made

    def conditions(self, times: torch.Tensor, told: Tensors) -> torch.Tensor:
        del told
        net = self.denoiser
        weight = next(net.time_embedding.parameters())
        found: torch.Tensor = net.time_embedding(net.time_proj(times.to(weight.device)).to(weight.dtype))
        return found

    def __call__(self, latents: torch.Tensor, time: torch.Tensor, told: Tensors) -> torch.Tensor:
        added = {"text_embeds": told["text_embeds"], "time_ids": told["time_ids"]}
        out: torch.Tensor = self.denoiser(
            latents,
            time,
            encoder_hidden_states=told["encoder_hidden_states"],
            added_cond_kwargs=added,
            return_dict=False,
        )[0]
        return out


_FAMILIES: Mapping[str, type[_Family]] = {
    "FluxPipeline": _Flux,
    "StableDiffusion3Pipeline": _StableDiffusion3,
    "StableDiffusionXLPipeline": _StableDiffusionXL,
}


class DiffusersPictures:
    """`PictureModel` over a pipeline of diffusers."""

    def __init__(self, family: _Family, *, device: torch.device, dtype: torch.dtype, made_by: str) -> None:
        self._family = family
        self._device = device
        self._dtype = dtype
        self._made_by = made_by
        self._vae = family.pipe.vae

    @property
    def traits(self) -> PictureTraits:
        family = self._family
        return PictureTraits(
            grid=family.grid,
            sizes=(family.grid, 2 * family.side),
            best=(family.side, family.side),
            steps=family.steps,
            guidance=family.guidance,
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
        latents = noise * float(getattr(schedule, "init_noise_sigma", 1.0))
        plan = (True,) * brief.steps
        if brief.cache:
            plan = plan_steps(family.conditions(schedule.timesteps, wanted), brief.cache)
        return Canvas(brief=brief, step=0, latents=latents, memory=_Memory(wanted, unwanted, schedule, plan))

    def batch_key(self, canvas: Canvas) -> object:
        memory = _memory(canvas)
        texts = tuple(tuple(value.shape) for value in memory.wanted.values())
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
            guess = other + scale[:, None, None, None] * (guess - other)
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
        canvas.latents = schedule.step(direction, at, canvas.latents, return_dict=False)[0]
        canvas.step += 1

    def decode(self, canvas: Canvas) -> Pixels:
        guess = _memory(canvas).guess
        return self._pixels(canvas.latents if canvas.done or guess is None else guess)

    def export(self, canvas: Canvas) -> bytes:
        return pack_latents(canvas.latents, self._made_by)

    def restore(self, latents: bytes, width: int, height: int) -> Pixels:
        values = unpack_latents(latents, self._made_by, self._family.shape(width, height))
        return self._pixels(values.to(self._device))

    def _pixels(self, latents: torch.Tensor) -> Pixels:
        config = self._vae.config
        values = latents / config.scaling_factor + (getattr(config, "shift_factor", None) or 0.0)
        image = self._vae.decode(values[None].to(self._dtype), return_dict=False)[0][0].float()
        pixels = ((image.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
        found: Pixels = pixels.permute(1, 2, 0).cpu().numpy()
        return found


def load_pipeline(
    files: ModelFiles, *, device: torch.device, dtype: torch.dtype, offload: bool = False
) -> PictureModel:
    """A pipeline of diffusers in memory, ready to draw. Nothing is fetched, and no code of the model is run.

    Args:
        offload: Keep each part in host memory while another one is at work; on a GPU only.

    Raises:
        UnsupportedModel: Its kind is none of those above.
        BadModelFile: diffusers cannot read it.
    """
    index = read_object(files.paths[PIPELINE], PIPELINE)
    kind = str(index.get("_class_name"))
    family = _FAMILIES.get(kind)
    if family is None:
        raise UnsupportedModel(
            f"{PIPELINE}: pipelines of kind '{kind[:80]}' are not supported: {', '.join(_FAMILIES)} are."
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
    return DiffusersPictures(family(pipe), device=device, dtype=dtype, made_by=files.digest)


def _memory(canvas: Canvas) -> _Memory:
    assert isinstance(canvas.memory, _Memory)
    return canvas.memory


def _batch(told: Sequence[Tensors], dtype: torch.dtype) -> Tensors:
    return {name: torch.cat([one[name] for one in told]).to(dtype) for name in told[0]}
