"""`edgewise fleet`: log in, and who may use the fleet: users, API tokens, the audit log."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from edgewise.cli.fleet_client import FleetToken, FleetUrl, SavedLogin, connect, login_file, save_login, saved_login
from edgewise.cli.options import AsJson, ConfigFile
from edgewise.cli.output import date_text, print_json, print_table, say
from edgewise.core.clock import parse_duration
from edgewise.core.errors import EdgewiseError, InvalidRequest, NotAuthenticated
from edgewise.core.files import read_secret
from edgewise.core.settings import load_settings

app = typer.Typer()
users = typer.Typer(help="People who may use the fleet.", no_args_is_help=True)
tokens = typer.Typer(help="API tokens for programs.", no_args_is_help=True)
audit = typer.Typer(help="What everybody did.", invoke_without_command=True)
app.add_typer(users, name="users")
app.add_typer(tokens, name="tokens")
app.add_typer(audit, name="audit")

Role = Annotated[
    str, typer.Option(help="viewer, operator (acts on devices) or admin (also people, keys and settings).")
]
PasswordFile = Annotated[
    Path | None, typer.Option("--password-file", help="File that holds the password; default: it is asked for.")
]


@app.command()
def login(
    url: FleetUrl = None,
    name: Annotated[str | None, typer.Option(help="User; default: it is asked for.")] = None,
    password_file: PasswordFile = None,
    ca: Annotated[
        Path | None, typer.Option(help="PEM file of the authority of the service's certificate, if it is its own.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Log in with name and password; other commands then need neither."""
    name = name or typer.prompt("Name")
    password = _password(password_file, confirm=False)
    path = None if ca is None else str(ca.absolute())
    with connect(url, ca=path) as client:
        who = client.post("login", body={"name": name, "password": password, "cookie": False})
        save_login(SavedLogin(client.url, who.pop("token"), path))
        if as_json:
            print_json(who | {"url": client.url})
        else:
            say(f"Logged in at {client.url} as {who['name']} ({who['role']}).")


@app.command()
def logout() -> None:
    """End the login that is kept here."""
    saved = saved_login()
    if saved is None:
        say("There is no login here.")
        return
    try:
        with connect() as client:
            client.post("logout")
    except NotAuthenticated:
        pass  # it was over already
    finally:
        login_file().unlink(missing_ok=True)
    say(f"Logged out of {saved.url}.")


@app.command()
def whoami(url: FleetUrl = None, token: FleetToken = None, as_json: AsJson = False) -> None:
    """Who the fleet service takes you for."""
    with connect(url, token) as client:
        who = client.get("whoami")
    if as_json:
        print_json(who)
    else:
        typer.echo(f"{who['name']} ({who['role']}) at {client.url}")


@app.command()
def password(url: FleetUrl = None) -> None:
    """A new password of your own; all of your logins end."""
    old = typer.prompt("Old password", hide_input=True)
    new = typer.prompt("New password", hide_input=True, confirmation_prompt=True)
    with connect(url) as client:
        client.put("whoami", "password", body={"old": old, "new": new})
    say("Changed. Log in again.")


# --- users --------------------------------------------------------------------------------------------------------------------


@users.command("list")
def list_users(url: FleetUrl = None, token: FleetToken = None, as_json: AsJson = False) -> None:
    """All users."""
    with connect(url, token) as client:
        found = client.get("users")
    if as_json:
        print_json(found)
        return
    rows = [
        (user["name"], user["role"], date_text(user["created_at"]), date_text(user["disabled_at"])) for user in found
    ]
    print_table(("NAME", "ROLE", "SINCE", "DISABLED"), rows)


@users.command("add")
def add_user(
    name: Annotated[str, typer.Argument(help="Name at the login; for --openid the verified e-mail address.")],
    role: Role = "viewer",
    password_file: PasswordFile = None,
    openid: Annotated[bool, typer.Option("--openid", help="No password: logs in at the OpenID provider.")] = False,
    local: Annotated[
        bool,
        typer.Option(
            "--local", help="Into the database of this state directory, without a login: for the first admin."
        ),
    ] = False,
    tenant: Annotated[
        str | None, typer.Option(help="With --local: of this tenant, who sees nothing of others; made if it is new.")
    ] = None,
    url: FleetUrl = None,
    token: FleetToken = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Add a user."""
    if tenant is not None and not local:
        raise typer.BadParameter("--tenant goes with --local: a login belongs to one tenant", param_hint="--tenant")
    secret = None if openid else _password(password_file, confirm=True)
    if local:
        user = asyncio.run(_add_local(config, name, secret, role, tenant))
    else:
        with connect(url, token) as client:
            user = client.post("users", body={"name": name, "password": secret, "role": role})
    if as_json:
        print_json(user)
    else:
        say(f"{user['name']} may log in as {user['role']}.")


@users.command("change")
def change_user(
    name: Annotated[str, typer.Argument(help="Of the user.")],
    role: Annotated[str | None, typer.Option(help="viewer, operator or admin.")] = None,
    new_password: Annotated[bool, typer.Option("--password", help="Ask for a new password.")] = False,
    password_file: PasswordFile = None,
    disable: Annotated[bool | None, typer.Option("--disable/--enable", help="End or give back their access.")] = None,
    url: FleetUrl = None,
    token: FleetToken = None,
    as_json: AsJson = False,
) -> None:
    """Change a user's role, password or access."""
    changes: dict[str, Any] = {"role": role, "disabled": disable}
    if new_password or password_file is not None:
        changes["password"] = _password(password_file, confirm=True)
    changes = {field: value for field, value in changes.items() if value is not None}
    if not changes:
        raise typer.BadParameter("say what to change: --role, --password, --disable or --enable")
    with connect(url, token) as client:
        user = client.patch("users", name, body=changes)
    if as_json:
        print_json(user)
    else:
        state = "disabled" if user["disabled_at"] else user["role"]
        say(f"{user['name']}: {state}")


async def _add_local(
    config: Path | None, name: str, secret: str | None, role: str, tenant: str | None
) -> dict[str, Any]:
    from edgewise.cloud.fleet.people.local import add_user_locally

    user = await add_user_locally(load_settings(config).settings, name, secret, role, tenant)
    return user.model_dump(mode="json")


# --- tokens -------------------------------------------------------------------------------------------------------------------


@tokens.command("list")
def list_tokens(url: FleetUrl = None, token: FleetToken = None, as_json: AsJson = False) -> None:
    """All tokens, also those that have ended."""
    with connect(url, token) as client:
        found = client.get("tokens")
    if as_json:
        print_json(found)
        return
    rows = [
        (
            one["id"],
            one["name"],
            one["role"],
            one["author"],
            date_text(one["expires_at"]) or "never",
            date_text(one["revoked_at"]),
        )
        for one in found
    ]
    print_table(("ID", "NAME", "ROLE", "BY", "EXPIRES", "REVOKED"), rows)


@tokens.command("new")
def new_token(
    name: Annotated[str, typer.Argument(help="Which program will use it.")],
    role: Role = "viewer",
    expires_in: Annotated[str | None, typer.Option(help="Life, e.g. 90d or 12h; default: for ever.")] = None,
    url: FleetUrl = None,
    token: FleetToken = None,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it: this once, it cannot be shown again."""
    with connect(url, token) as client:
        made = client.post("tokens", body={"name": name, "role": role, "ttl_s": seconds_of(expires_in)})
    if as_json:
        print_json(made)
        return
    say(
        f"Token `{name}` ({role}), expires {date_text(made['expires_at']) or 'never'}. Keep it: it cannot be shown again."
    )
    typer.echo(made["token"])


@tokens.command("revoke")
def revoke_token(
    id: Annotated[str, typer.Argument(help="As `tokens list` shows it.")],
    url: FleetUrl = None,
    token: FleetToken = None,
) -> None:
    """End a token at once."""
    with connect(url, token) as client:
        client.delete("tokens", id)
    say(f"{id} is revoked.")


# --- audit --------------------------------------------------------------------------------------------------------------------


@audit.callback()
def show_audit(
    context: typer.Context,
    target: Annotated[str | None, typer.Option(help="Only what was done to this device, user, key, ...")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Lines shown, the latest first.")] = 50,
    url: FleetUrl = None,
    token: FleetToken = None,
    as_json: AsJson = False,
) -> None:
    """The latest lines of the audit log."""
    if context.invoked_subcommand is not None:
        return
    with connect(url, token) as client:
        page = client.get("audit", target=target, limit=limit)
    if as_json:
        print_json(page)
        return
    rows = [
        (line["number"], date_text(line["at"]), line["actor"], line["via"], line["action"], line["target"])
        for line in page["items"]
    ]
    print_table(("NO", "AT", "WHO", "VIA", "WHAT", "TO"), rows)


class ChainBroken(EdgewiseError):
    """The audit log was changed from outside."""

    code = "audit_chain_broken"


@audit.command()
def verify(url: FleetUrl = None, token: FleetToken = None, as_json: AsJson = False) -> None:
    """Check that no line was changed, removed or put between others."""
    with connect(url, token) as client:
        problem = client.get("audit", "verify")["problem"]
    if as_json:
        print_json({"problem": problem})
    if problem is not None:
        raise ChainBroken(problem)
    if not as_json:
        say("The chain is whole.")


@audit.command()
def export(url: FleetUrl = None, token: FleetToken = None) -> None:
    """All of it, one JSON object a line."""
    with connect(url, token) as client:
        for line in client.lines("audit", "export"):
            typer.echo(line)


def seconds_of(duration: str | None, option: str = "--expires-in") -> float | None:
    """Seconds of an option such as 90d."""
    try:
        return None if duration is None else parse_duration(duration)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def _password(file: Path | None, *, confirm: bool) -> str:
    if file is not None:
        return read_secret(file, "--password-file")
    secret = typer.prompt("Password", hide_input=True, confirmation_prompt=confirm)
    if not secret:
        raise InvalidRequest("The password is empty.", param="password")
    return str(secret)
