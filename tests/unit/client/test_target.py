"""Connection strings."""

from __future__ import annotations

import pytest

from clew.client._target import PostgresTarget, ServerTarget, SqliteTarget, parse_target


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("sqlite:claims.db", "claims.db"),
        ("sqlite:data/claims.db", "data/claims.db"),
        ("sqlite:/srv/claims.db", "/srv/claims.db"),
        ("sqlite:///srv/my%20claims.db", "/srv/my claims.db"),
        ("sqlite::memory:", ":memory:"),
    ],
)
def test_sqlite_paths(target: str, path: str) -> None:
    assert parse_target(target) == SqliteTarget(path)


@pytest.mark.parametrize(
    ("target", "nodes"),
    [
        ("localhost:7233", (("localhost", 7233),)),
        ("[::1]:7233", (("::1", 7233),)),
        ("node-1:7233, node-2:7234", (("node-1", 7233), ("node-2", 7234))),
    ],
)
def test_servers(target: str, nodes: tuple[tuple[str, int], ...]) -> None:
    assert parse_target(target) == ServerTarget(nodes)


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("", "connection string is needed"),
        ("claims.db", "write 'sqlite:claims.db'"),
        ("sqlite:", "names no file"),
        ("sqlite://host/claims.db", "names a host"),
        ("sqlite:claims.db?timeout=1", "only a path"),
        ("localhost:70000", "names port 70000"),
        ("node-1:7233,node-2", "one is not 'host:port'"),
        ("mysql://db/clew", "Nothing here speaks 'mysql'"),
    ],
)
def test_what_cannot_be_opened_is_refused_with_what_can(target: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        parse_target(target)
    assert "sqlite:" in str(caught.value)


def test_a_password_stays_out_of_the_message() -> None:
    with pytest.raises(ValueError, match="speaks 'mysql'") as caught:
        parse_target("mysql://app:secret@db/clew")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("target", ["postgresql://app@db:5432/clew?schema=x", "postgres://db/clew"])
def test_a_postgresql_url_is_left_to_its_adapter(target: str) -> None:
    assert parse_target(target) == PostgresTarget(target)
