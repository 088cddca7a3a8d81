"""What the Thinker sees and hears with."""

from __future__ import annotations

import torch

from edgewise.models.decoder.fields import Fields
from edgewise.models.files import ModelFiles
from edgewise.models.multimodal.media import Media
from edgewise.models.multimodal.pixels import CLIP, colours, picture_options
from edgewise.models.multimodal.protocol import SlicedEncoder, Slices
from edgewise.models.multimodal.qwen_audio import read_audio_tower
from edgewise.models.multimodal.towers.audio import AudioTower
from edgewise.models.multimodal.towers.qwen import QwenTower, read_tower_config
from edgewise.models.multimodal.towers.weights import Part
from edgewise.models.omni.config import section
from edgewise.models.weights.reader import WeightReader


class OmniSenses(SlicedEncoder):
    """A `MediaEncoder` of all kinds."""

    def __init__(self, eyes: SlicedEncoder, ears: SlicedEncoder) -> None:
        self._eyes, self._ears = eyes, ears

    def slices(self, item: Media) -> Slices:
        """See `SlicedEncoder`."""
        return (self._ears if item.kind == "audio" else self._eyes).slices(item)


def load_encoder(
    config: Fields, files: ModelFiles, reader: WeightReader, *, width: int, device: torch.device, dtype: torch.dtype
) -> OmniSenses:
    """Raises `BadModelFile`: a tensor is missing or of another shape; `UnsupportedModel`."""
    thinker = section(config, "thinker_config")
    vision = Fields({"model_type": "qwen2_5_vl", "vision_config": thinker.get("vision_config", {})}, config.where)
    seen = _SplitHeads(reader, ("thinker.visual.",), device=device, dtype=dtype, name=files.name)
    eyes = QwenTower(read_tower_config(vision), seen, colours(picture_options(files), CLIP), outputs=width)
    tower = read_audio_tower(section(thinker, "audio_config"), windowed=True)
    heard = Part(reader, ("thinker.audio_tower.",), device=device, dtype=dtype, name=files.name)
    return OmniSenses(eyes, AudioTower(tower, heard, heard.linear("proj", tower.width, width)))


class _SplitHeads(Part):
    """Queries, keys and values lie in three tensors here, where Qwen2.5-VL has one."""

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """See `Part.take`."""
        before, found, which = name.partition("attn.qkv.")
        if not found:
            return super().take(name, *shape)
        share = (shape[0] // 3, *shape[1:])
        return torch.cat([super(_SplitHeads, self).take(f"{before}attn.{part}.{which}", *share) for part in "qkv"])
