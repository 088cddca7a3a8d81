"""A product on random numbers, for the tuner: whether a way to cut it computes what it must, and calls of it to be timed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from edgewise.kernels.reference.fp8_linear import round_rows
from edgewise.kernels.triton.blocks import ROW_CLASSES, Blocks, Form, choose_blocks, is_float
from edgewise.kernels.triton.decode_product import SQUARES, Residual, Weight, add, gated, plain, project
from edgewise.kernels.triton.tuning import Call
from edgewise.kernels.triton.weights import Format, quantize, unpack

LIMIT = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 1e-4}
"""Relative error to float64, of the activations' dtype."""
_SEEN = 256  # outputs that are compared with float64
_COPIES = 8
_EPS = 1e-5
_FORMATS: dict[torch.dtype, Format] = {torch.int8: "int8", torch.uint8: "int4", torch.float8_e4m3fn: "fp8"}

Results = tuple[torch.Tensor, ...]


class ProductTrial:
    """One product of a decoder.

    Args:
        kind: "project", "add", "gated" or "plain".
        codes: Type of the weight.
        shape: [out, in] of the weight.
        dtype: Of the activations.
        device: Where.
        activation: Of a gated product.
        biased: Whether there is a bias.
        wide: Whether a projection's results are stored as float32.
        cache_bytes: Of the card's cache: calls to be timed go over more than twice as much.
    """

    def __init__(
        self,
        kind: str,
        codes: torch.dtype,
        shape: tuple[int, int],
        *,
        dtype: torch.dtype,
        device: torch.device,
        activation: str = "silu",
        biased: bool = False,
        wide: bool = False,
        cache_bytes: int = 0,
        most_rows: int = ROW_CLASSES[-1],
    ) -> None:
        self._kind, self._codes, self._shape, self._dtype, self._device = kind, codes, shape, dtype, device
        self._activation, self._wide, self._cache = activation, wide, cache_bytes
        generator = torch.Generator(device).manual_seed(7)

        def random(*size: int) -> torch.Tensor:
            return torch.randn(size, generator=generator, device=device)

        floats = (random(*shape) * shape[1] ** -0.5).to(dtype)
        bias = random(shape[0]).to(dtype) if biased else None
        self._weight = Weight(floats, bias=bias) if is_float(codes) else quantize(floats, _FORMATS[codes], bias)
        self._a = random(most_rows, shape[1])
        self._normed = kind in ("project", "gated")
        self._norm = random(shape[1] if self._normed else shape[0])
        self._before = random(most_rows, shape[0])
        self._scaled = (self._a * self._norm if self._normed else self._a).to(dtype)
        self._anchors: dict[Form, dict[int, Results]] = {}

    def problem(self, blocks: Blocks, rows: int) -> str:
        """What is wrong with a cut for the class of `rows`, in words; "" where nothing is."""
        whole = self.run(blocks, 0, rows)
        if any(not bool(each.isfinite().all()) for each in whole):
            return "results that were not written, or are not finite"
        error = self._error(whole, rows)
        if not error <= LIMIT[self._dtype]:
            return f"an error of {error:.2g} to float64, {LIMIT[self._dtype]:g} is allowed"
        fewest = max((most for most in ROW_CLASSES if most < rows), default=0) + 1
        if any(
            not torch.equal(own[:fewest], every[:fewest])
            for own, every in zip(self.run(blocks, 0, fewest), whole, strict=True)
        ):
            return f"a row's bits differ among {fewest} and {rows} rows"
        for row in sorted({0, min(3, rows - 1), rows - 1}):
            anchor = self._anchor(blocks.form, row)
            if any(not torch.equal(own[row], alone[0]) for own, alone in zip(whole, anchor, strict=True)):
                return "a row's bits differ from those that it has alone by the default"
        return ""

    def calls(self, blocks: Blocks, rows: int) -> Sequence[Call]:
        """Over copies of the weight."""
        size = self._weight.codes.nbytes
        copies = max(1, min(_COPIES, -(-2 * self._cache // size)))
        weights = [self._weight] + [_copy(self._weight) for _ in range(copies - 1)]
        residual, out = self._stream(0, rows), self._out(rows)
        return [lambda w=weight: self._launch(w, residual, out, blocks) for weight in weights]  # type: ignore[misc]

    def run(self, blocks: Blocks, first: int, count: int) -> Results:
        """Results of rows `first` on: x, scaled, squares of `add`, else the product."""
        residual, out = self._stream(first, count), self._out(count)
        self._launch(self._weight, residual, out, blocks, first)
        return (residual.x, residual.scaled.float(), residual.squares) if self._kind == "add" else (out.float(),)

    def _launch(self, weight: Weight, residual: Residual, out: torch.Tensor, blocks: Blocks, first: int = 0) -> None:
        if self._kind == "project":
            project(residual, weight, _EPS, out, blocks)
        elif self._kind == "gated":
            gated(residual, weight, _EPS, out, self._activation, blocks)
        elif self._kind == "plain":
            plain(self._scaled[first : first + len(out)], weight, out, blocks)
        else:
            add(self._scaled[first : first + len(out)], weight, residual, self._norm, blocks)

    def _stream(self, first: int, count: int) -> Residual:
        """Contiguous, as all that kernels take; poisoned where a kernel writes."""
        rows = slice(first, first + count)
        if self._kind == "add":
            x = self._before[rows].clone()
            scaled = torch.full_like(x, torch.nan, dtype=self._dtype)
            return Residual(x, scaled, x.new_full((count, x.shape[1] // SQUARES), torch.nan))
        x = self._a[rows].clone()
        return Residual(x, self._scaled[rows].clone(), (x * x).view(count, -1, SQUARES).sum(-1))

    def _out(self, count: int) -> torch.Tensor:
        columns = self._shape[0] // (2 if self._kind == "gated" else 1)
        dtype = torch.float32 if self._wide else self._dtype
        return torch.full((count, columns), torch.nan, dtype=dtype, device=self._device)

    def _anchor(self, form: Form, row: int) -> Results:
        """A row alone, by the default."""
        own = self._anchors.setdefault(form, {})
        if row not in own:
            blocks = choose_blocks(self._codes, self._shape, 1, self._kind == "gated", self._device, form)
            own[row] = self.run(blocks, row, 1)
        return own[row]

    def _error(self, results: Results, rows: int) -> float:
        outputs = results[0].shape[1]
        seen = torch.linspace(0, outputs - 1, min(_SEEN, outputs), device=self._device).long()
        a = self._multiplied(rows)
        if self._normed:
            x = self._a[:rows].double()
            a = a / ((x * x).mean(-1, keepdim=True) + _EPS).sqrt()
        expected = self._product(a, seen)
        if self._kind == "add":
            expected += self._before[:rows][:, seen].double()
        elif self._kind == "gated":
            act = torch.nn.functional.silu(expected)
            if self._activation == "gelu_tanh":
                act = torch.nn.functional.gelu(expected, approximate="tanh")
            expected = act * self._product(a, seen + outputs)
        return float((results[0][:, seen].double() - expected).norm() / expected.norm())

    def _multiplied(self, rows: int) -> torch.Tensor:
        """Activations, float64, as weights of this type are multiplied with them: beside fp8 they are rounded to it."""
        a = self._scaled[:rows]
        if self._codes != torch.float8_e4m3fn:
            return a.double()
        codes, step = round_rows(a)
        return codes.double() * step.double()[:, None]

    def _product(self, a: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
        values = _values(self._weight, outputs)
        bias = 0.0 if self._weight.bias is None else self._weight.bias[outputs].double()
        return a @ values.T + bias


def _values(weight: Weight, outputs: torch.Tensor) -> torch.Tensor:
    """Rows of the matrix, float64."""
    if weight.scale is None:
        return weight.codes[outputs].double()
    codes = weight.codes.view(torch.uint8)[outputs].view(weight.codes.dtype)
    minimum = None if weight.minimum is None else weight.minimum[outputs]
    part = Weight(codes, weight.scale[outputs], minimum)
    return unpack(part, torch.empty((len(outputs), weight.columns), device=codes.device)).double()


def _copy(weight: Weight) -> Weight:
    def own(x: torch.Tensor | None) -> torch.Tensor | None:
        return None if x is None else x.clone()

    return Weight(weight.codes.clone(), own(weight.scale), own(weight.minimum), weight.bias)
