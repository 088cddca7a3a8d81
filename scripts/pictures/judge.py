"""Judges a picture model. `python -m scripts.pictures.judge draw|hits|score --help`.

`draw` draws the prompts of prompts.txt and lays them out as sheets: with captions, and without for a blind reading, in which
every picture has ten labels to choose from. `hits` counts for how many prompts the thing asked for is among what the ten
nearest training pictures show, by features of a classifier. `score` counts right answers of a blind reading.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw

from edgewise.models.diffusion.protocol import Brief
from edgewise.models.diffusion.starter.files import load_starter
from edgewise.models.tiny import local_files
from scripts.pictures.dataset import PICTURES, Record, read_pictures
from scripts.pictures.features import Features

Pixels = npt.NDArray[np.uint8]

PROMPTS: Final = Path(__file__).with_name("prompts.txt")
_NEAREST: Final = 10
_LABELS: Final = 10
_COLUMNS: Final = 8
_LINE: Final = 11  # pixels of a line of text
_REFERENCE: Final = 128  # side of the training pictures that others are compared with


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt, and words of which one names what must be seen."""

    prompt: str
    targets: tuple[str, ...]


def read_tasks(path: Path = PROMPTS) -> list[Task]:
    """The tasks of a prompts file."""
    lines = [line.split("|") for line in path.read_text(encoding="utf-8").splitlines() if line and line[0] != "#"]
    return [Task(prompt.strip(), tuple(word.strip() for word in targets.split(","))) for prompt, targets in lines]


# --- drawing and sheets ---


def draw(
    folder: Path, tasks: list[Task], *, seed: int, steps: int | None, guidance: float | None, device: str = "cpu"
) -> Pixels:
    """One picture a task by the starter model in `folder`, [tasks, size, size, 3]."""
    model = load_starter(local_files(folder), device=device)
    traits = model.traits
    width, height = traits.best
    pictures = []
    for task in tasks:
        brief = Brief(
            prompt=task.prompt,
            negative_prompt="",
            width=width,
            height=height,
            steps=steps or traits.steps,
            guidance=guidance or traits.guidance,
            seed=seed,
        )
        with torch.inference_mode():
            canvas = model.begin(brief)
            while not canvas.done:
                for _ in model.step([canvas]):
                    pass
            pictures.append(model.decode(canvas))
    return np.stack(pictures)


def sheet(pictures: Pixels, captions: list[str], side: int = 128) -> Image.Image:
    """Pictures in rows of eight, each with its caption below."""
    high = side + 3 * _LINE
    rows = -(-len(pictures) // _COLUMNS)
    page = Image.new("RGB", (_COLUMNS * (side + 4), rows * high), "white")
    pen = ImageDraw.Draw(page)
    for place, (picture, caption) in enumerate(zip(pictures, captions, strict=True)):
        left, top = place % _COLUMNS * (side + 4) + 2, place // _COLUMNS * high
        page.paste(Image.fromarray(picture).resize((side, side), Image.Resampling.LANCZOS), (left, top))
        for row, line in enumerate(textwrap.wrap(caption, side // 6)[:2]):
            pen.text((left, top + side + row * _LINE), line, fill="black")
    return page


def blind(pictures: Pixels, tasks: list[Task], seed: int) -> tuple[Image.Image, str, dict[str, str]]:
    """A sheet in random order with numbers only, ten labels to choose from for each number, and the right label of each."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    order = list(range(len(tasks)))
    chance.shuffle(order)
    labels = sorted({task.targets[0] for task in tasks})
    key: dict[str, str] = {}
    lines = []
    for number, place in enumerate(order, start=1):
        task = tasks[place]
        wrong = [label for label in labels if label not in task.targets]
        choices = [*chance.sample(wrong, _LABELS - 1), task.targets[0]]
        chance.shuffle(choices)
        key[str(number)] = task.targets[0]
        lines.append(f"{number}: {', '.join(choices)}")
    page = sheet(pictures[order], [str(number) for number in range(1, len(order) + 1)])
    return page, "\n".join(lines) + "\n", key


def cut(page: Path, count: int, side: int, gap: int, columns: int) -> Pixels:
    """The pictures of somebody's sheet: `count` squares of `side` pixels in rows of `columns`, `gap` apart and from the edge."""
    pixels = np.asarray(Image.open(page).convert("RGB"))
    corners = [(gap + i // columns * (side + gap), gap + i % columns * (side + gap)) for i in range(count)]
    return np.stack([pixels[top : top + side, left : left + side] for top, left in corners])


# --- hits ---


@dataclass(frozen=True, slots=True)
class Hits:
    """Shares of tasks. `first` and `ten`: the thing is on the nearest training picture, on one of the ten nearest. `chance`: ten
    nearest, for the words of all other tasks. `missed`: prompts without a hit."""

    first: float
    ten: float
    chance: float
    missed: list[str]


def shows(record: Record, targets: tuple[str, ...]) -> bool:
    """Whether the captions of a training picture name one of `targets`."""
    text = " | ".join((record.concept, *record.keywords))
    return any(re.search(rf"\b{re.escape(word)}(s|es)?\b", text) for word in targets)


def unit(features: torch.Tensor, middle: torch.Tensor) -> torch.Tensor:
    """Directions from the middle of all training pictures: what all pictures share says nothing."""
    return torch.nn.functional.normalize(features - middle, dim=1)


def count_hits(drawn: torch.Tensor, known: torch.Tensor, records: list[Record], tasks: list[Task]) -> Hits:
    """Hits of the features `drawn` [tasks, features] among those of the training pictures, `known` [pictures, features]."""
    middle = known.mean(0)
    nearest = (unit(drawn, middle) @ unit(known, middle).T).topk(_NEAREST, dim=1).indices
    names = torch.tensor([[shows(record, task.targets) for record in records] for task in tasks])
    found = names[:, nearest].any(2)  # [words of task, picture of task]
    own = found.diagonal()
    others = (found.sum() - own.sum()).item() / (len(tasks) * (len(tasks) - 1))
    first = names[torch.arange(len(tasks)), nearest[:, 0]].float().mean().item()
    missed = [task.prompt for task, hit in zip(tasks, own.tolist(), strict=True) if not hit]
    return Hits(round(first, 4), round(own.float().mean().item(), 4), round(others, 4), missed)


def training_features(data: Path, cache: Path, features: Features) -> tuple[torch.Tensor, list[Record]]:
    """Features of all training pictures on white; kept in `cache`."""
    pictures = read_pictures(data / PICTURES, _REFERENCE)
    kept = cache / "features.pt"
    if kept.exists() and kept.stat().st_mtime > (data / PICTURES).stat().st_mtime:
        return torch.load(kept, weights_only=True), pictures.records
    batches = []
    for start in range(0, len(pictures.pixels), 64):
        shown = pictures.pixels[start : start + 64].float()
        alpha = shown[:, 3:] / 255
        batches.append(features((shown[:, :3] * alpha + 255 * (1 - alpha)).round().byte().permute(0, 2, 3, 1)))
    known = torch.cat(batches)
    torch.save(known, kept)
    return known, pictures.records


# --- commands ---


def draw_command(options: argparse.Namespace) -> None:
    tasks = read_tasks(options.prompts)
    options.out.mkdir(parents=True, exist_ok=True)
    pictures = draw(
        options.model, tasks, seed=options.seed, steps=options.steps, guidance=options.guidance, device=options.device
    )
    np.save(options.out / "drawn.npy", pictures)
    sheet(pictures, [task.prompt for task in tasks]).save(options.out / "sheet.png")
    page, choices, key = blind(pictures, tasks, options.seed)
    page.save(options.out / "blind.png")
    (options.out / "choices.txt").write_text(choices, encoding="utf-8")
    (options.out / "key.json").write_text(json.dumps(key, indent=1) + "\n", encoding="utf-8")


def hits_command(options: argparse.Namespace) -> None:
    tasks = read_tasks(options.prompts)
    features = Features(options.cache)
    known, records = training_features(options.data, options.cache, features)
    for path in options.drawn:
        pages = (options.side, options.gap, options.columns)
        pictures = np.load(path) if path.suffix == ".npy" else cut(path, len(tasks), *pages)
        hits = count_hits(features(torch.from_numpy(pictures)), known, records, tasks)
        print(f"{path}: first {hits.first:.1%}, ten {hits.ten:.1%}, chance {hits.chance:.1%}; missed: {hits.missed}")


def score_command(options: argparse.Namespace) -> None:
    key = json.loads(options.key.read_text(encoding="utf-8"))
    lines = options.answers.read_text(encoding="utf-8").splitlines()
    answers = {number.strip(): label.strip() for number, _, label in (line.partition(":") for line in lines if line)}
    right = sum(answers.get(number) == label for number, label in key.items())
    print(
        f"{right} of {len(key)} right, {right / len(key):.1%}; {len(key) - len(answers.keys() & key.keys())} unanswered"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    commands = parser.add_subparsers(required=True)
    drawing = commands.add_parser("draw", help="draw the prompts, write sheets and a blind reading")
    drawing.add_argument("--model", type=Path, required=True, help="model folder")
    drawing.add_argument("--out", type=Path, required=True)
    drawing.add_argument("--seed", type=int, default=1)
    drawing.add_argument("--steps", type=int)
    drawing.add_argument("--guidance", type=float)
    drawing.add_argument("--device", default="cpu")
    hits = commands.add_parser("hits", help="compare drawn pictures with the training pictures")
    hits.add_argument("drawn", type=Path, nargs="+", help="drawn.npy of `draw`, or a sheet to be cut")
    hits.add_argument("--data", type=Path, required=True, help="training folder")
    hits.add_argument("--cache", type=Path, required=True, help="folder of packages; holds the classifier")
    hits.add_argument("--side", type=int, default=128, help="of the pictures of a sheet")
    hits.add_argument("--gap", type=int, default=2)
    hits.add_argument("--columns", type=int, default=8)
    score = commands.add_parser("score", help="count right answers of a blind reading")
    score.add_argument("--key", type=Path, required=True)
    score.add_argument("--answers", type=Path, required=True, help="lines `number: label`")
    for command, run in ((drawing, draw_command), (hits, hits_command), (score, score_command)):
        command.add_argument("--prompts", type=Path, default=PROMPTS)
        command.set_defaults(run=run)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
