"""The grammar of `hf:` and `oci:` names. Every part is checked here, so that none can leave its place in a URL or a path."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from edgewise.core.errors import InvalidRequest
from edgewise.models.names import MAX_NAME, suggest_name

PREFIXES: Final = ("hf:", "oci:")
MAX_LENGTH: Final = 1024

_PART: Final = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
_HUB: Final = re.compile(
    rf"hf:(?P<owner>{_PART})/(?P<name>{_PART})"
    r"(?:@(?P<revision>[A-Za-z0-9_][A-Za-z0-9._%-]*))?"
    r"(?:/(?P<file>[A-Za-z0-9_][A-Za-z0-9._+/ ()-]*)|:(?P<quant>[A-Za-z0-9_.-]+))?"
)
# The distribution specification's own expressions for <name> and <reference>, with a host before them.
_REGISTRY: Final = re.compile(
    r"oci:(?P<host>(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?)"
    r"/(?P<repository>[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubName:
    """`hf:owner/name[@revision][/file | :quantisation]`."""

    owner: str
    name: str
    revision: str | None = None
    file: str | None = None
    quant: str | None = None

    @property
    def repo(self) -> str:
        return f"{self.owner}/{self.name}"

    @property
    def model_name(self) -> str | None:
        """What to call the model: the repository, and the quantisation or file that was chosen of it."""
        base = re.sub(r"[-_.]gguf$", "", self.name, flags=re.IGNORECASE)
        if self.quant is not None:
            base = f"{base}-{self.quant}"
        elif self.file is not None:
            base = re.sub(r"\.gguf$", "", self.file.rsplit("/", 1)[-1], flags=re.IGNORECASE)
        return suggest_name(base)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryName:
    """`oci:registry/repository[:tag][@digest]`; of tag and digest the digest decides."""

    host: str
    repository: str
    tag: str
    digest: str | None = None

    @property
    def reference(self) -> str:
        return self.digest or self.tag

    @property
    def model_name(self) -> str | None:
        """What to call the model: the last part of the repository, and the tag unless it says nothing."""
        base = self.repository.rsplit("/", 1)[-1]
        return suggest_name(base if self.tag == "latest" else f"{base}-{self.tag}"[:MAX_NAME])


def parse_hub_name(text: str) -> HubName:
    """Raises InvalidRequest where `text` is no such name."""
    found = _HUB.fullmatch(text) if len(text) <= MAX_LENGTH else None
    parts = {key: value for key, value in (found.groupdict() if found else {}).items() if value is not None}
    revision = unquote(parts.get("revision", ""))
    if found is None or _climbs(*parts.values(), revision) or not (revision.isascii() and revision.isprintable()):
        raise _malformed(
            text,
            "hf:OWNER/NAME[@REVISION][/FILE.gguf], or hf:OWNER/NAME[@REVISION]:QUANTISATION such as Q4_K_M; a '/' in the "
            "revision is written %2F",
        )
    return HubName(**{**parts, **({"revision": revision} if revision else {})})


def parse_registry_name(text: str) -> RegistryName:
    """Raises InvalidRequest where `text` is no such name."""
    found = _REGISTRY.fullmatch(text) if len(text) <= MAX_LENGTH else None
    if found is None or ".." in found["host"]:
        raise _malformed(text, "oci:REGISTRY[:PORT]/REPOSITORY[:TAG] or oci:REGISTRY[:PORT]/REPOSITORY@sha256:DIGEST")
    host = found["host"].lower()
    return RegistryName(
        host="registry-1.docker.io" if host in {"docker.io", "index.docker.io"} else host,
        repository=found["repository"],
        tag=found["tag"] or "latest",
        digest=found["digest"],
    )


def _climbs(*parts: str) -> bool:
    return any(piece in {"", ".", ".."} or ".." in piece for part in parts if part for piece in part.split("/"))


def _malformed(text: str, grammar: str) -> InvalidRequest:
    return InvalidRequest(f"{text[:120]!r} is not a model's place: write {grammar}.", param="model")
