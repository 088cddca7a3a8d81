"""What a tuner tries: small lists by type of weight, number of rows and card, the default first."""

from __future__ import annotations

import torch

from edgewise.kernels.paging import SCALED_FORMATS
from edgewise.kernels.triton.blocks import STEP_4BIT, Blocks, Form, choose_blocks, fitting, is_float
from edgewise.kernels.triton.decode_attention import AttentionBlocks, AttentionForm
from edgewise.kernels.triton.launch import can_overlap

_FETCHED = 65536


def forms_of(codes: torch.dtype) -> tuple[Form, ...]:
    """Forms in which weights of a type are multiplied."""
    if is_float(codes):
        return ("plain",)
    return ("plain", "ptx") if codes == torch.float8_e4m3fn else ("plain", "ptx", "integers")


def product_candidates(
    codes: torch.dtype, shape: tuple[int, int], rows: int, gated: bool, device: torch.device, form: Form
) -> list[Blocks]:
    """Ways to cut a product with a weight [out, in]; `rows` is a class of rows."""
    if is_float(codes):
        tried = _of_floats(codes, rows)
    elif form == "integers":
        tried = [Blocks(columns, STEP_4BIT, stages, form=form) for columns in (16, 32) for stages in (2, 3, 4)]
    else:
        steps = (STEP_4BIT,) if codes == torch.uint8 else (256, 512)
        tried = [Blocks(columns, step, 4, form=form) for columns in (16, 32) for step in steps]
        tried += [Blocks(columns, STEP_4BIT, stages, form=form) for columns in (16, 32) for stages in (3, 5)]
    if can_overlap(device):
        alone = [blocks for blocks in tried if not blocks.wide]
        tried += [blocks._replace(overlapped=True) for blocks in alone[:6]]
        if is_float(codes) and rows <= 16:
            tried += _holding(shape[1])
    default = choose_blocks(codes, shape, rows, gated, device, form)
    return list(dict.fromkeys([default, *(fitting(blocks, rows, gated, device) for blocks in tried)]))


def _of_floats(codes: torch.dtype, rows: int) -> list[Blocks]:
    if rows <= 8:
        return [Blocks(16, 512, 4), Blocks(16, 256, 5), Blocks(32, 256, 3), Blocks(32, 512, 3), Blocks(16, 1024, 3)]
    found = [Blocks(32, 256, 4), Blocks(16, 512, 3), Blocks(16, 256, 4), Blocks(32, 256, 3)]
    if codes != torch.float32:
        found += [Blocks(columns, 256, stages, wide=True) for columns, stages in ((16, 4), (32, 4), (64, 3), (64, 2))]
    return found


def _holding(inner: int) -> list[Blocks]:
    """Weights loaded before the wait."""
    found = []
    for columns, step, stages in ((16, 512, 4), (32, 256, 3)):
        for held in (256, 512, 1024):
            if inner > held and (inner - held) % step == 0:
                blocks = Blocks(columns, step, stages, held=held, overlapped=True)
                found += [blocks, blocks._replace(fetched=_FETCHED)]
    return found


def attention_forms(stored: torch.dtype) -> list[AttentionForm]:
    """Forms of attention over pages of a type, the default first."""
    found = [AttentionForm(), AttentionForm(512), AttentionForm(1024), AttentionForm(512, 8)]
    if stored in SCALED_FORMATS:
        found += [AttentionForm(256, 4, True), AttentionForm(512, 4, True), AttentionForm(512, 8, True)]
    return found


def attention_candidates(device: torch.device, head_dim: int) -> list[AttentionBlocks]:
    """Ways to launch a form of attention, the default first."""
    found = [AttentionBlocks(), AttentionBlocks(2), AttentionBlocks(4)]
    if head_dim <= 128:
        found += [AttentionBlocks(2, 128), AttentionBlocks(3, 128)]
    if can_overlap(device):
        found += [blocks._replace(overlapped=True) for blocks in found]
        found.append(AttentionBlocks(2, 128 if head_dim <= 128 else 0, fetched=True, overlapped=True))
    return found
