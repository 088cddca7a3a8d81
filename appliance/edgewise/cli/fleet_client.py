"""How commands reach a fleet service: its address and login as options, and a client of its REST API.

`edgewise fleet login` keeps the address and the login's token in a file of the calling user; programs give an API token.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from edgewise.core.errors import ConfigError, LinkLost, NotAuthenticated
from edgewise.core.files import atomic_write, translate_os_errors
from edgewise.core.settings import load_settings
from edgewise.core.tls_time import TimeFloor, client_context
from edgewise.wire.fleet_http import PREFIX, told_error

if TYPE_CHECKING:
    import httpx

FleetUrl = Annotated[
    str | None,
    typer.Option("--url", envvar="EDGEWISE_FLEET_URL", help="Fleet service; default: that of the last login."),
]
FleetToken = Annotated[
    str | None,
    typer.Option(
        "--token", envvar="EDGEWISE_FLEET_TOKEN", help="API token; default: the last login.", show_envvar=True
    ),
]


@dataclass(frozen=True, slots=True)
class SavedLogin:
    """What `edgewise fleet login` keeps. `ca`: PEM file of the authority of its certificate, if given."""

    url: str
    token: str
    ca: str | None = None


def login_file() -> Path:
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return config / "edgewise" / "fleet.json"


def saved_login() -> SavedLogin | None:
    """Raises `ConfigError` for a damaged file."""
    path = login_file()
    if not path.exists():
        return None
    with translate_os_errors("read", path):
        text = path.read_text("utf-8")
    try:
        return SavedLogin(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path} is damaged: delete it and log in again") from error


def save_login(login: SavedLogin) -> None:
    record = {"url": login.url, "token": login.token, "ca": login.ca}
    atomic_write(login_file(), json.dumps(record) + "\n", mode=0o600)


def connect(url: str | None = None, token: str | None = None, *, ca: str | None = None) -> FleetClient:
    """A client of the fleet service: the one that was named, else that of the last login, else this machine's."""
    saved = saved_login()
    if saved is not None and (url is None or url.rstrip("/") == saved.url):
        return FleetClient(saved.url, token or saved.token, ca=ca or saved.ca)
    return FleetClient(url or local_url(), token, ca=ca)


def local_url() -> str:
    """Where this machine's configuration says that a fleet service is."""
    settings = load_settings().settings
    if settings.fleet.public_url is not None:
        return settings.fleet.public_url
    return settings.model_copy(update={"host": settings.fleet.host, "port": settings.fleet.port}).base_url


class FleetClient:
    """Use as a context manager. Every method raises the error that the service names, or `LinkLost` if it is not reached."""

    def __init__(self, url: str, token: str | None, *, ca: str | None = None) -> None:
        import httpx

        self.url = url.rstrip("/")
        headers = {"user-agent": f"edgewise-cli/{version('edgewise')}"}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        context = client_context(TimeFloor(), ca_file=None if ca is None else Path(ca))
        try:
            self._http = httpx.Client(
                base_url=f"{self.url}{PREFIX}/", headers=headers, verify=context, timeout=60.0, trust_env=False
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise typer.BadParameter(f"{url!r} is no address: {error}", param_hint="--url") from error

    def __enter__(self) -> FleetClient:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._http.close()

    def get(self, *path: str, **query: Any) -> Any:
        given = {name: _plain(value) for name, value in query.items() if value is not None}
        return self._ask("GET", path, params=given)

    def post(self, *path: str, body: Mapping[str, Any] | None = None) -> Any:
        return self._ask("POST", path, json=body)

    def put(self, *path: str, body: Mapping[str, Any]) -> Any:
        return self._ask("PUT", path, json=body)

    def patch(self, *path: str, body: Mapping[str, Any]) -> Any:
        return self._ask("PATCH", path, json=body)

    def delete(self, *path: str) -> Any:
        return self._ask("DELETE", path)

    def lines(self, *path: str) -> Iterator[str]:
        """Lines of an answer as they come."""
        with self._translated(), self._http.stream("GET", _joined(path), timeout=None) as response:
            if not response.is_success:
                response.read()
                raise _error(response)
            yield from response.iter_lines()

    def events(self, *path: str) -> Iterator[tuple[str, Any]]:
        """Server-sent events: name and data."""
        name = ""
        for line in self.lines(*path):
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                data = json.loads(line[6:])
                if name == "error":
                    raise told_error(data, 500)
                yield name, data

    def _ask(self, method: str, path: tuple[str, ...], **options: Any) -> Any:
        with self._translated():
            response = self._http.request(method, _joined(path), **options)
        if not response.is_success:
            raise _error(response)
        return response.json() if response.content else None

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        import httpx

        try:
            yield
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise LinkLost(
                f"no fleet service answers at {self.url} ({error or type(error).__name__}); "
                "start it with `edgewise fleet serve`, or name another with --url"
            ) from error


def _joined(path: tuple[str, ...]) -> str:
    return "/".join(quote(part, safe="") for part in path)


def _plain(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _error(response: httpx.Response) -> Exception:
    try:
        body = response.json()
    except ValueError:
        body = None
    error = told_error(body, response.status_code, response.headers.get("retry-after"))
    if isinstance(error, NotAuthenticated) and response.request.url.path != f"{PREFIX}/login":
        return NotAuthenticated("not logged in, or no longer: `edgewise fleet login`, or give a token with --token")
    return error
