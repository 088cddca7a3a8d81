"""What the engine must know of a model that transformers runs. Torch-free; `trace` finds it out."""

from __future__ import annotations

from dataclasses import dataclass

from edgewise.kernels.limits import GATHER_BYTES, PRODUCT_CACHE_BYTES, PRODUCT_ROW_MULTIPLE, SCORE_BYTES, round_up

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LongTailConfig:
    """Sizes of a model, as found by letting it run without weights.

    Attributes:
        architecture: Name of its class.
        kv_heads, head_dims, windows: Per attention layer; a window is how many positions a token sees, itself included, None
            for all before it.
        elements: Of all parameters in the weights' dtype.
        fixed_bytes: Of parameters and buffers that have a dtype of their own.
        row_floats: Upper bound of what one token of a step allocates, in float32 values.
    """

    architecture: str
    vocab_size: int
    max_position: int
    kv_heads: tuple[int, ...]
    head_dims: tuple[int, ...]
    windows: tuple[int | None, ...]
    elements: int
    fixed_bytes: int
    row_floats: int

    @property
    def num_layers(self) -> int:
        return len(self.windows)

    def weight_bytes(self, dtype: str) -> int:
        return self.elements * _BYTES[dtype] + self.fixed_bytes

    def workspace_bytes(self, max_step_tokens: int, max_running: int) -> int:
        """As `decoder.memory.workspace_bytes`."""
        rows = round_up(max_step_tokens + max_running, PRODUCT_ROW_MULTIPLE)
        logits = 2 * round_up(max_running, PRODUCT_ROW_MULTIPLE) * self.vocab_size + 6 * self.vocab_size
        attention = SCORE_BYTES + 3 * GATHER_BYTES
        return (rows * self.row_floats + logits) * _FLOAT_BYTES + attention + PRODUCT_CACHE_BYTES
