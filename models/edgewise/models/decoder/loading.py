"""Load a decoder: rows go from the file straight into the fused tensors, a few MiB at a time."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

import torch

from edgewise.core.errors import BadModelFile
from edgewise.kernels.rope import RopeTable, rope_tables
from edgewise.kernels.rope_parameters import RopeParameters
from edgewise.models.decoder.config import DecoderConfig, read_config
from edgewise.models.decoder.gguf_families import LONG_DIVISORS, ROPE_DIVISORS, SHORT_DIVISORS
from edgewise.models.decoder.layout import Pairs, Target, targets
from edgewise.models.decoder.model import Decoder
from edgewise.models.decoder.names import Names, names_of
from edgewise.models.decoder.parallel import ALONE, Parallel, Place
from edgewise.models.decoder.parameters import allocate
from edgewise.models.files import ModelFiles
from edgewise.models.weights.open import open_weights
from edgewise.models.weights.reader import BlockReader, WeightReader

CHUNK_BYTES = 8 << 20
STAGED_BYTES = 2 << 20
"""Likewise of rows of which a part is kept, so that the rest stays small beside a device's share."""

ProgressSink = Callable[[float], None]


def load_decoder(
    files: ModelFiles,
    *,
    device: torch.device,
    dtype: torch.dtype,
    progress: ProgressSink | None = None,
    config: DecoderConfig | None = None,
    parallel: Parallel = ALONE,
) -> Decoder:
    """Load a model; at the peak 1.15 x its resident bytes are used at most.

    Args:
        files: Where it lies.
        device: Where its tensors shall lie.
        dtype: float32, bfloat16 or float16, for matrices and activations.
        progress: Called with the share done, from 0 to 1.
        config: What `read_config` says of the files, where it has been read already.
        parallel: This device's place among several that compute the model together; it loads its share alone.

    Raises:
        UnsupportedModel: Another architecture, or a feature that is not implemented, by name.
        BadModelFile: A file is damaged, or a tensor is missing, left over or of another shape, by name.
        StorageError: A file cannot be read.
        ValueError: The model cannot be divided among so many devices.
    """
    config = config or read_config(files)
    with closing(open_weights(files)) as reader:
        return fill_decoder(config, reader, files, device=device, dtype=dtype, progress=progress, parallel=parallel)


def fill_decoder(
    config: DecoderConfig,
    reader: WeightReader,
    files: ModelFiles,
    *,
    device: torch.device,
    dtype: torch.dtype,
    progress: ProgressSink | None = None,
    parallel: Parallel = ALONE,
    other: re.Pattern[str] | None = None,
) -> Decoder:
    """`load_decoder` from an open reader, which stays open; tensors with `other` names belong to other parts of the model."""
    stored = [name for name in reader.tensors if other is None or not other.fullmatch(name)]
    names = names_of(config, files.format, stored, nested=other is not None)
    own = config.shard(parallel.size)
    check_tensors(own, stored, reader, files, names, parallel)
    parameters = allocate(own, dtype, device, adds_output_biases=parallel.rank == 0)
    wanted = list(targets(own, parameters, names, parallel))
    total, done = sum(target.out.nbytes for target in wanted), 0
    for nbytes in _fill(wanted, reader, device):
        done += nbytes
        if progress is not None:
            progress(done / total)
    for table in (parameters.embedding, parameters.head):
        table[max(0, config.vocab_size - parallel.rank * own.vocab_rows) :] = 0  # rows of no token, on the last devices
    if parallel.rank == 0:
        check_tied(own, reader, files, names, dtype)
    return Decoder(own, parameters, load_rope_tables(own, reader, device), parallel)


def _fill(wanted: Sequence[Target], reader: WeightReader, device: torch.device) -> Iterator[int]:
    if device.type != "cuda":
        return (nbytes for target in wanted for nbytes in fill_target(target, reader))
    from edgewise.models.decoder.streaming import stream_targets

    return stream_targets(wanted, reader, device)


def check_tensors(
    config: DecoderConfig,
    own: Sequence[str],
    reader: WeightReader,
    files: ModelFiles,
    names: Names,
    parallel: Place,
) -> None:
    """Compare the file's `own` tensors with what the configuration asks for, before anything is allocated."""
    shadow = allocate(config, torch.float32, torch.device("meta"))
    wanted = {target.name: target.shape for target in targets(config, shadow, names, parallel)}
    stored = {name: reader.tensors[name].shape for name in own}
    for name, shape in wanted.items():
        if name not in stored:
            raise BadModelFile(f"{files.name}: the tensor '{name}' is missing.")
        if stored[name] != shape:
            raise BadModelFile(f"{files.name}: the tensor '{name}' is {stored[name]}, the configuration says {shape}.")
    left_over = sorted(stored.keys() - wanted.keys() - names.unused)
    if left_over:
        others = f" and {len(left_over) - 1} others" if len(left_over) > 1 else ""
        raise BadModelFile(f"{files.name}: the tensor '{left_over[0]}'{others} has no place in this configuration.")


def fill_target(target: Target, reader: WeightReader) -> Iterator[int]:
    """Read a tensor in chunks of rows; yields the bytes of each."""
    rows = target.out.shape[0]
    row_bytes = max(1, math.prod(target.shape[1:]) * target.out.itemsize)
    whole = target.out.shape[1:] == target.shape[1:]
    step = max(1, (CHUNK_BYTES if whole else STAGED_BYTES) // row_bytes)
    if target.pairs is not None:
        step = max(1, step // target.pairs.head) * target.pairs.head
    for first in range(0, rows, step):
        part = target.out[first : first + step]
        read_rows(target, part, first, reader)
        if target.offset:
            part.add_(target.offset)
        yield part.nbytes
    for copy in target.copies:
        copy.copy_(target.out)


def read_rows(target: Target, part: torch.Tensor, first: int, reader: WeightReader) -> None:
    """Read the rows of a target from its own `first` on into `part`; whole heads, where they lie in pairs."""
    first += target.start[0]
    if target.pairs is None and part.device.type == "cpu" and part.shape[1:] == target.shape[1:]:
        reader.read_into(target.name, part, first_row=first)
        return
    if part.dim() == 2 and target.pairs is None and isinstance(reader, BlockReader):
        columns = (target.start[1], target.start[1] + part.shape[1])
        part.copy_(torch.from_numpy(reader.read_block(target.name, (first, first + part.shape[0]), columns)))
        return
    staged = torch.empty((part.shape[0], *target.shape[1:]), dtype=part.dtype)
    reader.read_into(target.name, staged, first_row=first)
    for dim in range(1, part.dim()):
        staged = staged.narrow(dim, target.start[dim], part.shape[dim])
    if target.pairs is None:
        part.copy_(staged)
    else:
        copy_halves(staged, part, target.pairs)


def copy_halves(staged: torch.Tensor, part: torch.Tensor, pairs: Pairs) -> None:
    """[head, pair, half] -> [head, half, pair] in each head's rotating rows."""
    rest = part.shape[1:]
    source, out = staged.reshape(-1, pairs.head, *rest), part.view(-1, pairs.head, *rest)
    turned = source[:, : pairs.rotary].reshape(-1, pairs.rotary // 2, 2, *rest).transpose(1, 2)
    out[:, : pairs.rotary].copy_(turned.reshape(-1, pairs.rotary, *rest))
    out[:, pairs.rotary :].copy_(source[:, pairs.rotary :])


def check_tied(
    config: DecoderConfig, reader: WeightReader, files: ModelFiles, names: Names, dtype: torch.dtype
) -> None:
    """A checkpoint may repeat the tied head; it must then be the embedding, as far as `dtype` tells."""
    name, embedding = names.head, names.parts["embedding"]
    info = reader.tensors.get(name)
    if info is None or not config.tied_embeddings:
        return
    shape = (config.vocab_size, config.hidden_size)
    if info.shape != shape:
        raise BadModelFile(f"{files.name}: the tied '{name}' is {info.shape}, the embedding {shape}.")
    step = max(1, CHUNK_BYTES // (config.hidden_size * dtype.itemsize))
    for first in range(0, config.vocab_size, step):
        both = torch.empty((2, min(step, config.vocab_size - first), config.hidden_size), dtype=dtype)
        for part, own in zip(both, (name, embedding), strict=True):
            reader.read_into(own, part, first_row=first)
        if not torch.equal(both[0], both[1]):
            raise BadModelFile(f"{files.name}: 'tie_word_embeddings' is true, but '{name}' differs from the embedding.")


def load_rope_tables(
    config: DecoderConfig, reader: WeightReader, device: torch.device
) -> dict[RopeParameters, RopeTable]:
    """The tables of all layers that rotate."""
    used = {config.rope_of(layer) for layer in range(config.num_layers)}
    tables: dict[RopeParameters, RopeTable] = {}
    for rope in used - {None}:
        assert rope is not None
        divisors = _rope_divisors(config, reader) if rope == config.rope else None
        tables[rope] = rope_tables(rope, config.rotary_dim, config.max_position, device=device, divisors=divisors)
    return tables


def _rope_divisors(config: DecoderConfig, reader: WeightReader) -> torch.Tensor | None:
    """GGUF files carry the frequencies' stretch of Llama 3 and of LongRoPE as tensors."""
    name = ROPE_DIVISORS
    if config.rope.kind == "longrope" and not config.rope.divisors:
        name = LONG_DIVISORS if config.rope.is_long else SHORT_DIVISORS
        if name not in reader.tensors:
            raise BadModelFile(f"The tensor '{name}' is missing.")
    info = reader.tensors.get(name)
    if info is None:
        return None
    if info.shape != (config.rotary_dim // 2,):
        raise BadModelFile(f"'{name}' is {info.shape}, one entry per {config.rotary_dim // 2} angles expected.")
    divisors = torch.empty(info.shape)
    reader.read_into(name, divisors)
    return divisors
