"""The nodes that share the database: their rows, shard leases and mail.

Owns: their SQL. Never: what a node does with a shard.

How it works: the clock is the server's, read by the statement itself, so nodes need not agree on the time; a store that
was opened with a clock of its own gives its time as `now`. Each method
is one statement, or locks the row of its node first, so that leaving and taking do not cross.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from clew.ports.store import FleetView, NodeRow, ShardLease
from clew.storage.postgres.rows import stored_text
from clew.storage.values import from_micros

if TYPE_CHECKING:
    from clew.storage.postgres.connections import Connection

NOW: Final = "coalesce($1::int8, (extract(epoch FROM clock_timestamp()) * 1000000)::int8)"
"""The server's clock in microseconds, unless parameter 1 says another."""


async def read_fleet(connection: Connection, schema: str, now: int | None, node_id: str) -> FleetView:
    """The fleet as `node_id` sees it."""
    rows = await connection.fetch(
        f"SELECT {NOW} AS now, NULL AS node_id, NULL AS address, NULL AS body, NULL::int8 AS number, "
        f"NULL::int4 AS shard, EXISTS (SELECT 1 FROM {schema}.mail WHERE node_id = $2) AS has_mail "
        f"UNION ALL SELECT NULL, node_id, address, body, lease_until, NULL, NULL FROM {schema}.nodes "
        f"UNION ALL SELECT NULL, node_id, NULL, NULL, epoch, shard, NULL FROM {schema}.shard_leases "
        "WHERE node_id IS NOT NULL",
        now,
        stored_text(node_id),
    )
    nodes: list[NodeRow] = []
    shards: list[ShardLease] = []
    for row in rows[1:]:
        if row["shard"] is not None:
            shards.append(ShardLease(shard=row["shard"], node_id=row["node_id"], epoch=row["number"]))
        else:
            lease_until = from_micros(row["number"])
            nodes.append(
                NodeRow(node_id=row["node_id"], address=row["address"], body=row["body"], lease_until=lease_until)
            )
    shards.sort(key=lambda lease: lease.shard)
    return FleetView(
        now=from_micros(rows[0]["now"]), nodes=tuple(nodes), shards=tuple(shards), has_mail=rows[0]["has_mail"]
    )


async def join_fleet(
    connection: Connection, schema: str, now: int | None, node_id: str, address: str, body: bytes, lease: timedelta
) -> FleetView:
    """Enter a node."""
    entered = await connection.fetchval(
        f"INSERT INTO {schema}.nodes (node_id, address, body, lease_until) VALUES ($2, $3, $4, {NOW} + $5) "
        "ON CONFLICT (node_id) DO NOTHING RETURNING true",
        now,
        stored_text(node_id),
        stored_text(address),
        body,
        _micros(lease),
    )
    if entered is not True:
        raise ValueError(f"node id {node_id!r} is in use; a node takes a new id each time it joins")
    return await read_fleet(connection, schema, now, node_id)


async def renew_node(
    connection: Connection, schema: str, now: int | None, node_id: str, body: bytes | None, lease: timedelta
) -> FleetView | None:
    """Extend the lease of a node that is still there."""
    renewed = await connection.fetchval(
        f"UPDATE {schema}.nodes SET lease_until = {NOW} + $3, body = coalesce($4, body) WHERE node_id = $2 "
        "RETURNING true",
        now,
        stored_text(node_id),
        _micros(lease),
        body,
    )
    return await read_fleet(connection, schema, now, node_id) if renewed is True else None


async def remove_expired_nodes(
    connection: Connection, schema: str, now: int | None, node_ids: Sequence[str]
) -> list[str]:
    """Remove those whose lease is over, with all they have; answers which, in the order asked for."""
    rows = await connection.fetch(
        f"WITH gone AS (DELETE FROM {schema}.nodes WHERE node_id = ANY($2::text[]) AND lease_until <= {NOW} "
        f"RETURNING node_id), {_CLEARED.format(s=schema)} SELECT node_id FROM gone",
        now,
        [stored_text(node_id) for node_id in node_ids],
    )
    gone = {row[0] for row in rows}
    return [node_id for node_id in node_ids if stored_text(node_id) in gone]


_CLEARED: Final = (
    "freed AS (UPDATE {s}.shard_leases SET node_id = NULL FROM gone WHERE shard_leases.node_id = gone.node_id), "
    "unread AS (DELETE FROM {s}.mail USING gone WHERE mail.node_id = gone.node_id)"
)


async def leave_fleet(connection: Connection, schema: str, node_id: str) -> None:
    """Remove a node with all it has."""
    await connection.execute(
        f"WITH gone AS (DELETE FROM {schema}.nodes WHERE node_id = $1 RETURNING node_id), "
        f"{_CLEARED.format(s=schema)} SELECT 1",
        stored_text(node_id),
    )


async def take_free_shards(
    connection: Connection, schema: str, now: int | None, node_id: str, shards: Sequence[int]
) -> list[ShardLease]:
    """Give the node what nobody with a good lease holds."""
    rows = await connection.fetch(
        # The lock on the node's row keeps it from leaving in between. A shard that another node is taking at this
        # moment is waited for and then looked at again, by the condition on the row as it is then.
        f"WITH me AS MATERIALIZED (SELECT node_id FROM {schema}.nodes WHERE node_id = $2 FOR KEY SHARE) "
        f"INSERT INTO {schema}.shard_leases AS held (shard, node_id, epoch) "
        "SELECT wanted.shard, me.node_id, 1 FROM me, (SELECT DISTINCT shard FROM unnest($3::int4[]) AS u (shard) "
        "ORDER BY shard) AS wanted ON CONFLICT (shard) DO UPDATE SET node_id = excluded.node_id, "
        "epoch = held.epoch + 1 WHERE held.node_id IS NULL OR held.node_id = excluded.node_id OR NOT EXISTS (SELECT 1 "
        f"FROM {schema}.nodes AS n WHERE n.node_id = held.node_id AND n.lease_until > {NOW}) "
        "RETURNING shard, epoch",
        now,
        stored_text(node_id),
        shards,
    )
    return [ShardLease(shard=shard, node_id=node_id, epoch=epoch) for shard, epoch in sorted(map(tuple, rows))]


async def release_shards(connection: Connection, schema: str, leases: Sequence[ShardLease]) -> None:
    """Give back what is still held under the very lease."""
    await connection.execute(
        f"UPDATE {schema}.shard_leases AS held SET node_id = NULL "
        "FROM unnest($1::int4[], $2::text[], $3::int8[]) AS d (shard, node_id, epoch) "
        "WHERE held.shard = d.shard AND held.node_id = d.node_id AND held.epoch = d.epoch",
        [lease.shard for lease in leases],
        [stored_text(lease.node_id) for lease in leases],
        [lease.epoch for lease in leases],
    )


async def post_mail(connection: Connection, schema: str, node_id: str, body: bytes) -> bool:
    """Leave a message, if there is such a node."""
    posted = await connection.fetchval(
        f"INSERT INTO {schema}.mail (node_id, body) SELECT node_id, $2 FROM {schema}.nodes WHERE node_id = $1 "
        "FOR KEY SHARE RETURNING true",
        stored_text(node_id),
        body,
    )
    return posted is True


async def take_mail(connection: Connection, schema: str, node_id: str) -> list[bytes]:
    """Take all messages, oldest first."""
    rows = await connection.fetch(
        f"WITH taken AS (DELETE FROM {schema}.mail WHERE node_id = $1 RETURNING mail_id, body) "
        "SELECT body FROM taken ORDER BY mail_id",
        stored_text(node_id),
    )
    return [row[0] for row in rows]


def _micros(lease: timedelta) -> int:
    return lease // timedelta(microseconds=1)
