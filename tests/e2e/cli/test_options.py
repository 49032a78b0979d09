"""The options of all commands, and `clew db copy`, which takes its stores as arguments."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from clew.cli import main
from clew.cli._app import app


def commands(group: click.Group, path: str = "clew") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        yield f"{path} {name}", found
        if isinstance(found, click.Group):
            yield from commands(found, f"{path} {name}")


def test_no_command_declares_an_option_twice() -> None:
    found = dict(commands(app))
    assert "clew db copy" in found
    twice = {
        path: [option for option, count in Counter(declared(command)).items() if count > 1]
        for path, command in found.items()
    }
    assert {path: options for path, options in twice.items() if options} == {}


def declared(command: click.Command) -> list[str]:
    """Each option string of a command, as often as it is declared, those for help included."""
    parameters = command.get_params(click.Context(command))
    return [option for parameter in parameters for option in (*parameter.opts, *parameter.secondary_opts)]


@pytest.mark.e2e
@pytest.mark.filterwarnings("error")
def test_a_copy_needs_source_and_target_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEW_CONFIG_FILE", str(tmp_path / "none.toml"))
    for name in ("CLEW_ADDRESS", "CLEW_NAMESPACE", "CLEW_PROFILE", "CLEW_OUTPUT"):
        monkeypatch.delenv(name, raising=False)
    source, target = f"sqlite:{tmp_path / 'old.db'}", f"sqlite:{tmp_path / 'new.db'}"
    start = ("workflow", "start", "claim-1", "--type", "Claim", "--task-queue", "claims")
    assert main([*start, "--store", source]) == 0
    capsys.readouterr()

    assert main(["db", "copy", "--help"]) == 0
    assert "--store" not in capsys.readouterr().out
    assert main(["db", "copy", source, target, "-n", "default", "--output", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["copied"], report["found"]) == (1, 0)
    assert main(["db", "copy", source, target]) == 0
    assert "1 runs, the same" in capsys.readouterr().out
    assert main(["workflow", "describe", "claim-1", "--store", target]) == 0
    assert main(["db", "copy", source, target, "--store", source]) == 2, "it would be ignored"
