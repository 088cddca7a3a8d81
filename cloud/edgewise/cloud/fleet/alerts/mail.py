"""Mail through the server that the settings name: TLS always, unless the server is on this machine."""

from __future__ import annotations

import asyncio
import smtplib
import ssl
from email.message import EmailMessage
from urllib.parse import unquote, urlsplit

from edgewise.core.addresses import is_loopback
from edgewise.core.errors import ConfigError, SourceUnavailable
from edgewise.core.files import read_secret
from edgewise.core.settings_fleet import FleetSettings

_PATIENCE_S = 20.0
_PORTS = {"smtp": 25, "smtps": 465}


class Mailer:
    """Made by `make_mailer`.

    Args:
        url: `smtps://user@host:port`, or `smtp://`, where STARTTLS is asked for.
        sender: Address of the sender.
    """

    def __init__(self, url: str, sender: str, password: str | None) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or _PORTS[parts.scheme]
        self._implicit = parts.scheme == "smtps"
        self._user = unquote(parts.username) if parts.username else None
        self._sender, self._password = sender, password

    def __repr__(self) -> str:
        return f"Mailer({self._host}:{self._port}, from={self._sender})"

    async def send(self, to: str, subject: str, text: str, id: str) -> None:
        """One mail; its Message-ID is the same on every try.

        Raises:
            SourceUnavailable: The server is not reached or does not take it.
        """
        mail = EmailMessage()
        mail["From"], mail["To"], mail["Subject"] = self._sender, to, subject
        mail["Message-ID"] = f"<{id}@{self._sender.rpartition('@')[2]}>"
        mail["Auto-Submitted"] = "auto-generated"  # RFC 3834: no machine answers it
        mail.set_content(text)
        try:
            await asyncio.to_thread(self._deliver, mail)
        except (OSError, smtplib.SMTPException) as error:
            raise SourceUnavailable(f"The mail server {self._host}:{self._port} did not take it: {error}") from error

    def _deliver(self, mail: EmailMessage) -> None:
        context = ssl.create_default_context()
        if self._implicit:
            server: smtplib.SMTP = smtplib.SMTP_SSL(self._host, self._port, timeout=_PATIENCE_S, context=context)
        else:
            server = smtplib.SMTP(self._host, self._port, timeout=_PATIENCE_S)
        with server:
            if not self._implicit and not is_loopback(self._host):
                server.starttls(context=context)
            if self._user is not None and self._password is not None:
                server.login(self._user, self._password)
            server.send_message(mail)


def make_mailer(settings: FleetSettings) -> Mailer | None:
    """None where no mail server is named.

    Raises:
        ConfigError: The sender is missing, or the password cannot be read.
    """
    if settings.smtp_url is None:
        return None
    if settings.mail_from is None:
        raise ConfigError("fleet.smtp_url is set: set fleet.mail_from to the sender of alerts too")
    file = settings.smtp_password_file
    password = None if file is None else read_secret(file, "fleet.smtp_password_file")
    return Mailer(settings.smtp_url, settings.mail_from, password)
