"""Weights from the store to a card: several threads read the file, each through pinned memory and a CUDA stream of its own.

A read fills one half of a thread's pinned memory while the other half is on its way to the card, so the card's bus and the disk
are busy at the same time, and no tensor is in host memory as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from queue import SimpleQueue

import torch

from edgewise.models.decoder.layout import Target
from edgewise.models.decoder.loading import copy_halves
from edgewise.models.weights.reader import WeightReader

READERS = 8
PIECE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows [first, first + count) of a target."""

    target: Target
    first: int
    count: int


class _Lane:
    """Pinned memory in two halves, and the stream that empties them."""

    def __init__(self, device: torch.device, size: int) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._halves = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        self._empty = [torch.cuda.Event() for _ in range(2)]  # type: ignore[no-untyped-call]
        self._turn = 0

    def carry(self, piece: _Piece, reader: WeightReader) -> int:
        """Read a piece and begin to copy it; returns its bytes on the card."""
        self._turn ^= 1
        target, event = piece.target, self._empty[self._turn]
        part = target.out[piece.first : piece.first + piece.count]
        event.synchronize()
        shape = (piece.count, *target.shape[1:])
        size = math.prod(shape) * part.itemsize
        staged = self._halves[self._turn][:size].view(part.dtype).view(shape)
        reader.read_into(target.name, staged, first_row=piece.first + target.start[0])
        with torch.cuda.stream(self._stream):
            self._copy(target, staged, part)
            event.record()
        return part.nbytes

    def drain(self) -> None:
        self._stream.synchronize()

    def _copy(self, target: Target, staged: torch.Tensor, part: torch.Tensor) -> None:
        own = staged
        for dim in range(1, part.dim()):
            own = own.narrow(dim, target.start[dim], part.shape[dim])
        if target.pairs is None:
            part.copy_(own, non_blocking=own.is_contiguous())
        else:
            copy_halves(own.to(part.device, non_blocking=own.is_contiguous()), part, target.pairs)
        if target.offset:
            part.add_(target.offset)


def stream_targets(wanted: Sequence[Target], reader: WeightReader, device: torch.device) -> Iterator[int]:
    """Fill targets on a CUDA device; yields bytes as they are read. Everything is on the card when it ends.

    Raises:
        BadModelFile, StorageError: As `WeightReader.read_into`; what is under way ends first.
    """
    pieces = [piece for target in wanted for piece in _pieces(target)]
    largest = max((piece.count * _row_bytes(piece.target) for piece in pieces), default=0)
    torch.cuda.current_stream(device).synchronize()  # memory may have been handed on by work that is still under way
    idle: SimpleQueue[_Lane] = SimpleQueue()
    lanes = [_Lane(device, largest) for _ in range(min(READERS, len(pieces)))]
    for lane in lanes:
        idle.put(lane)

    def carry(piece: _Piece) -> int:
        lane = idle.get()
        try:
            return lane.carry(piece, reader)
        finally:
            idle.put(lane)

    with ThreadPoolExecutor(len(lanes) or 1, thread_name_prefix="weights") as pool:
        pending = [pool.submit(carry, piece) for piece in pieces]
        try:
            for future in as_completed(pending):
                yield future.result()
        finally:
            for future in pending:
                future.cancel()
    for lane in lanes:
        lane.drain()
    for target in wanted:
        for copy in target.copies:
            copy.copy_(target.out)


def _row_bytes(target: Target) -> int:
    return max(1, math.prod(target.shape[1:]) * target.out.itemsize)


def _pieces(target: Target) -> Iterator[_Piece]:
    step = max(1, PIECE_BYTES // _row_bytes(target))
    if target.pairs is not None:
        step = max(1, step // target.pairs.head) * target.pairs.head
    rows = target.out.shape[0]
    for first in range(0, rows, step):
        yield _Piece(target, first, min(step, rows - first))
