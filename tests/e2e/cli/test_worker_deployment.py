"""`clew worker deployment …` against a real file, in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clew.cli import main


class Cli:
    def __init__(self, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.store = store
        self._capsys = capsys
        self.out = ""
        self.err = ""

    def __call__(self, *args: str) -> int:
        code = main([*args, "--store", f"sqlite:{self.store}"])
        self.out, self.err = self._capsys.readouterr()
        return code

    def deployment(self, *args: str) -> int:
        return self("worker", "deployment", *args)

    def json(self, *args: str) -> Any:
        assert self.deployment(*args, "--output", "json") == 0, self.err
        return json.loads(self.out)


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.delenv("CLEW_ADDRESS", raising=False)
    cli = Cli(tmp_path / "shop.db", capsys)
    assert cli("workflow", "start", "order-1", "--type", "Order", "--task-queue", "orders") == 0, cli.err
    return cli


def test_routing_is_set_and_shown(cli: Cli) -> None:
    assert cli.deployment("list") == 0
    assert "no worker deployments" in cli.err
    assert cli.deployment("set-current", "shop", "--build-id", "v1") == 4
    assert cli.deployment("set-current", "shop", "--build-id", "v1", "--allow-no-pollers") == 0, cli.err
    args = ("set-ramping", "shop", "--build-id", "v2", "--percentage", "12.5", "--allow-no-pollers")
    assert cli.deployment(*args) == 0, cli.err
    assert cli.deployment("list") == 0
    assert cli.out.splitlines()[1].split()[:4] == ["shop", "v1", "v2", "12.5"]
    assert cli.deployment("describe", "shop") == 0
    assert [line.split()[:2] for line in cli.out.splitlines()[2:]] == [["v2", "Ramping"], ["v1", "Current"]]
    lines = cli.out.splitlines()
    described = cli.json("describe", "shop")
    for line, one, since in zip(lines[2:], described["versions"], ("ramping_since", "current_since"), strict=True):
        assert one[since][:19] in line, "since when it has had this status"
    assert (described["info"]["ramping_build_id"], described["info"]["ramp_percentage"]) == ("v2", 12.5)
    token = described["info"]["conflict_token"]
    assert cli.deployment("set-ramping", "shop", "--end", "--conflict-token", token) == 0
    assert cli.deployment("set-current", "shop", "--build-id", "", "--conflict-token", token) == 6
    assert cli.json("list")[0]["current_build_id"] == "v1"


def test_a_version_that_is_not_needed_is_deleted(cli: Cli) -> None:
    for build_id in ("v1", "v2"):
        assert cli.deployment("set-current", "shop", "--build-id", build_id, "--allow-no-pollers") == 0
    assert cli.deployment("delete-version", "shop", "--build-id", "v2") == 6
    assert cli.deployment("delete-version", "shop", "--build-id", "v1") == 0
    assert [one["build_id"] for one in cli.json("describe", "shop")["versions"]] == ["v2"]


def test_a_run_is_moved(cli: Cli) -> None:
    assert cli.deployment("move", "order-1", "--to", "shop.v2") == 0, cli.err
    assert "pinned to shop.v2" in cli.out
    assert cli("workflow", "describe", "order-1", "--output", "json") == 0
    override = json.loads(cli.out)["versioning"]["override"]
    assert override["pinned_version"] == {"deployment_name": "shop", "build_id": "v2"}
    assert cli.json("move", "order-1", "--auto-upgrade")["versioning_override"] == {"behavior": "AutoUpgrade"}
    assert cli.json("move", "order-1", "--clear")["versioning_override"] is None
    assert cli.deployment("move", "order-2", "--clear") == 4


@pytest.mark.parametrize(
    "args",
    [
        ("move", "order-1"),
        ("move", "order-1", "--clear", "--auto-upgrade"),
        ("move", "order-1", "--to", "nodot"),
        ("set-ramping", "shop"),
        ("set-ramping", "shop", "--end", "--build-id", "v1"),
        ("set-ramping", "shop", "--build-id", "v1", "--percentage", "101"),
    ],
)
def test_what_does_not_fit_together_is_wrong_usage(cli: Cli, args: tuple[str, ...]) -> None:
    assert cli.deployment(*args) == 2
