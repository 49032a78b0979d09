"""``clew db``: the database under the engines.

Owns: the commands. Never: SQL (``storage.postgres.admin`` has it).

How it works: migrations have two phases. *pre* only adds, so it may be applied while the version before still runs, and
engines apply it by themselves if they may; *post* wants the new version everywhere, so only a person applies it.
"""

from __future__ import annotations

import sys

import click
import msgspec

from clew.cli._connection import Place, command
from clew.cli._errors import CommandError
from clew.cli._groups import NounGroup
from clew.cli._output import print_fields, print_json, print_table


@click.group(cls=NounGroup)
def db() -> None:
    """The PostgreSQL database: its schema, its size, its health."""


@command(db, "migrate")
@click.option("--post", "is_post", is_flag=True, help="Also what needs this version of Clew in every process.")
async def migrate(place: Place, is_post: bool) -> None:
    """Bring the schema up to date, or make it. Processes that do this at once wait for each other."""
    from clew.storage.postgres.admin import administration

    async with administration(_address(place)) as admin:
        applied = await admin.migrate(is_post=is_post)
        left = (await admin.read_schema()).missing_post
    if place.is_json:
        print_json({"applied": applied, "missing_post": left})
        return
    for name in applied:
        print(f"applied {name}")
    if not applied:
        print("Nothing to apply.")
    if left:
        print(f"Left for `clew db migrate --post`, once every process runs this version: {', '.join(left)}.")


@command(db, "check")
async def check(place: Place) -> int:
    """Say whether this version of Clew can run on the schema as it is; exit code 6 when it cannot."""
    from clew.storage.postgres.admin import administration

    async with administration(_address(place)) as admin:
        report = await admin.read_schema()
    if place.is_json:
        print_json({**msgspec.to_builtins(report), "is_usable": report.is_usable})
    else:
        print_fields(
            [
                ("Server", f"PostgreSQL {report.server_version}"),
                ("Schema", report.schema),
                ("Applied", ", ".join(report.applied) or "nothing: there is no store yet"),
                ("Missing", ", ".join(report.missing_pre) or "-"),
                ("Later", ", ".join(report.missing_post) or "-"),
                ("Of a newer Clew", ", ".join(report.unknown) or "-"),
                ("Not as applied", ", ".join(report.changed) or "-"),
            ]
        )
        print("Usable." if report.is_usable else "Not usable as it is: run `clew db migrate`.")
    return 0 if report.is_usable else 6


@command(db, "status")
async def status(place: Place) -> None:
    """Show the tables with their sizes, and who uses the database."""
    from clew.storage.postgres.admin import administration

    async with administration(_address(place)) as admin:
        report = await admin.read_store()
    if place.is_json:
        print_json(report)
        return
    print_fields(
        [
            ("Server", f"PostgreSQL {report.schema.server_version}"),
            ("Schema", report.schema.schema),
            ("Shards", str(report.shard_count)),
            ("Nodes", ", ".join(report.nodes) or "none"),
            ("Connections", f"{report.sessions} of Clew, at most {report.connections_max} in all"),
        ]
    )
    print_table(
        ("TABLE", "SIZE", "ROWS", "DEAD", "HEAP-ONLY UPDATES", "VACUUMED"),
        [
            (
                table.name,
                _size(table.size_bytes),
                f"{table.live_rows:,}",
                f"{table.dead_rows:,}",
                f"{table.heap_only_updates / table.updates:.0%}" if table.updates else "-",
                (table.vacuumed_at or "never").partition(".")[0],
            )
            for table in report.tables
        ],
        empty="There is no store in this database yet.",
    )


@command(db, "vacuum-advice")
async def vacuum_advice(place: Place) -> None:
    """Say what keeps dead rows in the database, and what to do about it."""
    from clew.storage.postgres.admin import administration

    async with administration(_address(place)) as admin:
        advice = await admin.advise()
    if place.is_json:
        print_json(advice)
        return
    for one in advice:
        print(f"{one.about}: {one.text}.")
    if not advice:
        print("Nothing to do: no dead rows worth a word, and nothing that keeps any.")


@command(db, "role")
@click.argument("role")
async def role(place: Place, role: str) -> None:
    """Print the SQL that makes ROLE, which may do what an engine does and nothing else."""
    from clew.storage.postgres.address import parse_address
    from clew.storage.postgres.admin import role_script

    script = role_script(role, parse_address(_address(place)).schema)
    if place.is_json:
        print_json({"sql": script})
    else:
        print(script, end="")


@command(db, "copy", needs_address=False)
@click.argument("source")
@click.argument("target")
@click.option("--only", "-n", "namespaces", multiple=True, help="This namespace only; may be given again.")
@click.option("--workflow-id", "-w", "workflow_ids", multiple=True, help="Runs of this id only; may be given again.")
async def copy(
    place: Place, source: str, target: str, namespaces: tuple[str, ...], workflow_ids: tuple[str, ...]
) -> None:
    """Copy runs from SOURCE to TARGET, open ones included, and compare each. Both are connection strings.

    API keys are copied with a whole store only. No engine may use either of them. An interrupted copy is taken up by
    the same command. Start engines on TARGET only: what is open would run twice.
    """
    import asyncio

    from clew.adapters import SystemClock
    from clew.copying import CopyReport, copy_store

    def show(report: CopyReport) -> None:
        if not place.is_json:
            print(f"{report.copied + report.found:,} runs …", file=sys.stderr)

    report = await copy_store(
        source,
        target,
        clock=SystemClock(asyncio.get_running_loop()),
        namespaces=namespaces,
        workflow_ids=workflow_ids,
        on_progress=show,
    )
    if place.is_json:
        print_json(report)
        return
    print_fields(
        [
            ("Namespaces", f"{report.namespaces:,}"),
            ("Copied", f"{report.copied:,} runs"),
            ("There already", f"{report.found:,} runs, the same"),
            ("Open", f"{report.open_runs:,}; start engines on the target only"),
            ("Events", f"{report.events:,}, compared byte for byte"),
            ("API keys", f"{report.api_keys:,}"),
        ]
    )


def _address(place: Place) -> str:
    if not place.store.startswith(("postgresql:", "postgres:")):
        raise CommandError(
            f"`clew db` is about PostgreSQL, but the store is {place.store!r}. Pass --store postgresql://…; a SQLite "
            "file is kept up to date by the process that owns it."
        )
    return place.store


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
