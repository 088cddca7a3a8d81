"""What the leader and the other members of a group say to each other. Arrays are bytes in machine order."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from edgewise.engine.messages import Message
from edgewise.models.adapters.files import AdapterFiles
from edgewise.models.files import ModelFiles


class Share(Message, frozen=True):
    """First message to a member: what it is to hold. `meeting` is a file over which the members find each other."""

    rank: int
    size: int
    meeting: str
    model: ModelFiles
    max_context: int | None
    device: str
    dtype: str
    kv_dtype: str
    num_pages: int
    threads: int


class Join(Message, frozen=True):
    """Meet the others; all have loaded their shares. Then products are computed with the leader's rule (`kernels.rows`)."""

    multiple: int
    tile: int | None


class Adapted(Message, frozen=True):
    """Tokens that are computed with an adapter, int64."""

    digest: str
    rows: bytes


class Step(Message, frozen=True):
    """One forward pass, and which rows of it logits are asked for.

    `tokens`, `positions`, `slots` are [T] int64, `query_lens`, `context_lens` [B] int64, `tables` [B, pages] int32, all as in
    `AttentionMeta`; `rows` are int64, None for all.
    """

    tokens: bytes
    positions: bytes
    slots: bytes
    query_lens: bytes
    context_lens: bytes
    tables: bytes
    rows: bytes | None
    adapted: tuple[Adapted, ...] = ()


class OpenAdapter(Message, frozen=True):
    """Read a share of an adapter, which later steps name by its digest."""

    files: AdapterFiles


class CloseAdapter(Message, frozen=True):
    digest: str


class Export(Message, frozen=True):
    """Answer with `Contents` of these pages."""

    pages: tuple[int, ...]


class Restore(Message, frozen=True):
    """Write pages; `contents` are theirs in a row."""

    pages: tuple[int, ...]
    contents: bytes


class Leave(Message, frozen=True):
    """End in good order."""


class Loaded(Message, frozen=True):
    """The share is in memory."""


class Joined(Message, frozen=True):
    """Whether the leader's rule keeps a row's bits here too."""

    proven: bool


class Contents(Message, frozen=True):
    """Of the pages asked for, in a row."""

    contents: bytes


class Failed(Message, frozen=True):
    """Last words of a member: an error code of the tree, its message, and the traceback for the log."""

    code: str
    message: str
    traceback: str


ToMember: TypeAlias = Share | Join | Step | OpenAdapter | CloseAdapter | Export | Restore | Leave
ToLeader: TypeAlias = Loaded | Joined | Contents | Failed


def _decode_hook(kind: type, value: Any) -> Path:
    if kind is Path and isinstance(value, bytes):
        return Path(os.fsdecode(value))
    raise NotImplementedError(f"cannot decode {kind.__name__}")


_to_member: msgspec.msgpack.Decoder[ToMember] = msgspec.msgpack.Decoder(ToMember, dec_hook=_decode_hook)
_to_leader: msgspec.msgpack.Decoder[ToLeader] = msgspec.msgpack.Decoder(ToLeader, dec_hook=_decode_hook)


def decode_to_member(payload: bytes) -> ToMember:
    return _to_member.decode(payload)


def decode_to_leader(payload: bytes) -> ToLeader:
    return _to_leader.decode(payload)
