"""A token's logits have the same bits in any batch, chunking and process, in every dtype: streams continue byte-equal."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgewise.models.decoder.loading import load_decoder

CLASSES = [
    (torch.float32, torch.float32),
    (torch.float32, torch.int8),
    (torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, torch.int8),
    (torch.float16, torch.float16),
]
# Head size 40 and an inner size of 200 meet the ends of vectors; 2112 the products that 16-bit kernels split.
SIZES = {"head_dim": 40, "heads": 6, "kv_heads": 2, "hidden": 96, "intermediate": 2112}


def prompts(count: int, longest: int) -> list[list[int]]:
    chance = random.Random(4)
    return [[chance.randrange(512) for _ in range(chance.randint(1, longest))] for _ in range(count)]


@pytest.mark.parametrize(("dtype", "kv_dtype"), CLASSES)
def test_same_bits_alone_batched_and_chunked(
    dtype: torch.dtype, kv_dtype: torch.dtype, driver: Callable[..., Any], tiny_model_factory: Callable[..., Any]
) -> None:
    drive = driver(tiny_model_factory(**SIZES), dtype, kv_dtype=kv_dtype, num_pages=600)
    texts = [*prompts(15, 70), prompts(1, 1)[0] * 300]
    alone = [drive.whole(text) for text in texts]
    assert torch.cat(alone).isfinite().all()

    pages = [drive.pages(len(text)) for text in texts]
    together = drive.step([(text, 0, p) for text, p in zip(texts, pages, strict=True)])
    assert torch.equal(together, torch.cat(alone))

    last = drive.step([(text[-1:], len(text) - 1, p) for text, p in zip(texts, pages, strict=True)])
    assert torch.equal(last, torch.stack([rows[-1] for rows in alone]))

    assert torch.equal(drive.chunked(texts[-1], [3, 100, 1, 1, 150, 45]), alone[-1])
    assert torch.equal(drive.chunked(texts[0], [1] * len(texts[0])), alone[0])


@pytest.mark.parametrize("family", ["gemma2", "gemma3", "phi3", "mixtral"])
@pytest.mark.parametrize(("dtype", "kv_dtype"), [CLASSES[0], CLASSES[3]])
def test_same_bits_in_families_with_windows_caps_and_experts(
    family: str,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    driver: Callable[..., Any],
    tiny_model_factory: Callable[..., Any],
) -> None:
    drive = driver(tiny_model_factory(family=family), dtype, kv_dtype=kv_dtype, num_pages=200)
    texts = prompts(12, 90)
    alone = [drive.whole(text) for text in texts]
    assert torch.cat(alone).isfinite().all()
    pages = [drive.pages(len(text)) for text in texts]
    together = drive.step([(text, 0, p) for text, p in zip(texts, pages, strict=True)])
    assert torch.equal(together, torch.cat(alone))
    last = drive.step([(text[-1:], len(text) - 1, p) for text, p in zip(texts, pages, strict=True)])
    assert torch.equal(last, torch.stack([rows[-1] for rows in alone]))


@st.composite
def schedules(draw: st.DrawFn) -> list[tuple[int, list[int]]]:
    """Per sequence: the round in which it starts and its chunk sizes, one a round."""
    sequence = st.tuples(st.integers(0, 3), st.lists(st.integers(1, 25), min_size=1, max_size=5))
    return draw(st.lists(sequence, min_size=1, max_size=5))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    schedule=schedules(),
    family=st.sampled_from(["llama", "qwen3", "gemma2", "gemma3", "glm4", "qwen3_moe"]),
    kv=st.sampled_from(["float32", "int8"]),
)
def test_any_schedule_gives_the_same_bits(
    schedule: list[tuple[int, list[int]]],
    family: str,
    kv: str,
    driver: Callable[..., Any],
    tiny_model_factory: Callable[..., Any],
) -> None:
    """Sequences advance by chunks of any size, in any company, until all are done."""
    drive = driver(tiny_model_factory(family=family), kv_dtype=getattr(torch, kv), num_pages=128)
    texts = [[(7 * i + 13 * at) % 512 for at in range(sum(sizes))] for i, (_, sizes) in enumerate(schedule)]
    alone = [drive.whole(text) for text in texts]
    pages, done = [drive.pages(len(text)) for text in texts], [0] * len(texts)
    for turn in range(8):
        work, expected = [], []
        for i, (start, sizes) in enumerate(schedule):
            if start <= turn < start + len(sizes):
                begin, end = done[i], done[i] + sizes[turn - start]
                work.append((texts[i][begin:end], begin, pages[i]))
                expected.append(alone[i][begin:end])
                done[i] = end
        if work:
            assert torch.equal(drive.step(work), torch.cat(expected))
    assert done == [len(text) for text in texts]


CONTINUE = """
import sys, torch
sys.path.insert(0, {folder!r})
from driver import Driver, load
from pathlib import Path
from edgewise.models.tiny import local_files
torch.set_num_threads(1)
drive = Driver(load(local_files(Path({model!r})), torch.{dtype}), torch.{kv})
tokens = {tokens!r}
pages = drive.pages(200)
logits = drive.step([(tokens, 0, pages)])[-1:]
for at in range(len(tokens), len(tokens) + {count}):
    token = int(logits.argmax())
    print(token, logits.sum().item().hex())
    logits = drive.step([([token], at, pages)])
"""


@pytest.mark.parametrize(("dtype", "kv"), [("float32", "int8"), ("bfloat16", "bfloat16")])
def test_another_process_continues_the_stream_in_the_same_bits(
    dtype: str, kv: str, tiny_model_factory: Callable[..., Any]
) -> None:
    files = tiny_model_factory()
    model = str(next(iter(files.paths.values())).parent)
    prompt = prompts(1, 40)[0] + [5] * 20

    def run(tokens: list[int], count: int) -> list[str]:
        code = CONTINUE.format(
            folder=str(Path(__file__).parent), model=model, dtype=dtype, kv=kv, tokens=tokens, count=count
        )
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        return done.stdout.splitlines()

    undisturbed = run(prompt, 40)
    delivered = [int(line.split()[0]) for line in undisturbed[:23]]
    assert run(prompt + delivered, 17) == undisturbed[23:]


def test_wrong_shapes_are_named(driver: Callable[..., Any], tiny_model: Any) -> None:
    drive = driver(tiny_model)
    drive.kv.pop()
    with pytest.raises(ValueError, match="2 layers expected"):
        drive.whole([1, 2, 3])


def test_repr_names_the_model(tiny_model: Any) -> None:
    decoder = load_decoder(tiny_model, device=torch.device("cpu"), dtype=torch.bfloat16)
    assert repr(decoder) == "Decoder(llama, 2 layers, torch.bfloat16, cpu)"
