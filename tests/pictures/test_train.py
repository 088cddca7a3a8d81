"""Training and judging, on a handful of discs: it learns, goes on where it was cut, and draws what it learned."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from edgewise.models.diffusion.starter.files import TEXT_WEIGHTS, TOKENIZER, load_encoder, load_starter
from edgewise.models.diffusion.starter.network import StarterNetwork
from edgewise.models.diffusion.starter.tiny import TINY, make_tiny_pictures
from edgewise.models.tiny import local_files
from scripts.pictures.build import encode
from scripts.pictures.dataset import PICTURES, Captions, read_pictures, write_pictures
from scripts.pictures.judge import Task, blind, count_hits, cut, read_tasks, sheet, shows
from scripts.pictures.recipe import Recipe
from scripts.pictures.train import Plan, Trainer
from tests.pictures.test_data import apple, disc

PLAN = Plan(batch=8, rate=3e-3, warmup=5, average=0.9, narrow=False)
PLAIN = Recipe(recolour=0, ground=0, pair=0, unnamed=0.1, shift=0)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training folder: red and green discs, one concept held out, and the encoder of a tiny model."""
    folder = make_tiny_pictures(tmp_path_factory.mktemp("data"))
    records = [
        apple(concept="red cat", keywords=(), identity="a"),
        apple(concept="green dog", keywords=(), identity="b", hue=0.36, colour="green"),
        apple(concept="blue house", keywords=(), identity="c", held_out=True),
    ]
    pictures = [encode(disc(colour, 64)) for colour in ((220, 30, 30), (30, 160, 60), (40, 90, 220))]
    write_pictures(folder / PICTURES, [asdict(record) for record in records], pictures)
    return folder


def trainer(data: Path) -> Trainer:
    torch.manual_seed(0)
    captions = Captions(load_encoder(local_files(data), TINY), TINY.text_tokens, remember=True)
    return Trainer(read_pictures(data / PICTURES, TINY.size), captions, StarterNetwork(TINY), PLAN, PLAIN, "cpu")


def run(trained: Trainer, steps: int) -> list[float]:
    batches = trained.dishes()
    losses = []
    for _ in range(steps):
        torch.manual_seed(trained.steps)
        losses.append(float(trained.step(next(batches), 0.1)))
    return losses


def test_the_loss_falls_and_held_out_pictures_are_not_shown(data: Path) -> None:
    trained = trainer(data)
    assert [record.concept for record in trained.trained.records] == ["red cat", "green dog"]
    losses = run(trained, 60)
    assert np.mean(losses[-10:]) < 0.5 * np.mean(losses[:10])


def test_a_run_cut_in_two_ends_as_a_whole_one(data: Path, tmp_path: Path) -> None:
    whole, first = trainer(data), trainer(data)
    run(whole, 3)
    run(first, 3)
    first.save(tmp_path / "checkpoint.pt")
    second = trainer(data)
    second.load(tmp_path / "checkpoint.pt")
    assert second.steps == 3
    # Which pictures come is a function of where a piece begins, so both go on from a fresh stream of them.
    assert run(whole, 3) == run(second, 3)
    for one, other in zip(whole.average.parameters(), second.average.parameters(), strict=True):
        assert torch.equal(one, other)


def test_captions_are_read_as_the_model_reads_prompts(data: Path) -> None:
    encoder = load_encoder(local_files(data), TINY)
    for remember in (False, True):
        captions = Captions(encoder, TINY.text_tokens, remember=remember)
        for _ in range(2):
            text = captions.encode(["a red cat", "", "dog"], torch.tensor([True, True, False]))
            states, pooled = encoder.encode("a red cat", TINY.text_tokens)
            assert text.given.tolist() == [True, False, False]
            assert text.mask.sum(1).tolist() == [5, 2, 3]
            assert torch.allclose(text.tokens[0, :5], states, atol=1e-5)
            assert torch.allclose(text.pooled[0], pooled, atol=1e-5)


def test_the_commands_train_in_pieces_and_draw(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    sizes = [f"--net-{name.replace('_', '-')}={value}" for name, value in asdict(TINY).items()]
    train = [
        sys.executable,
        "-m",
        "scripts.pictures.train",
        f"--data={data}",
        f"--out={out}",
        "--device=cpu",
        "--threads=1",
    ]
    for total in (1.0, 2.0):
        subprocess.run([*train, "--seconds=1", f"--total={total}", "--plan-batch=8", *sizes], check=True, timeout=120)
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    ends = [line for line in lines if "held_out" in line]
    assert len(ends) == 2
    assert ends[1]["steps"] > ends[0]["steps"] > 0
    assert ends[1]["seconds"] >= 2
    for name in (TEXT_WEIGHTS, TOKENIZER):
        (out / name).write_bytes((data / name).read_bytes())
    (out / "checkpoint.pt").unlink()
    assert load_starter(local_files(out)).traits.best == (TINY.size, TINY.size)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(f"a {word} | {word}" for word in "abcdefghijkl"))
    judge = [
        sys.executable,
        "-m",
        "scripts.pictures.judge",
        "draw",
        "--model",
        str(out),
        "--out",
        str(tmp_path / "drawn"),
    ]
    subprocess.run([*judge, "--prompts", str(prompts)], check=True, timeout=120)
    assert np.load(tmp_path / "drawn/drawn.npy").shape == (12, TINY.size, TINY.size, 3)
    key = json.loads((tmp_path / "drawn/key.json").read_text())
    choices = (tmp_path / "drawn/choices.txt").read_text().splitlines()
    for line in choices:
        number, _, labels = line.partition(": ")
        assert len(set(labels.split(", "))) == 10
        assert key[number] in labels.split(", ")
    answers = tmp_path / "answers.txt"
    answers.write_text("".join(f"{number}: {label if int(number) > 3 else 'wrong'}\n" for number, label in key.items()))
    score = [sys.executable, "-m", "scripts.pictures.judge", "score", "--key", str(tmp_path / "drawn/key.json")]
    said = subprocess.run([*score, "--answers", str(answers)], check=True, timeout=120, capture_output=True, text=True)
    assert said.stdout.startswith("9 of 12 right, 75.0%")


def test_hits_count_what_the_nearest_training_pictures_show() -> None:
    records = [
        apple(concept=word, keywords=(), identity=f"{word}{i}") for word in ("cat", "dog", "sun") for i in range(12)
    ]
    known = torch.eye(3).repeat_interleave(12, 0) + 0.01 * torch.arange(36.0)[:, None] / 36
    tasks = [Task("a cat", ("cat",)), Task("two dogs", ("hound", "dog")), Task("the sun", ("sun",))]
    drawn = torch.tensor([[1.0, 0, 0], [0, 1.0, 0], [1.0, 0, 0]])
    hits = count_hits(drawn, known, records, tasks)
    assert (hits.first, hits.ten, hits.missed) == (0.6667, 0.6667, ["the sun"])
    assert hits.chance == round(1 / 6, 4)  # the third picture shows a cat
    assert shows(apple(concept="ice creams", keywords=("dessert",)), ("ice cream",))
    assert not shows(apple(concept="catapult", keywords=()), ("cat",))


def test_the_prompts_are_48_and_sheets_can_be_cut_again(tmp_path: Path) -> None:
    tasks = read_tasks()
    assert len({task.prompt for task in tasks}) == 48
    drawn = np.random.default_rng(0).integers(0, 255, (48, 16, 16, 3), np.uint8)
    page, _, key = blind(drawn, tasks, 3)
    assert sorted(key, key=int) == [str(number) for number in range(1, 49)]
    assert page.size == sheet(drawn, [""] * 48).size
    sheet_of = np.full((6 * 18 + 2, 8 * 18 + 2, 3), 200, np.uint8)
    for place, picture in enumerate(drawn):
        top, left = 2 + place // 8 * 18, 2 + place % 8 * 18
        sheet_of[top : top + 16, left : left + 16] = picture
    Image.fromarray(sheet_of).save(tmp_path / "sheet.png")
    assert np.array_equal(cut(tmp_path / "sheet.png", 48, 16, 2, 8), drawn)
