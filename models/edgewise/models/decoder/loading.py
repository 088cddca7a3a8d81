"""Load a decoder: rows go from the file straight into the fused tensors, a few MiB at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import torch

from edgewise.core.errors import BadModelFile
from edgewise.kernels.rope import rope_tables
from edgewise.models.decoder.config import DecoderConfig, read_config
from edgewise.models.decoder.layout import GGUF_ROPE_DIVISORS, Target, head_name, is_ignored, targets
from edgewise.models.decoder.model import Decoder
from edgewise.models.decoder.parameters import allocate
from edgewise.models.files import ModelFiles
from edgewise.models.weights.open import open_weights
from edgewise.models.weights.reader import WeightReader

CHUNK_BYTES = 8 << 20

ProgressSink = Callable[[float], None]


def load_decoder(
    files: ModelFiles,
    *,
    device: torch.device,
    dtype: torch.dtype,
    progress: ProgressSink | None = None,
    config: DecoderConfig | None = None,
) -> Decoder:
    """Load a model; at the peak 1.15 x its resident bytes are used at most.

    Args:
        files: Where it lies.
        device: Where its tensors shall lie.
        dtype: float32, bfloat16 or float16, for matrices and activations.
        progress: Called with the share done, from 0 to 1.
        config: What `read_config` says of the files, where it has been read already.

    Raises:
        UnsupportedModel: Another architecture, or a feature that is not implemented, by name.
        BadModelFile: A file is damaged, or a tensor is missing, left over or of another shape, by name.
        StorageError: A file cannot be read.
    """
    config = config or read_config(files)
    with closing(open_weights(files)) as reader:
        return fill_decoder(config, reader, files, device=device, dtype=dtype, progress=progress)


def fill_decoder(
    config: DecoderConfig,
    reader: WeightReader,
    files: ModelFiles,
    *,
    device: torch.device,
    dtype: torch.dtype,
    progress: ProgressSink | None = None,
) -> Decoder:
    """`load_decoder` from an open reader, which stays open."""
    _check_names_and_shapes(config, reader, files)
    parameters = allocate(config, dtype, device)
    wanted = list(targets(config, parameters, files.format))
    total, done = sum(target.out.nbytes for target in wanted), 0
    for target in wanted:
        for nbytes in _fill(target, reader):
            done += nbytes
            if progress is not None:
                progress(done / total)
    if config.tied_embeddings:
        _check_tied(config, parameters.embedding, reader, files)
    divisors = _rope_divisors(config, reader)
    rope = rope_tables(config.rope, config.head_dim, config.max_position, device=device, divisors=divisors)
    return Decoder(config, parameters, rope)


def _check_names_and_shapes(config: DecoderConfig, reader: WeightReader, files: ModelFiles) -> None:
    """Compare the file with what the configuration asks for, before anything is allocated."""
    shadow = allocate(config, torch.float32, torch.device("meta"))
    wanted = {target.name: tuple(target.out.shape) for target in targets(config, shadow, files.format)}
    stored = {name: info.shape for name, info in reader.tensors.items() if not is_ignored(name)}
    for name, shape in wanted.items():
        if name not in stored:
            raise BadModelFile(f"{files.name}: the tensor '{name}' is missing.")
        if stored[name] != shape:
            raise BadModelFile(f"{files.name}: the tensor '{name}' is {stored[name]}, the configuration says {shape}.")
    allowed = {GGUF_ROPE_DIVISORS} if files.format == "gguf" else {head_name(files.format)}
    left_over = sorted(stored.keys() - wanted.keys() - allowed)
    if left_over:
        others = f" and {len(left_over) - 1} others" if len(left_over) > 1 else ""
        raise BadModelFile(f"{files.name}: the tensor '{left_over[0]}'{others} has no place in this configuration.")


def _fill(target: Target, reader: WeightReader) -> Iterator[int]:
    """Read a tensor in chunks of rows; yields the bytes of each."""
    rows = target.out.shape[0]
    row_bytes = max(1, target.out.nbytes // rows)
    step = max(1, CHUNK_BYTES // row_bytes)
    if target.interleaved is not None:
        step = max(1, step // target.interleaved) * target.interleaved
    for first in range(0, rows, step):
        part = target.out[first : first + step]
        _read(target, part, first, reader)
        yield part.nbytes
    for copy in target.copies:
        copy.copy_(target.out)


def _read(target: Target, part: torch.Tensor, first: int, reader: WeightReader) -> None:
    if target.interleaved is None and part.device.type == "cpu":
        reader.read_into(target.name, part, first_row=first)
        return
    staged = torch.empty(part.shape, dtype=part.dtype)
    reader.read_into(target.name, staged, first_row=first)
    if target.interleaved is not None:  # [head, pair, half] -> [head, half, pair]
        staged = staged.view(-1, target.interleaved // 2, 2, *part.shape[1:]).transpose(1, 2)
        part = part.view(staged.shape)
    part.copy_(staged)


def _check_tied(config: DecoderConfig, embedding: torch.Tensor, reader: WeightReader, files: ModelFiles) -> None:
    """A checkpoint may repeat the tied head; it must then be the embedding."""
    name = head_name(files.format)
    info = reader.tensors.get(name)
    if info is None:
        return
    if info.shape != tuple(embedding.shape):
        raise BadModelFile(f"{files.name}: the tied '{name}' is {info.shape}, the embedding {tuple(embedding.shape)}.")
    step = max(1, CHUNK_BYTES // (config.hidden_size * embedding.itemsize))
    for first in range(0, config.vocab_size, step):
        part = embedding[first : first + step]
        staged = torch.empty(part.shape, dtype=part.dtype)
        reader.read_into(name, staged, first_row=first)
        if not torch.equal(staged, part.cpu()):
            raise BadModelFile(f"{files.name}: 'tie_word_embeddings' is true, but '{name}' differs from the embedding.")


def _rope_divisors(config: DecoderConfig, reader: WeightReader) -> torch.Tensor | None:
    """GGUF files carry the frequencies' stretch of Llama 3 as a tensor."""
    info = reader.tensors.get(GGUF_ROPE_DIVISORS)
    if info is None:
        return None
    if info.shape != (config.head_dim // 2,):
        raise BadModelFile(
            f"'{GGUF_ROPE_DIVISORS}' is {info.shape}, one entry per {config.head_dim // 2} angles expected."
        )
    divisors = torch.empty(info.shape)
    reader.read_into(GGUF_ROPE_DIVISORS, divisors)
    return divisors
