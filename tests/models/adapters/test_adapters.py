"""Adapters as PEFT stores them: the arithmetic is that of the merged model, and rows keep their bits in any batch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from edgewise.core.errors import BadModelFile, UnsupportedModel
from edgewise.kernels.low_rank import LowRank, add_low_rank
from edgewise.models.adapters.layout import CONFIG, WEIGHTS, product_sizes, read_layout
from edgewise.models.adapters.loading import AdaptedRows, Adapter, adapter_bytes, load_adapter, own_part
from edgewise.models.decoder.config import read_config
from edgewise.models.decoder.parallel import ProcessGroup
from edgewise.models.tiny import local_files, make_tiny_model
from tests.fakes.adapters import ALL, adapter_files, make_adapter, merge
from tests.models.decoder.driver import Driver, load

CPU = torch.device("cpu")
TOKENS = [(7 * place) % 500 + 3 for place in range(40)]


def rows_of(adapter: Adapter, first: int, count: int) -> AdaptedRows:
    return AdaptedRows(adapter, torch.arange(first, first + count))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("llama"))


@pytest.fixture
def made(llama: Path, tmp_path: Path) -> Path:
    return make_adapter(tmp_path / "adapter", llama)


@pytest.mark.parametrize(
    ("family", "modules", "options"),
    [
        ("llama", ALL, {}),
        ("qwen2", ("q_proj", "v_proj"), {"use_rslora": True, "rank": 8}),
        ("phi3", ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"), {"alpha": 3}),
        ("gemma3", ALL, {"rank": 1}),
    ],
)
def test_logits_are_those_of_the_merged_model(
    family: str, modules: tuple[str, ...], options: dict[str, Any], tmp_path: Path
) -> None:
    model = make_tiny_model(tmp_path / "model", family=family)
    folder = make_adapter(tmp_path / "adapter", model, modules=modules, **options)
    merged = merge(model, folder, tmp_path / "merged")
    reference = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32)
    with torch.inference_mode():
        expected = reference(torch.tensor([TOKENS])).logits[0]
    decoder = load(local_files(model))
    adapter = load_adapter(adapter_files(folder), decoder.config, dtype=torch.float32, device=CPU)
    drive = Driver(decoder)
    got = drive.step([(TOKENS, 0, drive.pages(len(TOKENS)))], [rows_of(adapter, 0, len(TOKENS))])
    plain = Driver(decoder).whole(TOKENS)
    torch.testing.assert_close(got, expected, atol=2e-4, rtol=2e-4)
    assert float((plain - expected).abs().max()) > 0.05
    layout = read_layout(adapter_files(folder), decoder.config)
    assert adapter.nbytes == adapter_bytes(layout, torch.float32, decoder.config)


def test_rows_of_several_adapters_keep_their_bits_in_one_batch(llama: Path, tmp_path: Path) -> None:
    decoder = load(local_files(llama))
    adapters = [
        load_adapter(
            adapter_files(make_adapter(tmp_path / str(seed), llama, seed=seed, rank=1 + seed)),
            decoder.config,
            dtype=torch.float32,
            device=CPU,
        )
        for seed in range(2)
    ]
    sequences: list[tuple[list[int], Adapter | None]] = [
        (TOKENS, adapters[0]),
        (TOKENS[:17], None),
        (TOKENS[3:9], adapters[1]),
        (TOKENS[1:2], adapters[0]),
    ]
    alone = []
    for tokens, adapter in sequences:
        drive = Driver(decoder)
        adapted = [] if adapter is None else [rows_of(adapter, 0, len(tokens))]
        alone.append(drive.step([(tokens, 0, drive.pages(len(tokens)))], adapted))
    drive, firsts = Driver(decoder), [0]
    for tokens, _ in sequences:
        firsts.append(firsts[-1] + len(tokens))
    adapted = [
        AdaptedRows(
            adapter,
            torch.cat(
                [torch.arange(firsts[i], firsts[i + 1]) for i, (_, own) in enumerate(sequences) if own is adapter]
            ),
        )
        for adapter in adapters
    ]
    together = drive.step([(tokens, 0, drive.pages(len(tokens))) for tokens, _ in sequences], adapted)
    assert torch.equal(together, torch.cat(alone))
    assert not torch.equal(alone[0][:17], alone[1])


def test_a_gguf_model_takes_adapters_of_its_hugging_face_form(llama: Path, made: Path, tmp_path: Path) -> None:
    """Its query and key heads lie in pairs in the file; the adapter's do not."""
    packed = local_files(make_tiny_model(tmp_path / "gguf", format="gguf"))
    results = []
    for files in (local_files(llama), packed):
        decoder = load(files)
        adapter = load_adapter(adapter_files(made), decoder.config, dtype=torch.float32, device=CPU)
        drive = Driver(decoder)
        results.append(drive.step([(TOKENS, 0, drive.pages(len(TOKENS)))], [rows_of(adapter, 0, len(TOKENS))]))
    torch.testing.assert_close(results[0], results[1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"use_dora": True}, "'use_dora' is True"),
        ({"peft_type": "IA3"}, "'peft_type' is 'IA3'"),
        ({"bias": "all"}, "'bias' is all"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"rank_pattern": {"q_proj": 8}}, "rank_pattern"),
        ({"init_lora_weights": "pissa_niter_4"}, "'init_lora_weights' is pissa_niter_4"),
        ({"init_lora_weights": "olora"}, "'init_lora_weights' is olora"),
        ({"init_lora_weights": "corda"}, "'init_lora_weights' is corda"),
        ({"init_lora_weights": "loftq"}, "'init_lora_weights' is loftq"),
        ({"init_lora_weights": "lora_ga"}, "'init_lora_weights' is lora_ga"),
    ],
)
def test_other_kinds_are_refused_by_name(change: dict[str, Any], found: str, made: Path, llama: Path) -> None:
    scheme = json.loads((made / CONFIG).read_text())
    (made / CONFIG).write_text(json.dumps({**scheme, **change}))
    with pytest.raises(UnsupportedModel, match=found):
        read_layout(adapter_files(made), read_config(local_files(llama)))


@pytest.mark.parametrize("start", [True, False, None, "gaussian", "eva", "orthogonal"])
def test_ways_to_start_that_leave_the_model_alone_are_taken(start: object, made: Path, llama: Path) -> None:
    scheme = json.loads((made / CONFIG).read_text())
    (made / CONFIG).write_text(json.dumps({**scheme, "init_lora_weights": start}))
    assert read_layout(adapter_files(made), read_config(local_files(llama))).parts


@pytest.mark.parametrize(
    ("change", "error", "found"),
    [
        (lambda name, one: {name: one[:, :-1].contiguous()}, BadModelFile, "for this model it is"),
        (lambda name, one: {}, BadModelFile, "has no lora_A beside it"),
        (lambda name, one: {name: one, name.replace("layers.0", "layers.77"): one}, BadModelFile, "layer 77"),
        (lambda name, one: {name: one, "base_model.model.lm_head.lora_A.weight": one}, UnsupportedModel, "lm_head"),
        (lambda name, one: {name: one, name.replace("q_proj", "qq_proj"): one}, UnsupportedModel, "qq_proj"),
    ],
)
def test_matrices_that_do_not_fit_are_refused_by_name(
    change: Callable[[str, torch.Tensor], dict[str, torch.Tensor]],
    error: type[Exception],
    found: str,
    made: Path,
    llama: Path,
) -> None:
    tensors = load_file(made / WEIGHTS)
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    changed = change(name, tensors.pop(name))
    save_file({**tensors, **{key: one.clone() for key, one in changed.items()}}, made / WEIGHTS)
    with pytest.raises(error, match=found):
        read_layout(adapter_files(made), read_config(local_files(llama)))


def test_a_cut_file_and_a_glm_are_refused(made: Path, llama: Path, tmp_path: Path) -> None:
    config = read_config(local_files(llama))
    glm = read_config(local_files(make_tiny_model(tmp_path / "glm", family="glm")))
    with pytest.raises(UnsupportedModel, match="glm"):
        read_layout(adapter_files(made), glm)
    (made / WEIGHTS).write_bytes((made / WEIGHTS).read_bytes()[:-100])
    with pytest.raises(BadModelFile):
        read_layout(adapter_files(made), config)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 20), st.integers(1, 20), st.integers(0, 2**16))
def test_low_rank_additions_are_those_of_float64(rows: int, rank: int, eighths: int, outer: int, seed: int) -> None:
    """Widths are multiples of 8, as those of all models, and ranks are made so."""
    inner, outer, rank = 8 * eighths, 8 * outer, 8 * rank
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    x, out = random(rows, inner), random(rows, outer)
    mine = torch.nonzero(torch.rand(rows, generator=generator) < 0.5).flatten()
    pair, before = LowRank(random(rank, inner), random(outer, rank)), out.clone()
    add_low_rank(out, x, [(mine, pair)])
    expected = before.double()
    expected[mine] += x[mine].double() @ pair.down.double().T @ pair.up.double().T
    torch.testing.assert_close(out.double(), expected, atol=1e-3, rtol=1e-3)
    others = [row for row in range(rows) if row not in mine.tolist()]
    assert torch.equal(out[others], before[others])
    for row in mine.tolist()[:3]:
        alone = before[row : row + 1].clone()
        add_low_rank(alone, x[row : row + 1], [(torch.tensor([0]), pair)])
        assert torch.equal(alone[0], out[row])


def test_shapes_and_dtypes_are_checked() -> None:
    x, out, rows = torch.zeros(2, 3), torch.zeros(2, 4), torch.tensor([0])
    pair = LowRank(torch.zeros(1, 3), torch.zeros(4, 1))
    for wrong in (
        LowRank(torch.zeros(1, 2), pair.up),
        LowRank(pair.down, torch.zeros(5, 1)),
        LowRank(pair.down.half(), pair.up),
    ):
        with pytest.raises(ValueError, match="matrices"):
            add_low_rank(out, x, [(rows, wrong)])
    with pytest.raises(ValueError, match="int64"):
        add_low_rank(out, x, [(rows.int(), pair)])
    with pytest.raises(ValueError, match="one dtype"):
        add_low_rank(out.half(), x, [])


@pytest.mark.parametrize("size", [2, 4])
def test_a_device_of_several_holds_what_belongs_to_its_heads_and_columns(size: int, tmp_path: Path) -> None:
    """Of two KV heads; of four devices two hold each."""
    config = read_config(local_files(make_tiny_model(tmp_path / "model", heads=8)))
    head, inner = config.head_dim, config.ffn_size
    generator = torch.Generator().manual_seed(1)

    def heads(of: list[int], first: int = 0) -> list[int]:
        return [first + one * head + row for one in of for row in range(head)]

    for product, (rows, columns) in product_sizes(config).items():
        pair = LowRank(torch.randn(8, columns, generator=generator), torch.randn(rows, 8, generator=generator))
        whole = pair.up @ pair.down
        for rank in range(size):
            own = own_part(pair, product, config, ProcessGroup(rank, size))
            queries = heads(list(range(rank * 8 // size, (rank + 1) * 8 // size)))
            held = list(range(rank * 2 // size, max(rank * 2 // size + 1, (rank + 1) * 2 // size)))
            part = list(range(rank * inner // size, (rank + 1) * inner // size))
            if product == "qkv":
                wanted = whole[[*queries, *heads(held, 8 * head), *heads(held, 10 * head)]]
            elif product == "gate_up":
                wanted = whole[[*part, *(inner + one for one in part)]]
            else:
                wanted = whole[:, queries if product == "output" else part]
            assert torch.allclose(own.up @ own.down, wanted, atol=1e-5), (product, rank)
