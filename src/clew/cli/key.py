"""``clew key``: the API keys with which callers of a server say who they are.

Owns: the commands. Never: what a key allows (``model.access``), or its life (``engine.api_keys``).

How it works: keys lie in the store, so that the commands work on a store as well as on a server: the first key of a
server is made with ``--store``, before or while it runs. A new key is printed once, alone on stdout, so that a script
can catch it; everything else goes to stderr.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import click

from clew.cli._connection import Place, caller_identity, command, owning
from clew.cli._durations import Duration
from clew.cli._groups import NounGroup
from clew.cli._output import print_json, print_json_line, print_table
from clew.client import Client
from clew.service import keys as k


@click.group(cls=NounGroup)
def key() -> None:
    """API keys of a server: make, list, revoke and rotate them."""


@command(key, "create")
@click.argument("name")
@click.option(
    "--grant",
    "-g",
    "grants",
    multiple=True,
    required=True,
    metavar="NAMESPACE:ROLE",
    help="What it allows; can be given several times. Roles: reader, client, worker, operator, admin; * is every "
    "namespace; payments/cards:worker is one task queue; payments:payloads one permission.",
)
@click.option("--expires-in", type=Duration(), help="How long it is good, such as 90d; for ever if not given.")
@click.option("--calls-per-second", type=click.FloatRange(0, min_open=True), help="Its own rate limit.")
async def create(
    place: Place, name: str, grants: Sequence[str], expires_in: timedelta | None, calls_per_second: float | None
) -> None:
    """Make a key and print it. It is told this once: the store keeps only a digest of it."""
    request = k.CreateApiKeyRequest(
        name=name,
        grants=tuple(grants),
        expires_in=expires_in or timedelta(0),
        calls_per_second_max=calls_per_second,
        identity=caller_identity(),
    )
    async with owning(place, may_create=True) as client:
        made = await client.connection.call(client.connection.service.create_api_key, request)
    _tell(place, made, f"Made key {made.info.key_id} ({name}). Keep it now: it is not shown again.")


@command(key, "list")
@click.option("--all", "is_all", is_flag=True, help="Also those that are revoked or expired.")
async def list_keys(place: Place, is_all: bool) -> None:
    """Show the keys, without their secrets."""
    async with owning(place) as client:
        found = await _listed(client, is_all=is_all)
    if place.output == "json":
        print_json([_facts(one) for one in found])
    elif place.output == "jsonl":
        for one in found:
            print_json_line(_facts(one))
    else:
        print_table(
            ("KEY ID", "NAME", "GRANTS", "STATE", "CREATED", "LAST USED"),
            [
                (
                    one.key_id,
                    one.name,
                    " ".join(one.grants),
                    _state(one),
                    f"{one.created_at:%Y-%m-%d}",
                    f"{one.last_used_at:%Y-%m-%d %H:%M}" if one.last_used_at else "never",
                )
                for one in found
            ],
            empty="There are no API keys.",
        )


@command(key, "revoke")
@click.argument("key_id")
async def revoke(place: Place, key_id: str) -> None:
    """Take a key back, for good. Connections that use it end within seconds."""
    request = k.RevokeApiKeyRequest(key_id=key_id, identity=caller_identity())
    async with owning(place) as client:
        info = await client.connection.call(client.connection.service.revoke_api_key, request)
    if place.is_json:
        print_json(_facts(info))
    else:
        click.echo(f"Revoked key {info.key_id} ({info.name}).", err=True)


@command(key, "rotate")
@click.argument("key_id")
@click.option(
    "--overlap", type=Duration(), default="24h", show_default=True, help="How long the old one stays good; 0s ends it."
)
@click.option("--expires-in", type=Duration(), help="How long the new one is good; for ever if not given.")
async def rotate(place: Place, key_id: str, overlap: timedelta, expires_in: timedelta | None) -> None:
    """Make a key with the same name and grants, and let the old one end."""
    request = k.RotateApiKeyRequest(
        key_id=key_id, overlap=overlap, expires_in=expires_in or timedelta(0), identity=caller_identity()
    )
    async with owning(place) as client:
        made = await client.connection.call(client.connection.service.rotate_api_key, request)
    _tell(place, made, f"Made key {made.info.key_id} in place of {key_id}. Keep it now: it is not shown again.")


async def _listed(client: Client, *, is_all: bool) -> tuple[k.ApiKeyInfo, ...]:
    request = k.ListApiKeysRequest(include_ended=is_all)
    return (await client.connection.call(client.connection.service.list_api_keys, request)).keys


def _tell(place: Place, made: k.CreateApiKeyResponse, words: str) -> None:
    if place.is_json:
        print_json({**_facts(made.info), "key": made.key})
    else:
        click.echo(words, err=True)
        click.echo(made.key)


def _state(info: k.ApiKeyInfo) -> str:
    if info.revoked_at is not None:
        return f"revoked {info.revoked_at:%Y-%m-%d}"
    if not info.is_live:
        return "expired"
    return f"until {info.expires_at:%Y-%m-%d %H:%M}" if info.expires_at is not None else "live"


def _facts(info: k.ApiKeyInfo) -> dict[str, Any]:
    return {
        "key_id": info.key_id,
        "name": info.name,
        "grants": list(info.grants),
        "is_live": info.is_live,
        "created_at": info.created_at,
        "created_by": info.created_by,
        "expires_at": info.expires_at,
        "revoked_at": info.revoked_at,
        "replaced_by": info.replaced_by or None,
        "last_used_at": info.last_used_at,
        "calls_per_second_max": info.calls_per_second_max,
    }
