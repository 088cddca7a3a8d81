"""Exit codes that scripts and systemd can rely on."""

from __future__ import annotations

from enum import IntEnum

from edgewise.core.errors import (
    ConfigError,
    EdgewiseError,
    InvalidRequest,
    NotFound,
    OutOfMemory,
    StorageError,
)


class ExitCode(IntEnum):
    OK = 0
    FAILURE = 1
    USAGE = 2
    UNAVAILABLE = 3
    CONFIG = 4
    NOT_FOUND = 5
    STORAGE = 6
    RESTART = 75
    INTERRUPTED = 130


# docs/operations.md has the same table; a test compares them.
MEANINGS: dict[ExitCode, str] = {
    ExitCode.OK: "done",
    ExitCode.FAILURE: "something failed, or a check found a fault",
    ExitCode.USAGE: "the command line or a value on it is wrong",
    ExitCode.UNAVAILABLE: "a service, source or resource cannot be had now; a retry can help",
    ExitCode.CONFIG: "the configuration is refused; a retry cannot help",
    ExitCode.NOT_FOUND: "the named key, model or thing does not exist",
    ExitCode.STORAGE: "a disk is full, read-only, forbidden or damaged",
    ExitCode.RESTART: "the service was told to start again; systemd does",
    ExitCode.INTERRUPTED: "ended by Ctrl-C",
}


def exit_code(error: EdgewiseError) -> ExitCode:
    """The exit code of an error, by its class."""
    if error.retryable or isinstance(error, OutOfMemory):
        return ExitCode.UNAVAILABLE
    if isinstance(error, ConfigError):
        return ExitCode.CONFIG
    if isinstance(error, NotFound):
        return ExitCode.NOT_FOUND
    if isinstance(error, StorageError):
        return ExitCode.STORAGE
    if isinstance(error, InvalidRequest):
        return ExitCode.USAGE
    return ExitCode.FAILURE
