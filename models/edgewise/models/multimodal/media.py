"""Something seen or heard in a prompt. Plain frozen data; crosses the process border unchanged.

A prompt with media is a row of token ids in which each medium has a run of placeholder ids, one for each position that the
decoder computes for it. Everything that treats a prompt as tokens (positions, pages, preemption, chunks, tiers) then works
unchanged; two things differ. The names of the prompt's KV pages also cover the media (equal text with another picture is another
prefix), and the rows of the placeholders are not looked up in the embedding table but come from the model's encoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

MediaKind = Literal["image", "video", "audio"]
RUNG: Final = "rung"
"""Option of a medium: the key of the form that encodes it, of an encoder whose forms change while it serves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Media:
    """One medium of a prompt.

    Attributes:
        start, count: The placeholders that it stands for are prompt[start : start + count].
        digest: SHA-256 over everything that its embeddings depend on besides the model (kind, samples, shape, options): names
            it in the encoder cache and in the names of KV pages.
        content: Decoded samples. Pictures and film: uint8 [frames, height, width, 3], RGB, already of the size that the model's
            layout asks for. Sound: float32 [samples], mono, at the model's rate.
        shape: Of `content`.
        grid: (frames, rows, columns) of the placeholders where the model numbers positions in three dimensions (M-RoPE, Qwen2-VL,
            Wang et al. 2024); frames * rows * columns == count. None where positions are counted as for text.
        second: Positions in time per grid frame, where the model's positions depend on time: frame t begins at
            floor(t * second). 0 otherwise: it begins at t.
        whole: Its placeholders see each other in both directions (Gemma 3), so they are computed in one step.
        options: Whatever else the model's encoder needs, e.g. how a picture was cut into tiles. JSON-like data.
    """

    kind: MediaKind
    start: int
    count: int
    digest: bytes
    content: bytes
    shape: tuple[int, ...]
    grid: tuple[int, int, int] | None = None
    second: float = 0.0
    whole: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.start + self.count
