"""Every family through the engine as it is built for service: windows beside full layers, caps, experts, 8-bit pages."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edgewise.engine.build import build
from edgewise.models.files import ModelFiles
from edgewise.models.templates import load_template
from edgewise.models.tiny_families import FAMILIES, TINY_FAMILIES
from edgewise.models.tokenizer import load_tokenizer
from tests.engine.test_engine import config_of, make, prompt_of, run

NEW = [family for family in FAMILIES if family not in ("llama", "mistral", "qwen2", "qwen3")]


@pytest.mark.parametrize("family", NEW)
def test_answers_in_a_crowd_are_those_given_alone(family: str, tiny_model_factory: Callable[..., ModelFiles]) -> None:
    core = build(config_of(tiny_model_factory(family=family, layers=4)), lambda phase, done: None)
    shared = prompt_of(1, 48, 500)
    prompts = {f"{i}": [*shared, *prompt_of(i, 5 + 9 * i, 500)] for i in range(4)}
    alone = {name: run(core, make(name, prompt))[name][0] for name, prompt in prompts.items()}
    together = run(core, *(make(name, prompt) for name, prompt in prompts.items()))
    core.close()
    assert {name: tokens for name, (tokens, _) in together.items()} == alone
    assert all(len(tokens) == 24 for tokens in alone.values())


@pytest.mark.parametrize(
    ("family", "kind"),
    [(family, "safetensors") for family in FAMILIES]
    + [(family, "gguf") for family in FAMILIES if TINY_FAMILIES[family].gguf],
)
def test_chats_are_written_in_the_familys_own_tokens(
    family: str, kind: str, tiny_model_factory: Callable[..., ModelFiles]
) -> None:
    about = next(about for name, about in TINY_FAMILIES.items() if name == family)
    files = tiny_model_factory(family=family, format=kind)
    tokenizer = load_tokenizer(files)
    chat = load_template(files, tokenizer)
    try:
        text = chat.render([{"role": "user", "content": "How warm is it?"}])
    finally:
        chat.close()
    tokens = tokenizer.encode(text)
    special = set(range(len(about.chat.special)))
    assert "How warm is it?" in text
    assert len(special.intersection(tokens)) >= 2
    assert about.ends_turn in tokenizer.eos_ids
