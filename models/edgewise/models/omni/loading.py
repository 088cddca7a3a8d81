"""Loads those parts of a Qwen2.5-Omni model that speak; the Thinker is loaded as any model that sees (`models.multimodal`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch

from edgewise.models.decoder.loading import fill_decoder
from edgewise.models.files import ModelFiles
from edgewise.models.multimodal.towers.weights import Part
from edgewise.models.omni.code2wav import Code2Wav
from edgewise.models.omni.config import OmniConfig
from edgewise.models.omni.dit import DiT
from edgewise.models.omni.talker import Talker
from edgewise.models.omni.vocoder import Vocoder
from edgewise.models.weights.reader import TensorInfo, WeightReader

_TALKER: Final = {"talker.model.": "model.", "talker.codec_head.": "lm_head."}


class RenamedReader:
    """A `WeightReader` of those tensors of another whose names begin in known ways, under other names.

    Args:
        names: Beginning of a name in the file -> what stands in its place.
        changed: Tensors that are given instead of the file's, by their new names.
    """

    def __init__(
        self, reader: WeightReader, names: Mapping[str, str], changed: Mapping[str, torch.Tensor] | None = None
    ) -> None:
        self._reader = reader
        self._changed = changed or {}
        self._stored: dict[str, str] = {}
        tensors: dict[str, TensorInfo] = {}
        for stored, info in reader.tensors.items():
            begin = next((one for one in names if stored.startswith(one)), None)
            if begin is not None:
                name = names[begin] + stored.removeprefix(begin)
                self._stored[name] = stored
                tensors[name] = TensorInfo(name, info.shape, info.type, info.nbytes)
        for name, tensor in self._changed.items():
            tensors[name] = TensorInfo(name, tuple(tensor.shape), "F32", tensor.nbytes)
        self.tensors: Mapping[str, TensorInfo] = tensors

    def read_into(self, name: str, out: torch.Tensor, *, first_row: int = 0) -> None:
        """See `WeightReader.read_into`."""
        if name in self._changed:
            out.copy_(self._changed[name][first_row : first_row + len(out)])
        else:
            self._reader.read_into(self._stored[name], out, first_row=first_row)

    def close(self) -> None:
        """The other reader stays open."""


def load_talker(
    config: OmniConfig, files: ModelFiles, reader: WeightReader, *, device: torch.device, dtype: torch.dtype
) -> Talker:
    """The decoder of codec tokens, whose embeddings are projected to its width here, once.

    Raises:
        UnsupportedModel, BadModelFile, StorageError: As `decoder.loading.load_decoder`.
    """
    talker = config.talker
    part = Part(reader, ("talker.",), device=device, dtype=torch.float32, name=files.name)
    project = part.linear("thinker_to_talker_proj", talker.width, talker.decoder.hidden_size)
    codes = part.take("model.embed_tokens.weight", talker.decoder.vocab_size, talker.width)
    own = RenamedReader(reader, _TALKER, {"model.embed_tokens.weight": (codes @ project.weight.T).cpu()})
    decoder = fill_decoder(talker.decoder, own, files, device=device, dtype=dtype)
    return Talker(talker, decoder, project)


def load_code2wav(config: OmniConfig, files: ModelFiles, reader: WeightReader, *, device: torch.device) -> Code2Wav:
    """In float32, as the networks were made to run.

    Raises:
        BadModelFile: A tensor is missing or of another shape, by name.
    """

    def part(name: str) -> Part:
        return Part(reader, (f"token2wav.{name}.",), device=device, dtype=torch.float32, name=files.name)

    return Code2Wav(
        DiT(config.dit, part("code2wav_dit_model")), Vocoder(config.vocoder, part("code2wav_bigvgan_model"))
    )
