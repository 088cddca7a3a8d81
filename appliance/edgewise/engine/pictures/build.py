"""Builds a picture engine in its own process: see what fits, book it, load, draw one step to know what it takes."""

from __future__ import annotations

import importlib
import os
import time
from pathlib import Path

import torch

from edgewise.core.errors import OutOfMemory
from edgewise.core.log import get_logger
from edgewise.core.sizes import mib
from edgewise.engine.core import ProgressSink
from edgewise.engine.found import available_on, device_name
from edgewise.engine.ledger import REFUSE_MARK, Ledger
from edgewise.engine.notices import Notices
from edgewise.engine.numerics import Numerics, cpu_family, picture_numerics
from edgewise.engine.pictures.config import PictureConfig
from edgewise.engine.pictures.engine import FreeSlices, PictureCore, Slices
from edgewise.engine.pictures.request import PictureInfo
from edgewise.engine.pictures.scheduler import PictureScheduler
from edgewise.engine.turns import PictureTurns, Table
from edgewise.models.diffusion.protocol import Brief, PictureModel
from edgewise.models.diffusion.sizes import PictureSizes, picture_sizes

log = get_logger(__name__)

_LOAD = "edgewise.models.diffusion.load"
_WARM_STEPS = 2


def build(config: PictureConfig, progress: ProgressSink) -> PictureCore:
    """Load the model of `config` and return an engine that can draw.

    Args:
        progress: Called with a phase ("fit", "weights", "check") and its share done in [0, 1].

    Raises:
        OutOfMemory: It does not fit; nothing has been loaded then.
        BadModelFile, UnsupportedModel, ConfigError: As their names say.
    """
    began = time.monotonic()
    threads = config.threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    numerics = picture_numerics(config.device, config.dtype, cuda=torch.cuda.is_available())
    device = torch.device(numerics.device)
    progress("fit", 0.0)
    sizes = picture_sizes(config.model, numerics.dtype)
    ledger = _book(config, sizes, device)
    slices: Slices = FreeSlices() if config.turns is None else PictureTurns(Table(Path(config.turns)))
    progress("weights", 0.0)
    # By name: what reads prompts brings tokenizers with it, which nothing else of the engine knows.
    loaded = importlib.import_module(_LOAD).load_pictures(
        config.model, device=device, dtype=getattr(torch, numerics.dtype), offload=config.offload, cut=slices.cut
    )
    progress("check", 0.0)
    step_s = _measure(loaded.model)
    info = _info(config, loaded.model, numerics, threads=threads, step_s=step_s, load_s=time.monotonic() - began)
    log.info("pictures_ready", model=info.model, device=info.device, dtype=info.dtype, step_ms=round(step_s * 1e3, 1))
    return PictureCore(
        info,
        model=loaded.model,
        widen=loaded.widen,
        sizes=sizes,
        scheduler=PictureScheduler(
            max_running=config.max_running,
            max_batch=config.max_batch,
            max_waiting=config.max_waiting,
            now=time.monotonic,
            ageing_s=config.ageing_s,
            step_s=step_s,
        ),
        ledger=ledger,
        slices=slices,
        notices=Notices(),
    )


def _book(config: PictureConfig, sizes: PictureSizes, device: torch.device) -> Ledger:
    available = available_on(device)
    asked = config.memory_budget_bytes
    budget = int(available * config.memory_fraction) if asked is None else min(asked, available)
    if sizes.minimal > budget * REFUSE_MARK:
        raise OutOfMemory(
            f"{config.model.name} does not fit: weights {mib(sizes.weights)}, workspace {mib(sizes.workspace)} and one picture "
            f"{mib(sizes.largest * sizes.per_pixel)} need {mib(sizes.minimal)}; {REFUSE_MARK:.0%} of the budget of {mib(budget)} "
            "may be booked."
        )
    ledger = Ledger(budget, lambda: available_on(device))
    ledger.book("weights", sizes.weights)
    ledger.book("workspace", sizes.workspace)
    return ledger


def _measure(model: PictureModel) -> float:
    """Seconds of a step at the best size, the first one left out."""
    width, height = model.traits.best
    brief = Brief(
        prompt="a",
        negative_prompt="",
        width=width,
        height=height,
        steps=max(_WARM_STEPS, model.traits.steps),
        guidance=model.traits.guidance,
        seed=0,
    )
    with torch.inference_mode():
        canvas = model.begin(brief)
        for _ in range(_WARM_STEPS):
            began = time.monotonic()
            for _slice in model.step([canvas]):
                pass
            if canvas.latents.is_cuda:
                torch.cuda.synchronize()
    return time.monotonic() - began


def _info(
    config: PictureConfig, model: PictureModel, numerics: Numerics, *, threads: int, step_s: float, load_s: float
) -> PictureInfo:
    traits, device = model.traits, torch.device(numerics.device)
    where = f"cpu-{cpu_family()}-t{threads}" if device.type == "cpu" else "cuda-sm_{}{}".format(
        *torch.cuda.get_device_capability(device)
    )  # fmt: skip
    return PictureInfo(
        model=config.model.name,
        digest=config.model.digest,
        numeric_class=f"torch-{torch.__version__}/{where}/{model.numeric_class}",
        device=device_name(device),
        dtype=numerics.dtype,
        pid=os.getpid(),
        load_s=load_s,
        grid=traits.grid,
        sizes=traits.sizes,
        sizes_best=traits.best,
        steps=traits.steps,
        guidance=traits.guidance,
        max_steps=traits.max_steps,
        edits=traits.edits,
        negative=traits.negative,
        step_s=step_s,
        latent_bytes_per_pixel=traits.latent_bytes_per_pixel,
    )
