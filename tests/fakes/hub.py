"""A stand-in for the model hub: its listing, its files, and a second server that plays its CDN. Real sockets, two origins."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from edgewise.models.sources.access import Secret, SourceAccess
from tests.fakes.model_server import ModelServer, Page, serving

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = 50_000


def git_blob_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass
class Hub:
    """Both servers; `api` has what a client reaches first."""

    api: ModelServer
    cdn: ModelServer
    pauses: list[float] = field(default_factory=list)

    def access(self, token: str | None = None, **options: Any) -> SourceAccess:
        """Access to this hub."""
        host = frozenset({"127.0.0.1"})
        fields = {"private_hosts": host, "http_hosts": host, "timeout_s": 5.0, "sleep": self.pauses.append, **options}
        return SourceAccess(hub_endpoint=self.api.origin, hub_token=Secret(token) if token else None, **fields)

    def add(self, repo: str, files: Mapping[str, bytes], *, commit: str = COMMIT, **document: Any) -> None:
        """Publishes a repository whose branch main is at `commit`; files from `LARGE` bytes on lie at the CDN."""
        siblings = [self._publish(repo, commit, path, data) for path, data in files.items()]
        body = json.dumps({"id": repo, "sha": commit, "siblings": siblings, **document}).encode()
        for revision in ("main", commit):
            self.api.pages[f"/api/models/{repo}/revision/{revision}"] = Page(body=body)

    def listing(self, repo: str, revision: str = "main") -> Page:
        return self.api.pages[f"/api/models/{repo}/revision/{revision}"]

    def file(self, repo: str, path: str, commit: str = COMMIT) -> Page:
        return self.api.pages[f"/{repo}/resolve/{commit}/{path}"]

    def stored(self, data: bytes) -> Page:
        """The page of a large file at the CDN."""
        return self.cdn.pages[f"/xet/{hashlib.sha256(data).hexdigest()}"]

    def require(self, token: str, **denied: str) -> None:
        """From now on every page of the hub itself wants `token`; `denied` are the headers of its refusals."""
        for page in self.api.pages.values():
            page.auth = f"Bearer {token}"
            page.denied = (401, {name.replace("_", "-"): value for name, value in denied.items()})

    def _publish(self, repo: str, commit: str, path: str, data: bytes) -> dict[str, Any]:
        sha256, blob_id = hashlib.sha256(data).hexdigest(), git_blob_id(data)
        url = f"/{repo}/resolve/{commit}/{path}"
        headers = {"X-Repo-Commit": commit}
        if len(data) < LARGE:
            self.api.pages[url] = Page(body=data, etag=f'"{blob_id}"', extra=headers)
            return {"rfilename": path, "size": len(data), "blobId": blob_id}
        self.cdn.pages[f"/xet/{sha256}"] = Page(body=data, etag=f'"{sha256[:32]}"')
        headers |= {"X-Linked-ETag": f'"{sha256}"', "X-Linked-Size": str(len(data))}
        self.api.pages[url] = Page(location=f"{self.cdn.url(f'/xet/{sha256}')}?signature=s3cret", extra=headers)
        lfs = {"sha256": sha256, "size": len(data), "pointerSize": 134}
        return {"rfilename": path, "size": len(data), "blobId": blob_id, "lfs": lfs}


@contextmanager
def running_hub() -> Iterator[Hub]:
    """Both servers, ended with the block."""
    with serving() as api, serving() as cdn:
        yield Hub(api, cdn)
