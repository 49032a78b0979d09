"""Settings of the server and profiles of the command: one precedence each, and errors that say what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from clew.cli._connection import place_of
from clew.cli._errors import CommandError
from clew.server.settings import ServerSettings, SettingsError, load_settings


def test_flags_go_before_the_environment_before_the_file_before_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "clew.toml"
    file.write_text('store = "sqlite:file.db"\nport = 1\nhost = "127.0.0.9"\n', "utf-8")
    environment = {"CLEW_SERVER_PORT": "2", "CLEW_SERVER_HOST": "127.0.0.8", "OTHER": "x"}
    found = load_settings(file=file, environment=environment, flags={"host": "127.0.0.7", "port": None})
    assert (found.host, found.port, found.store) == ("127.0.0.7", 2, "sqlite:file.db")
    assert found.streams_max == ServerSettings().streams_max


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"environment": {"CLEW_SERVER_PROT": "1"}}, "Did you mean 'port'?"),
        ({"environment": {"CLEW_SERVER_PORT": "x"}}, "'port' is 'x' by the environment"),
        ({"environment": {"CLEW_SERVER_WEB": "maybe"}}, "by the environment"),
        ({"flags": {"port": 70_000}}, "from 0 to 65535"),
        ({"flags": {"shutdown_seconds": 0.0}}, "greater than zero"),
        ({"flags": {"log_format": "xml"}}, "'text' or 'json'"),
        ({"flags": {"log_level": "loud"}}, "'debug', 'info'"),
        ({"file": Path("/nonexistent/clew.toml")}, "Cannot read the file of settings"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_source(given: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load_settings(**given)
    assert says in str(refused.value)


def test_a_file_that_is_not_toml_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "clew.toml"
    file.write_text("port: 1", "utf-8")
    with pytest.raises(SettingsError, match="is not TOML"):
        load_settings(file=file)


def test_every_setting_can_be_set_in_the_environment() -> None:
    for field in msgspec.structs.fields(ServerSettings):
        default = getattr(ServerSettings(), field.name)
        if isinstance(default, (bool, int, float, str)) and default != "":
            text = str(default).lower() if isinstance(default, bool) else str(default)
            found = load_settings(environment={f"CLEW_SERVER_{field.name.upper()}": text})
            assert getattr(found, field.name) == default


NOTHING: dict[str, Any] = dict.fromkeys(("profile", "store", "namespace", "output", "api_key", "tls"))


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "clew.toml"
    monkeypatch.setenv("CLEW_CONFIG_FILE", str(path))
    return path


def test_what_is_not_given_comes_from_the_profile(profiles: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("clew_secret\n", "utf-8")
    profiles.write_text(
        f'[profile.default]\naddress = "sqlite:a.db"\n[profile.prod]\naddress = "host:7233"\nnamespace = "claims"\n'
        f'output = "json"\napi_key_file = "{tmp_path / "key"}"\ntls = true\n',
        "utf-8",
    )
    assert place_of(dict(NOTHING)).store == "sqlite:a.db"
    place = place_of({**NOTHING, "profile": "prod", "output": "jsonl"})
    assert (place.store, place.namespace, place.output) == ("host:7233", "claims", "jsonl")
    assert (place.api_key, place.tls) == ("clew_secret", True)
    assert "clew_secret" not in " ".join(place.arguments())
    assert place_of({**NOTHING, "profile": "prod", "store": "other:1", "tls": False}).tls is False


def test_a_profile_that_is_wrong_is_told(profiles: Path) -> None:
    with pytest.raises(CommandError, match="there is no file"):
        place_of({**NOTHING, "profile": "prod"})
    with pytest.raises(CommandError, match="or make a profile in"):
        place_of(dict(NOTHING))
    profiles.write_text('[profile.prod]\naddress = "host:7233"\n', "utf-8")
    with pytest.raises(CommandError, match="Did you mean 'prod'"):
        place_of({**NOTHING, "profile": "prd"})
    profiles.write_text('[profile.prod]\nadress = "host:7233"\n', "utf-8")
    with pytest.raises(CommandError, match="unknown field `adress`"):
        place_of({**NOTHING, "profile": "prod"})
