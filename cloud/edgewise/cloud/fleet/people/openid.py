"""Logins at an OpenID Connect provider: the authorization code flow with PKCE, state and nonce (OpenID Connect Core 1.0, 3.1).

What a login needs between its two halves lies in a cookie of the browser that began it, so nobody can be led to end a login that
somebody else began, and several processes of this service may serve the halves.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import quote

import httpx
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet
from pydantic import BaseModel, ValidationError

from edgewise.core.errors import ConfigError, InvalidRequest, LinkLost, NotAuthenticated
from edgewise.core.files import read_secret
from edgewise.core.settings_fleet import FleetSettings
from edgewise.wire.bounded import PLAIN, read_bounded

_TIMEOUT_S = 15.0
_MAX_ANSWER = 1024**2
_KEEP_S = 3600.0
_LEEWAY_S = 60
_ALGORITHMS = ["RS256", "PS256", "ES256", "EdDSA"]
_TOO_OLD = "This login was begun too long ago, or in another browser: begin again."


@dataclass(frozen=True, slots=True)
class Begun:
    """`url` is where the browser goes; `cookie` is kept there until it comes back."""

    url: str
    cookie: str


@dataclass(frozen=True, slots=True)
class Identity:
    """Who somebody is at the provider; `email` only if the provider has verified it."""

    subject: str
    email: str | None


class Provider(BaseModel):
    """What `/.well-known/openid-configuration` says."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str


@dataclass(frozen=True, slots=True)
class _Half:
    state: str
    nonce: str
    verifier: str


class OpenId:
    """One provider.

    Raises:
        ConfigError: The settings are not whole, or the secret cannot be read.
    """

    def __init__(self, settings: FleetSettings) -> None:
        if settings.oidc_issuer is None or settings.oidc_client_id is None:
            raise ConfigError("set both `fleet.oidc_issuer` and `fleet.oidc_client_id`, or neither")
        self._issuer = settings.oidc_issuer.rstrip("/")
        self._client_id = settings.oidc_client_id
        file = settings.oidc_secret_file
        self._secret = None if file is None else read_secret(file, "fleet.oidc_secret_file")
        self._provider: Provider | None = None
        self._keys: KeySet | None = None
        self._read_at = 0.0

    async def begin(self, redirect_uri: str) -> Begun:
        """Raises `LinkLost` if the provider is not reached."""
        async with self._client() as client:
            provider = await self._known(client)
        half = _Half(*(secrets.token_urlsafe(32) for _ in range(3)))
        challenge = base64.urlsafe_b64encode(hashlib.sha256(half.verifier.encode()).digest()).decode().rstrip("=")
        asked = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": redirect_uri,
            "scope": "openid email",
            "state": half.state,
            "nonce": half.nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        url = str(httpx.URL(provider.authorization_endpoint).copy_merge_params(asked))
        return Begun(url, base64.urlsafe_b64encode(json.dumps(asdict(half)).encode()).decode())

    async def finish(self, redirect_uri: str, cookie: str | None, state: str, code: str) -> Identity:
        """Who has logged in.

        Raises:
            InvalidRequest: Another browser began this login, or nobody did.
            NotAuthenticated: The provider refuses, or what it says does not hold.
            LinkLost: It is not reached.
        """
        half = _read(cookie)
        if not hmac.compare_digest(half.state.encode(), state.encode()):
            raise InvalidRequest(_TOO_OLD, param="state")
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": half.verifier,
            "client_id": self._client_id,
        }
        async with self._client() as client:
            return await self._identity(client, await self._exchange(client, form), half.nonce)

    async def _exchange(self, client: httpx.AsyncClient, form: dict[str, str]) -> str:
        """The identity token for a code; the client's secret goes as RFC 6749, 2.3.1, has it."""
        provider = await self._known(client)
        auth = None if self._secret is None else (quote(self._client_id, safe=""), quote(self._secret, safe=""))
        try:
            response, content = await _asked(
                client, "POST", provider.token_endpoint, data=form, auth=auth or httpx.USE_CLIENT_DEFAULT
            )
            answer = json.loads(content)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise self._away(error) from error
        if not response.is_success or not isinstance(answer, dict):
            reason = answer.get("error_description") or answer.get("error") if isinstance(answer, dict) else None
            raise NotAuthenticated(f"The OpenID provider refuses this login: {str(reason)[:200]}.")
        return str(answer.get("id_token") or "")

    async def _identity(self, client: httpx.AsyncClient, token: str, nonce: str) -> Identity:
        rules = jwt.JWTClaimsRegistry(
            leeway=_LEEWAY_S,
            iss={"essential": True, "value": (await self._known(client)).issuer},
            aud={"essential": True, "value": self._client_id},
            nonce={"essential": True, "value": nonce},
            sub={"essential": True},
            exp={"essential": True},
        )
        try:
            claims = await self._claims(client, token)
            rules.validate(claims)
        except (JoseError, ValueError) as error:
            raise NotAuthenticated(f"What the OpenID provider says does not hold: {error}.") from error
        if isinstance(claims["aud"], list) and len(claims["aud"]) > 1 and claims.get("azp") != self._client_id:
            raise NotAuthenticated("The OpenID provider's token is for another service.")
        email = claims.get("email")
        verified = isinstance(email, str) and claims.get("email_verified") is True
        return Identity(subject=f"{self._issuer} {claims['sub']}"[:256], email=email if verified else None)

    async def _claims(self, client: httpx.AsyncClient, token: str) -> dict[str, Any]:
        """Of a token that is signed by one of the provider's keys, which it may have changed since they were read."""
        known = self._keys
        if known is not None:
            try:
                return jwt.decode(token, known, algorithms=_ALGORITHMS).claims
            except (JoseError, ValueError):
                self._keys = None
        provider = await self._known(client)
        keys = KeySet.import_key_set(await self._get(client, provider.jwks_uri))
        claims = jwt.decode(token, keys, algorithms=_ALGORITHMS).claims
        self._keys = keys
        return claims

    async def _known(self, client: httpx.AsyncClient) -> Provider:
        if self._provider is None or time.monotonic() - self._read_at > _KEEP_S:
            document = await self._get(client, f"{self._issuer}/.well-known/openid-configuration")
            try:
                provider = Provider.model_validate(document)
            except ValidationError as error:
                raise LinkLost(f"What answers at {self._issuer} is no OpenID provider.") from error
            if provider.issuer.rstrip("/") != self._issuer:
                raise LinkLost(f"The OpenID provider calls itself {provider.issuer[:200]}, not {self._issuer}.")
            self._provider, self._keys, self._read_at = provider, None, time.monotonic()
        return self._provider

    async def _get(self, client: httpx.AsyncClient, url: str) -> Any:
        try:
            response, content = await _asked(client, "GET", url)
            response.raise_for_status()
            return json.loads(content)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise self._away(error) from error

    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(headers=PLAIN, timeout=_TIMEOUT_S, trust_env=False)

    def _away(self, error: Exception) -> LinkLost:
        return LinkLost(f"The OpenID provider {self._issuer} cannot be asked: {error or type(error).__name__}.")


async def _asked(client: httpx.AsyncClient, method: str, url: str, **options: Any) -> tuple[httpx.Response, bytes]:
    """An answer and its body."""
    async with client.stream(method, url, **options) as response:
        return response, await read_bounded(response, _MAX_ANSWER)


def _read(cookie: str | None) -> _Half:
    try:
        return _Half(**json.loads(base64.urlsafe_b64decode(cookie or "")))
    except (ValueError, TypeError) as error:
        raise InvalidRequest(_TOO_OLD, param="state") from error
