"""``clew namespace``: the namespaces of a store.

Owns: these commands. Never: the rules (the engine has them).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import click

from clew.cli._connection import Place, command, owning
from clew.cli._errors import CommandError
from clew.cli._groups import NounGroup
from clew.cli._output import print_json, print_json_line, print_table
from clew.client._calls import call_service
from clew.service import operations as o


@click.group(cls=NounGroup)
def namespace() -> None:
    """Namespaces: runs of one are apart from those of another."""


@command(namespace, "list")
async def list_(place: Place) -> None:
    """List the namespaces."""
    async with owning(place) as client:
        service = client.connection.service
        found = await call_service(client.connection, service.list_namespaces, o.ListNamespacesRequest())
    _print(place, found.namespaces)


@command(namespace, "describe")
@click.argument("name")
async def describe(place: Place, name: str) -> None:
    """Print a namespace, with the limits in which it differs."""
    async with owning(place) as client:
        request = o.DescribeNamespaceRequest(namespace=name)
        found = await call_service(client.connection, client.connection.service.describe_namespace, request)
    _print(place, [found], is_one=True)


@command(namespace, "create")
@click.argument("name")
@click.option("--retention-days", type=click.FloatRange(min=0, min_open=True), help="How long closed runs are kept.")
@click.option("--limit", "limits", multiple=True, metavar="NAME=NUMBER", help="A limit that differs from the default.")
async def create(place: Place, name: str, retention_days: float | None, limits: Sequence[str]) -> None:
    """Make a namespace."""
    request = o.CreateNamespaceRequest(
        name=name,
        retention=timedelta(days=retention_days) if retention_days is not None else timedelta(0),
        limits=dict(_limit(text) for text in limits),
    )
    async with owning(place, may_create=True) as client:
        made = await call_service(client.connection, client.connection.service.create_namespace, request)
    if place.is_json:
        _print(place, [made], is_one=True)
    else:
        print(f"Made namespace {made.name!r}, which keeps closed runs for {_days(made)}.")


def _limit(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    if not number.isascii() or not number.isdigit():
        raise CommandError(f"--limit {text!r} is no limit; write NAME=NUMBER, such as signals_per_run_max=500.")
    return name, int(number)


def _print(place: Place, found: Sequence[o.NamespaceInfo], *, is_one: bool = False) -> None:
    if place.output == "jsonl":
        for one in found:
            print_json_line(one)
    elif place.is_json:
        shown: Any = found[0] if is_one else list(found)
        print_json(shown)
    else:
        rows = [(one.name, _days(one), " ".join(f"{k}={v}" for k, v in one.limits.items()) or "-") for one in found]
        print_table(("NAMESPACE", "RETENTION", "LIMITS"), rows, empty="There are no namespaces.")


def _days(one: o.NamespaceInfo) -> str:
    return f"{one.retention / timedelta(days=1):g} days"
