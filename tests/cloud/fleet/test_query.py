"""The query language: what it matches on both databases, and how it says what is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.cloud.fleet.query.language import Both, Not, QueryError, Term, parse
from edgewise.cloud.fleet.query.versions import version_key
from edgewise.wire import topics
from edgewise.wire.fleet import Live, ModelState, Reported
from tests.cloud.fleet.bench import OPERATOR, VIEWER, Bench


async def fleet(bench: Bench) -> None:
    """Four devices that differ in everything that can be asked for."""
    await bench.device("cam-1", name="Caméra Süd 1", labels={"site": "Lyon", "rack": 5, "spare": True}, online=False)
    await bench.device("cam-2", name="Camera 2", labels={"site": "Paris", "rack": 12})
    await bench.device("press", name="100% press_a", labels={"site": "Lyon", "Line": "A (old)"})
    await bench.device("arm", name="Robot arm")
    models = [
        ModelState(name="SmolLM2-135M", digest="sha256:aa", loaded=True),
        ModelState(name="whisper", digest="sha256:bb"),
    ]
    await bench.born("cam-2", version="1.10.0", models=models, hardware={"family": "orin", "os": {"name": "Debian"}})
    await bench.born("press", version="1.2rc1", models=[ModelState(name="smol", digest="sha256:cc")])
    await bench.born("arm", version="1.9", models=[ModelState(name="gone", state="removed")])
    for uid, celsius in (("cam-2", 81.5), ("press", 40.0)):
        sample = {"group": "device", "samples": [{"values": {"temperature_c": celsius, "kv.used": 0.5}}]}
        await bench.say(topics.telemetry(uid, "device"), sample)
    await bench.shadows.desire(OPERATOR, "press", "config", {"log.level": "debug"})
    report = Reported(
        seen=1, applied=0, state="refused", document={"placement.policy": "Prefer-Local", "on": True, "n": 5}
    )
    await bench.say(topics.reported("press", "config"), report)
    await bench.say(topics.live("arm"), Live(state="draining"))
    await bench.registry.save_group(OPERATOR, "hot", "temperature_c>80")


CASES = {
    "": "cam-1 cam-2 press arm",
    "name:cam*": "cam-1 cam-2",
    "NAME:cam*": "",  # no field of this name, so a label
    'name:"caméra süd 1"': "cam-1",
    "name:*SÜD*": "cam-1",
    'name:"100% press_a"': "press",
    "name:100%*": "press",
    "name:*s_a": "press",
    "name:*s%a": "",  # a percent sign is no wildcard
    'name:"cam*"': "",  # nor is a quoted asterisk
    "uid:CAM-1": "cam-1",
    "uid:cam_1": "",
    "cam": "cam-1 cam-2",
    '"robot arm"': "arm",
    "lyon": "cam-1 press",
    "site:lyon": "cam-1 press",
    "label.site:lyon": "cam-1 press",
    "site:l*": "cam-1 press",
    "site!=lyon": "cam-2 arm",
    "NOT site:lyon": "cam-2 arm",
    "rack>5": "cam-2",
    "label.rack<=5": "cam-1",
    "rack:5": "cam-1",
    "spare:true": "cam-1",
    'line:"a (OLD)"': "press",
    "state:online": "cam-2 press",
    "state:ONLINE OR state:draining": "cam-2 press arm",
    "state:never*": "cam-1",
    "state!=online": "cam-1 arm",
    "model:smollm2": "cam-2",
    "model:smol": "press",
    "model:smol*": "cam-2 press",
    "model:smollm2-135m": "cam-2",
    "model:sha256:bb": "cam-2",
    "model!=whisper": "cam-1 press arm",
    "model:gone": "",
    "loaded:smollm2": "cam-2",
    "loaded:whisper": "",
    "version<1.2": "press",
    "version>=1.9": "cam-2 arm",
    "version>1.9": "cam-2",
    "version:1.9.0": "arm",
    "version:1.*": "cam-2 press arm",
    "version!=1.9": "cam-2 press",
    "temperature_c>80": "cam-2",
    "temperature_c<=40": "press",
    "NOT temperature_c>80": "cam-1 press arm",
    "gauge.kv.used>0.4": "cam-2 press",
    "kv.used<0.4": "",
    "seen<1m": "cam-2 press arm",
    "seen:never": "cam-1",
    "seen>1h": "",
    "hardware.family:ORIN": "cam-2",
    "hardware.os.name:deb*": "cam-2",
    "NOT hardware.family:orin": "cam-1 press arm",
    "shadow.config:refused": "press",
    "shadow.config:behind": "press",
    "shadow.models:applied": "",
    "reported.placement.policy:prefer-local": "press",
    "reported.on:true": "press",
    "reported.n:5": "press",
    "reported.on:false": "",
    "alerts>0": "",
    "alerts=0": "cam-1 cam-2 press arm",
    "group:hot": "cam-2",
    "NOT group:hot AND site:*": "cam-1 press",
    "site:lyon state:online": "press",
    "site:lyon and not state:online or model:whisper": "cam-1 cam-2",
    "NOT (site:lyon OR site:paris)": "arm",
    "NOT NOT site:paris": "cam-2",
    "model:smollm2 AND site:paris AND state:online": "cam-2",
}


async def test_every_kind_of_question(bench: Bench) -> None:
    await fleet(bench)
    found = {query: " ".join(sorted(await bench.registry.uids(VIEWER, query))) for query in CASES}
    assert found == {query: " ".join(sorted(uids.split())) for query, uids in CASES.items()}


HOSTILE = ("x'); DROP TABLE devices; --", '"', "%", "_", "\\", "a'b", "${x}", "{}", "site", "' OR 1=1")


async def test_what_is_asked_for_is_never_part_of_a_statement(bench: Bench) -> None:
    await fleet(bench)
    for text in HOSTILE:
        quoted = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
        for field in ("name", "uid", "site", "model", "version", "hardware.x", "reported.x"):
            assert await bench.registry.uids(VIEWER, f"{field}:{quoted}") == [], (field, text)
    assert len(await bench.registry.uids(VIEWER, "")) == 4


@pytest.mark.parametrize(
    ("query", "place", "remedy"),
    [
        ("site:", 6, "a value must follow"),
        ("(site:lyon", 1, "not closed"),
        ("site:lyon)", 10, "closes nothing"),
        ("site:lyon AND", 14, "the query ends"),
        ("OR site:lyon", 1, "there is 'OR'"),
        ("NOT", 4, "the query ends"),
        ('name:"open', 6, "quotation mark is not closed"),
        ("state:onlin", 7, "online, degraded"),
        ("temperature_c>warm", 15, "no number"),
        ("name>5", 1, "is a text"),
        ("seen:yesterday", 1, "seen>1h"),
        ("seen>later", 6, "no duration"),
        ("shadow.nothing:applied", 1, "config, models"),
        ("shadow.config:done", 15, "applied, pending"),
        ("site:lyon group:none", 17, "no group"),
        ("(" * 30 + "a" + ")" * 30, 22, "deeper"),
        ("a " * 101, 1, "more than 100"),
        ("a" * 3000, 2001, "longer than"),
        ("ab\0", 3, "NUL"),
    ],
)
async def test_what_is_wrong_is_said_with_its_position_and_remedy(
    bench: Bench, query: str, place: int, remedy: str
) -> None:
    with pytest.raises(QueryError, match=rf"at character {place}: .*{re.escape(remedy)}") as refused:
        await bench.registry.uids(VIEWER, query)
    assert refused.value.param == "query"


async def test_groups_that_name_each_other_in_a_circle_are_refused(bench: Bench) -> None:
    await bench.registry.save_group(OPERATOR, "a", "x:1")
    await bench.registry.save_group(OPERATOR, "b", "group:a")
    with pytest.raises(QueryError, match="levels deep"):
        await bench.registry.save_group(OPERATOR, "a", "group:b")
    assert [group.query for group in await bench.registry.groups(VIEWER)] == ["x:1", "group:a"]


# --- rules ----------------------------------------------------------------------------------------------------------------------

names = st.sampled_from(["a", "b", "c"])


def trees() -> st.SearchStrategy[tuple[str, Callable[[set[str]], bool]]]:
    """A query with the answer that it must give for a device that has some of the labels a, b and c."""
    leaf = names.map(lambda name: (f"{name}:1", lambda has, name=name: name in has))

    def grow(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        pairs = st.tuples(inner, inner)
        return st.one_of(
            inner.map(
                lambda one: (f"NOT {one[0]}" if one[0][0] != "(" else f"NOT{one[0]}", lambda has: not one[1](has))
            ),
            pairs.map(lambda two: (f"({two[0][0]} AND {two[1][0]})", lambda has: two[0][1](has) and two[1][1](has))),
            pairs.map(lambda two: (f"({two[0][0]} {two[1][0]})", lambda has: two[0][1](has) and two[1][1](has))),
            pairs.map(lambda two: (f"({two[0][0]} OR {two[1][0]})", lambda has: two[0][1](has) or two[1][1](has))),
        )

    return st.recursive(leaf, grow, max_leaves=12)


def holds(node: object, has: set[str]) -> bool:
    if isinstance(node, Not):
        return not holds(node.node, has)
    if isinstance(node, Both):
        return (all if node.how == "AND" else any)(holds(one, has) for one in node.nodes)
    assert isinstance(node, Term)
    return node.field in has


@given(trees(), st.sets(names))
def test_and_or_not_and_parentheses_mean_what_they_say(
    query: tuple[str, Callable[[set[str]], bool]], has: set[str]
) -> None:
    text, answer = query
    assert holds(parse(text), has) == answer(has)


@given(st.text(max_size=60))
def test_any_text_is_a_query_or_is_refused_with_a_position(text: str) -> None:
    try:
        parse(text)
        place = 0
    except QueryError as error:
        place = error.place
    assert 0 <= place <= len(text)


@given(st.lists(st.integers(0, 200), min_size=1, max_size=4), st.lists(st.integers(0, 200), min_size=1, max_size=4))
def test_versions_are_ordered_as_numbers(first: list[int], second: list[int]) -> None:
    def plain(numbers: list[int]) -> list[int]:
        return plain(numbers[:-1]) if numbers and numbers[-1] == 0 else numbers

    one, two = (version_key(".".join(map(str, numbers))) for numbers in (first, second))
    assert (one < two) == (plain(first) < plain(second))
    assert version_key(".".join(map(str, first)) + "rc1") < one < version_key(".".join(map(str, first)) + ".post1")
