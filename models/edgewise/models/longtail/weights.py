"""Fill a model of transformers from our readers: a tensor at a time, a few MiB at a time, straight into its place."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from edgewise.core.errors import BadModelFile, UnsupportedModel
from edgewise.models.longtail.conversion import Conversion, Part
from edgewise.models.longtail.trace import keeps_float32
from edgewise.models.weights.reader import WeightReader

CHUNK_BYTES = 8 << 20
# Buffers that old checkpoints carry and that are computed instead.
_COMPUTED = re.compile(r"(^|\.)(rotary_emb\.inv_freq|masked_bias)$")

ProgressSink = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class _Place:
    """Every module and attribute that holds one tensor; tied ones are several."""

    name: str
    tensor: torch.Tensor
    holders: tuple[tuple[torch.nn.Module, str], ...]
    aliases: tuple[str, ...]


def fill(
    model: PreTrainedModel,
    reader: WeightReader,
    *,
    body: str,
    where: str,
    device: torch.device,
    dtype: torch.dtype,
    progress: ProgressSink | None = None,
) -> None:
    """Give every parameter and buffer of a model on the meta device its values.

    Args:
        body: The child that computes hidden states; checkpoints may leave its name out.
        where: What errors call the checkpoint.

    Raises:
        BadModelFile: A tensor is missing, left over or of another shape, by name.
        UnsupportedModel: A buffer is computed by the model in a way that leaves it unset.
        StorageError: A file cannot be read.
    """
    model.tie_weights()
    _compute_buffers(model, device)
    places = _places(model)
    checkpoint = _Checkpoint(model, reader, body, where)
    total, done = sum(place.tensor.numel() for place in places), 0
    for place in places:
        wanted = torch.float32 if keeps_float32(model, place.name) else dtype
        kind = wanted if place.tensor.is_floating_point() else place.tensor.dtype
        out = torch.empty(place.tensor.shape, dtype=kind, device=device)
        for part in checkpoint.parts(place.name, out):
            for count in _read(part, reader):
                done += count
                if progress is not None:
                    progress(done / total)
        checkpoint.check_aliases(place.aliases, out)
        _put(place, out)
    checkpoint.refuse_left_over()


def _places(model: PreTrainedModel) -> list[_Place]:
    """Parameters and stored buffers, each once."""
    stored = model.state_dict(keep_vars=True).keys()
    found: dict[int, list[tuple[str, torch.nn.Module, str]]] = {}
    tensors: dict[int, torch.Tensor] = {}
    for prefix, module in model.named_modules():
        for attribute, tensor in (*module._parameters.items(), *module._buffers.items()):
            name = f"{prefix}.{attribute}" if prefix else attribute
            if tensor is not None and name in stored:
                tensors[id(tensor)] = tensor
                found.setdefault(id(tensor), []).append((name, module, attribute))
    return [
        _Place(
            holders[0][0],
            tensors[key],
            tuple((module, attribute) for _, module, attribute in holders),
            tuple(name for name, _, _ in holders[1:]),
        )
        for key, holders in found.items()
    ]


def _put(place: _Place, tensor: torch.Tensor) -> None:
    """Into all holders as one object, so that tied tensors stay one."""
    parameter = torch.nn.Parameter(tensor, requires_grad=False)
    for module, attribute in place.holders:
        if attribute in module._parameters:
            module._parameters[attribute] = parameter
        else:
            module._buffers[attribute] = tensor


def _compute_buffers(model: PreTrainedModel, device: torch.device) -> None:
    """Buffers that are in no file (angles of rope, say) are set by the model's own hook for modules without values."""
    for name, module in model.named_modules():
        empty = {
            key: buffer
            for key, buffer in module._buffers.items()
            if buffer is not None and key in module._non_persistent_buffers_set
        }
        if not empty:
            continue
        # From two different fillings, so that what the hook leaves alone shows.
        first, second = (_initialised(model, module, empty, filling, device) for filling in (0, 1))
        for key in empty:
            if not torch.equal(first[key], second[key]):
                raise UnsupportedModel(
                    f"config.json: {type(model).__name__} leaves its buffer '{name}.{key}' without values."
                )


def _initialised(
    model: PreTrainedModel, module: torch.nn.Module, empty: dict[str, torch.Tensor], filling: int, device: torch.device
) -> dict[str, torch.Tensor]:
    for key, buffer in empty.items():
        module._buffers[key] = torch.full(buffer.shape, filling, dtype=buffer.dtype, device=device)
    model._init_weights(module)
    return {key: value for key, value in module._buffers.items() if value is not None and key in empty}


class _Checkpoint:
    """Which stored tensors have been used, and which are left over."""

    def __init__(self, model: PreTrainedModel, reader: WeightReader, body: str, where: str) -> None:
        self._ignored = tuple(model._keys_to_ignore_on_load_unexpected or ())
        self._conversion = Conversion(model, body, reader.tensors)
        self._reader = reader
        self._where = where
        self._used: set[str] = set()

    def parts(self, name: str, out: torch.Tensor) -> list[Part]:
        """Stored tensors and the views of `out` that they fill."""
        parts = self._conversion.parts(name, out)
        if not parts:
            raise BadModelFile(f"{self._where}: the tensor '{name}' is missing.")
        for part in parts:
            shape, wanted = self._reader.tensors[part.name].shape, tuple(part.out.shape)
            if shape != wanted:
                raise BadModelFile(
                    f"{self._where}: the tensor '{part.name}' is {shape}, the configuration says {wanted}."
                )
            self._used.add(part.name)
        return parts

    def check_aliases(self, aliases: tuple[str, ...], out: torch.Tensor) -> None:
        """A checkpoint may repeat a tied tensor; it must then be the same."""
        for alias in aliases:
            stored = self._conversion.stored(alias)
            if stored is None or stored in self._used:
                continue
            self._used.add(stored)
            if self._reader.tensors[stored].shape != tuple(out.shape) or not _equals(stored, out, self._reader):
                raise BadModelFile(f"{self._where}: '{stored}' is tied to another tensor, and differs from it.")

    def refuse_left_over(self) -> None:
        left_over = [name for name in self._reader.tensors if name not in self._used and not self._is_ignored(name)]
        if left_over:
            others = f" and {len(left_over) - 1} others" if len(left_over) > 1 else ""
            raise BadModelFile(
                f"{self._where}: the tensor '{left_over[0]}'{others} has no place in this configuration."
            )

    def _is_ignored(self, name: str) -> bool:
        return bool(_COMPUTED.search(name)) or any(re.search(pattern, name) for pattern in self._ignored)


def _read(part: Part, reader: WeightReader) -> Iterator[int]:
    """Read a tensor in chunks of rows; yields the elements of each."""
    for first, view in _chunks(part.out):
        if view.device.type == "cpu" and view.is_contiguous():
            reader.read_into(part.name, view, first_row=first)
        else:
            staged = torch.empty(view.shape, dtype=view.dtype)
            reader.read_into(part.name, staged, first_row=first)
            view.copy_(staged)
        yield view.numel()


def _equals(name: str, out: torch.Tensor, reader: WeightReader) -> bool:
    for first, view in _chunks(out):
        staged = torch.empty(view.shape, dtype=view.dtype)
        reader.read_into(name, staged, first_row=first)
        if not torch.equal(staged, view.cpu()):
            return False
    return True


def _chunks(out: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    if out.ndim == 0:
        yield 0, out
        return
    step = max(1, CHUNK_BYTES // max(1, out[0].nbytes)) if out.shape[0] else 1
    for first in range(0, out.shape[0], step):
        yield first, out[first : first + step]
