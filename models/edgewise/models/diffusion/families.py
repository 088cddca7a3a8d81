"""What differs between the pipelines of diffusers that are known here: how prompts are read, what the network is called with,
what its latents mean. Imported in engine processes only.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import diffusers
import numpy as np
import torch

from edgewise.core.errors import InvalidRequest, UnsupportedModel
from edgewise.models.diffusion.protocol import Brief

Tensors = Mapping[str, torch.Tensor]


class Family(ABC):
    """What differs between kinds of pipelines. `pipe` is diffusers' own."""

    steps = 28
    guidance = 5.0
    negative = True

    def __init__(self, pipe: Any) -> None:
        self.pipe = pipe

    @property
    def scale(self) -> int:
        """Width of a picture over that of its latents."""
        return int(2 ** (len(self.pipe.vae.config.block_out_channels) - 1))

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
    def noisy(self, latents: torch.Tensor, noise: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        """Latents with as much noise as the schedule has where its noise level is `sigma`."""

    def guided(self, wanted: torch.Tensor, unwanted: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """Classifier-free guidance (Ho & Salimans 2022) on two answers of the denoiser, with a scale [n, 1, 1, 1]."""
        return unwanted + scale * (wanted - unwanted)

    @abstractmethod
    def conditions(self, times: torch.Tensor, told: Tensors) -> torch.Tensor:
        """What the denoiser's layers are modulated with at the times [n] of a schedule, for one prompt: [n, width]."""

    def __call__(self, latents: torch.Tensor, time: torch.Tensor, told: Tensors) -> torch.Tensor:
        """One call of the denoiser: latents [n, channels, h, w], times [n]."""
        out: torch.Tensor = self.denoiser(hidden_states=latents, timestep=time, return_dict=False, **told)[0]
        return out

    def decode(self, latents: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Latents [channels, height, width] to colours [3, height, width], about -1 to 1."""
        config = self.pipe.vae.config
        values = latents / config.scaling_factor + (getattr(config, "shift_factor", None) or 0.0)
        colours: torch.Tensor = self.pipe.vae.decode(values[None].to(dtype), return_dict=False)[0][0]
        return colours.float()

    def encode_picture(self, colours: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The inverse: the most likely latents, so that nothing is left to chance."""
        config = self.pipe.vae.config
        values: torch.Tensor = self.pipe.vae.encode(colours[None].to(dtype)).latent_dist.mode()[0]
        shift, scaling = float(getattr(config, "shift_factor", None) or 0.0), float(config.scaling_factor)
        return (values.float() - shift) * scaling


class Flow(Family):
    """Straight paths from noise to picture (Lipman et al. 2023). With `even`, noise levels are spaced evenly before they are
    shifted, whatever the schedule's own spacing is."""

    even = False

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
        config, shift = made.config, None
        if config.use_dynamic_shifting:
            slope = (config.max_shift - config.base_shift) / (config.max_image_seq_len - config.base_image_seq_len)
            shift = config.base_shift + slope * (tokens - config.base_image_seq_len)
        levels = np.linspace(1.0, 1 / steps, steps) if self.even and not config.get("use_flow_sigmas") else None
        made.set_timesteps(steps, device=device, sigmas=levels, mu=shift)
        return made

    def noisy(self, latents: torch.Tensor, noise: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        return torch.lerp(latents, noise, sigma)


class StableDiffusion3(Flow):
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


class Flux(Flow):
    """FLUX.1: guidance is an input of the network where it was distilled into it; there is no negative prompt."""

    negative = False
    even = True

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


class StableDiffusionXL(Family):
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
        return made

    def noisy(self, latents: torch.Tensor, noise: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        return latents + sigma * noise

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


class QwenImage(Flow):
    """Wu et al. 2025. A prompt takes as many tokens as it has, so only prompts of one length share a step; guidance keeps the
    length of the answer to the prompt."""

    steps = 50
    guidance = 4.0
    even = True

    @property
    def scale(self) -> int:
        return int(self.pipe.vae_scale_factor)

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
        def told(prompt: str) -> Tensors:
            states, _ = self.pipe.encode_prompt(prompt=prompt, device=device, max_sequence_length=512)
            return {"encoder_hidden_states": states}

        return told(brief.prompt), told(brief.negative_prompt or " ") if brief.guidance != 1.0 else None

    def conditions(self, times: torch.Tensor, told: Tensors) -> torch.Tensor:
        del told  # its layers are modulated with the time alone
        embed = self.denoiser.time_text_embed
        weight = next(embed.parameters())
        found: torch.Tensor = embed((times / 1000).to(weight), weight)
        return found

    def guided(self, wanted: torch.Tensor, unwanted: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        both = super().guided(wanted, unwanted, scale)
        return both * (_lengths(wanted) / _lengths(both))

    def __call__(self, latents: torch.Tensor, time: torch.Tensor, told: Tensors) -> torch.Tensor:
        count, channels, height, width = latents.shape
        out: torch.Tensor = self.denoiser(
            hidden_states=self.pipe._pack_latents(latents, count, channels, height, width),
            timestep=time / 1000,
            img_shapes=[[(1, height // 2, width // 2)]] * count,
            return_dict=False,
            **told,
        )[0]
        whole: torch.Tensor = self.pipe._unpack_latents(out, height * self.scale, width * self.scale, self.scale)
        return whole[:, :, 0]  # a film of one picture

    def decode(self, latents: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        mean, deviation = self._spread(latents.device)
        film = (latents * deviation + mean)[None, :, None]
        colours: torch.Tensor = self.pipe.vae.decode(film.to(dtype), return_dict=False)[0][0, :, 0]
        return colours.float()

    def encode_picture(self, colours: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        values: torch.Tensor = self.pipe.vae.encode(colours[None, :, None].to(dtype)).latent_dist.mode()[0, :, 0]
        mean, deviation = self._spread(values.device)
        return (values.float() - mean) / deviation

    def _spread(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and standard deviation of each channel before they were made equal: [channels, 1, 1]."""
        config = self.pipe.vae.config
        mean, deviation = (torch.tensor(one, device=device) for one in (config.latents_mean, config.latents_std))
        return mean[:, None, None], deviation[:, None, None]


def _lengths(latents: torch.Tensor) -> torch.Tensor:
    """Of each patch of 2 x 2 latents [n, channels, height, width], at each of its places."""
    squares = latents.square().sum(1, keepdim=True)
    sums = 4 * torch.nn.functional.avg_pool2d(squares, 2)
    return sums.sqrt().repeat_interleave(2, -1).repeat_interleave(2, -2)


FAMILIES: Mapping[str, type[Family]] = {
    "FluxPipeline": Flux,
    "QwenImagePipeline": QwenImage,
    "StableDiffusion3Pipeline": StableDiffusion3,
    "StableDiffusionXLPipeline": StableDiffusionXL,
}
