"""`keep_alive` as users of Ollama write it, and that a route hands it on."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic_core import PydanticCustomError

from edgewise.api.keep_alive import MAX_SECONDS, keep_alive_seconds
from edgewise.pipeline.model import Models, ServedModel
from tests.api.harness import CHAT, COMPLETIONS, hello, make_api, prompt
from tests.fakes.serving import fake_model


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        (0, 0.0),
        (90, 90.0),
        (1.5, 1.5),
        ("90", 90.0),
        ("10m", 600.0),
        ("1h30m", 5400.0),
        ("500ms", 0.5),
        (-1, math.inf),
        ("-1", math.inf),
        ("-5m", math.inf),
        (10**400, MAX_SECONDS),
    ],
)
def test_what_it_means(value: Any, seconds: float | None) -> None:
    assert keep_alive_seconds(value) == seconds


@pytest.mark.parametrize("value", [True, [], {}, "", "soon", "5 m", "1e9", "m", "9" * 400, float("nan")])
def test_what_is_refused(value: Any) -> None:
    with pytest.raises(PydanticCustomError):
        keep_alive_seconds(value)


class Noting(Models):
    """Notes what is asked of it."""

    def __init__(self, model: ServedModel) -> None:
        super().__init__([model])
        self.asked: list[float | None] = []

    async def open(self, name: str, *, keep_alive_s: float | None = None) -> ServedModel:
        self.asked.append(keep_alive_s)
        return self.get(name)


async def test_every_route_hands_it_on_and_refuse_it_by_name() -> None:
    api = make_api()
    models = Noting(fake_model(api.engine))
    api.deps.models = models
    await api.answer(CHAT, hello(keep_alive="10m"))
    await api.answer(COMPLETIONS, prompt(keep_alive=-1))
    await api.answer(COMPLETIONS, prompt())
    await api.answer("/v1/responses", {"model": "tiny", "input": "hi", "keep_alive": "1h"})
    await api.answer("/v1/messages", hello(max_tokens=2, keep_alive=0))
    assert models.asked == [600.0, math.inf, None, 3600.0, 0.0]
    error = await api.refusal(CHAT, hello(keep_alive="soon"))
    assert error["param"] == "keep_alive"


async def test_the_pool_is_shown_and_a_pinned_model_is_not_unloaded() -> None:
    api = make_api()
    shown = (await api.get("/edgewise/v1/models")).json()
    assert shown["budget_bytes"] is None
    assert [(model["name"], model["state"], model["pinned"]) for model in shown["models"]] == [("tiny", "loaded", True)]
    assert (await api.post("/edgewise/v1/models/tiny/load", {})).status_code == 200
    refused = await api.post("/edgewise/v1/models/tiny/unload", {})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model")
    assert (await api.post("/edgewise/v1/models/none/load", {})).status_code == 404
