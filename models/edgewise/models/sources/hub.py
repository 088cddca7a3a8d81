"""`hf:` sources: one file of a repository of the hub at a commit, over the hub's own HTTP protocol.

The hub answers `/{repo}/resolve/{commit}/{path}` with the file, or with a redirect to a signed address at a host of its CDN.
Before that redirect it says which commit it serves (X-Repo-Commit) and, for large files, the SHA-256 (X-Linked-ETag) and
the size (X-Linked-Size); all three are held against what was pinned before a byte is fetched. The token goes to the hub's
own origin only. (Protocol as documented and used by the hub's client library, huggingface_hub.)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final
from urllib.parse import quote

from edgewise.core.errors import ConfigError, EdgewiseError, ModelNotFound, NotPermitted
from edgewise.models.blobs import PartialFile
from edgewise.models.progress import ProgressSink
from edgewise.models.sources.access import SourceAccess
from edgewise.models.sources.attempts import Refused
from edgewise.models.sources.source import Offline
from edgewise.models.sources.transfer import Transfer, expect_digest
from edgewise.security.fetch import Response

COMMIT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")

_SHA256: Final = re.compile(r'"?([0-9a-f]{64})"?')


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSource:
    """A file in a repository.

    Attributes:
        repo: "owner/name".
        commit: The revision's commit hash.
        path: In the repository, with `/`.
        access: Endpoint, token, and what may be opened.
    """

    network: ClassVar[bool] = True

    repo: str
    commit: str
    path: str
    access: SourceAccess = field(default=SourceAccess(), compare=False, repr=False)

    @property
    def label(self) -> str:
        return f"hf:{self.repo}@{self.commit}/{self.path}"

    @property
    def url(self) -> str:
        return f"{self.access.hub_endpoint}/{self.repo}/resolve/{quote(self.commit, safe='')}/{quote(self.path)}"

    def scratch(self) -> Mapping[str, int]:
        return {}

    def fetch(self, sink: PartialFile, work: Path, progress: ProgressSink) -> None:  # noqa: ARG002 - the protocol's
        if self.access.offline:
            raise Offline(self.label)

        def accept(response: Response) -> None:
            if (error := hub_error(response, self.repo, self.access)) is not None:
                raise Refused(error.message)
            self._check_announced(response, sink)

        Transfer(
            url=self.url,
            policy=self.access.policy,
            headers=lambda: hub_headers(self.access),
            accept=accept,
            sleep=self.access.sleep,
        ).run(sink, progress)

    def _check_announced(self, response: Response, sink: PartialFile) -> None:
        for headers in (*response.hops, response.headers):
            commit = headers.get("x-repo-commit", self.commit)
            if commit != self.commit and COMMIT.fullmatch(self.commit):  # a catalog's entry may name a tag or branch
                raise Refused(f"{self.label}: the hub serves commit {commit[:64]!r} instead of the pinned one.")
            if found := _SHA256.fullmatch(headers.get("x-linked-etag", "")):
                expect_digest(found[1], sink, self.label)
            size = headers.get("x-linked-size", str(sink.file.size))
            if size != str(sink.file.size):
                raise Refused(
                    f"{self.label} has {size[:20]} bytes, {sink.file.size} were expected: it is another file."
                )


def hub_headers(access: SourceAccess) -> dict[str, str]:
    """What every request to the hub carries.

    Raises:
        ConfigError: There is a token, and the endpoint would get it unencrypted.
    """
    if access.hub_token is None:
        return {}
    if not access.may_carry_secrets(access.hub_endpoint):
        raise ConfigError(
            f"The hub's token is not sent unencrypted: give `sources.hub_endpoint` ({access.hub_endpoint}) as https, or "
            f"unset HF_TOKEN and `sources.hub_token_file`."
        )
    return {"Authorization": f"Bearer {access.hub_token.reveal}"}


def hub_error(response: Response, repo: str, access: SourceAccess) -> EdgewiseError | None:
    """What a refusal of the hub means, and the remedy; None for other answers."""
    if response.status not in {401, 403, 404, 410, 451}:
        return None
    code = response.headers.get("x-error-code", "")
    page = f"{access.hub_endpoint}/{repo}"
    give = "give it as HF_TOKEN or in the file of `sources.hub_token_file`"
    tokens = f"make a read token at {access.hub_endpoint}/settings/tokens and {give}"
    known = access.hub_token is not None
    if code == "GatedRepo" and known:
        return NotPermitted(
            f"hf:{repo} is gated and the token's user has no access to it: ask for it at {page}; a fine-grained token "
            f"also needs the permission to read public gated repositories."
        )
    if code == "GatedRepo":
        return NotPermitted(f"hf:{repo} is gated: accept its terms at {page}, then {tokens}.")
    if code == "RevisionNotFound":
        return ModelNotFound(f"hf:{repo} has no such revision: {page} lists its branches and tags.", param="model")
    if code == "EntryNotFound":
        return ModelNotFound(
            f"hf:{repo} has no such file at that revision: {page}/tree/main lists them.", param="model"
        )
    if response.status == 401 and known and code != "RepoNotFound":
        return NotPermitted(f"The hub refuses the token (401): it has expired or been revoked; {tokens}.")
    if response.status in {401, 404} or code == "RepoNotFound":
        may = "the token's user may not see it" if known else f"it is private: then {tokens}"
        return ModelNotFound(f"hf:{repo} is not there, or {may}. Check the spelling at {page}.", param="model")
    said = response.headers.get("x-error-message", "")[:200]
    return NotPermitted(f"The hub refuses hf:{repo} ({response.status} {said!r}): {page} may say why.")
