"""A small OpenID provider for tests: real sockets, signatures, PKCE and client secret; it lets in whoever `person` is."""

from __future__ import annotations

import base64
import hashlib
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlencode

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response
from joserfc import jwt
from joserfc.jwk import ECKey

from tests.cloud.fleet_trust.doubles import served

CLIENT, SECRET = "edgewise", "client-secret"


@dataclass
class Provider:
    url: str = ""
    key: ECKey = field(default_factory=lambda: ECKey.generate_key("P-256", {"kid": "1", "use": "sig"}))
    person: dict[str, Any] = field(
        default_factory=lambda: {"sub": "42", "email": "ada@example.org", "email_verified": True}
    )
    lies: dict[str, Any] = field(default_factory=dict)
    """Claims that are not as they should be."""
    codes: dict[str, dict[str, str]] = field(default_factory=dict)

    def app(self) -> FastAPI:
        app = FastAPI()

        @app.get("/.well-known/openid-configuration")
        async def configuration() -> dict[str, str]:
            return {
                "issuer": self.url,
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "jwks_uri": f"{self.url}/keys",
            }

        @app.get("/keys")
        async def keys() -> dict[str, Any]:
            return {"keys": [self.key.as_dict(private=False)]}

        @app.get("/authorize")
        async def authorize(request: Request) -> Response:
            asked = dict(request.query_params)
            if asked["client_id"] != CLIENT or asked["code_challenge_method"] != "S256":
                return JSONResponse({"error": "invalid_request"}, 400)
            code = secrets.token_urlsafe(16)
            self.codes[code] = asked
            return RedirectResponse(
                f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}", 303
            )

        @app.post("/token")
        async def token(request: Request) -> Response:
            form = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
            basic = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
            asked = self.codes.pop(form.get("code", ""), None)
            challenge = base64.urlsafe_b64encode(hashlib.sha256(form.get("code_verifier", "").encode()).digest())
            if (
                request.headers.get("authorization") != f"Basic {basic}"
                or asked is None
                or asked["redirect_uri"] != form.get("redirect_uri")
                or asked["code_challenge"] != challenge.decode().rstrip("=")
            ):
                return JSONResponse({"error": "invalid_grant"}, 400)
            return JSONResponse({"access_token": "a", "token_type": "Bearer", "id_token": self.token(asked["nonce"])})

        return app

    def token(self, nonce: str) -> str:
        now = int(time.time())
        claims = {
            "iss": self.url,
            "aud": CLIENT,
            "nonce": nonce,
            "iat": now,
            "exp": now + 300,
            **self.person,
            **self.lies,
        }
        return jwt.encode({"alg": "ES256", "kid": "1"}, claims, self.key)


@asynccontextmanager
async def running_provider() -> AsyncIterator[Provider]:
    provider = Provider()
    async with served(provider.app()) as url:
        provider.url = url
        yield provider
