"""The step cache: which steps it leaves out, that pictures stay what they were, and that company changes none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch

import edgewise.models.diffusion.starter as starter
from edgewise.models.diffusion.protocol import Brief
from edgewise.models.diffusion.starter.config import read_config
from edgewise.models.diffusion.starter.files import CONFIG, WEIGHTS, fill
from edgewise.models.diffusion.starter.model import StarterPictures
from edgewise.models.diffusion.starter.network import StarterNetwork
from edgewise.models.diffusion.starter.text_encoder import EncoderSizes, TextEncoder
from edgewise.models.diffusion.step_cache import plan_steps
from edgewise.models.files import ModelFiles
from edgewise.models.small_files import read_object
from scripts.pictures.step_cache import draw, likeness

RECOMMENDED = 0.1
BRIEF = Brief(prompt="", negative_prompt="", width=128, height=128, steps=50, guidance=1.0, seed=0)


@pytest.fixture(scope="module")
def shipped() -> StarterPictures:
    """The network that ships with us. Its encoder of prompts does not, so it draws without a prompt, which it was trained for."""
    folder = Path(starter.__file__).parent / "weights"
    files = ModelFiles(
        name="shipped",
        digest="sha256:00",
        format="safetensors",
        paths={name: folder / name for name in (CONFIG, WEIGHTS)},
    )
    network = StarterNetwork(read_config(read_object(folder / CONFIG, CONFIG), CONFIG))
    fill(network, files, {name: name for name in network.state_dict()})
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    encoder = TextEncoder(EncoderSizes(8, 16, 384, 1, 12, 8), tokenizer)
    return StarterPictures(network, encoder, made_by=files.digest)


def test_steps_are_computed_when_the_changes_add_up() -> None:
    conditions = torch.tensor([[9.0], [10.0], [11.0], [12.0], [13.0], [14.0], [28.0], [28.0]])
    assert plan_steps(conditions, 0.17) == (True, True, False, True, False, False, True, True)
    assert plan_steps(conditions, 0.0) == (True,) * 8
    assert plan_steps(conditions, 9.0) == (True, True, *[False] * 5, True)
    assert plan_steps(conditions, 9.0, start=4)[4:] == (True, False, False, True)
    assert plan_steps(conditions[:1], 9.0) == (True,)


def test_the_recommended_threshold_keeps_the_picture(shipped: StarterPictures) -> None:
    for seed in range(2):
        whole = draw(shipped, replace(BRIEF, seed=seed))
        found = draw(shipped, replace(BRIEF, seed=seed, cache=RECOMMENDED))
        assert whole.computed >= 1.6 * found.computed
        assert 27 <= likeness(found.pixels, whole.pixels) < 99


def test_company_changes_neither_picture_nor_plan(shipped: StarterPictures) -> None:
    few = replace(BRIEF, steps=16)
    picture = np.full((128, 128, 3), 200, np.uint8)
    briefs = (
        few,
        replace(few, cache=RECOMMENDED, seed=1),
        replace(few, cache=0.4, seed=2),
        replace(few, cache=0.4, seed=3, image=picture, start=5),
    )
    with torch.inference_mode():
        canvases = [shipped.begin(brief) for brief in briefs]
        while any(not canvas.done for canvas in canvases):
            for _ in shipped.step([canvas for canvas in canvases if not canvas.done]):
                pass
        for brief, canvas in zip(briefs, canvases, strict=True):
            alone = draw(shipped, brief)
            assert alone.computed == brief.steps - canvas.predicted
            assert np.abs(alone.pixels.astype(int) - shipped.decode(canvas)).max() <= 1


def test_a_predicted_step_that_is_abandoned_leaves_no_trace(shipped: StarterPictures) -> None:
    with torch.inference_mode():
        canvases = [shipped.begin(replace(BRIEF, cache=cache)) for cache in (0.9, 0.0)]
        for _ in shipped.step(canvases):
            pass
        before = canvases[0].latents.clone()
        under_way = shipped.step(canvases)  # predicted for the first, computed for the second
        next(under_way)
        under_way.close()
        assert [canvas.step for canvas in canvases] == [1, 1]
        assert canvases[0].predicted == 0
        assert torch.equal(canvases[0].latents, before)
