"""The pulling side of a blob over a wire that loses, repeats and damages blocks."""

from __future__ import annotations

import asyncio
import hashlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewise.core.errors import LinkLost
from edgewise.wire.asking import BLOCK, BLOCKS, BlobGet, block_at
from edgewise.wire.messages import Blob
from edgewise.wire.mqtt.blobs import PAUSES_S, Pull
from tests.fakes.instant import instantly

RTT_S = 0.1


class Wire:
    """Answers what a `Pull` asks for. `faults`: what befalls the first blocks that are sent; "request" befalls a request.

    Attributes:
        asked: Blocks that were asked for.
        most: Blocks that were on their way at once, at most.
    """

    def __init__(self, content: bytes, faults: list[str], *, start: int = 0, block_s: float = 0.01) -> None:
        self.content = content
        self.blob = Blob(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))
        self.pull = Pull(self.blob, start, self._get)
        self.asked = self.most = 0
        self._start, self._block_s = start, block_s
        self._faults = [*faults]
        self._free_at = 0.0
        self._flying = 0

    async def _get(self, get: BlobGet) -> None:
        loop = asyncio.get_running_loop()
        if self._faults[:1] == ["request"]:
            self._faults.pop(0)
            self.asked += get.blocks
            return
        for number in range(get.blocks):
            offset = get.offset + number * BLOCK
            block = block_at(self.blob, self.content[offset : offset + BLOCK], offset)
            fault = self._faults.pop(0) if self._faults else ""
            self.asked += 1
            self._free_at = max(self._free_at, loop.time() + RTT_S) + self._block_s
            if fault == "damage":
                block = block.model_copy(update={"data": b"x" * len(block.data), "crc": block.crc ^ 1})
            for _ in range({"lose": 0, "repeat": 2}.get(fault, 1)):
                self._flying += 1
                self.most = max(self.most, self._flying)
                loop.call_at(self._free_at + (5 * self._block_s if fault == "late" else 0), self._arrive, block)

    def _arrive(self, block: object) -> None:
        self._flying -= 1
        self.pull.put(block)  # type: ignore[arg-type]

    async def read(self) -> float:
        """Pull it all; the seconds that it took."""
        have = self.content[: self._start]
        async for piece in self.pull.pieces():
            have += piece
        assert have == self.content
        return asyncio.get_running_loop().time()


def content(blocks: int) -> bytes:
    return random.Random(blocks).randbytes((blocks - 1) * BLOCK + 1000)


async def pulled(content: bytes, faults: list[str], start: int = 0, block_s: float = 0.01) -> tuple[float, Wire]:
    wire = Wire(content, faults, start=start, block_s=block_s)
    return await wire.read(), wire


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 40),
    st.lists(st.sampled_from(["", "", "", "lose", "repeat", "damage", "late", "request"]), max_size=80),
    st.integers(0, 2),
)
def test_a_blob_arrives_whole_whatever_befalls_its_blocks(blocks: int, faults: list[str], start: int) -> None:
    whole = content(blocks)
    try:
        _, wire = instantly(pulled(whole, faults, min(start * BLOCK, len(whole))))
    except LinkLost:  # three silences in a row
        assert sum(fault in ("lose", "damage", "request") for fault in faults) >= len(PAUSES_S)
    else:
        assert wire.most <= 4 * BLOCKS


@pytest.mark.parametrize("fault", ["lose", "damage"])
def test_a_lost_block_is_asked_for_alone_and_at_once(fault: str) -> None:
    whole = content(24)
    undisturbed, _ = instantly(pulled(whole, []))
    for lost in range(24):
        took, wire = instantly(pulled(whole, [*[""] * lost, fault]))
        assert wire.asked == 24 + 1, lost
        last = lost >= 24 - BLOCKS  # perhaps nothing comes any more that betrays it
        assert took <= undisturbed + 2 * RTT_S + (PAUSES_S[0] if last else 0), lost


def test_a_request_that_is_lost_costs_one_silence() -> None:
    whole = content(24)
    undisturbed, _ = instantly(pulled(whole, []))
    took, wire = instantly(pulled(whole, ["request"]))
    assert took <= undisturbed + PAUSES_S[0] + 3 * RTT_S
    assert wire.asked == 24 + BLOCKS


def test_a_slow_link_is_not_asked_over_and_over() -> None:
    """A block takes longer than the first pauses together; only until one has come is more asked for than needed."""
    _, wire = instantly(pulled(content(24), [], block_s=5.0))
    assert wire.asked <= 24 + BLOCKS + 2


def test_a_sender_that_is_silent_is_given_up() -> None:
    async def never() -> float:
        wire = Wire(content(3), ["request"] * 100)
        with pytest.raises(LinkLost, match="however often"):
            await wire.read()
        return asyncio.get_running_loop().time()

    assert instantly(never()) == pytest.approx(sum(PAUSES_S))
