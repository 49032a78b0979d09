"""Deployments of workers: rows that change by compare-and-swap.

Owns: their SQL. Never: what is in them.
"""

from __future__ import annotations

import sqlite3

from clew.ports.store import DeploymentRow
from clew.storage.sqlite.rows import fetch_all
from clew.storage.sqlite.writes import transaction


def list_deployments(connection: sqlite3.Connection) -> list[DeploymentRow]:
    """All deployments, by namespace and name."""
    sql = "SELECT namespace, name, revision, body FROM deployments ORDER BY namespace, name"
    return [
        DeploymentRow(namespace=namespace, name=name, revision=revision, body=body)
        for namespace, name, revision, body in fetch_all(connection, sql)
    ]


def put_deployment_if_revision(connection: sqlite3.Connection, row: DeploymentRow) -> bool:
    """Write the deployment if the stored revision is the one before; whether it was."""
    with transaction(connection):
        if row.revision == 1:
            done = connection.execute(
                "INSERT OR IGNORE INTO deployments (namespace, name, revision, body) VALUES (?, ?, ?, ?)",
                (row.namespace, row.name, row.revision, row.body),
            )
        else:
            done = connection.execute(
                "UPDATE deployments SET revision = ?, body = ? WHERE namespace = ? AND name = ? AND revision = ?",
                (row.revision, row.body, row.namespace, row.name, row.revision - 1),
            )
        return done.rowcount == 1


def delete_deployment_if_revision(connection: sqlite3.Connection, namespace: str, name: str, revision: int) -> bool:
    """Remove the deployment if the stored revision is this one; whether it was."""
    with transaction(connection):
        done = connection.execute(
            "DELETE FROM deployments WHERE namespace = ? AND name = ? AND revision = ?", (namespace, name, revision)
        )
        return done.rowcount == 1
