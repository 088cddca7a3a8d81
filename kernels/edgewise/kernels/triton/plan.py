"""How a decoder's step is launched on one card: what was chosen for each product and for attention, or defaults.

Forms (`blocks.Form`, `AttentionForm`) decide the bits of results, so a plan has one for all numbers of rows, and its `label` is
part of the numeric class. Everything else in it changes time alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from edgewise.kernels.triton.blocks import FORMS, ROW_CLASSES, Blocks, Form, choose_blocks, is_float
from edgewise.kernels.triton.decode_attention import DEFAULT_BLOCKS, DEFAULT_FORM, AttentionBlocks, AttentionForm
from edgewise.kernels.triton.decode_product import Weight
from edgewise.kernels.triton.launch import capability


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Attributes:
    form: Of products of rounded weights.
    attention_form: Of attention.
    products: By `site`; what is missing is cut by default.
    attention: By class of rows (`ROW_CLASSES`).
    """

    form: Form = "plain"
    attention_form: AttentionForm = DEFAULT_FORM
    products: Mapping[str, Blocks] = field(default_factory=dict)
    attention: Mapping[int, AttentionBlocks] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """What of it decides bits, as part of a name; "" for the defaults."""
        split, warps, halves = self.attention_form
        parts = [] if self.attention_form == DEFAULT_FORM else [f"s{split}w{warps}{'h' if halves else ''}"]
        return ".".join(parts if self.form == "plain" else [*parts, self.form])

    def product(self, kind: str, weight: Weight, rows: int) -> Blocks:
        """Blocks of a product; `kind` is "project", "add", "gated" or "plain"."""
        codes, shape = weight.codes.dtype, (weight.codes.shape[0], weight.columns)
        chosen = self.products.get(site(kind, codes, shape, rows))
        if chosen is not None:
            return chosen
        form = "plain" if is_float(codes) else self.form
        return choose_blocks(codes, shape, rows, kind == "gated", weight.codes.device, form)

    def attend(self, rows: int) -> AttentionBlocks:
        return self.attention.get(row_class(rows), DEFAULT_BLOCKS)

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "form": self.form,
            "attention_form": self.attention_form._asdict(),
            "products": {name: blocks._asdict() for name, blocks in sorted(self.products.items())},
            "attention": {str(rows): blocks._asdict() for rows, blocks in sorted(self.attention.items())},
        }

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Plan:
        """The plan that `document` describes.

        Raises:
            ValueError: It is none.
        """
        try:
            plan = cls(
                form=document["form"],
                attention_form=AttentionForm(**document["attention_form"]),
                products={name: Blocks(**blocks) for name, blocks in document["products"].items()},
                attention={int(rows): AttentionBlocks(**blocks) for rows, blocks in document["attention"].items()},
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no plan of kernels: {error!r}") from error
        if plan.form not in FORMS or any(blocks.form not in (plan.form, "plain") for blocks in plan.products.values()):
            raise ValueError(f"a plan of kernels has one form, one of {', '.join(FORMS)}, got {plan.form}")
        return plan


DEFAULT_PLAN = Plan()


def default_plan(codes: torch.dtype, device: torch.device, most_rows: int) -> Plan:
    """The plan of a decoder without experts where nothing was measured: as did well on an H200 (docs/benchmarks.md).

    Args:
        codes: Type of the weights.
        device: Where.
        most_rows: Of a batch. One alone is quickest as integers; with more rows matrix instructions are.
    """
    if codes not in (torch.int8, torch.uint8) or capability(device) != (9, 0):
        return DEFAULT_PLAN
    return Plan(form="integers" if most_rows == 1 else "ptx")


def row_class(rows: int) -> int:
    """The class of a number of rows: a product is compiled for each."""
    return next((most for most in ROW_CLASSES if rows <= most), ROW_CLASSES[-1])


def site(kind: str, codes: torch.dtype, shape: tuple[int, int], rows: int) -> str:
    """The name of a product: kind, type and [out, in] of the weight, class of rows."""
    return f"{kind} {str(codes).removeprefix('torch.')} {shape[0]}x{shape[1]} r{row_class(rows)}"
