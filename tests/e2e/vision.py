"""Homes with the models that look at pictures, and pictures to look at. The models are pulled once into the tests' cache."""

from __future__ import annotations

import fcntl
import importlib.util
import io
import shutil
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from tests.e2e.service import PULL_TIMEOUT_S, cache_dir, edgewise

MODELS = ("efficientnet-lite0", "rapidocr")
INVOICE = ("Invoice No. 48213", "Date: 12 March 2026", "Total due: $1,234.50")


def vision_store() -> Path:
    """A model store with both models, for reading; pulled by the command on first use."""
    home = cache_dir() / "vision"
    home.mkdir(parents=True, exist_ok=True)
    with (cache_dir() / "vision.lock").open("w") as lock:  # several test processes may ask at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name in MODELS:
            edgewise(home, "models", "pull", name, timeout_s=PULL_TIMEOUT_S)
    return home / "models"


def add_vision(home: Path) -> None:
    """Install both in a home that has no models yet."""
    shutil.copytree(vision_store(), home / "models")


def photo(name: str) -> bytes:
    """One of scikit-image's photos: they lie inside its wheel. The package itself is not imported."""
    spec = importlib.util.find_spec("skimage")
    assert spec is not None
    assert spec.submodule_search_locations
    return (Path(spec.submodule_search_locations[0]) / "data" / name).read_bytes()


def invoice() -> Image.Image:
    """A page with the lines of `INVOICE`."""
    page = Image.new("RGB", (900, 500), "white")
    font = ImageFont.load_default(28)
    for number, line in enumerate(INVOICE):
        ImageDraw.Draw(page).text((60, 60 + 80 * number), line, font=font, fill="black")
    return page


def png(picture: Image.Image) -> bytes:
    out = io.BytesIO()
    picture.save(out, "PNG")
    return out.getvalue()
