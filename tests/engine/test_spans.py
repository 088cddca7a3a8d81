"""Media of one sequence: names of pages, chunks, who sees whom, positions in three dimensions."""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.core.errors import ContextLengthExceeded, InvalidRequest
from edgewise.engine.prefix import PageHash, chain_start, extend_chain
from edgewise.engine.request import GenerateRequest, SamplingParams
from edgewise.engine.spans import Spans, check_media
from edgewise.models.multimodal.media import Media
from tests.fakes.scheduling import picture

PAGE = 4
LENGTH = 40


@st.composite
def layouts(draw: st.DrawFn) -> list[Media]:
    """Media of a prompt of `LENGTH` tokens."""
    found, at = [], 0
    for _ in range(draw(st.integers(0, 4))):
        start = at + draw(st.integers(0, 6))
        count = draw(st.integers(1, 12))
        if start + count > LENGTH:
            break
        found.append(picture(start, count, draw(st.integers(0, 2)), whole=draw(st.booleans())))
        at = start + count
    return found


def chain(media: list[Media], computed: int = LENGTH) -> list[PageHash]:
    names: list[PageHash] = []
    extend_chain(names, chain_start(""), [7] * LENGTH, PAGE, computed, media)
    return names


def rows(media: list[Media]) -> list[object]:
    """What each token of the prompt stands for."""
    found: list[object] = ["text"] * LENGTH
    for one in media:
        for at in range(one.start, one.end):
            found[at] = (one.digest, at - one.start, one.count, one.whole)
    return found


@given(layouts(), layouts())
def test_pages_have_one_name_exactly_where_everything_up_to_their_end_is_the_same(
    one: list[Media], other: list[Media]
) -> None:
    first, second = rows(one), rows(other)
    same = [first[: end * PAGE] == second[: end * PAGE] for end in range(1, LENGTH // PAGE + 1)]
    assert [a == b for a, b in zip(chain(one), chain(other), strict=True)] == same


@given(layouts(), st.integers(0, LENGTH))
def test_a_chain_grows_by_pages(media: list[Media], computed: int) -> None:
    whole, part = chain(media), chain(media, computed)
    assert part == whole[: computed // PAGE]
    extend_chain(part, chain_start(""), [7] * LENGTH, PAGE, LENGTH, media)
    assert part == whole


def test_positions_and_sight_are_part_of_a_name() -> None:
    plain = picture(2, 12)
    changes: list[dict[str, Any]] = [
        {"grid": (1, 3, 4)},
        {"grid": (1, 4, 3)},
        {"grid": (3, 1, 4), "second": 2.0},
        {"whole": True},
        {"digest": b"x" * 32},
    ]
    names = {chain([plain])[0], *(chain([replace(plain, **change)])[0] for change in changes)}
    assert len(names) == 1 + len(changes)


def test_a_prompt_without_media_has_the_names_it_always_had() -> None:
    """Pages on disk are found under them."""
    assert chain([], PAGE)[0] == hashlib.sha256(chain_start("") + array("q", [7] * PAGE).tobytes()).digest()


@given(layouts(), st.integers(1, 16), st.integers(12, 16))
def test_chunks_cut_no_medium_that_must_be_whole_and_always_go_on(media: list[Media], budget: int, most: int) -> None:
    spans = Spans(media, LENGTH)
    at = 0
    while at < LENGTH:
        end = spans.fitting(at, min(LENGTH, at + budget), most)
        assert at < end <= at + max(budget, most)
        assert not any(one.whole and one.start < end < one.end for one in media)
        at = end


@given(layouts(), st.integers(0, LENGTH - 1), st.data())
def test_tokens_see_themselves_and_what_is_before_or_all_of_a_whole_medium(
    media: list[Media], start: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, LENGTH - start))
    seen = Spans(media, LENGTH).visible(start, count)
    for at, last in zip(range(start, start + count), seen.tolist(), strict=True):
        around = [one.end - 1 for one in media if one.whole and one.start <= at < one.end]
        assert last == (around[0] if around else at)


def test_text_after_a_picture_goes_on_behind_the_largest_of_its_positions() -> None:
    media = [
        replace(picture(2, 6), grid=(1, 2, 3)),
        replace(picture(10, 4), grid=(2, 1, 2), kind="video", second=2.5),
        picture(15, 3),
    ]
    spans = Spans(media, 20)
    assert spans.rope(0, 23).tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 7, 7, 9, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6, 7, 7, 7, 7, 10, 11, 12, 13, 14, 15, 16, 17, 18],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 7, 8, 7, 8, 10, 11, 12, 13, 14, 15, 16, 17, 18],
    ]
    assert spans.next_position == 16
    for start, count in ((0, 5), (7, 9), (19, 3), (21, 2)):
        assert np.array_equal(spans.rope(start, count), spans.rope(0, 23)[:, start : start + count])
    plain = Spans([picture(2, 6)], 20)
    assert plain.rope(18, 4).tolist() == [[18, 19, 20, 21]] * 3
    assert not plain.three


def test_media_that_must_be_whole_fit_a_step_and_film_the_models_positions() -> None:
    def check(one: Media, most_whole: int = 8, max_position: int = 100) -> None:
        content = replace(one, content=b"abc", shape=(1, 1, 1, 3))
        request = GenerateRequest(id="a", prompt=(7,) * 20, sampling=SamplingParams(max_tokens=5), media=(content,))
        check_media(request, kinds=("image",), model="m", most_whole=most_whole, max_position=max_position)

    check(picture(2, 8, whole=True))
    with pytest.raises(InvalidRequest, match=r"takes 9 tokens.*engine\.max_step_tokens"):
        check(picture(2, 9, whole=True))
    film = replace(picture(2, 4), grid=(4, 1, 1), second=25.0)
    check(film)
    with pytest.raises(ContextLengthExceeded, match="reach position"):
        check(film, max_position=90)
