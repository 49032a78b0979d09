"""What a process loads before it does anything: the time to a first answer goes there, and counts do not waver."""

from __future__ import annotations

import subprocess
import sys

import pytest

_LIST = "; import sys; print('\\n'.join(m for m in sys.modules if m.partition('.')[0] not in _before))"
_BEFORE = "import sys; _before = {m.partition('.')[0] for m in sys.modules} - {'clew'}; "

NODE = "import clew.cli.dev, clew.server.node"
CLIENT = "from clew.client import Client"

NODE_MODULES_MAX = 205
"""Of Clew's own; 183 when this was written."""
CLIENT_MODULES_MAX = 95
"""Of Clew's own; 82 when this was written."""


def _loaded_by(statement: str) -> set[str]:
    text = subprocess.run(
        [sys.executable, "-c", _BEFORE + statement + _LIST], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    return set(text.split())


def _own(modules: set[str]) -> set[str]:
    return {module for module in modules if module == "clew" or module.startswith("clew.")}


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        pytest.param(
            NODE,
            (
                "asyncpg", "clew.client", "clew.link.client", "clew.link.remote", "clew.replay",
                "clew.server.api.openapi", "clew.storage.postgres.store", "clew.worker", "pydantic", "jwt",
            ),
            id="node",
        ),
        pytest.param(
            CLIENT,
            (
                "asyncpg", "clew.cli", "clew.core", "clew.embedded", "clew.engine", "clew.link", "clew.server",
                "clew.storage", "clew.testing", "clew.worker", "sqlite3", "starlette", "uvicorn", "websockets",
            ),
            id="client",
        ),
    ],
)  # fmt: skip
def test_nothing_is_loaded_that_is_not_needed(statement: str, unwanted: tuple[str, ...]) -> None:
    assert _loaded_by(statement) & set(unwanted) == set()


def test_a_start_loads_no_more_modules_than_it_did() -> None:
    assert len(_own(_loaded_by(NODE))) <= NODE_MODULES_MAX
    assert len(_own(_loaded_by(CLIENT))) <= CLIENT_MODULES_MAX


def test_the_package_itself_is_empty() -> None:
    assert _own(_loaded_by("import clew")) == {"clew"}
