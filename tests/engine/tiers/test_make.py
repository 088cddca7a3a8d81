"""Tiers that find no room: said with what was wanted, what was there, and the settings that change it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edgewise.core.settings_schema import Settings
from edgewise.engine.config import EngineConfig
from edgewise.engine.ledger import Ledger
from edgewise.engine.tiers import make
from edgewise.models.files import ModelFiles


@pytest.mark.parametrize(("room", "event"), [(1000, "cache_tiers_off"), (20_000, "cache_tiers_smaller")])
def test_less_room_than_asked_for_is_said(
    room: int, event: str, tiny_model: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, dict[str, Any]]] = []
    warning = lambda name, **fields: told.append((name, fields))  # noqa: E731
    monkeypatch.setattr(make, "log", SimpleNamespace(warning=warning))
    tiers = make.make_tiers(
        replace(EngineConfig(model=tiny_model), host_cache_bytes=1 << 20),
        mover=cast("Any", SimpleNamespace(page_bytes=4096)),
        ledger=Ledger(room, lambda: 1 << 30),
        available=lambda: 1 << 30,
        numeric_class="any",
        page_tokens=16,
        notify=lambda what, why: None,
    )
    if tiers is not None:
        tiers.close()
    ((name, fields),) = told
    assert name == event
    assert fields["wanted_bytes"] == 1 << 20
    for setting in [word.rstrip(",") for word in fields["remedy"].split() if word.startswith("engine.")]:
        assert setting.removeprefix("engine.") in type(Settings().engine).model_fields
