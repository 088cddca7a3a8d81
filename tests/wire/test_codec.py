from __future__ import annotations

import contextlib
import json
import tracemalloc
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.core.errors import BadMessage
from edgewise.wire.codec import Limits, decode, encode_cbor, encode_json

TEXT = st.text(max_size=20)
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | TEXT
)


def nested(scalars: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    values = st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5), max_leaves=20
    )
    return st.dictionaries(TEXT, values, max_size=5)


DEEP = Limits(depth=64)


@given(nested(SCALARS))
def test_json_comes_back_as_it_went(message: dict[str, Any]) -> None:
    assert decode(encode_json(message), DEEP) == message


@given(nested(SCALARS | st.binary(max_size=20)))
def test_cbor_comes_back_as_it_went(message: dict[str, Any]) -> None:
    assert decode(encode_cbor(message), DEEP) == message


@given(st.binary(max_size=400))
def test_random_bytes_give_a_message_or_the_typed_error(noise: bytes) -> None:
    for payload in (noise, b"{" + noise, b"\xa1\x61a" + noise, b'{"a":' + noise + b"}"):
        with contextlib.suppress(BadMessage):
            assert isinstance(decode(payload), dict)


@given(nested(SCALARS | st.binary(max_size=20)), st.data())
def test_damaged_cbor_gives_a_message_or_the_typed_error(message: dict[str, Any], data: st.DataObject) -> None:
    payload = bytearray(encode_cbor(message))
    for _ in range(3):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(BadMessage):
        assert isinstance(decode(bytes(payload)), dict)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b"\x80",
        b'{"a":NaN}',
        b'{"a":1e999}',
        b'{"a":' + b"9" * 5000 + b"}",
        b'{"a":"\\ud800"}',
        b'{"a":"\xff"}',
        b'{"a":1}{',
        b"\xa1\x61a\xf9\x7c\x00",  # infinity in half precision
        b"\xa1\x61a\xfb\x7f\xf8\x00\x00\x00\x00\x00\x00",  # not a number
        b"\xa1\x61a\xf7",  # undefined
        b"\xa1\x01\x02",  # a key that is a number
        b"\xa2\x61a\x01\x61a\x02",  # a key twice
        b"\xa1\x61a\xc2\x41\x01",  # a tag: a big number
        b"\xbf\x61a\x01\xff",  # indefinite length
        b"\xa1\x61a\x5f\x41a\xff",
        b"\xa1\x61a\x01\x00",  # something follows
        b"\xa1\x61a\x62\xff\xff",  # text that is no UTF-8
        cbor2.dumps({"a": {1, 2}}),
    ],
)
def test_what_is_not_used_here_is_refused(payload: bytes) -> None:
    with pytest.raises(BadMessage):
        decode(payload)


@pytest.mark.parametrize("encode", [encode_json, encode_cbor])
def test_limits(encode: Any) -> None:
    limits = Limits(bytes=1000, depth=4, items=100)
    assert decode(encode({"a": [[[1]]]}), limits)
    with pytest.raises(BadMessage, match="deeper than 4"):
        decode(encode({"a": [[[[1]]]]}), limits)
    assert decode(encode({"a": list(range(90))}), limits)
    with pytest.raises(BadMessage, match="more than 100"):
        decode(encode({"a": [1] * 101}), limits)
    with pytest.raises(BadMessage, match="limit is 1000"):
        decode(encode({"a": "x" * 1000}), limits)


def test_commas_and_brackets_in_text_are_no_items() -> None:
    text = '[{,"\\' * 200
    assert decode(json.dumps({"a": text}).encode(), Limits(depth=2, items=20)) == {"a": text}


@pytest.mark.parametrize(
    "payload",
    [
        b"\xa1\x61a\x9b\x00\x00\x00\xff\xff\xff\xff\xff",  # a list of 2^40 items
        b"\xa1\x61a\x5b\x00\x00\x00\xff\xff\xff\xff\xff",  # 2^40 bytes
        b"\xa1\x61a" + b"\x81" * 900_000,  # 900,000 levels
        b"\xa1\x61a\x9a\x00\x0d\xbb\xa0" + b"\x80" * 900_000,  # 900,000 lists
        b'{"a":' + b"[" * 900_000,
        b'{"a":[' + b"[]," * 300_000 + b"[]]}",
    ],
)
def test_a_small_message_cannot_take_much_memory(payload: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(BadMessage):
            decode(payload, Limits(items=10_000))
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
