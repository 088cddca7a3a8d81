"""Trains a starter picture model: `python -m scripts.pictures.train --data DIR --out DIR --seconds 480 --total 960`.

Flow matching on straight paths (Lipman et al. 2023): the network sees t x + (1 - t) e and predicts x, the loss is that of the
velocity, which weighs late times more. Everything is in the checkpoint, so a run may be cut in pieces: each ends after
`--seconds`, writes `checkpoint.pt` and the averaged weights, and the next goes on. `--total` is what the learning rate is
planned for. Runs on CUDA (bfloat16, compiled) and, for trials, on a CPU.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import torch

from edgewise.models.diffusion.starter.config import StarterConfig
from edgewise.models.diffusion.starter.files import CONFIG, WEIGHTS, fill, load_encoder, part, save_network
from edgewise.models.diffusion.starter.network import StarterNetwork, TextStates
from edgewise.models.tiny import local_files
from scripts.pictures.dataset import PICTURES, Captions, Pictures, read_pictures
from scripts.pictures.recipe import Dish, Recipe, prepare, serve

CHECKPOINT: Final = "checkpoint.pt"
LOG: Final = "log.jsonl"
_LATEST: Final = 0.95  # of the velocity's weight 1 / (1 - t)^2: it stops growing there


@dataclass(frozen=True, slots=True)
class Plan:
    """How to train.

    Attributes:
        rate: Highest learning rate, of AdamW and, where `muon` is on, of Muon for the matrices of the layers.
        average: Decay of the average of the weights, which is what comes out.
        middle, spread: Of the times' logit-normal distribution (Esser et al. 2024).
        narrow: Whether products are computed in bfloat16.
    """

    batch: int = 512
    rate: float = 8e-4
    decay: float = 0.02
    warmup: int = 300
    average: float = 0.9995
    middle: float = -0.5
    spread: float = 1.0
    seed: int = 0
    muon: bool = True
    narrow: bool = True


class Trainer:
    """Network, average, optimizers and data of one run."""

    def __init__(
        self, pictures: Pictures, captions: Captions, network: StarterNetwork, plan: Plan, recipe: Recipe, device: str
    ) -> None:
        self.plan, self.recipe, self.device = plan, recipe, device
        self.trained = pictures.chosen([i for i, record in enumerate(pictures.records) if not record.held_out])
        self.network = network.to(device).train()
        self.average = StarterNetwork(network.config).to(device).eval().requires_grad_(False)
        self.average.load_state_dict(network.state_dict())
        self.optimizers = optimizers(network, plan)
        self.captions = captions
        self.pixels = self.trained.pixels.to(device)
        self.hues = torch.tensor([record.hue for record in self.trained.records], device=device)
        self.narrow = plan.narrow
        self.steps, self.seconds = 0, 0.0
        self.run: Any = torch.compile(network) if device == "cuda" else network

    def save(self, path: Path) -> None:
        """Everything that `load` needs to go on, written whole or not at all."""
        state = {
            "network": self.network.state_dict(),
            "average": self.average.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "steps": self.steps,
            "seconds": self.seconds,
        }
        torch.save(state, path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)

    def load(self, path: Path) -> None:
        """Continues what `save` wrote."""
        state = torch.load(path, map_location=self.device, weights_only=True)
        self.network.load_state_dict(state["network"])
        self.average.load_state_dict(state["average"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.steps, self.seconds = state["steps"], state["seconds"]

    def dishes(self) -> Iterator[list[Dish]]:
        """Batches for ever, every picture once an epoch; they depend on the seed and on where the run began only."""
        chance = random.Random(self.plan.seed * 1_000_003 + self.steps)  # noqa: S311 - no secret
        places: list[int] = []
        while True:
            while len(places) < self.plan.batch:
                fresh = list(range(len(self.trained.records)))
                chance.shuffle(fresh)
                places += fresh
            batch, places = places[: self.plan.batch], places[self.plan.batch :]
            yield [prepare(self.trained, place, self.recipe, chance) for place in batch]

    def step(self, dishes: list[Dish], progress: float) -> torch.Tensor:
        """One update at `progress` (0 to 1) of the run; the loss."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["top"] * schedule(self.steps, progress, self.plan.warmup)
        pictures = serve(self.pixels, self.hues, dishes, self.recipe)
        text = self.captions.encode([dish.caption for dish in dishes], torch.ones(len(dishes), dtype=torch.bool))
        time_ = torch.sigmoid(torch.randn(len(dishes), device=self.device) * self.plan.spread + self.plan.middle)
        with torch.autocast(self.device, torch.bfloat16, enabled=self.narrow):
            loss = flow_loss(self.run, pictures, time_, text)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        keep = min(self.plan.average, (1 + self.steps) / (10 + self.steps))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.average.parameters()), list(self.network.parameters()), 1 - keep)
        self.steps += 1
        return loss.detach()


def optimizers(network: StarterNetwork, plan: Plan) -> list[torch.optim.Optimizer]:
    """Muon (Jordan et al. 2024) for the matrices of the layers, AdamW for all else; or AdamW for all."""
    inner = {id(p) for p in network.layers.parameters() if p.ndim == 2 and min(p.shape) > 8} if plan.muon else set()
    matrices = [p for p in network.parameters() if id(p) in inner]
    rest = [p for p in network.parameters() if id(p) not in inner]
    groups = [
        {"params": [p for p in rest if p.ndim > 1], "weight_decay": plan.decay, "top": plan.rate},
        {"params": [p for p in rest if p.ndim <= 1], "weight_decay": 0.0, "top": plan.rate},
    ]
    fused = next(network.parameters()).is_cuda
    made: list[torch.optim.Optimizer] = [torch.optim.AdamW(groups, lr=plan.rate, betas=(0.9, 0.98), fused=fused)]
    if matrices:
        group = {"params": matrices, "weight_decay": plan.decay, "top": plan.rate}
        made.append(torch.optim.Muon([group], lr=plan.rate, adjust_lr_fn="match_rms_adamw"))
    return made


def schedule(steps: int, progress: float, warmup: int) -> float:
    """Share of the highest learning rate: up, level to 40 % of the run, then down along a cosine to 2 %."""
    fall = max(0.0, min(1.0, (progress - 0.4) / 0.6))
    return min(1.0, (steps + 1) / warmup) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * fall)))


def flow_loss(network: Any, pictures: torch.Tensor, time_: torch.Tensor, text: TextStates) -> torch.Tensor:
    """Mean squared error of the velocity that follows from the predicted picture."""
    t = time_[:, None, None, None]
    noisy = t * pictures + (1 - t) * torch.randn_like(pictures)
    guess = network(noisy, time_, text)
    loss: torch.Tensor = (((guess - pictures) / (1 - t).clamp(min=1 - _LATEST)) ** 2).mean()
    return loss


@torch.no_grad()
def held_out_loss(trainer: Trainer, pictures: Pictures, most: int = 512) -> float:
    """The loss of the averaged network on held-out concepts, with fixed times and noise."""
    places = [i for i, record in enumerate(pictures.records) if record.held_out][:most]
    if not places:
        return math.nan
    chance = random.Random(1)  # noqa: S311 - no secret
    plain = Recipe(recolour=0, ground=0, pair=0, flip=0, unnamed=0, shift=0)
    held = pictures.chosen(places)
    dishes = [prepare(held, place, plain, chance) for place in range(len(places))]
    shown = serve(held.pixels, torch.zeros(len(places)), dishes, plain).to(trainer.device)
    text = trainer.captions.encode([dish.caption for dish in dishes], torch.ones(len(places), dtype=torch.bool))
    times = ((torch.arange(len(places)) + 0.5) / len(places) * 0.95).to(trainer.device)
    with torch.random.fork_rng(), torch.autocast(trainer.device, torch.bfloat16, enabled=trainer.narrow):
        torch.manual_seed(1)
        return float(flow_loss(trainer.average, shown, times, text))


def train(trainer: Trainer, pictures: Pictures, out: Path, *, seconds: float, total: float, every: float) -> None:
    """Trains for `seconds` more, or to `total` seconds over all pieces; saves at the end and every `every` seconds."""
    torch.manual_seed(trainer.plan.seed * 7_919 + trainer.steps)
    began, before = time.monotonic(), trainer.seconds
    until = min(total, before + seconds)
    noted, saved, losses = time.monotonic(), time.monotonic(), []
    with ThreadPoolExecutor(1) as pool:
        batches = trainer.dishes()
        following = pool.submit(next, batches)
        while trainer.seconds < until:
            dishes = following.result()
            following = pool.submit(next, batches)  # while the device computes
            losses.append(trainer.step(dishes, trainer.seconds / total))
            if trainer.steps % 10 == 0:
                losses[-1].item()  # waits for the device, so that the clock is true
            now = time.monotonic()
            trainer.seconds = before + now - began
            if now - noted > 20:
                note(out, trainer, torch.stack(losses), now - noted)
                noted, losses = now, []
            if now - saved > every:
                finish(trainer, pictures, out)
                saved = time.monotonic()
    finish(trainer, pictures, out)


def note(out: Path, trainer: Trainer, losses: torch.Tensor, took: float) -> None:
    """One line of the log, also shown."""
    line = {
        "steps": trainer.steps,
        "seconds": round(trainer.seconds, 1),
        "loss": round(float(losses.mean()), 5),
        "pictures_per_second": round(len(losses) * trainer.plan.batch / took, 1),
        "epochs": round(trainer.steps * trainer.plan.batch / len(trainer.trained.records), 2),
    }
    write_line(out, line)


def write_line(out: Path, line: dict[str, Any]) -> None:
    text = json.dumps(line)
    print(text, flush=True)
    with (out / LOG).open("a", encoding="utf-8") as file:
        file.write(text + "\n")


def finish(trainer: Trainer, pictures: Pictures, out: Path) -> None:
    """Writes checkpoint and averaged weights, and the loss on held-out concepts into the log."""
    trainer.save(out / CHECKPOINT)
    save_network(out, trainer.average, {"steps": str(trainer.steps), "seconds": f"{trainer.seconds:.0f}"})
    loss = held_out_loss(trainer, pictures)
    write_line(out, {"steps": trainer.steps, "seconds": round(trainer.seconds, 1), "held_out": round(loss, 5)})


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--data", type=Path, required=True, help="folder that scripts.pictures.build made")
    parser.add_argument("--out", type=Path, required=True, help="where checkpoint, weights and log go; read to go on")
    parser.add_argument("--seconds", type=float, default=480, help="of this piece")
    parser.add_argument("--total", type=float, default=960, help="of all pieces together")
    parser.add_argument("--save-every", type=float, default=240)
    parser.add_argument("--start", type=Path, help="folder with weights of an earlier piece whose checkpoint is gone")
    parser.add_argument("--elapsed", type=float, default=0, help="seconds of the plan that those weights have had")
    parser.add_argument("--styles", nargs="*", default=(), help="train on these styles only")
    parser.add_argument("--only", type=Path, help="file with the concepts to train on, one a line; all without it")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=0)
    for kind, prefix in ((StarterConfig, "net"), (Plan, "plan"), (Recipe, "recipe")):
        for field in fields(kind):
            default: Any = field.default
            read = (lambda text: text == "true") if isinstance(default, bool) else type(default)
            parser.add_argument(f"--{prefix}-{field.name.replace('_', '-')}", type=read, default=default)
    return parser.parse_args()


def chosen(options: argparse.Namespace, kind: Any, prefix: str) -> Any:
    """The dataclass `kind` from the options that begin with `prefix`."""
    return kind(**{field.name: getattr(options, f"{prefix}_{field.name}") for field in fields(kind)})


def main() -> None:
    options = parse()
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.backends.cuda.matmul.allow_tf32 = True
    options.out.mkdir(parents=True, exist_ok=True)
    config, plan = chosen(options, StarterConfig, "net"), chosen(options, Plan, "plan")
    torch.manual_seed(plan.seed)
    pictures = read_pictures(options.data / PICTURES, config.size, options.styles)
    if options.only:
        wanted = set(options.only.read_text(encoding="utf-8").splitlines())
        pictures = pictures.chosen([i for i, record in enumerate(pictures.records) if record.concept in wanted])
    encoder = load_encoder(local_files(options.data), config).to(options.device).eval().requires_grad_(False)
    captions = Captions(encoder, config.text_tokens, remember=options.device == "cpu")
    network = StarterNetwork(config)
    if options.start:  # new optimizers, warmed up again
        fill(network, part(local_files(options.start), WEIGHTS, CONFIG), {name: name for name in network.state_dict()})
    trainer = Trainer(pictures, captions, network, plan, chosen(options, Recipe, "recipe"), options.device)
    if (options.out / CHECKPOINT).exists():
        trainer.load(options.out / CHECKPOINT)
    elif options.start:
        trainer.seconds = options.elapsed
    size = sum(parameter.numel() for parameter in network.parameters())
    write_line(options.out, {"parameters": size, "pictures": len(trainer.trained.records), "torch": torch.__version__})
    train(trainer, pictures, options.out, seconds=options.seconds, total=options.total, every=options.save_every)


if __name__ == "__main__":
    main()
