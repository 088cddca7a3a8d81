"""A stand-in for a container registry: manifests, blobs at a second origin, and a token service that challenges lead to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from edgewise.models.sources.access import Secret, SourceAccess
from tests.fakes.model_server import ModelServer, Page, serving

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
TITLE = "org.opencontainers.image.title"


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def titled(name: str, data: bytes, kind: str = "application/octet-stream") -> tuple[dict[str, Any], bytes]:
    """A layer as ORAS pushes a file."""
    return {"mediaType": kind, "annotations": {TITLE: name}}, data


@dataclass
class Registry:
    """The registry and the origin that its blobs lie at."""

    api: ModelServer
    cdn: ModelServer
    pauses: list[float] = field(default_factory=list)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.api.port}"

    def access(self, credentials: str | None = None, **options: Any) -> SourceAccess:
        host = frozenset({"127.0.0.1"})
        registries = {self.host: Secret(credentials)} if credentials else {}
        fields = {"private_hosts": host, "http_hosts": host, "timeout_s": 5.0, "sleep": self.pauses.append, **options}
        return SourceAccess(registries=registries, **fields)

    def push(
        self, repository: str, layers: Sequence[tuple[Mapping[str, Any], bytes]], *tags: str, **manifest: Any
    ) -> str:
        """Publishes blobs and an image manifest over them; returns its digest."""
        described = []
        for layer, data in layers:
            described.append({"digest": digest_of(data), "size": len(data), **layer})
            path = f"/v2/{repository}/blobs/{digest_of(data)}"
            self.cdn.pages[path] = Page(body=data, etag=f'"{digest_of(data)[:20]}"')
            self.api.pages[path] = Page(location=self.cdn.url(path))
        document = {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "layers": described, **manifest}
        return self.publish(repository, document, *tags)

    def publish(self, repository: str, document: Mapping[str, Any], *tags: str) -> str:
        """Publishes a manifest or an index."""
        body = json.dumps(document).encode()
        for reference in (digest_of(body), *tags):
            extra = {"Content-Type": str(document.get("mediaType")), "Docker-Content-Digest": digest_of(body)}
            self.api.pages[f"/v2/{repository}/manifests/{reference}"] = Page(body=body, extra=extra)
        return digest_of(body)

    def blob(self, repository: str, data: bytes) -> Page:
        """The page of a blob where its bytes are."""
        return self.cdn.pages[f"/v2/{repository}/blobs/{digest_of(data)}"]

    def guard(self, token: str, *, basic: str | None = None) -> None:
        """From now on every page wants the bearer `token`, to be had at /token (with the header `basic` if given)."""
        challenge = f'Bearer realm="{self.api.url("/token")}",service="stand-in",scope="repository:x:pull"'
        for path, page in self.api.pages.items():
            if path != "/token":
                page.auth, page.denied = f"Bearer {token}", (401, {"WWW-Authenticate": challenge})
        self.api.pages["/token"] = Page(body=json.dumps({"token": token}).encode(), auth=basic)


@contextmanager
def running_registry() -> Iterator[Registry]:
    """Both servers, ended with the block."""
    with serving() as api, serving() as cdn:
        yield Registry(api, cdn)
