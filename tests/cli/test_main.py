from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edgewise.cli.exit_codes import MEANINGS, ExitCode, exit_code
from edgewise.cli.main import COMMANDS as COMMANDS_OF_ALL
from edgewise.cli.main import main, needed
from edgewise.core import errors
from edgewise.core.errors import EdgewiseError
from edgewise.core.settings_reference import markdown_reference
from edgewise.security.tls import CertificateDatesError

Run = Callable[..., "subprocess.CompletedProcess[str]"]
COMMANDS = ("serve", "chat", "models", "doctor", "keys", "config", "install", "fleet", "device")


def test_help_names_every_command(run: Run) -> None:
    done = run("--help")
    assert done.returncode == 0
    assert all(command in done.stdout for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert "Usage: edgewise" in capsys.readouterr().out


def test_the_command_line_starts_without_what_only_some_commands_need() -> None:
    heavy = ("torch", "numpy", "fastapi", "uvicorn", "httpx", "transformers", "tokenizers", "llguidance", "jinja2")
    code = "import sys, edgewise.cli.main as m; m.build()\n"
    code += f"print([n for n in {heavy} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_a_command_starts_without_the_modules_of_others() -> None:
    code = "import sys, edgewise.cli.main as m; m.build(m.needed(['serve', '--help']))\n"
    code += "print([n for n in m.COMMANDS if f'edgewise.cli.{n}' in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "['serve']\n"


@pytest.mark.parametrize("args", [[], ["--help"], ["serv"]])
def test_without_a_command_all_are_built(args: list[str]) -> None:
    assert tuple(needed(args)) == COMMANDS_OF_ALL


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("edgewise 0.")


@pytest.mark.parametrize("args", [["nonsense"], ["keys", "new"], ["serve", "--port", "many"], ["--nonsense"]])
def test_wrong_usage(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(args)
    assert ended.value.code == ExitCode.USAGE
    assert "Usage: edgewise" in capsys.readouterr().err


def test_an_error_is_one_line_without_a_traceback(run: Run) -> None:
    done = run("config", "show", EDGEWISE_PROT="1")
    assert done.returncode == ExitCode.CONFIG
    assert done.stdout == ""
    assert done.stderr == "edgewise: environment: unknown variable EDGEWISE_PROT; did you mean `EDGEWISE_PORT`?\n"


def test_an_error_as_json(run: Run) -> None:
    done = run("keys", "revoke", "nobody", "--json")
    assert done.returncode == ExitCode.NOT_FOUND
    assert json.loads(done.stderr)["error"]["code"] == "not_found"


def test_serve_passes_its_flags_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from edgewise.edge import app

    seen = []

    def serve(loaded: object) -> int:
        seen.append(loaded)
        return 7

    monkeypatch.setattr(app, "serve", serve)
    flags = ["--port", "8401", "--kv-dtype", "int8", "--dtype", "float32", "--quantize", "none", "--host", "::1"]
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--model", "tiny", *flags])
    assert ended.value.code == 7
    (loaded,) = seen
    settings = loaded.settings  # type: ignore[attr-defined]
    assert (settings.host, settings.port, settings.model) == ("::1", 8401, "tiny")
    assert (settings.dtype, settings.kv_dtype, settings.quantize) == ("float32", "int8", "none")


def test_the_reference_names_every_flag_of_serve() -> None:
    from edgewise.cli.serve import serve

    flags = [f"--{name.replace('_', '-')}" for name in inspect.signature(serve).parameters if name != "config"]
    assert f"`{' '.join(flags)}`" in markdown_reference()


def test_serve_refuses_a_wrong_value_by_name(run: Run) -> None:
    done = run("serve", "--dtype", "float8")
    assert done.returncode == ExitCode.CONFIG
    assert "`dtype`" in done.stderr
    assert "flag" in done.stderr


def classes(root: type[EdgewiseError]) -> list[type[EdgewiseError]]:
    return [root, *(found for child in root.__subclasses__() for found in classes(child))]


def test_every_error_has_an_exit_code() -> None:
    codes = {kind: exit_code(kind.__new__(kind)) for kind in classes(EdgewiseError)}
    assert codes[errors.ConfigError] == 4
    assert codes[errors.ModelNotFound] == 5
    assert codes[errors.StorageError] == 6
    assert codes[errors.UnknownField] == 2
    assert codes[errors.EngineUnavailable] == codes[errors.OutOfMemory] == codes[errors.SourceUnavailable] == 3
    assert codes[errors.BadModelFile] == 1
    assert codes[CertificateDatesError] == 3  # unlike other configuration errors, which systemd does not retry
    assert all(code != ExitCode.OK for code in codes.values())


def test_every_exit_code_has_a_meaning() -> None:
    assert set(MEANINGS) == set(ExitCode)


def test_a_reader_that_leaves_early_is_no_crash() -> None:
    command = f"{sys.executable} -m edgewise.cli.main config reference | head -1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr


def test_output_that_cannot_be_written_is_said_in_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "edgewise.cli.main", "config", "show"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == ExitCode.STORAGE
    assert done.stderr == "edgewise: the output cannot be written: no space left on the device\n"


def test_the_manual_lists_the_exit_codes() -> None:
    manual = (Path(__file__).resolve().parents[2] / "docs/operations.md").read_text()
    rows = dict(re.findall(r"^\| (\d+) \| (.+) \|$", manual, re.MULTILINE))
    assert rows == {str(int(code)): meaning for code, meaning in MEANINGS.items()}
