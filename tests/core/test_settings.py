from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from edgewise.core.errors import ConfigError
from edgewise.core.settings import RESERVED_ENV, LoadedSettings, Settings, env_name, load_settings, settings_fields

NO_FILE = Path("/nonexistent/edgewise.toml")


def load(
    text: str | None = None, *, tmp: Path | None = None, env: Mapping[str, str] | None = None, **flags: Any
) -> LoadedSettings:
    config = None
    if text is not None:
        assert tmp is not None
        config = tmp / "edgewise.toml"
        config.write_text(text)
    return load_settings(config, flags, environ=env or {}, default_file=NO_FILE)


def test_defaults() -> None:
    loaded = load()
    settings = loaded.settings
    assert (settings.host, settings.port, settings.model) == ("127.0.0.1", 8400, "starter")
    assert settings.limits.max_body_bytes == 4 * 1024**2
    assert settings.limits.max_concurrent_requests == 256
    assert settings.limits.request_timeout_s is None
    assert settings.limits.keepalive_s == 15.0
    assert settings.drain_s == 20.0
    assert settings.home == Path("~/.local/share/edgewise").expanduser()
    assert set(loaded.origins.values()) == {"default"}
    assert loaded.file is None


def test_each_layer_wins_over_the_one_before_and_says_so(tmp_path: Path) -> None:
    text = 'port = 1\nmodel = "m"\n[engine]\nthreads = 1\nmax_running = 7\n'
    loaded = load(text, tmp=tmp_path, env={"EDGEWISE_PORT": "2", "EDGEWISE_ENGINE__THREADS": "2"}, port=3)
    assert (loaded.settings.port, loaded.settings.engine.threads, loaded.settings.engine.max_running) == (3, 2, 7)
    assert loaded.origins["port"] == "flag"
    assert loaded.origins["engine.threads"] == "EDGEWISE_ENGINE__THREADS"
    assert loaded.origins["engine.max_running"] == str(tmp_path / "edgewise.toml")
    assert loaded.origins["engine.max_waiting"] == "default"


def test_a_flag_that_is_not_given_changes_nothing() -> None:
    assert load(port=None).origins["port"] == "default"


def test_dotted_flags() -> None:
    loaded = load_settings(None, {"engine.max_context": 64}, environ={}, default_file=NO_FILE)
    assert loaded.settings.engine.max_context == 64
    assert loaded.origins["engine.max_context"] == "flag"


def test_settings_are_frozen() -> None:
    settings = load().settings
    with pytest.raises(ValidationError):
        settings.port = 1
    with pytest.raises(ValidationError):
        settings.engine.threads = 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prot = 1", ["edgewise.toml", "`prot`", "did you mean `port`"]),
        ("[engine]\nmax_contxt = 1", ["edgewise.toml", "`engine.max_contxt`", "engine.max_context"]),
        ("[enigne]\nthreads = 1", ["`enigne.threads`", "engine.threads"]),
        ("[engine.threads]\nx = 1", ["engine.threads"]),
        ("engine = 5", ["`engine` is a section"]),
        ("port = 70000", ["`port`", "65535", "70000", "edgewise.toml"]),
        ("port = true", ["`port`", "switch"]),
        ("port = [", ["not valid TOML", "edgewise.toml"]),
        ('dtype = "float8"', ["`dtype`", "bfloat16", "float8"]),
        ('[limits]\nmax_body_bytes = "4 apples"', ["limits.max_body_bytes", "MiB"]),
        ("[limits]\nkeepalive_s = inf", ["limits.keepalive_s"]),
        ('[security]\nallowed_origins = ["a", 5]', ["security.allowed_origins"]),
        ('[tls]\ncert = "/x.pem"', ["both tls.cert and tls.key", "edgewise.toml"]),
        ('"\\u0000" = 1', ["unknown key"]),
    ],
)
def test_mistakes_in_the_file_are_named(text: str, words: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load(text, tmp=tmp_path)
    assert all(word in refused.value.message for word in words), refused.value.message


def test_all_refused_values_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"(?s)`port`.*EDGEWISE_PORT.*`log\.level`.*edgewise\.toml"):
        load('[log]\nlevel = "loud"', tmp=tmp_path, env={"EDGEWISE_PORT": "x"})


def test_unknown_environment_variable() -> None:
    with pytest.raises(ConfigError, match="EDGEWISE_PROT; did you mean `EDGEWISE_PORT`"):
        load(env={"EDGEWISE_PROT": "1"})


@pytest.mark.parametrize("name", ["EDGEWISE_FOO", "EDGEWISE_ENGINE__FOO"])
def test_what_resembles_nothing_is_not_guessed_at(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="config show"):
        load(env={name: "1"})
    with pytest.raises(ConfigError, match=r"`engine\.foo`; `edgewise config show`"):
        load("[engine]\nfoo = 1", tmp=tmp_path)


def test_unknown_flag() -> None:
    with pytest.raises(ConfigError, match="`prot`"):
        load(prot=1)


def test_other_variables_are_none_of_our_business() -> None:
    load(
        env={
            "PATH": "/bin",
            "EDGEWISE": "1",
            "EDGEWISE_TEST_X": "1",
            **dict.fromkeys(RESERVED_ENV - {"EDGEWISE_CONFIG"}, "x"),
        }
    )


def test_an_empty_variable_is_not_set() -> None:
    assert load(env={"EDGEWISE_ENGINE__THREADS": ""}).origins["engine.threads"] == "default"


@pytest.mark.parametrize("text", ["https://a, https://b", '["https://a", "https://b"]'])
def test_lists_in_the_environment(text: str) -> None:
    loaded = load(env={"EDGEWISE_SECURITY__ALLOWED_ORIGINS": text})
    assert loaded.settings.security.allowed_origins == ("https://a", "https://b")


def test_a_broken_list_in_the_environment() -> None:
    with pytest.raises(ConfigError, match="EDGEWISE_SECURITY__ALLOWED_HOSTS is no JSON array"):
        load(env={"EDGEWISE_SECURITY__ALLOWED_HOSTS": "[x"})


@pytest.mark.parametrize(
    ("text", "size"), [("4 MiB", 4 * 2**20), ("1.5GiB", 3 * 2**29), ("10", 10), ("2 kB", 2000), ("7B", 7)]
)
def test_sizes(text: str, size: int) -> None:
    assert load(env={"EDGEWISE_ENGINE__KV_MEMORY_BYTES": text}).settings.engine.kv_memory_bytes == size


def test_which_file_is_read(tmp_path: Path) -> None:
    names = {name: tmp_path / f"{name}.toml" for name in ("flag", "env", "etc")}
    for port, file in enumerate(names.values(), 1):
        file.write_text(f"port = {port}")
    env = {"EDGEWISE_CONFIG": str(names["env"])}
    assert load_settings(names["flag"], environ=env, default_file=names["etc"]).settings.port == 1
    assert load_settings(None, environ=env, default_file=names["etc"]).settings.port == 2
    assert load_settings(None, environ={}, default_file=names["etc"]).settings.port == 3


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.toml: cannot be read"):
        load_settings(tmp_path / "gone.toml", environ={})
    with pytest.raises(ConfigError, match=r"gone\.toml: cannot be read"):
        load_settings(None, environ={"EDGEWISE_CONFIG": str(tmp_path / "gone.toml")})


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "edgewise.toml"
    file.write_bytes(b"port = \xff")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_settings(file, environ={})


def test_rows_cover_every_setting_and_are_json() -> None:
    rows = load().rows()
    assert [key for key, _, _ in rows] == list(settings_fields())
    assert json.loads(json.dumps({key: value for key, value, _ in rows}))["port"] == 8400


def test_paths_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert load(home=Path("state")).settings.home == tmp_path / "state"
    assert load(home="~/x").settings.home == Path("/home/somebody/x")


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.2", False),
        ("device.local", False),
    ],
)
def test_which_addresses_are_loopback(host: str, loopback: bool) -> None:
    settings = load(host=host).settings
    assert settings.loopback is loopback


@pytest.mark.parametrize(
    ("host", "url"),
    [("0.0.0.0", "http://127.0.0.1:8400"), ("::", "http://[::1]:8400"), ("device.local", "http://device.local:8400")],
)
def test_base_url(host: str, url: str) -> None:
    assert load(host=host).settings.base_url == url


def test_base_url_with_tls() -> None:
    assert (
        load(env={"EDGEWISE_TLS__CERT": "/c", "EDGEWISE_TLS__KEY": "/k"}).settings.base_url == "https://127.0.0.1:8400"
    )


def test_every_setting_is_documented_and_has_its_own_variable() -> None:
    fields = settings_fields()
    assert all(field.description for field in fields.values())
    names = {env_name(key) for key in fields}
    assert len(names) == len(fields)
    assert not names & RESERVED_ENV


@given(st.dictionaries(st.text(min_size=1, max_size=20), st.text(max_size=20), max_size=3))
def test_any_environment_gives_settings_or_a_config_error(pairs: dict[str, str]) -> None:
    env = {f"EDGEWISE_{name}".upper(): value for name, value in pairs.items()}
    env.pop("EDGEWISE_CONFIG", None)
    try:
        outcome = load(env=env).settings.model_dump_json()
    except ConfigError as error:
        outcome = error.message
    assert "EDGEWISE_" in outcome or Settings.model_validate_json(outcome)
