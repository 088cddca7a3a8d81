"""A pipeline's file is checked as a whole, and what is wrong is said with file, key and remedy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.core.errors import ConfigError, NotFound
from edgewise.core.privacy import Labels
from edgewise.pipeline.chains.diffuse import Diffuse
from edgewise.pipeline.chains.generate import Generate
from edgewise.pipeline.chains.kinds import Kinds
from edgewise.pipeline.chains.load import Pipelines, read_pipeline
from edgewise.pipeline.chains.spec import fill, references
from edgewise.pipeline.model import Models


async def never(task: Any, missing: int = 0) -> Any:
    raise AssertionError("nothing runs here")


KINDS: Kinds = {
    "generate": Generate(Models(), never, Labels(), never),
    "diffuse": Diffuse(Models(), never, Labels(), never),
}
TEXT = """
name = "p"
[inputs.topic]
[inputs.model]
default = "m"
"""


def stage(name: str = "a", kind: str = "generate", text: str = 'input = { user = "${topic}" }') -> str:
    return f'[[stages]]\nname = "{name}"\nkind = "{kind}"\nmodel = "m"\n{text}\n'


def read(*stages: str, head: str = TEXT) -> Any:
    return read_pipeline(head + "".join(stages), "p.toml", KINDS)


def test_stages_are_put_in_order_and_outputs_are_those_that_nobody_reads() -> None:
    pipeline = read(
        stage("last", text='input = { user = "${middle} ${first}" }'),
        stage("middle", text='input = { user = "${first}" }\nafter = ["aside"]'),
        stage("first"),
        stage("aside", text='input = { prompt = "$$5 for ${topic}" }'),
        stage("draw", "diffuse", 'input = { prompt = "${middle}" }'),
    )
    order = [one.name for one in pipeline.order]
    assert order == ["first", "aside", "middle", "last", "draw"]
    assert pipeline.output == ("last", "draw")


WRONG = [
    (stage(kind="sing"), "stages.0.kind: input should be 'encode'"),
    (stage(kind="speak"), "stages.0.kind: 'speak' has no back end in this build, which has diffuse, generate; leave"),
    (stage(kind="encode"), "stages.0.kind: 'encode' has no back end"),
    (stage() + stage(), "stages.1.name: 'a' is taken"),
    (stage("topic"), "stages.0.name: 'topic' is taken"),
    (stage("part"), "stages.0.name: 'part' is taken"),
    (stage("A"), "stages.0.name: string should match"),
    (
        stage(text='input = { user = "${topc}" }'),
        "stages.0.input.user: '${topc}' is no input and no stage; there are topic,",
    ),
    (stage(text='input = { user = "$topic" }'), "stages.0.input.user: '$topic' is no reference: write ${name}"),
    (stage(text='input = { user = "${part}" }'), "stages.0.input.user: ${part} stands for a piece; say with `over`"),
    (stage(text='input = { user = "${a}" }'), "stages: a -> a go in a circle"),
    (
        stage("a", text='input = { user = "${b}" }')
        + stage("b", text='input = { user = "x" }\nafter = ["c"]')
        + stage("c", text='input = { user = "${a}" }'),
        "stages: a -> b -> c -> a go in a circle; take out one",
    ),
    (stage(text="input = {}"), "stages.0.input: give 'user' (with 'system' or without)"),
    (stage(text='input = { user = "x", prompt = "y" }'), "stages.0.input: give 'user'"),
    (stage(text='input = { prompt = "x", system = "y" }'), "stages.0.input: 'system' goes with 'user'"),
    (
        stage(text='input = { text = "x" }'),
        "stages.0.input.text: a stage of kind 'generate' reads system, user, prompt",
    ),
    (stage(kind="diffuse", text="input = {}"), "stages.0.input: 'prompt' is missing"),
    (
        stage(kind="diffuse", text='input = { prompt = "x", mask = "${topic}" }'),
        "stages.0.input.mask: it reads picture, and 'topic' is text",
    ),
    (
        stage("a", "diffuse", 'input = { prompt = "x" }')
        + stage("b", text='input = { user = "Say what ${a} shows." }'),
        "stages.1.input.user: it reads text, and 'a' is picture; put a stage between",
    ),
    (
        stage("a", "diffuse", 'input = { prompt = "x" }')
        + stage("b", "diffuse", 'input = { prompt = "y", image = "${a} and more" }'),
        "stages.1.input.image: it reads a picture: write one reference",
    ),
    (
        stage(text='input = { user = "x" }\noptions = { max_tokens = 0 }'),
        "stages.0.options: max_tokens: input should be greater",
    ),
    (
        stage(text='input = { user = "x" }\noptions = { colour = 1 }'),
        "stages.0.options: colour: unknown key; take it out",
    ),
    (stage(text='input = { user = "x" }\ncolour = 1'), "stages.0.colour: unknown key; take it out"),
    (
        stage(text='input = { user = "x" }\nwhere = ["moon"]'),
        "stages.0.where.0: input should be 'local', 'cloud' or 'peer'",
    ),
    (stage(text='input = { user = "x" }\nprivacy = "none"'), "stages.0.privacy: input should be"),
    (stage(text='input = { user = "x" }\nprecision = "int3"'), "stages.0.precision: input should be"),
    (stage(text='input = { user = "x" }\nafter = ["z"]'), "stages.0.after: there is no stage 'z'"),
    (stage(text='input = { user = "${part}" }\nover = "topic"'), "stages.0.over: `over` and `each` belong together"),
    (stage(text='input = { user = "${part}" }\nover = "z"\neach = "tokens"'), "stages.0.over: 'z' is neither an input"),
    (stage(text='input = { user = "x" }\nover = "topic"\neach = "tokens"'), "stages.0.input: no template has ${part}"),
    (
        stage(text='input = { user = "${part}" }\nover = "topic"\neach = "sentence"\nfold = true'),
        "stages.0.each: `fold` and `tokens` are for pieces of tokens",
    ),
    (stage(text='input = { user = "x" }\nfold = true'), "stages.0.fold: it needs `over`"),
    (
        stage(kind="diffuse", text='input = { prompt = "${part}" }\nover = "topic"\neach = "tokens"'),
        "stages.0.each: a stage of kind 'diffuse' counts no tokens",
    ),
    ("", "stages: field required"),
    ("a = " + "[" * 90_000, "not valid TOML: arrays or tables are nested too deeply"),
    (".".join("a" * 100_000) + " = 1", "not valid TOML: line 6 has more than 200 dots; break it"),
]


@pytest.mark.parametrize(("stages", "told"), WRONG)
def test_what_is_wrong_is_told(stages: str, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(stages)
    assert refused.value.message.startswith(f"p.toml: {told}"), refused.value.message


def test_a_model_is_chosen_before_any_stage_runs() -> None:
    text = stage("b", text='input = { user = "x" }').replace('model = "m"', 'model = "${a}"')
    with pytest.raises(ConfigError, match="'\\$\\{a\\}' is no input; a model is chosen before"):
        read(stage("a"), text)
    read(stage("b", text='input = { user = "x" }').replace('model = "m"', 'model = "${model}"'))


@pytest.mark.parametrize(
    ("head", "told"),
    [
        (TEXT + 'output = ["z"]\n', "inputs.model.output: unknown key"),
        ('name = "p"\noutput = ["z"]\n[inputs.topic]\n', "output: there is no stage 'z'; name one of a"),
        ('name = "p"\n[inputs.part]\n[inputs.topic]\n', "inputs.part: 'part' is what pieces are called"),
        ("name = \n", "not valid TOML"),
    ],
)
def test_what_is_wrong_with_the_head_is_told(head: str, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(stage(), head=head)
    assert refused.value.message.startswith(f"p.toml: {told}"), refused.value.message


def test_the_folder_goes_before_what_ships_and_a_wrong_file_hides_nothing_else(tmp_path: Path) -> None:
    pipelines = Pipelines(tmp_path, KINDS)
    shipped, faults = pipelines.all()
    assert {"draft-and-rewrite", "illustrate", "read-long"} <= shipped.keys()
    assert faults == []
    (tmp_path / "mine.toml").write_text(TEXT.replace('"p"', '"illustrate"') + stage())
    (tmp_path / "other.toml").write_text(TEXT.replace('"p"', '"illustrate"') + stage())
    (tmp_path / "broken.toml").write_text("colour = 1")
    assert pipelines.get("illustrate").source == str(tmp_path / "mine.toml")
    assert pipelines.get("read-long").source == "shipped"
    with pytest.raises(ConfigError, match=r"broken\.toml: name: field required|colour: unknown key"):
        pipelines.get("broken")
    with pytest.raises(NotFound, match="'illustrate', 'read-long'"):
        pipelines.get("absent")
    _, faults = pipelines.all()
    assert [fault.message.split(": ")[0] for fault in faults] == [
        str(tmp_path / "broken.toml"),
        str(tmp_path / "other.toml"),
    ]
    assert "is taken by" in faults[1].message


@given(
    values=st.dictionaries(st.from_regex(r"[a-z][a-z0-9_-]{0,5}", fullmatch=True), st.text(), max_size=3),
    text=st.text(),
)
def test_values_are_put_in_as_they_are(values: Mapping[str, str], text: str) -> None:
    plain = text.replace("$", "$$")
    template = plain + "".join(f"${{{name}}}{plain}" for name in values)
    assert references(template) == list(values)
    assert fill(template, values) == text + "".join(value + text for value in values.values())
