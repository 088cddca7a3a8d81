"""Users and keys: people and their roles, API tokens, claim codes, and the keys of devices that wait to be accepted."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from edgewise.cloud.console.design import KEY_STATES, Word, word_of
from edgewise.cloud.console.parts import (
    Column,
    Field,
    Table,
    Tag,
    ask,
    button,
    dialog,
    empty,
    page_head,
    panel,
    redraw,
    show_secret,
)
from edgewise.cloud.console.shell import page
from edgewise.cloud.console.visit import Visit
from edgewise.cloud.console.words import plural
from edgewise.cloud.fleet import views

ROLES = (
    ("viewer", "Viewer: sees"),
    ("operator", "Operator: acts on devices"),
    ("admin", "Admin: people, keys and settings too"),
)
KEY_COLUMNS = (
    Column("state", "State", "state"),
    Column("device", "Device", "link"),
    Column("fingerprint", "Fingerprint", "mono", clip=True),
    Column("facts", "Says of itself", narrow=False, wrap=True),
    Column("made", "Asked", "time"),
    Column("expires", "Ends", "time", narrow=False),
    Column("does", "Actions", "actions"),
)
CODE_COLUMNS = (
    Column("code", "For"),
    Column("uses", "Uses left", "number"),
    Column("accept", "Accepts by itself"),
    Column("cloud", "Cloud key", narrow=False),
    Column("labels", "Labels", "chips", narrow=False),
    Column("author", "By", narrow=False),
    Column("expires", "Ends", "time"),
    Column("does", "Actions", "actions"),
)
USER_COLUMNS = (
    Column("user", "Name"),
    Column("role", "Role"),
    Column("state", "State", "state"),
    Column("made", "Since", "time", narrow=False),
    Column("does", "Actions", "actions"),
)
TOKEN_COLUMNS = (
    Column("token", "Name"),
    Column("role", "Role"),
    Column("state", "State", "state"),
    Column("author", "By", narrow=False),
    Column("expires", "Ends", "time"),
    Column("does", "Actions", "actions"),
)
_CODE_TIMES = (("900", "15 minutes"), ("3600", "1 hour"), ("86400", "1 day"), ("604800", "7 days"))
_TOKEN_TIMES = (("2592000", "30 days"), ("7776000", "90 days"), ("31536000", "1 year"), ("", "Never"))


@page("/people", "Users and keys")
async def people(visit: Visit) -> None:
    await PeoplePage(visit).build()


class PeoplePage:
    """Four tables; what the role does not allow is not shown."""

    def __init__(self, visit: Visit) -> None:
        self.visit = visit

    async def build(self) -> None:
        with page_head("Users and keys", "Who may do what, and which devices belong to the fleet."):
            pass
        with Tag("div", cls="stack"):
            with Tag("div", id="keys"), panel("Keys of devices", body=False) as end:
                self.keys = Table("Keys of devices", KEY_COLUMNS, on_action=self.on_key)
                self.no_keys = Tag("div")
            with end:
                self.every_key = Field("All keys", False, kind="check", on_change=lambda: self.refresh_keys(None))
            if self.visit.may("admin"):
                self._admin()
        await self.refresh_keys(None)
        self.visit.watch(("key",), self.refresh_keys)
        if self.visit.may("admin"):
            await self.refresh_codes()
            await self.refresh_users()
            await self.refresh_tokens()
            self.visit.watch(("code",), self.refresh_codes)

    def _admin(self) -> None:
        with Tag("div", id="claim-codes"), panel("Claim codes", body=False) as end:
            self.codes = Table("Claim codes", CODE_COLUMNS, on_action=self.on_code)
            self.no_codes = Tag("div")
        with end:
            button("Make a claim code", self.new_code, icon_name="add", little=True)
        with panel("Users", body=False) as end:
            self.users = Table("Users", USER_COLUMNS, on_action=self.on_user)
        with end:
            button("Add a user", self.new_user, icon_name="person_add", little=True)
        with panel("API tokens", body=False) as end:
            self.tokens = Table("API tokens", TOKEN_COLUMNS, on_action=self.on_token)
            self.no_tokens = Tag("div")
        with end:
            button("Make a token", self.new_token, icon_name="add", little=True)

    # --- keys ---

    async def refresh_keys(self, _: set[str] | None) -> None:
        asked = None if self.every_key.value else "pending"
        found = await self.visit.fleet.enrolment.keys(self.visit.actor, state=asked)
        names = await self.visit.names([key.uid for key in found[:200]])
        self.keys.show([_key_row(key, names, self.visit.may("admin")) for key in found[:200]])
        self.keys.visible = bool(found)
        redraw(self.no_keys, lambda: None if found else empty(
            "key", "No key waits for you", "A device with a claim code that needs acceptance appears here."))  # fmt: skip

    async def on_key(self, key_id: str, what: str) -> None:
        service = self.visit.fleet.enrolment
        if what == "revoke":
            if await ask("Revoke this key?", "The device can no longer connect with it.", "Revoke"):
                await self.visit.act(lambda me: service.revoke(me, key_id), "The key is revoked.")
        else:
            accept = what == "accept"
            await self.visit.act(lambda me: service.decide(me, key_id, accept),
                                 "The device is accepted." if accept else "The key is refused.")  # fmt: skip
        await self.refresh_keys(None)

    # --- claim codes ---

    async def refresh_codes(self, _: set[str] | None = None) -> None:
        found = await self.visit.fleet.enrolment.codes(self.visit.actor)
        self.codes.show([_code_row(code) for code in found])
        self.codes.visible = bool(found)
        redraw(self.no_codes, lambda: None if found else empty(
            "qr_code", "No claim code", "A claim code lets a device join: make one, then run this on the device:",
            code=f"edgewise device enroll --fleet {self.visit.address} --code THE-CODE"))  # fmt: skip

    async def new_code(self) -> None:
        with dialog("Make a claim code") as (box, foot):
            with Tag("div", cls="fields"):
                length = Field("Valid for", "3600", kind="select", options=_CODE_TIMES)
                uses = Field("For how many devices", "1", kind="number")
            labels = Field("Labels for these devices", kind="code", rows=2, hint="One a line: site=lyon")
            auto = Field("Accept them by itself", False, kind="check", hint="Else an admin accepts each key here.")
            cloud = Field("A key for the cloud engine too", False, kind="check",
                          hint="Needs fleet.cloud_url and fleet.cloud_keys; ends with the device.")  # fmt: skip
            with foot:
                button("Cancel", lambda: box.submit(False))
                button("Make it", lambda: box.submit(True), tone="primary")
        yes = bool(await box)
        pairs = [line.partition("=") for line in labels.text.splitlines() if "=" in line]
        given = {key.strip(): value.strip() for key, _, value in pairs}
        count = int(uses.number() or 1)
        seconds, accept, offload = float(length.value), bool(auto.value), bool(cloud.value)
        box.delete()
        if not yes:
            return
        made = await self.visit.act(lambda me: self.visit.fleet.enrolment.add_code(
            me, ttl_s=seconds, uses=count, auto_accept=accept, labels=given, cloud=offload))  # fmt: skip
        await self.refresh_codes()
        if made is not None and made.code:
            await show_secret("The claim code", "It is shown this once. Run on the device:",
                              f"edgewise device enroll --fleet {self.visit.address} --code {made.code}")  # fmt: skip

    async def on_code(self, code_id: str, _: str) -> None:
        if await ask("Delete this claim code?", "No device can join with it any more.", "Delete"):
            await self.visit.act(lambda me: _nothing(self.visit.fleet.enrolment.delete_code(me, code_id)))
            await self.refresh_codes()

    # --- people ---

    async def refresh_users(self) -> None:
        found = await self.visit.fleet.people.users(self.visit.actor)
        self.by_name = {user.name: user for user in found}
        self.users.show([_user_row(user, self.visit.actor.name) for user in found])

    async def new_user(self) -> None:
        with dialog("Add a user") as (box, foot):
            name = Field("Name")
            password = Field(
                "Password", kind="password", hint="Empty: the person logs in at the OpenID provider, by e-mail address."
            )
            role = Field("Role", "viewer", kind="select", options=ROLES)

            async def add() -> None:
                chosen: Any = str(role.value)
                secret = str(password.value) or None
                if await self.visit.act(lambda me: self.visit.fleet.people.add_user(me, name.text, secret, chosen),
                                        f"{name.text} can log in."):  # fmt: skip
                    box.submit(True)

            with foot:
                button("Cancel", lambda: box.submit(False))
                button("Add", add, tone="primary")
        await box
        box.delete()
        await self.refresh_users()

    async def on_user(self, name: str, what: str) -> None:
        change: Callable[..., Any] = self.visit.fleet.people.change_user
        if what in ("disable", "enable"):
            text = (
                f"{name} is logged out at once and cannot log in." if what == "disable" else f"{name} can log in again."
            )
            if await ask(f"{what.capitalize()} {name}?", text, what.capitalize(), danger=what == "disable"):
                await self.visit.act(lambda me: change(me, name, disabled=what == "disable"))
        else:
            await self._change_user(name)
        await self.refresh_users()

    async def _change_user(self, name: str) -> None:
        with dialog(f"Change {name}") as (box, foot):
            role = Field("Role", self.by_name[name].role, kind="select", options=ROLES)
            password = Field("New password", kind="password", hint="Empty leaves it as it is.")

            async def save() -> None:
                chosen: Any = str(role.value)
                secret = str(password.value) or None
                if await self.visit.act(lambda me: self.visit.fleet.people.change_user(me, name, role=chosen, password=secret),
                                        "Saved."):  # fmt: skip
                    box.submit(True)

            with foot:
                button("Cancel", lambda: box.submit(False))
                button("Save", save, tone="primary")
        await box
        box.delete()

    # --- tokens ---

    async def refresh_tokens(self) -> None:
        found = await self.visit.fleet.people.tokens(self.visit.actor)
        self.tokens.show([_token_row(token) for token in found])
        self.tokens.visible = bool(found)
        redraw(
            self.no_tokens,
            lambda: (
                None if found else empty("vpn_key", "No token", "Programs use the REST API with a token of their own.")
            ),
        )

    async def new_token(self) -> None:
        with dialog("Make a token") as (box, foot):
            name = Field("Name", placeholder="nightly report")
            role = Field("Role", "viewer", kind="select", options=ROLES)
            length = Field("Valid for", "7776000", kind="select", options=_TOKEN_TIMES)
            with foot:
                button("Cancel", lambda: box.submit(False))
                button("Make it", lambda: box.submit(bool(name.text)), tone="primary")
        yes, chosen, text = bool(await box), str(role.value), name.text
        seconds = float(length.value) if length.value else None
        box.delete()
        if not yes:
            return
        made = await self.visit.act(lambda me: self.visit.fleet.people.add_token(me, text, chosen, seconds))  # type: ignore[arg-type]
        await self.refresh_tokens()
        if made is not None and made.token:
            await show_secret("The token", "It is shown this once.", made.token)

    async def on_token(self, token_id: str, _: str) -> None:
        if await ask("Revoke this token?", "Programs that use it are refused from now on.", "Revoke"):
            await self.visit.act(lambda me: _nothing(self.visit.fleet.people.revoke_token(me, token_id)))
            await self.refresh_tokens()


async def _nothing(work: Any) -> bool:
    await work
    return True


def _key_row(key: views.KeyView, names: Mapping[str, str], acts: bool) -> dict[str, Any]:
    does = {"pending": [{"action": "accept", "label": "Accept", "tone": "primary"}, {"action": "refuse", "label": "Refuse"}],
            "active": [{"action": "revoke", "label": "Revoke", "tone": "danger"}]}.get(key.state, [])  # fmt: skip
    said = [f"{name}: {value}" for name, value in key.facts.items() if isinstance(value, (str, int, float))]
    device = names.get(key.uid)
    return {
        "id": key.id,
        "name": device or key.uid,
        "state": word_of(KEY_STATES, key.state).cell(),
        "device": {"text": device or key.uid, "href": f"/devices/{key.uid}"},
        "fingerprint": key.fingerprint,
        "facts": "; ".join(said),
        "made": key.created_at,
        "expires": key.expires_at,
        "does": does if acts else [],
    }


def _code_row(code: views.CodeView) -> dict[str, Any]:
    return {
        "id": code.id,
        "name": f"code of {code.author}",
        "code": f"a new key of {code.uid}" if code.uid else plural(code.uses, "device"),
        "uses": str(code.uses),
        "accept": "yes" if code.auto_accept else "no, an admin accepts",
        "cloud": "yes" if code.cloud else "no",
        "labels": [f"{name}={value}" for name, value in sorted(code.labels.items())],
        "author": code.author,
        "expires": code.expires_at,
        "does": [{"action": "delete", "label": "Delete", "tone": "danger"}],
    }


def _user_row(user: views.UserView, me: str) -> dict[str, Any]:
    off = user.disabled_at is not None
    does = [{"action": "change", "label": "Change"}]
    if user.name != me:
        does.append(
            {"action": "enable", "label": "Enable"}
            if off
            else {"action": "disable", "label": "Disable", "tone": "danger"}
        )
    how = Word("Disabled", "block", "bad") if off else Word("Active", "check_circle", "ok")
    return {"id": user.name, "name": user.name, "user": user.name, "role": user.role.capitalize(), "state": how.cell(),
            "made": user.created_at, "does": does}  # fmt: skip


def _token_row(token: views.TokenView) -> dict[str, Any]:
    over = token.expires_at is not None and token.expires_at < time.time()
    if token.revoked_at is not None:
        how = Word("Revoked", "block", "bad")
    else:
        how = Word("Expired", "timer_off", "warn") if over else Word("Active", "check_circle", "ok")
    does = [{"action": "revoke", "label": "Revoke", "tone": "danger"}] if token.revoked_at is None else []
    return {"id": token.id, "name": token.name, "token": token.name, "role": token.role.capitalize(), "state": how.cell(),
            "author": token.author, "expires": token.expires_at, "does": does}  # fmt: skip
