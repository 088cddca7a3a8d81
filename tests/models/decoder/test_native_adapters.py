"""Adapters on the native kernels: the arithmetic of the merged model, and a row's bits the same in any batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from edgewise.kernels.low_rank import LowRank
from edgewise.kernels.native import library
from edgewise.models.adapters.layout import read_layout
from edgewise.models.adapters.loading import AdaptedRows, Adapter, load_adapter
from edgewise.models.decoder.model import Decoder
from edgewise.models.decoder.native.adapters import NativeAdapter, native_adapter_bytes, pack_adapter
from edgewise.models.decoder.native.formats import Quantize
from edgewise.models.decoder.native.loading import load_native
from edgewise.models.decoder.native.memory import native_workspace_bytes
from edgewise.models.decoder.native.model import NativeDecoder
from edgewise.models.tiny import local_files, make_tiny_model
from tests.fakes.adapters import ALL, adapter_files, make_adapter, merge
from tests.models.decoder.driver import Driver, load

CPU = torch.device("cpu")
TOKENS = [(7 * place) % 500 + 3 for place in range(40)]
UNEVEN = {"head_dim": 40, "heads": 6, "kv_heads": 2, "hidden": 96, "intermediate": 200}
PHI = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")


@pytest.fixture(autouse=True)
def pool() -> Iterator[None]:
    library.set_threads(2)
    yield
    library.use_isa("")
    library.set_threads(1)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("llama"))


def native(model: Path, quantize: Quantize = "none", dtype: str = "float32") -> NativeDecoder:
    return load_native(local_files(model), dtype=dtype, quantize=quantize)


def adapter_of(folder: Path, decoder: NativeDecoder) -> NativeAdapter:
    read = load_adapter(adapter_files(folder), decoder.config, dtype=torch.float32, device=CPU)
    return pack_adapter(read, decoder)


def driver(decoder: NativeDecoder, **options: Any) -> Driver:
    return Driver(cast("Decoder", decoder), **options)


def run(decoder: NativeDecoder, work: Sequence[tuple[list[int], Adapter | None]], **options: Any) -> torch.Tensor:
    """Logits of several texts in one step, each with its adapter."""
    drive, first = driver(decoder, num_pages=300, **options), 0
    rows: dict[Adapter, list[int]] = {}
    for tokens, adapter in work:
        if adapter is not None:
            rows.setdefault(adapter, []).extend(range(first, first + len(tokens)))
        first += len(tokens)
    adapted = [AdaptedRows(adapter, torch.tensor(own)) for adapter, own in rows.items()]
    return drive.step([(tokens, 0, drive.pages(len(tokens))) for tokens, _ in work], adapted)


@pytest.mark.parametrize(
    ("family", "modules", "options", "shape"),
    [
        ("llama", ALL, {}, {}),
        ("llama", ALL, {"rank": 3}, UNEVEN),
        ("llama", ("up_proj",), {"rank": 32}, {}),
        ("qwen2", ("q_proj", "v_proj"), {"use_rslora": True, "rank": 8}, {}),
        ("phi3", PHI, {"alpha": 3}, {}),
        ("gemma3", ALL, {"rank": 1}, {}),
    ],
    ids=str,
)
def test_logits_are_those_of_the_merged_model(
    family: str, modules: tuple[str, ...], options: dict[str, Any], shape: dict[str, Any], tmp_path: Path
) -> None:
    model = make_tiny_model(tmp_path / "model", family=family, **shape)
    folder = make_adapter(tmp_path / "adapter", model, modules=modules, **options)
    merged = Driver(load(local_files(merge(model, folder, tmp_path / "merged")))).whole(TOKENS)
    decoder = native(model)
    adapter = adapter_of(folder, decoder)
    found = run(decoder, [(TOKENS, adapter)])
    torch.testing.assert_close(found, merged, atol=3e-4, rtol=3e-4)
    for at in (0, 7, 39):  # few rows go another way
        one = driver(decoder)
        pages = one.pages(40)
        if at:
            one.step([(TOKENS[:at], 0, pages)], [AdaptedRows(adapter, torch.arange(at))])
        last = one.step([(TOKENS[at : at + 1], at, pages)], [AdaptedRows(adapter, torch.tensor([0]))])
        assert torch.equal(last[0], found[at])
    assert float((run(decoder, [(TOKENS, None)]) - merged).abs().max()) > 0.05
    assert adapter.nbytes <= native_adapter_bytes(read_layout(adapter_files(folder), decoder.config), decoder.config)


@pytest.mark.parametrize("quantize", ["none", "int8", "int4"])
def test_rows_keep_their_bits_whatever_adapters_stand_beside_them(
    quantize: Quantize, llama: Path, tmp_path: Path
) -> None:
    """Those without one too: theirs are the bits of a step without adapters."""
    decoder = native(llama, quantize)
    some = [adapter_of(make_adapter(tmp_path / str(n), llama, seed=n, rank=1 + 9 * n), decoder) for n in range(2)]
    long = [(5 * place) % 500 + 2 for place in range(150)]
    work: list[tuple[list[int], Adapter | None]] = [
        (TOKENS, some[0]),
        (TOKENS[:17], None),
        (TOKENS[3:9], some[1]),
        (TOKENS[1:2], some[0]),
        (long, some[1]),
        (TOKENS[2:3], None),
    ]
    alone = [run(decoder, [one]) for one in work]
    assert torch.equal(run(decoder, work), torch.cat(alone))
    assert torch.equal(run(decoder, work[2:4]), torch.cat(alone[2:4]))
    assert torch.equal(alone[1], driver(decoder).whole(TOKENS[:17]))
    assert not torch.equal(alone[0][:17], alone[1])


def test_same_bits_on_any_threads_and_instruction_set(llama: Path, tmp_path: Path) -> None:
    decoder = native(llama, "int4")
    adapter = adapter_of(make_adapter(tmp_path / "one", llama, rank=5), decoder)
    work: list[tuple[list[int], Adapter | None]] = [(TOKENS, adapter), (TOKENS[:3], None)]

    def bits() -> torch.Tensor:
        return torch.cat((run(decoder, work, kv_dtype=torch.int8), run(decoder, [(TOKENS[:2], adapter)])))

    expected = bits()
    for threads in (1, 3, 8):
        library.set_threads(threads)
        assert torch.equal(bits(), expected), threads
    for isa in ("generic", *(["avx2"] if library.isa() == "avx512-vnni" else [])):
        library.use_isa(isa)
        assert torch.equal(bits(), expected), isa


def test_rounded_weights_change_what_adapters_add_by_rounding_alone(llama: Path, tmp_path: Path) -> None:
    folder = make_adapter(tmp_path / "one", llama)
    decoder = native(llama, "int8")
    exact = load(local_files(llama))
    read = load_adapter(adapter_files(folder), exact.config, dtype=torch.float32, device=CPU)
    drive = Driver(exact)
    expected = drive.step([(TOKENS, 0, drive.pages(40))], [AdaptedRows(read, torch.arange(40))])
    found = run(decoder, [(TOKENS, adapter_of(folder, decoder))])
    assert float((found - expected).norm() / expected.norm()) < 0.05


def test_a_step_takes_no_more_than_is_booked_for_adapters(llama: Path, tmp_path: Path) -> None:
    decoder = native(llama, "int8")
    adapter = adapter_of(make_adapter(tmp_path / "one", llama, rank=64), decoder)
    run(decoder, [(TOKENS * 8, adapter)])
    run(decoder, [(TOKENS[:3], adapter)])
    assert decoder.step.workspace_bytes() < native_workspace_bytes(decoder.config, 320, 1, adapters=True)


def test_what_does_not_fit_is_refused(llama: Path, tmp_path: Path) -> None:
    decoder = native(llama)
    read = load_adapter(
        adapter_files(make_adapter(tmp_path / "one", llama)), decoder.config, dtype=torch.float32, device=CPU
    )
    with pytest.raises(ValueError, match="the adapter 'adapter' is not packed for native kernels"):
        run(decoder, [(TOKENS, read)])
    pair = read.pairs[0, "down"]
    for wrong in (
        LowRank(pair.down[:, :-1], pair.up),
        LowRank(pair.down[:7], pair.up[:, :7]),
        LowRank(pair.down, pair.up[1:]),
    ):
        with pytest.raises(ValueError, match="an adapter of a product"):
            decoder.step.adapt({(0, "down"): wrong})
    experts = native(make_tiny_model(tmp_path / "moe", family="mixtral"))
    with pytest.raises(ValueError, match="layer 0 has experts"):
        experts.step.adapt({(0, "down"): pair})
