"""Pages that leave the device come back bit for bit, in every format, into the same pages or others."""

import pytest
import torch

from edgewise.engine.tiers.mover import KVPageMover
from edgewise.kernels.paging import PAGE_TOKENS, KVLayer

PAGES, HEADS, DIM, LAYERS = 9, 3, 20, 2
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no usable CUDA device")),
]


def random_bits(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    """Every bit pattern may occur, NaN with payloads included."""
    raw = torch.randint(0, 256, (*shape[:-1], shape[-1] * dtype.itemsize), dtype=torch.uint8)
    return raw.view(dtype).to(device)


def layers_of(dtype: torch.dtype, device: str) -> list[KVLayer]:
    shape = (PAGES, HEADS, PAGE_TOKENS, DIM)
    scaled = dtype.itemsize == 1
    return [
        KVLayer(
            random_bits(shape, dtype, device),
            random_bits(shape, dtype, device),
            random_bits(shape[:3], torch.float32, device) if scaled else None,
            random_bits(shape[:3], torch.float32, device) if scaled else None,
        )
        for _ in range(LAYERS)
    ]


def bits(layers: list[KVLayer], page: int) -> list[torch.Tensor]:
    parts = [part for layer in layers for part in (layer.k, layer.v, layer.k_scale, layer.v_scale) if part is not None]
    return [part[page].contiguous().flatten().view(torch.uint8).cpu().clone() for part in parts]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.float8_e4m3fn])
def test_a_page_comes_back_bit_for_bit(dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = layers_of(dtype, device)
    mover = KVPageMover(layers)
    monkeypatch.setattr(mover, "_batch", 2)  # three pages take two transfers
    before = [bits(layers, page) for page in range(PAGES)]
    contents = mover.export([7, 0, 4])
    assert [content.nbytes for content in contents] == [mover.page_bytes] * 3
    assert mover.page_bytes == sum(part.numel() for part in before[0])
    assert torch.equal(torch.frombuffer(bytearray(contents[0]), dtype=torch.uint8), torch.cat(before[7]))

    for layer in layers:
        layer.k.view(torch.uint8).zero_()
    mover.restore([1, 2, 7], contents)
    after = [bits(layers, page) for page in range(PAGES)]
    for target, source in ((1, 7), (2, 0), (7, 4)):
        assert all(torch.equal(a, b) for a, b in zip(after[target], before[source], strict=True))
    assert not after[3][0].any()  # other pages are not written


def test_an_export_does_not_follow_later_writes() -> None:
    layers = layers_of(torch.int8, "cpu")
    mover = KVPageMover(layers)
    first = mover.export([3])[0]
    kept = bytes(first)
    mover.export([5])
    layers[0].k[3].fill_(1)
    assert bytes(first) == kept


def test_nothing_is_written_when_contents_do_not_fit() -> None:
    layers = layers_of(torch.float16, "cpu")
    mover = KVPageMover(layers)
    before = [bits(layers, page) for page in range(PAGES)]
    content = mover.export([0])[0]
    for pages, contents in (([1, 2], [content]), ([1], [content[:-8]]), ([1, 1], [content, content])):
        with pytest.raises(ValueError, match="page"):
            mover.restore(pages, contents)
    for page in range(PAGES):
        assert all(torch.equal(a, b) for a, b in zip(bits(layers, page), before[page], strict=True))
