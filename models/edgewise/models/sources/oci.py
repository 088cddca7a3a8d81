"""`oci:` sources: a blob of a container registry (OCI distribution specification 1.1), and how to be let in there.

A registry answers 401 with a challenge; a Bearer challenge names a realm where a token for this repository is to be had, with
the user's credentials or without (Docker registry token authentication). Tokens are short-lived: one that runs out in the
middle of a blob is replaced, and the blob goes on where it was.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final
from urllib.parse import urlencode, urlsplit

from edgewise.core.errors import ConfigError, EdgewiseError, ModelNotFound, NotPermitted
from edgewise.models.blobs import PartialFile
from edgewise.models.progress import ProgressSink
from edgewise.models.sources.access import SourceAccess
from edgewise.models.sources.attempts import Refused, TryAgain
from edgewise.models.sources.source import Offline
from edgewise.models.sources.transfer import Transfer, read_small
from edgewise.security.fetch import Response

_MAX_TOKEN_ANSWER: Final = 1 << 20
_MAX_CHALLENGES: Final = 3
_PARAMETER: Final = re.compile(r'([A-Za-z]+)="([^"]*)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class OciSource:
    """A blob of a repository; its digest is the file's.

    Attributes:
        host: "registry" or "registry:port".
        repository: Its path there.
        sha256: 64 hex digits.
        access: Credentials, and what may be opened.
    """

    network: ClassVar[bool] = True

    host: str
    repository: str
    sha256: str
    access: SourceAccess = field(default=SourceAccess(), compare=False, repr=False)

    @property
    def label(self) -> str:
        return f"oci:{self.host}/{self.repository}@sha256:{self.sha256}"

    @property
    def url(self) -> str:
        return f"{registry_url(self.host, self.repository, self.access)}/blobs/sha256:{self.sha256}"

    def scratch(self) -> Mapping[str, int]:
        return {}

    def fetch(self, sink: PartialFile, work: Path, progress: ProgressSink) -> None:  # noqa: ARG002 - the protocol's
        if self.access.offline:
            raise Offline(self.label)
        door = RegistryDoor(self.host, self.repository, self.access)

        def accept(response: Response) -> None:
            door.accept(response)
            if (error := registry_error(response, f"oci:{self.host}/{self.repository}")) is not None:
                raise Refused(error.message)

        Transfer(
            url=self.url, policy=self.access.policy, headers=door.headers, accept=accept, sleep=self.access.sleep
        ).run(sink, progress)


def registry_url(host: str, repository: str, access: SourceAccess) -> str:
    """Base of a repository's URLs."""
    return f"{access.scheme(host)}://{host}/v2/{repository}"


class RegistryDoor:
    """Answers a registry's challenges.

    Args:
        host: "registry" or "registry:port".
        repository: Its path there.
        access: Credentials, and what may be opened.
    """

    def __init__(self, host: str, repository: str, access: SourceAccess) -> None:
        self._host = host
        self._repository = repository
        self._access = access
        self._header: str | None = None
        self._challenges = 0

    def headers(self) -> Mapping[str, str]:
        """For the next request."""
        return {} if self._header is None else {"Authorization": self._header}

    def accept(self, response: Response) -> None:
        """Looks at an answer.

        Raises:
            TryAgain: It is a challenge, and the next `headers()` answer it.
            Refused: They were answered before, or cannot be; the message names the remedy.
            ConfigError: Credentials would have to go over the wire unencrypted.
        """
        if response.status != 401 or urlsplit(response.url).netloc.lower() != self._host:
            self._challenges = 0
            return
        self._challenges += 1
        if self._challenges >= _MAX_CHALLENGES:
            raise Refused(self._not_let_in())
        self._header = self._answer(response.headers.get("www-authenticate", ""))
        raise TryAgain(f"{response.shown_url} asks who is there.", at_once=True)

    def _answer(self, challenge: str) -> str:
        scheme = re.search(r"(?:^|,\s*)(Bearer|Basic)\b(.*)", challenge, re.IGNORECASE | re.DOTALL)
        if scheme is None:
            raise Refused(
                f"The registry {self._host} asks for a kind of login that is unknown here: {challenge[:100]!r}."
            )
        if scheme[1].lower() == "basic":
            basic = self._basic(registry_url(self._host, self._repository, self._access))
            if basic is None:
                raise Refused(self._not_let_in())
            return basic
        return self._bearer({key.lower(): value for key, value in _PARAMETER.findall(scheme[2])})

    def _bearer(self, parameters: Mapping[str, str]) -> str:
        realm = parameters.get("realm", "")
        query = {"scope": parameters.get("scope") or f"repository:{self._repository}:pull"}
        if service := parameters.get("service"):
            query["service"] = service
        basic = self._basic(realm)
        data, _ = read_small(
            f"{realm}{'&' if '?' in realm else '?'}{urlencode(query)}",
            self._access.policy,
            most=_MAX_TOKEN_ANSWER,
            headers=lambda: {} if basic is None else {"Authorization": basic},
            accept=self._accept_token_answer,
            sleep=self._access.sleep,
        )
        return f"Bearer {self._read_token(data)}"

    def _accept_token_answer(self, response: Response) -> None:
        if response.status in {400, 401, 403, 404}:
            raise Refused(self._not_let_in())

    def _read_token(self, data: bytes) -> str:
        try:
            answer = json.loads(data)
            token = answer.get("token") or answer["access_token"]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise Refused(f"The registry {self._host} hands out something that is no token.") from error
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise Refused(f"The registry {self._host} hands out something that is no token.")
        return token

    def _basic(self, url: str) -> str | None:
        credentials = self._access.registries.get(self._host)
        if credentials is None:
            return None
        if not self._access.may_carry_secrets(url):
            raise ConfigError(
                f"The credentials of {self._host} are not sent unencrypted: the registry must speak https."
            )
        return f"Basic {base64.b64encode(credentials.reveal.encode()).decode()}"

    def _not_let_in(self) -> str:
        have = (
            "refuses the credentials of" if self._host in self._access.registries else "wants credentials, none are in"
        )
        return (
            f"The registry {self._host} {have} `sources.registry_auth_file` for {self._repository}: check them there, and "
            f"that the repository exists."
        )


def registry_error(response: Response, what: str) -> EdgewiseError | None:
    """What a refusal of a registry means; None for other answers."""
    if response.status == 404:
        return ModelNotFound(f"{what} is not there: check registry, repository, and tag or digest.", param="model")
    if response.status in {401, 403}:
        return NotPermitted(f"{what} is refused ({response.status}): these credentials may not read it.")
    return None
