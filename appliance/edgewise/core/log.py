"""Structured logs on stdlib logging: one event per line, fields by keyword, as JSON or for a person's eyes.

Two kinds of content never reach a log: what people asked and got (unless `log.prompts` is set), and API keys. Both are
enforced where lines are formatted, so that no caller can forget it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections import deque
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, Literal, TextIO

LogFormat = Literal["json", "console", "auto"]

CONTENT_FIELDS = frozenset(
    {"prompt", "prompts", "messages", "content", "text", "completion", "input", "output", "answer"}
)
SECRET_FIELDS = frozenset({"authorization", "api_key", "token", "secret", "password"})
MAX_KEPT_LINE = 4000
"""Characters of a line that `RecentLines` keeps."""
_FIELDS_ATTRIBUTE = "edgewise_fields"
_KEY_PATTERN = re.compile(r"\bew_([0-9a-z]{4,16})_[A-Za-z0-9_-]{16,}")
_PLAIN_VALUE = re.compile(r"[!#-<>-\[\]-~]+")  # printable ASCII without space, quote, equals sign and backslash
_SYSLOG_PRIORITY = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}


class Logger:
    """A named logger with bound fields: `log.info("request_done", request_id=..., ms=...)`."""

    def __init__(self, logger: logging.Logger, bound: Mapping[str, object] | None = None) -> None:
        self._logger = logger
        self._bound = dict(bound or {})

    def bind(self, **fields: object) -> Logger:
        """A logger that adds `fields` to each of its lines."""
        return Logger(self._logger, {**self._bound, **fields})

    def debug(self, event: str, /, **fields: object) -> None:
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, /, **fields: object) -> None:
        self._log(logging.ERROR, event, fields)

    def exception(self, event: str, error: BaseException | None = None, /, **fields: object) -> None:
        """An error with the traceback of `error`, or of the exception being handled."""
        self._log(logging.ERROR, event, fields, exc_info=True if error is None else error)

    def _log(
        self, level: int, event: str, fields: dict[str, object], *, exc_info: bool | BaseException = False
    ) -> None:
        if self._logger.isEnabledFor(level):
            extra = {_FIELDS_ATTRIBUTE: {**self._bound, **fields}}
            self._logger.log(level, "%s", event, extra=extra, exc_info=exc_info, stacklevel=3)


def get_logger(name: str) -> Logger:
    """The structured logger of a module; pass `__name__`."""
    return Logger(logging.getLogger(name))


def configure_logging(
    *, level: str = "info", format: LogFormat = "auto", prompts: bool = False, stream: TextIO | None = None
) -> None:
    """Send all logs of the process, also those of libraries, to one stream. May be called again; the last call holds.

    Args:
        level: "debug", "info", "warning" or "error".
        format: "json" is one object per line, "console" is for a person; "auto" is console on a terminal, else JSON.
        prompts: Let fields with prompts and answers through.
        stream: Default: standard error.
    """
    target = sys.stderr if stream is None else stream
    console = format == "console" or (format == "auto" and target.isatty())
    formatter = ConsoleFormatter(prompts=prompts) if console else JsonFormatter(prompts=prompts)
    formatter.syslog_prefix = not console and _is_journal(target)
    handler = logging.StreamHandler(target)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    for old in list(root.handlers):
        if isinstance(old.formatter, LineFormatter):
            root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    # It writes a line for each of its requests, with the whole URL.
    logging.getLogger("httpx").setLevel(logging.NOTSET if root.level <= logging.DEBUG else logging.WARNING)


class RecentLines(logging.Handler):
    """The last lines in memory, as JSON and always without content: for whoever asks a device for its log from afar.

    Args:
        lines: How many are kept.
    """

    def __init__(self, lines: int = 5000) -> None:
        super().__init__()
        self._lines: deque[str] = deque(maxlen=lines)
        self._written = JsonFormatter()  # not `self.formatter`, by which `configure_logging` knows its own handlers

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(self._written.format(record)[:MAX_KEPT_LINE])

    def last(self, count: int) -> list[str]:
        """The latest lines, oldest first."""
        return [*self._lines][-count:] if count > 0 else []

    def attach(self) -> None:
        """Keep what is logged from now on."""
        logging.getLogger().addHandler(self)

    def detach(self) -> None:
        logging.getLogger().removeHandler(self)


def set_log_level(level: str) -> None:
    """From now on: "debug", "info", "warning" or "error"."""
    logging.getLogger().setLevel(level.upper())


def withhold_keys(text: str) -> str:
    """`text` without the secret parts of API keys."""
    return _KEY_PATTERN.sub(r"ew_\1_(withheld)", text)


def logging_in_force() -> tuple[str, LogFormat]:
    """Level and format as `configure_logging` set them, for a child process that is to log alike."""
    root = logging.getLogger()
    kinds = {type(handler.formatter) for handler in root.handlers}
    form: LogFormat = "console" if ConsoleFormatter in kinds else "json" if JsonFormatter in kinds else "auto"
    return logging.getLevelName(root.level).lower(), form


class LineFormatter(logging.Formatter):
    """Common part of both formats: collects a record's fields and withholds content and secrets."""

    def __init__(self, *, prompts: bool = False) -> None:
        super().__init__()
        self._prompts = prompts
        self.syslog_prefix = False

    def format(self, record: logging.LogRecord) -> str:
        fields = {name: self._visible(name, value) for name, value in getattr(record, _FIELDS_ATTRIBUTE, {}).items()}
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        line = withhold_keys(self.render(record, fields))
        return f"<{_SYSLOG_PRIORITY.get(record.levelno, 6)}>{line}" if self.syslog_prefix else line

    def render(self, record: logging.LogRecord, fields: dict[str, Any]) -> str:
        raise NotImplementedError

    def _visible(self, name: str, value: object) -> object:
        if name in SECRET_FIELDS:
            return "(withheld)"
        if name in CONTENT_FIELDS and not self._prompts:
            return f"(withheld, {len(value)} characters)" if isinstance(value, str) else "(withheld)"
        return value


class JsonFormatter(LineFormatter):
    """One JSON object per line; `ts`, `level`, `logger` and `event` come first and win over fields of the same name."""

    def render(self, record: logging.LogRecord, fields: dict[str, Any]) -> str:
        head = {"ts": _timestamp(record), "level": record.levelname.lower(), "logger": record.name}
        body = {**head, "event": record.getMessage(), **{k: v for k, v in fields.items() if k not in _HEAD_FIELDS}}
        return json.dumps(body, ensure_ascii=False, default=str, separators=(",", ":"))


class ConsoleFormatter(LineFormatter):
    """`17:32:42.123 INFO  request_done  request_id=r1 ms=41`, without fields that have no value; a traceback follows."""

    def render(self, record: logging.LogRecord, fields: dict[str, Any]) -> str:
        traceback = fields.pop("traceback", None)
        pairs = " ".join(f"{name}={_console_value(value)}" for name, value in fields.items() if value is not None)
        event = record.getMessage() if _FIELDS_ATTRIBUTE in record.__dict__ else _one_line(record.getMessage())
        line = f"{_timestamp(record)[11:23]} {record.levelname:<7} {event}{'  ' if pairs else ''}{pairs}"
        return f"{line}\n{traceback}" if traceback else line


_HEAD_FIELDS = frozenset({"ts", "level", "logger", "event"})


def _timestamp(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, tz=timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{int(record.msecs):03d}Z"


def _console_value(value: object) -> str:
    text = str(value)
    return text if _PLAIN_VALUE.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def _one_line(text: str) -> str:
    """Library messages may carry a client's bytes: escape what could forge a second line or drive the terminal."""
    return "".join(ch if ch.isprintable() else ch.encode("unicode_escape").decode("ascii") for ch in text)


def _is_journal(stream: TextIO) -> bool:
    """Whether the stream is systemd's journal (systemd.exec(5)), which reads a priority from a `<n>` prefix."""
    expected = os.environ.get("JOURNAL_STREAM", "")
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return expected == f"{status.st_dev}:{status.st_ino}"
