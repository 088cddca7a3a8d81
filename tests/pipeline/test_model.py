from __future__ import annotations

import pytest

from edgewise.core.errors import ConfigError, ModelNotFound
from edgewise.pipeline.model import Models
from tests.fakes.engine import FakeEngine
from tests.fakes.serving import fake_model


def test_a_model_answers_to_its_name_and_aliases() -> None:
    model = fake_model(name="tiny", aliases=("starter",))
    models = Models([model])
    assert models.get("tiny") is models.get("starter") is model
    assert repr(models) == "Models(tiny)"


def test_an_unknown_model_is_refused_naming_what_exists() -> None:
    models = Models([fake_model(name="tiny"), fake_model(name="big")])
    with pytest.raises(ModelNotFound, match=r"'nope'.*'tiny', 'big'") as caught:
        models.get("nope")
    assert (caught.value.code, caught.value.http_status, caught.value.param) == ("model_not_found", 404, "model")


def test_a_long_name_is_not_repeated_whole() -> None:
    with pytest.raises(ModelNotFound) as caught:
        Models([]).get("x" * 5000)
    assert len(caught.value.message) < 250


def test_two_models_may_not_share_a_name() -> None:
    with pytest.raises(ConfigError, match="'tiny'"):
        Models([fake_model(name="tiny"), fake_model(name="big", aliases=("tiny",))])


def test_the_smaller_context_counts() -> None:
    assert fake_model(FakeEngine(max_context=100), max_context=400).context == 100
    assert fake_model(FakeEngine(max_context=900), max_context=400).context == 400
    assert fake_model(FakeEngine(info_known=False), max_context=400).context == 400
