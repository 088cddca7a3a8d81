"""What a tuner tries: small lists by type of weight, number of rows and card, the default first."""

from __future__ import annotations

import torch

from edgewise.kernels.paging import SCALED_FORMATS
from edgewise.kernels.triton.blocks import (
    COLUMNS_FP8,
    FEW_ROWS,
    HEAD_OUTPUTS,
    LONG_INNER,
    STEP_4BIT,
    STEP_FP8,
    Blocks,
    Form,
    choose_blocks,
    fitting,
    is_float,
)
from edgewise.kernels.triton.decode_attention import AttentionBlocks, AttentionForm
from edgewise.kernels.triton.launch import can_overlap

_FETCHED = 65536


def forms_of(codes: torch.dtype) -> tuple[Form, ...]:
    """Forms in which weights of a type are multiplied."""
    if is_float(codes):
        return ("plain",)
    return ("plain", "ptx", "native") if codes == torch.float8_e4m3fn else ("plain", "ptx", "integers")


def product_candidates(
    codes: torch.dtype, shape: tuple[int, int], rows: int, gated: bool, device: torch.device, form: Form
) -> list[Blocks]:
    """Ways to cut a product with a weight [out, in]; `rows` is a class of rows.

    Compiling takes most of a tuner's time, so what lost everywhere on an H200 is left out: overlapping with more than 16 rows;
    and of rounded weights multiplied as floats, overlapping at all, 32 outputs of few rows but for the head, and on such a card
    more than one way to have the compiler convert them (docs/benchmarks.md).
    """
    over = can_overlap(device)
    if is_float(codes):
        tried = _of_floats(codes, rows, shape[1], over)
    elif form == "native":
        tried = [Blocks(COLUMNS_FP8, STEP_FP8, deep, form=form) for deep in (6, 3)]
        tried += [tried[0]._replace(overlapped=True)] if over else []
    elif form == "integers":
        tried = _of_integers(rows, shape[1], over)
    elif form == "plain" and over:
        tried = []
    else:
        tried = [Blocks(16, STEP_4BIT, 4, form=form), Blocks(16, STEP_4BIT, 3, form=form)]
        tried += [Blocks(32, STEP_4BIT, 3, form=form)] if rows > 8 or shape[0] >= HEAD_OUTPUTS else []
    default = choose_blocks(codes, shape, rows, gated, device, form)
    return list(dict.fromkeys([default, *(fitting(blocks, rows, gated, device) for blocks in tried)]))


def _of_floats(codes: torch.dtype, rows: int, inner: int, over: bool) -> list[Blocks]:
    if rows <= 8:
        found = [Blocks(16, 512, 4), Blocks(32, 256, 3), Blocks(32, 512, 3)]
        return found + [blocks._replace(overlapped=True) for blocks in found] + _holding(inner) if over else found
    wide = [] if codes == torch.float32 else [Blocks(64, 256, 3, wide=True), Blocks(64, 256, 2, wide=True)]
    if rows <= 16:
        found = [Blocks(32, 256, 4), Blocks(16, 512, 3)]
        return found + wide + ([blocks._replace(overlapped=True) for blocks in found] if over else [])
    narrow = [] if codes == torch.float32 else [Blocks(32, 256, 4, wide=True), Blocks(16, 256, 4, wide=True)]
    return [Blocks(32, 256, 3), Blocks(16, 256, 4), *wide, *narrow]


def _of_integers(rows: int, inner: int, over: bool) -> list[Blocks]:
    if rows > FEW_ROWS:
        return [Blocks(32, STEP_4BIT, deep, form="integers") for deep in (3, 2)]
    found = [(16, 1), (32, 1), (16, 2), *([(16, 4)] if inner > LONG_INNER else [])]
    cuts = [Blocks(columns, STEP_4BIT, 3, form="integers", steps=steps, warps=8) for columns, steps in found]
    return [*cuts[:1], *(blocks._replace(overlapped=True) for blocks in cuts)] if over else cuts


def _holding(inner: int) -> list[Blocks]:
    """Weights loaded before the wait."""
    found = []
    for columns, step, stages, held in ((16, 512, 4, 1024), (32, 256, 3, 256)):
        if inner > held and (inner - held) % step == 0:
            blocks = Blocks(columns, step, stages, held=held, overlapped=True)
            found += [blocks, blocks._replace(fetched=_FETCHED)]
    return found


def attention_forms(stored: torch.dtype) -> list[AttentionForm]:
    """Forms of attention over pages of a type, the default first."""
    if stored in SCALED_FORMATS:
        halves = [AttentionForm(256, 4, True), AttentionForm(512, 8, True), AttentionForm(512, 4, True)]
        return [AttentionForm(), AttentionForm(512), *halves]
    return [AttentionForm(), AttentionForm(512), AttentionForm(512, 8)]


def attention_candidates(device: torch.device, head_dim: int) -> list[AttentionBlocks]:
    """Ways to launch a form of attention, the default first."""
    registers = 128 if head_dim <= 128 else 0
    found = [AttentionBlocks(), AttentionBlocks(2), AttentionBlocks(2, registers), AttentionBlocks(3, registers)]
    if can_overlap(device):
        over = AttentionBlocks(2, registers, overlapped=True)
        found += [AttentionBlocks(overlapped=True), over, over._replace(fetched=True)]
    return list(dict.fromkeys(found))
