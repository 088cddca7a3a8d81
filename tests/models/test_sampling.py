from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgewise.core.errors import BadModelFile
from edgewise.models.catalog import load_catalog
from edgewise.models.files import ModelFiles
from edgewise.models.manifest import build_info
from edgewise.models.sampling import check_sampling, recommended_sampling


def folder(tmp_path: Path, **generation: Any) -> ModelFiles:
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps(generation))
    return ModelFiles(name="m", digest="sha256:0", format="safetensors", paths={path.name: path})


def test_a_folder_recommends_what_its_generation_config_sets(tmp_path: Path) -> None:
    files = folder(tmp_path, temperature=0.6, top_p=0.95, top_k=20, do_sample=True, eos_token_id=2, min_p=None)
    assert recommended_sampling(files) == {"temperature": 0.6, "top_p": 0.95, "top_k": 20}


def test_gguf_and_folders_without_a_generation_config_recommend_nothing(
    tiny_model_factory: Callable[..., ModelFiles],
) -> None:
    assert recommended_sampling(tiny_model_factory(format="gguf")) == {}
    assert recommended_sampling(ModelFiles(name="m", digest="", format="safetensors", paths={})) == {}


@pytest.mark.parametrize("value", [-0.1, 2.5, "hot", True, [1]])
def test_values_out_of_range_are_refused_by_name(tmp_path: Path, value: object) -> None:
    with pytest.raises(BadModelFile, match=r"generation_config\.json.*temperature is .*from 0 to 2"):
        recommended_sampling(folder(tmp_path, temperature=value))
    with pytest.raises(ValueError, match="temperature"):
        check_sampling({"temperature": value})


def test_unknown_names_in_a_catalog_are_refused() -> None:
    raw = {"role": "llm", "format": "gguf", "licence_model": "x", "sampling": {"temprature": 1}}
    with pytest.raises(ValueError, match="'temprature'"):
        build_info(raw)


def test_the_starter_comes_with_its_makers_values() -> None:
    assert load_catalog().find("smollm2-135m-instruct").info.sampling == {"temperature": 0.2, "top_p": 0.9}
