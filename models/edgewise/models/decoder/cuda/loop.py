"""Decoding on the device: a step's inputs, the forward pass, the draw and the next step's inputs are one graph.

The rows of a batch live in tensors on the device. A graph computes one token for each, draws the next one, and moves the rows
on by one position; launched again it computes that. The host reads tokens when it needs them, from a copy that follows every
step, and says nothing between two steps but which pages have been added.

There is a graph for each number of rows and each length of page tables that was met (`row_buckets`, `page_buckets`), and for
rows of which some are successive tokens of one sequence. Rows beyond a batch's are padding: position -1. A row's result does not
depend on the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from edgewise.kernels.limits import PAGE_TOKENS, round_up
from edgewise.models.decoder.cuda.step import DecodeStep
from edgewise.models.decoder.rows import DecodeRow

_RING = 3  # staging buffers: a step is prepared while one runs and one's tokens have not been read
_TOKEN, _POSITION, _SEED, _PLACE = range(4)
_PAGES_LEAST, _PAGES_GROWTH = 16, 4


class Flight:
    """A step that has been launched."""

    def __init__(self, staging: _Staging, rows: int, logits: torch.Tensor) -> None:
        self._staging = staging
        self._rows = rows
        self._logits = logits

    def tokens(self) -> list[int]:
        """The drawn tokens, -1 where no logit was finite; waits for the step. To be called before two more are launched."""
        self._staging.wait()
        return self._staging.tokens[: self._rows].tolist()

    @property
    def logits(self) -> torch.Tensor:
        """[rows, vocab] on the device, until the next step is launched."""
        return self._logits[: self._rows]


class _Staging:
    """Host memory that a step's inputs leave from and its tokens arrive in."""

    def __init__(self, rows: int, pages: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self.ints = torch.zeros((4, rows), dtype=torch.int64, pin_memory=pinned)
        self.floats = torch.zeros((2, rows), dtype=torch.float32, pin_memory=pinned)
        self.table = torch.zeros(rows * pages, dtype=torch.int32, pin_memory=pinned)
        self.tokens = torch.zeros(rows, dtype=torch.int64, pin_memory=pinned)
        self._event = torch.cuda.Event() if pinned else None  # type: ignore[no-untyped-call]

    def record(self) -> None:
        if self._event is not None:
            self._event.record()

    def wait(self) -> None:
        if self._event is not None:
            self._event.synchronize()


class DecodeLoop:
    """The device's part of decoding. One user, one CUDA stream.

    Args:
        step: What computes.
        device: Where.
        max_rows: Rows of the largest batch.
        max_pages: Pages of the longest sequence.
    """

    def __init__(self, step: DecodeStep, device: torch.device, *, max_rows: int, max_pages: int) -> None:
        self._step = step
        self._device = device
        self._row_buckets = row_buckets(max_rows)
        self._page_buckets = page_buckets(max_pages)
        rows, pages = self._row_buckets[-1], self._page_buckets[-1]
        self._ints = torch.zeros((4, rows), dtype=torch.int64, device=device)
        self._floats = torch.zeros((2, rows), dtype=torch.float32, device=device)
        self._table = torch.zeros(rows * pages, dtype=torch.int32, device=device)
        self._ring = [_Staging(rows, pages, device) for _ in range(_RING)]
        self._turn = 0
        self._pages = np.zeros((rows, pages), dtype=np.int32)
        self._known = [0] * rows  # pages of each row that are in `_pages`
        self._key = (0, 0, False)
        self._rows = 0
        self._together = False
        self._longest = 0
        self._graphs: dict[tuple[int, int, bool], Callable[[], torch.Tensor]] = {}
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    def __repr__(self) -> str:
        return f"DecodeLoop({self._rows} rows, graphs: {sorted(self._graphs)})"

    @property
    def max_rows(self) -> int:
        """Rows that one launch takes."""
        return self._row_buckets[-1]

    @torch.inference_mode()
    def launch(self, rows: Sequence[DecodeRow]) -> Flight:
        """Compute `rows`, which take the place of those before."""
        if not 0 < len(rows) <= self.max_rows:
            raise ValueError(f"1 to {self.max_rows} rows can be computed, got {len(rows)}")
        staging = self._next_staging()
        self._fill(staging, rows)
        self._ints.copy_(staging.ints, non_blocking=True)
        self._floats.copy_(staging.floats, non_blocking=True)
        self._rows, self._longest = len(rows), max(row.position for row in rows) + 1
        self._together = len({id(row.pages) for row in rows}) < len(rows)
        self._key = (0, 0, False)
        self._known = [0] * len(self._known)
        return self._go(staging, [row.pages for row in rows])

    @torch.inference_mode()
    def follow(self, pages: Sequence[Sequence[int]]) -> Flight:
        """Compute the tokens that the last step drew, each one position further.

        Args:
            pages: Of each row; those before, and more where a row needs one.
        """
        if len(pages) != self._rows:
            raise ValueError(f"{self._rows} rows are on the device, got pages of {len(pages)}")
        self._longest += 1
        return self._go(self._next_staging(), pages)

    @torch.inference_mode()
    def draw(self, logits: torch.Tensor, rows: Sequence[DecodeRow]) -> list[int]:
        """The tokens behind `rows`, of which [rows, vocab] float32 logits are given; as a step draws them."""
        ints = torch.from_numpy(_ints(rows)).to(self._device)
        floats = torch.from_numpy(_floats(rows)).to(self._device)
        out = torch.empty(len(rows), dtype=torch.int64, device=self._device)
        self._step.draw(logits, floats[0], floats[1], ints[_SEED], ints[_PLACE], out)
        return out.tolist()

    def _next_staging(self) -> _Staging:
        self._turn = (self._turn + 1) % _RING
        staging = self._ring[self._turn]
        staging.wait()
        return staging

    def _fill(self, staging: _Staging, rows: Sequence[DecodeRow]) -> None:
        staging.ints[_POSITION, len(rows) :] = -1
        staging.ints[:, : len(rows)] = torch.from_numpy(_ints(rows))
        staging.floats[:, : len(rows)] = torch.from_numpy(_floats(rows))

    def _go(self, staging: _Staging, pages: Sequence[Sequence[int]]) -> Flight:
        needed = -(-self._longest // PAGE_TOKENS)
        rows, width = _at_least(self._row_buckets, self._rows), _at_least(self._page_buckets, needed)
        key = (rows, width, self._together)
        changed = self._note(pages)
        if changed or key != self._key:
            size = rows * width
            staging.table[:size].numpy().reshape(rows, width)[:] = self._pages[:rows, :width]
            self._table[:size].copy_(staging.table[:size], non_blocking=True)
        self._key = key
        step = self._graphs.get(key)
        if step is None:
            step = self._graphs[key] = self._capture(*key)
        logits = step()
        staging.tokens.copy_(self._ints[_TOKEN], non_blocking=True)
        staging.record()
        return Flight(staging, self._rows, logits)

    def _note(self, pages: Sequence[Sequence[int]]) -> bool:
        """Bring the host's page tables up to date; whether anything was new."""
        changed = False
        for row, own in enumerate(pages):
            known = self._known[row]
            if len(own) > known:
                self._pages[row, known : len(own)] = own[known:]
                self._known[row] = len(own)
                changed = True
        return changed

    def _capture(self, rows: int, pages: int, together: bool) -> Callable[[], torch.Tensor]:
        if self._device.type != "cuda":
            return lambda: self._compute(rows, pages, together)
        # The first run compiles what is missing. It must move nothing on: all rows are padding, and get their place back.
        saved = self._ints.clone()
        self._ints[_POSITION].fill_(-1)
        self._compute(rows, pages, together)
        self._ints.copy_(saved)
        torch.cuda.current_stream(self._device).synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            logits = self._compute(rows, pages, together)

        def replay() -> torch.Tensor:
            graph.replay()
            return logits

        return replay

    def _compute(self, rows: int, pages: int, together: bool) -> torch.Tensor:
        """One step of all rows, on the device alone; returns the logits."""
        tokens, positions, seeds, places = self._ints[:, :rows]
        temperature, min_p = self._floats[:, :rows]
        table = self._table[: rows * pages].view(rows, pages)
        slots = self._step.slots(positions, table)
        logits = self._step.logits(tokens, positions, slots, table, together=together)
        self._step.draw(logits, temperature, min_p, seeds, places, tokens)
        self._step.advance(positions, places)
        return logits


def _ints(rows: Sequence[DecodeRow]) -> NDArray[np.int64]:
    seeds = np.array([row.seed for row in rows], dtype=np.uint64).view(np.int64)
    columns = [[row.token for row in rows], [row.position for row in rows], seeds, [row.place for row in rows]]
    return np.array(columns, dtype=np.int64)


def _floats(rows: Sequence[DecodeRow]) -> NDArray[np.float32]:
    return np.array([[row.temperature for row in rows], [row.min_p for row in rows]], dtype=np.float32)


def row_buckets(most: int) -> list[int]:
    """Numbers of rows that graphs are made for, ascending; the last is at least `most`."""
    sizes = [1, 2, 4, 8, 16, 24, 32, 48, 64]
    while sizes[-1] < most:
        sizes.append(sizes[-1] + max(32, round_up(sizes[-1] // 4, 32)))
    return [size for index, size in enumerate(sizes) if index == 0 or sizes[index - 1] < most]


def page_buckets(most: int) -> list[int]:
    """Lengths of page tables that graphs are made for, ascending; the last is `most`."""
    sizes = []
    size = _PAGES_LEAST
    while size < most:
        sizes.append(size)
        size *= _PAGES_GROWTH
    return [*sizes, most]


def _at_least(sizes: Sequence[int], count: int) -> int:
    return next(size for size in sizes if size >= count)
