"""The training folder as tensors: `pictures.npz` of `scripts.pictures.build`, and the encoder of prompts beside it."""

from __future__ import annotations

import io
import json
from collections.abc import Collection
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from PIL import Image

from edgewise.models.diffusion.starter.network import TextStates
from edgewise.models.diffusion.starter.text_encoder import TextEncoder

PICTURES = "pictures.npz"


@dataclass(frozen=True, slots=True)
class Record:
    """What the training file says of one picture.

    Attributes:
        identity: Set and file.
        style: Word for the set.
        concept, keywords: What is to be seen, and words that go with it.
        colour: Name of the main colour, "" for none.
        hue: Of the main colour in turns, or -1 where there is none that could be turned.
        flip: Whether its mirror picture may have the same captions.
        held_out: Whether its concept is kept from training.
    """

    identity: str
    style: str
    concept: str
    keywords: tuple[str, ...]
    colour: str
    hue: float
    flip: bool
    held_out: bool


@dataclass(frozen=True, slots=True)
class Pictures:
    """Records and their pictures, uint8 [pictures, 4, size, size], RGBA."""

    records: list[Record]
    pixels: torch.Tensor

    def chosen(self, places: Collection[int]) -> Pictures:
        """Some of them, in the order of `places`."""
        return Pictures([self.records[place] for place in places], self.pixels[torch.tensor(list(places))])


def write_pictures(path: Path, records: list[dict[str, Any]], blobs: list[bytes]) -> None:
    """Records as JSON, encoded pictures one after the other; numpy's archive, nothing pickled."""
    text = json.dumps(records, separators=(",", ":")).encode()
    np.savez(
        path,
        pictures=np.frombuffer(b"".join(blobs), np.uint8),
        ends=np.cumsum([len(blob) for blob in blobs]).astype(np.int64),
        records=np.frombuffer(text, np.uint8),
    )


def read_pictures(path: Path, size: int, styles: Collection[str] = ()) -> Pictures:
    """All pictures of `styles` (of every style where that is empty), `size` pixels wide."""
    with np.load(path) as archive:
        data, ends = archive["pictures"].tobytes(), archive["ends"]
        found = json.loads(archive["records"].tobytes())
    names = {field.name for field in fields(Record)}
    records = [
        Record(**{name: value for name, value in item.items() if name in names} | {"keywords": tuple(item["keywords"])})
        for item in found
    ]
    starts = [0, *ends[:-1].tolist()]
    chosen = [place for place, record in enumerate(records) if not styles or record.style in styles]
    pixels = np.empty((len(chosen), size, size, 4), np.uint8)
    for row, place in enumerate(chosen):
        with Image.open(io.BytesIO(data[starts[place] : int(ends[place])])) as image:
            small = image.convert("RGBa").resize((size, size), Image.Resampling.BOX).convert("RGBA")
            pixels[row] = np.asarray(small)
    return Pictures([records[place] for place in chosen], torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous())


class Captions:
    """Captions to what the network reads, many at a time.

    Args:
        remember: Keep the states of every caption seen. Worth it on a CPU and without much variation.
    """

    def __init__(self, encoder: TextEncoder, tokens: int, *, remember: bool = False) -> None:
        self._encoder, self._tokens = encoder, tokens
        self._known: dict[str, tuple[torch.Tensor, torch.Tensor]] | None = {} if remember else None

    @torch.no_grad()
    def encode(self, captions: list[str], given: torch.Tensor) -> TextStates:
        """States of a batch; `given` [batch] says which captions count. "" never does."""
        device = self._encoder.segment.device
        states, mask = self._states(captions)
        pooled = F.normalize((states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True), dim=-1)
        present = torch.tensor([bool(caption) for caption in captions], device=device)
        return TextStates(states, mask, pooled, given.to(device) & present)

    def _states(self, captions: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        if self._known is None:
            return self._run(captions)
        fresh = [caption for caption in dict.fromkeys(captions) if caption not in self._known]
        if fresh:
            states, mask = self._run(fresh)
            self._known |= {caption: (states[row], mask[row]) for row, caption in enumerate(fresh)}
        found = [self._known[caption] for caption in captions]
        return torch.stack([states for states, _ in found]), torch.stack([mask for _, mask in found])

    def _run(self, captions: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        device = self._encoder.segment.device
        ids = self._encoder.ids(captions, self._tokens)
        table = torch.tensor([tokens + [0] * (self._tokens - len(tokens)) for tokens in ids])
        lengths = torch.tensor([len(tokens) for tokens in ids], device=device)
        mask = torch.arange(self._tokens, device=device) < lengths[:, None]
        return self._encoder(table.to(device), mask), mask
