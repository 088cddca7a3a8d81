"""How one of our modules is run by this interpreter in a process of its own."""

from __future__ import annotations

import sys

_WITHOUT_FOLDER = (
    "import sys; sys.path.pop(0); import runpy; runpy.run_module({!r}, run_name='__main__', alter_sys=True)"
)


def module_command(module: str) -> list[str]:
    """The command that runs `module`, without the working directory on its path.

    `python -m` looks there first: in a folder that happens to hold a file named as a library, that file would run instead.
    """
    if sys.version_info >= (3, 11):
        return [sys.executable, "-P", "-m", module]
    return [sys.executable, "-c", _WITHOUT_FOLDER.format(module)]
