"""Sizes that kernels and the memory ledger must agree on. Torch-free."""

from __future__ import annotations

# Tokens of one page of the KV cache.
PAGE_TOKENS = 16

# Attention works on tiles of this many absolute key positions; results do not depend on how many tiles a step touches.
TILE_TOKENS = 256

# Rows of a matrix product come in multiples of this, or of the maximum where a machine needs it (`kernels.rows`), so that a
# row's result does not depend on its neighbours. Query rows of one KV head likewise.
ROW_MULTIPLE = {"float32": 8, "bfloat16": 2, "float16": 2}
MAX_ROW_MULTIPLE = 16
# Long batches are padded to this.
PRODUCT_ROW_MULTIPLE = 32
# Further multiples that a GPU may need; there rows of padding cost little, since products of few rows wait for memory.
GPU_ROW_MULTIPLES = (64, 128)

# Ranks of low-rank additions are filled up with zeros to a multiple of this (measured: in MKL's products of 5 columns a row's
# bits depend on its place).
RANK_MULTIPLE = 8

# What math libraries keep compiled for the shapes of products that a model meets (oneDNN, bfloat16: 140 shapes, 0.4 MiB each).
PRODUCT_CACHE_BYTES = 64 << 20
QUERY_ROW_MULTIPLE = 8

# Experts of a layer that Triton's kernels route to: a program holds the shares of all, for 64 tokens.
MAX_EXPERTS = 512

# Scratch of one attention call: scores of one group of query rows, and keys or values of one run of tiles.
SCORE_BYTES = 32 << 20
GATHER_BYTES = 8 << 20
MAX_QUERY_ROWS = 512

# Where several devices compute a model together: parts of a sum up to this size are sent to every device whole, which takes one
# exchange; of larger ones each device sums a piece.
ONE_SHOT_BYTES = 256 << 10


def max_row_multiple(device: str) -> int:
    """The largest multiple that a batch's rows are padded to on "cpu" or "cuda"."""
    return PRODUCT_ROW_MULTIPLE if device == "cpu" else GPU_ROW_MULTIPLES[-1]


def round_up(count: int, multiple: int) -> int:
    """The least multiple of `multiple` that is at least `count`."""
    return -(-count // multiple) * multiple
