"""Group commit: the units of many calls as one statement, each guarded by itself.

Owns: how write units become rows of a statement, and who loses. Never: the text of statements (``commit_sql``), or when
a group is formed and what happens when the connection is lost (``committer``).

How it works: a group in which every unit is one write of a run of its own, and no run follows on another, is one
statement: one round trip, one transaction; where it is a single plain update, a statement of values without arrays,
which both sides are done with sooner. Anything else is a transaction of several steps; there a unit of several runs may
hold in part, and then all is rolled back and done again with a savepoint a unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from clew.ports.store import CommitStatus, RunWrite
from clew.storage.postgres.commit_sql import SECTIONS, UNLATCH, lone_statement, parameters, statement
from clew.storage.postgres.rows import stored_text, to_visibility_columns
from clew.storage.values import OPEN_STATUSES, STATUS_NAMES, to_index_rows, to_micros

if TYPE_CHECKING:
    from clew.storage.postgres.connections import Connection

Unit = tuple[RunWrite, ...]

_NO_BATCH: Final = (None, None, None)
_TEXT_KINDS: Final = frozenset({"Keyword", "KeywordList", "Text"})
_PLACES: Final = {name: place for place, name in enumerate(SECTIONS)}


class Work:
    """The rows of a statement by section."""

    __slots__ = ("names", "run_ordinals", "sections")

    def __init__(self) -> None:
        self.run_ordinals: list[int] = []
        """The place of its unit for each run that is written."""
        self.sections: dict[str, list[tuple[Any, ...]]] = {}
        self.names: set[tuple[str, str]] = set()
        """Search attributes of a namespace that the statement enters."""

    def add(self, section: str, row: tuple[Any, ...]) -> None:
        """One more row of a section."""
        rows = self.sections.get(section)
        if rows is None:
            self.sections[section] = [row]
        else:
            rows.append(row)

    def statement(self, schema: str, commit_id: int) -> tuple[str, list[Any]]:
        """The text and its parameters."""
        names = tuple(sorted(self.sections, key=_PLACES.__getitem__))
        values: list[Any] = [commit_id, len(self.run_ordinals)]
        for name in names:
            rows = self.sections[name]
            if len(rows) > 1 and name in ("updates", "revisions"):
                rows.sort(key=_lock_order)  # all nodes lock rows in one order, so that they do not deadlock
            values += parameters(name, rows)
        return statement(schema, names), values


class _Step:
    """A transaction, or a savepoint inside one, that is taken back when it is void or an error leaves it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._is_inner = connection.is_in_transaction()
        self.is_void = False

    async def __aenter__(self) -> None:
        await self._connection.execute("SAVEPOINT clew_step" if self._is_inner else "BEGIN")

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is not None:
            if not self._connection.is_closed():
                self._connection.terminate()  # what was begun is rolled back with it
        elif self._is_inner:
            if self.is_void:
                await self._connection.execute("ROLLBACK TO SAVEPOINT clew_step")
            await self._connection.execute("RELEASE SAVEPOINT clew_step")
        else:
            await self._connection.execute("ROLLBACK" if self.is_void else "COMMIT")


def _lock_order(row: tuple[Any, ...]) -> tuple[int, int]:
    return row[1], row[2]


class UnitWriter:
    """Executes units on a connection. `known_names` are search attributes that need not be entered again."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self.known_names: set[tuple[str, str]] = set()

    async def commit(
        self, connection: Connection, units: Sequence[Unit], commit_id: int
    ) -> tuple[list[CommitStatus], set[tuple[str, str]]]:
        """Make each unit durable if its guards hold; also answers the names of search attributes that were entered.

        Raises:
            Exception: Of the driver; ``errors`` tells whether nothing was done or nobody knows.
        """
        waves = _waves(units)
        if len(waves) == 1 and not any(_is_linked(unit) for unit in units):
            work = self._collect(enumerate(units))
            held = set(await self._execute(connection, work, commit_id))
            return [_status(unit, place in held) for place, unit in enumerate(units)], work.names
        return await self._commit_in_steps(connection, units, waves, commit_id)

    async def commit_lone(
        self, connection: Connection, write: RunWrite, commit_id: int, *, timeout_seconds: float
    ) -> CommitStatus:
        """Make one plain write (`is_plain`) durable if its guard holds."""
        values = _update_values(write)
        count = await connection.fetchval(lone_statement(self.schema), commit_id, *values, timeout=timeout_seconds)
        return CommitStatus.COMMITTED if count else CommitStatus.VERSION_CONFLICT

    async def warm_up(self, connection: Connection) -> None:
        """Have the server prepare what most commits are; nothing is written, as there is no run of this key."""
        nobody = (-1, -1, -1, -1, "", False, False, None, 0, 0, b"", *_NO_BATCH)
        await connection.fetchval(lone_statement(self.schema), 0, *nobody)
        await connection.fetchval(statement(self.schema, ("updates",)), 0, 0, *parameters("updates", [(0, *nobody)]))

    async def _commit_in_steps(
        self, connection: Connection, units: Sequence[Unit], waves: list[list[int]], commit_id: int
    ) -> tuple[list[CommitStatus], set[tuple[str, str]]]:
        step = _Step(connection)
        async with step:
            statuses: dict[int, CommitStatus] = {}
            names: set[tuple[str, str]] = set()
            for wave in waves:
                work = await self._try_wave(connection, units, wave, commit_id, statuses)
                if work is None:
                    step.is_void = True
                    break
                names |= work.names
        if step.is_void:
            return await self._commit_each(connection, units, commit_id)
        return [statuses[place] for place in range(len(units))], names

    async def _try_wave(
        self,
        connection: Connection,
        units: Sequence[Unit],
        wave: list[int],
        commit_id: int,
        statuses: dict[int, CommitStatus],
    ) -> Work | None:
        """Write the units of a wave; None when one holds in part only, so that something must be taken back."""
        wanted = [(place, units[place]) for place in wave]
        free = await self._unlatch(connection, [unit for _, unit in wanted])
        going: list[tuple[int, Unit]] = []
        for place, unit in wanted:
            found = [key in free for key in _followed(unit)]
            if all(found):
                going.append((place, unit))
            elif any(found):
                return None
            else:
                statuses[place] = await self._why_not(connection, unit)
        work = self._collect(going)
        counts = dict.fromkeys((place for place, _ in going), 0)
        for place in await self._execute(connection, work, commit_id):
            counts[place] += 1
        for place, unit in going:
            if counts[place] == len(unit):
                statuses[place] = CommitStatus.COMMITTED
            elif _is_linked(unit):
                return None
            else:
                statuses[place] = _status(unit, is_held=False)
        return work

    async def _commit_each(
        self, connection: Connection, units: Sequence[Unit], commit_id: int
    ) -> tuple[list[CommitStatus], set[tuple[str, str]]]:
        statuses: list[CommitStatus] = []
        names: set[tuple[str, str]] = set()
        async with _Step(connection):
            for unit in units:
                work = self._collect([(0, unit)])
                step = _Step(connection)
                async with step:
                    free = await self._unlatch(connection, [unit])
                    is_free = all(key in free for key in _followed(unit))
                    held = await self._execute(connection, work, commit_id) if is_free else []
                    step.is_void = len(held) < len(unit)
                if step.is_void:
                    statuses.append(await self._why_not(connection, unit))
                else:
                    statuses.append(CommitStatus.COMMITTED)
                    names |= work.names
        return statuses, names

    async def _why_not(self, connection: Connection, unit: Unit) -> CommitStatus:
        """Which guard of a unit that was not written failed."""
        for write in unit:
            if write.expected_version:
                found = await connection.fetchval(
                    f"SELECT version FROM {self.schema}.executions WHERE shard = $1 AND run_key = $2",
                    write.shard,
                    write.run_key,
                )
                if found != write.expected_version:
                    return CommitStatus.VERSION_CONFLICT
        return CommitStatus.LATEST_RUN_CONFLICT

    async def _unlatch(self, connection: Connection, units: Iterable[Unit]) -> set[int]:
        """Make the runs that others follow on no longer the latest; answers which could be."""
        rows: list[tuple[int, int, int]] = []
        for unit in units:
            own = _passed_over(unit)
            for write in unit:
                key = write.expected_latest_run_key
                if key and not write.expected_version and key not in own:
                    closing = [
                        w.expected_version
                        for w in unit
                        if w.run_key == key and w.expected_version and w.status not in OPEN_STATUSES
                    ]
                    rows.append((write.shard, key, closing[0] if closing else 0))
        if not rows:
            return set()
        rows.sort()
        found = await connection.fetch(UNLATCH.format(s=self.schema), *zip(*rows, strict=True))
        return {record[0] for record in found}

    async def _execute(self, connection: Connection, work: Work, commit_id: int) -> list[int]:
        """Answers the place of its unit for each run that held."""
        if not work.sections:
            return []
        text, values = work.statement(self.schema, commit_id)
        held: list[int] | None = await connection.fetchval(text, *values)
        return work.run_ordinals if held is None else held

    # --- rows -------------------------------------------------------------------------------------------------------

    def _collect(self, units: Iterable[tuple[int, Unit]]) -> Work:
        work = Work()
        for ordinal, unit in units:
            passed_over = _passed_over(unit) if len(unit) > 1 else ()
            for write in unit:
                work.run_ordinals.append(ordinal)
                self._collect_write(work, ordinal, write, is_latest=write.run_key not in passed_over)
        return work

    def _collect_write(self, work: Work, ordinal: int, write: RunWrite, *, is_latest: bool) -> None:
        shard, run_key = write.shard, write.run_key
        batches = write.batches
        row = (ordinal, *_update_values(write))
        visibility = write.visibility
        if not write.expected_version:
            if visibility is None:
                raise ValueError(f"the insert of run {write.run_id!r} has no visibility; an insert needs one")
            names = (stored_text(write.namespace), stored_text(write.workflow_id), write.run_id)
            work.add("inserts", (*row, *names, *to_visibility_columns(visibility), is_latest))
            if visibility.search_attributes:
                self._collect_attributes(work, ordinal, write, is_new=True)
        elif visibility is None:
            work.add("updates", row)
        else:
            work.add("revisions", (*row, *to_visibility_columns(visibility)))
            self._collect_attributes(work, ordinal, write, is_new=False)
        if len(batches) > 1:
            for batch in batches[1:]:
                key = (ordinal, shard, run_key, batch.first_event_id, batch.last_event_id, batch.events)
                work.add("history", key)
        _collect_side_rows(work, ordinal, write)

    def _collect_attributes(self, work: Work, ordinal: int, write: RunWrite, *, is_new: bool) -> None:
        assert write.visibility is not None
        shard, run_key, namespace = write.shard, write.run_key, stored_text(write.namespace)
        counts: dict[str, int] = {}
        for plain, place, kind, value in to_index_rows(write.visibility.search_attributes or {}):
            name = stored_text(plain)
            counts[name] = counts.get(name, 0) + 1
            text = stored_text(str(value)) if kind in _TEXT_KINDS else None
            number = None if kind in _TEXT_KINDS else repr(value)
            work.add("attributes_put", (ordinal, shard, run_key, name, place, kind, text, number))
            if (namespace, name) not in self.known_names:
                work.add("names_put", (ordinal, namespace, name, kind))
                work.names.add((namespace, name))
        if not is_new:
            work.add("attributes_clear", (ordinal, shard, run_key, None, 0))
            for name, count in counts.items():
                work.add("attributes_clear", (ordinal, shard, run_key, name, count))


def is_plain(write: RunWrite) -> bool:
    """Whether it is an update with at most one batch of events and nothing beside."""
    return (
        write.expected_version != 0
        and write.visibility is None
        and len(write.batches) < 2
        and not (write.items_put or write.items_delete or write.tasks_put or write.tasks_delete)
        and not (write.outbox_put or write.outbox_delete)
    )


def _update_values(write: RunWrite) -> tuple[Any, ...]:
    """The columns of "updates" but for the ordinal; of a new run the run before it stands for the version."""
    attention_at = write.attention_at
    batches = write.batches
    if batches:
        batch = batches[0]
        first: tuple[Any, ...] = (batch.first_event_id, batch.last_event_id, batch.events)
    else:
        first = _NO_BATCH
    return (
        write.shard,
        write.run_key,
        write.expected_version or write.expected_latest_run_key,
        write.version,
        STATUS_NAMES[write.status],
        write.status in OPEN_STATUSES,
        write.is_busy,
        None if attention_at is None else to_micros(attention_at),
        write.history_length,
        write.history_size_bytes,
        write.state,
        *first,
    )


def _collect_side_rows(work: Work, ordinal: int, write: RunWrite) -> None:
    shard, run_key = write.shard, write.run_key
    if write.items_delete:
        put = {(item.kind, item.item_id) for item in write.items_put}
        for kind, item_id in write.items_delete:
            if (kind, item_id) not in put:
                work.add("items_delete", (ordinal, shard, run_key, kind, item_id))
    if write.items_put:
        for item in {(item.kind, item.item_id): item for item in write.items_put}.values():
            work.add("items_put", (ordinal, shard, run_key, item.kind, item.item_id, item.data))
    if write.tasks_delete:
        put_ids = {task.task_id for task in write.tasks_put}
        for task_id in write.tasks_delete:
            if task_id not in put_ids:
                work.add("tasks_delete", (ordinal, shard, task_id))
    if write.tasks_put:
        for t in write.tasks_put:
            names = (stored_text(t.namespace), stored_text(t.task_queue))
            rest = (int(t.kind), t.scheduled_event_id, t.attempt, t.priority)
            work.add("tasks_put", (ordinal, t.task_id, t.shard, t.run_key, *names, *rest))
    if write.outbox_delete:
        for message_id in write.outbox_delete:
            work.add("outbox_delete", (ordinal, shard, message_id))
    if write.outbox_put:
        for message in write.outbox_put:
            work.add("outbox_put", (ordinal, message.message_id, message.shard, message.run_key, message.body))


def _is_linked(unit: Unit) -> bool:
    """Whether it is more than one write that stands by itself."""
    return len(unit) != 1 or (unit[0].expected_version == 0 and unit[0].expected_latest_run_key != 0)


def _followed(unit: Unit) -> list[int]:
    """The runs in the store that runs of this unit follow on."""
    own = _passed_over(unit) if len(unit) > 1 else ()
    keys = [w.expected_latest_run_key for w in unit if not w.expected_version and w.expected_latest_run_key]
    return [key for key in keys if key not in own]


def _passed_over(unit: Unit) -> set[int]:
    """The runs that this unit inserts, closed already, and follows on: they are never the latest."""
    inserts = [write for write in unit if not write.expected_version]
    closed = {write.run_key for write in inserts if write.status not in OPEN_STATUSES}
    return {write.expected_latest_run_key for write in inserts} & closed


def _touched(unit: Unit) -> Sequence[object]:
    """What no two units of one statement may have in common."""
    if len(unit) == 1 and unit[0].expected_version:
        return (unit[0].run_key,)
    touched: list[object] = []
    for write in unit:
        touched.append(write.run_key)
        if not write.expected_version:
            if write.expected_latest_run_key:
                touched.append(write.expected_latest_run_key)
            touched.append((write.namespace, write.workflow_id))
    return touched


def _waves(units: Sequence[Unit]) -> list[list[int]]:
    """The units in as few rounds as keep those that touch the same run apart and in order."""
    every = [key for unit in units for key in _touched(unit)]
    if len(set(every)) == len(every):
        return [list(range(len(units)))]
    last_wave: dict[object, int] = {}
    waves: list[list[int]] = [[]]
    for place, unit in enumerate(units):
        touched = _touched(unit)
        wave = max((last_wave.get(key, -1) + 1 for key in touched), default=0)
        for key in touched:
            last_wave[key] = wave
        while len(waves) <= wave:
            waves.append([])
        waves[wave].append(place)
    return waves


def touched_keys(units: Iterable[Unit]) -> set[object]:
    """The runs and workflow ids that these units write or follow on."""
    return {key for unit in units for key in _touched(unit)}


def _status(unit: Unit, is_held: bool) -> CommitStatus:
    return CommitStatus.COMMITTED if is_held else _refused(unit)


def _refused(unit: Unit) -> CommitStatus:
    """Why a unit did not hold, when that follows from what it is."""
    if not unit:
        return CommitStatus.COMMITTED
    return (
        CommitStatus.VERSION_CONFLICT
        if any(write.expected_version for write in unit)
        else CommitStatus.LATEST_RUN_CONFLICT
    )
