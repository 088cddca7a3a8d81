from __future__ import annotations

import torch

from edgewise.kernels.paging import PAGE_TOKENS, KVLayer

_LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}


def rows(slots: torch.Tensor, kv_heads: int) -> torch.Tensor:
    heads = torch.arange(kv_heads, device=slots.device)
    pages = torch.div(slots, PAGE_TOKENS, rounding_mode="floor")
    return ((pages[:, None] * kv_heads + heads) * PAGE_TOKENS + (slots % PAGE_TOKENS)[:, None]).flatten()


def write(kv: KVLayer, k: torch.Tensor, v: torch.Tensor, rows: torch.Tensor) -> None:
    for pages, new in ((kv.k, k), (kv.v, v)):
        pages.view(-1, k.shape[2]).index_copy_(0, rows, new.reshape(-1, k.shape[2]).to(pages.dtype))


def write_scaled(
    kv: KVLayer, k_scale: torch.Tensor, v_scale: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rows: torch.Tensor
) -> None:
    values, scales = quantize(torch.stack((k.float(), v.float())).flatten(1, 2), kv.k.dtype)
    stored = values.view(torch.uint8)  # bytes are copied in any version of torch, numbers of 8 bits not on every device
    for index, (pages, page_scales) in enumerate(((kv.k, k_scale), (kv.v, v_scale))):
        pages.view(torch.uint8).view(-1, k.shape[2]).index_copy_(0, rows, stored[index])
        page_scales.view(-1).index_copy_(0, rows, scales[index])


def quantize(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """x [..., n] float32 -> values [..., n] int8 or float8_e4m3fn and scales [...] float32."""
    most = _LARGEST[dtype]
    largest = x.abs().amax(dim=-1)
    # Divided by a tensor: by a number torch multiplies with its inverse on CUDA, and the last bit of a scale turns codes.
    # Subtracting a number from itself gives 0, or NaN if it is infinite or NaN.
    scales = (largest / torch.full_like(largest, most)).add_(largest - largest)
    divisors = scales.masked_fill(scales == 0, 1.0).unsqueeze(-1)
    values = x / divisors
    if dtype is torch.int8:
        values = values.round_()
    return values.clamp_(-most, most).nan_to_num_(nan=0.0).to(dtype), scales
