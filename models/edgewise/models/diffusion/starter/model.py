"""The starter picture model as the picture engine drives it: prompts in, one denoising step at a time, pixels out."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from edgewise.kernels.noise import normal
from edgewise.models.diffusion.latents import pack_latents, unpack_latents
from edgewise.models.diffusion.protocol import Brief, Canvas, PictureTraits, Pixels
from edgewise.models.diffusion.starter.network import StarterNetwork, TextStates
from edgewise.models.diffusion.starter.schedule import advance, times
from edgewise.models.diffusion.starter.text_encoder import TextEncoder
from edgewise.models.diffusion.step_cache import plan_steps


@dataclass(slots=True)
class _Memory:
    """Beside the latents: the prompts' states (one row each), the clock, which steps are computed, the last two predictions
    with their times, and what an edit keeps."""

    wanted: TextStates
    unwanted: TextStates
    clock: tuple[float, ...]
    plan: tuple[bool, ...]
    guesses: tuple[tuple[float, torch.Tensor], ...] = ()
    kept: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
    """Picture [3, h, w], noise [3, h, w], and 1 where the picture stays [1, h, w]."""


class StarterPictures:
    """`PictureModel` over a `StarterNetwork`. Latents are pixels in [-1, 1] and always float32; the network may be narrower.

    Args:
        made_by: What names this model in exported latents: its digest.
    """

    def __init__(self, network: StarterNetwork, encoder: TextEncoder, *, made_by: str) -> None:
        self._network = network.eval().requires_grad_(False)
        self._encoder = encoder.eval().requires_grad_(False)
        self._made_by = made_by
        self._config = network.config
        weight = network.inlet.weight
        self._device, self._dtype = weight.device, weight.dtype

    @property
    def traits(self) -> PictureTraits:
        size = self._config.size
        return PictureTraits(
            grid=size,
            sizes=(size, size),
            best=(size, size),
            steps=self._config.steps,
            guidance=self._config.guidance,
            edits=True,
        )

    @property
    def numeric_class(self) -> str:
        return f"starter-pictures/{self._device.type}-{str(self._dtype).removeprefix('torch.')}"

    def begin(self, brief: Brief) -> Canvas:
        size = self._config.size
        noise = torch.from_numpy(normal(brief.seed, 3 * size * size)).view(3, size, size).to(self._device)
        wanted, clock = self._read(brief.prompt), times(brief.steps, self._config.shift)
        memory = _Memory(
            wanted=wanted,
            unwanted=self._read(brief.negative_prompt),
            clock=clock,
            plan=self._plan(brief, wanted, clock),
        )
        latents = noise
        if brief.image is not None:
            picture = self._pixels_in(brief.image)
            now = memory.clock[brief.start]
            latents = now * picture + (1 - now) * noise
            if brief.mask is not None:
                stays = 1 - torch.from_numpy(brief.mask.astype(np.float32) / 255).to(self._device)
                memory.kept = (picture, noise, stays[None])
        return Canvas(brief=brief, step=brief.start, latents=latents, memory=memory)

    def batch_key(self, canvas: Canvas) -> object:
        return canvas.latents.shape, canvas.brief.guidance != 1

    def step(self, canvases: Sequence[Canvas]) -> Generator[None, None, None]:
        due = [canvas for canvas in canvases if self._memory(canvas).plan[canvas.step]]
        drawn = (yield from self._guess(due)) if due else ()
        fresh = {id(canvas): guess for canvas, guess in zip(due, drawn, strict=True)}
        moved = [self._moved(canvas, fresh.get(id(canvas))) for canvas in canvases]
        for canvas, (latents, guesses) in zip(canvases, moved, strict=True):
            canvas.latents, self._memory(canvas).guesses = latents, guesses
            canvas.predicted += id(canvas) not in fresh
            canvas.step += 1

    def _guess(self, canvases: Sequence[Canvas]) -> Generator[None, None, torch.Tensor]:
        """The pictures as the network sees them in the latents, guidance included."""
        memories = [self._memory(canvas) for canvas in canvases]
        guided = canvases[0].brief.guidance != 1
        texts = [memory.wanted for memory in memories] + [memory.unwanted for memory in memories] * guided
        noisy = torch.stack([canvas.latents for canvas in canvases])
        time = torch.tensor([memory.clock[canvas.step] for memory, canvas in zip(memories, canvases, strict=True)])
        copies = 1 + guided
        guess = yield from self._network.walk(
            noisy.to(self._dtype).repeat(copies, 1, 1, 1), time.to(self._device).repeat(copies), _stack(texts)
        )
        if guided:
            scale = torch.tensor([canvas.brief.guidance for canvas in canvases], device=self._device)
            wanted, unwanted = guess.chunk(2)
            guess = unwanted + scale[:, None, None, None] * (wanted - unwanted)
        return guess.clamp(-1, 1)  # guidance overshoots, and no picture lies outside

    def decode(self, canvas: Canvas) -> Pixels:
        guesses = self._memory(canvas).guesses
        return _pixels_out(canvas.latents if canvas.done or not guesses else guesses[-1][1])

    def export(self, canvas: Canvas) -> bytes:
        return pack_latents(canvas.latents, self._made_by)

    def restore(self, latents: bytes, width: int, height: int) -> Pixels:
        return _pixels_out(unpack_latents(latents, self._made_by, (3, height, width)))

    # --- parts ---

    def _memory(self, canvas: Canvas) -> _Memory:
        assert isinstance(canvas.memory, _Memory)
        return canvas.memory

    def _read(self, prompt: str) -> TextStates:
        """States of one prompt, padded to the network's length; an empty one counts as none."""
        config = self._config
        tokens = torch.zeros(1, config.text_tokens, config.text_width, device=self._device)
        mask = torch.zeros(1, config.text_tokens, dtype=torch.bool, device=self._device)
        pooled = torch.zeros(1, config.text_width, device=self._device)
        given = bool(prompt.strip())
        if given:
            states, pooled[0] = self._encoder.encode(prompt, config.text_tokens)
            tokens[0, : len(states)] = states
            mask[0, : len(states)] = True
        return TextStates(
            tokens.to(self._dtype), mask, pooled.to(self._dtype), torch.tensor([given], device=self._device)
        )

    def _plan(self, brief: Brief, wanted: TextStates, clock: Sequence[float]) -> tuple[bool, ...]:
        """Which steps are computed."""
        if not brief.cache:
            return (True,) * brief.steps
        at = torch.tensor(clock[:-1], device=self._device)
        return plan_steps(self._network.modulations(at, wanted), brief.cache, brief.start)

    def _moved(
        self, canvas: Canvas, guess: torch.Tensor | None
    ) -> tuple[torch.Tensor, tuple[tuple[float, torch.Tensor], ...]]:
        """Latents one step on, and the guesses that they rest on; `guess` is None in a step that is not computed. What an edit
        keeps is laid over with as much noise as the rest has."""
        memory, step = self._memory(canvas), canvas.step
        now, following = memory.clock[step], memory.clock[step + 1]
        guesses = memory.guesses if guess is None else (*memory.guesses[-1:], (now, guess))
        latents = advance(canvas.latents, guesses, now, following)
        if memory.kept is not None:
            picture, noise, stays = memory.kept
            latents = torch.lerp(latents, following * picture + (1 - following) * noise, stays)
        return latents, guesses

    def _pixels_in(self, image: Pixels) -> torch.Tensor:
        values = torch.from_numpy(np.ascontiguousarray(image)).to(self._device).permute(2, 0, 1)
        return values.float() / 127.5 - 1


def _stack(texts: Sequence[TextStates]) -> TextStates:
    return TextStates(
        tokens=torch.cat([text.tokens for text in texts]),
        mask=torch.cat([text.mask for text in texts]),
        pooled=torch.cat([text.pooled for text in texts]),
        given=torch.cat([text.given for text in texts]),
    )


def _pixels_out(values: torch.Tensor) -> Pixels:
    levels = ((values.float() + 1) * 127.5).round().clamp(0, 255).to("cpu", torch.uint8)
    return np.ascontiguousarray(levels.permute(1, 2, 0).numpy())
