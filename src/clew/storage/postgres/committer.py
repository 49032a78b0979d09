"""Commits in flight: which calls go together, on which connection, and what became of those that got no answer.

Owns: `Committer`: the queue of commit calls, the lanes that commits run on, tries after contention, and the reading
back after a lost acknowledgement. Never: SQL of a commit (``commit``).

How it works: calls wait in a queue; a free lane takes all that do not touch what is in flight on another lane, and
executes them as one group. So while one group is made durable the next one gathers, and writes of one run keep their
order. A group that an error of the data ends is done again call by call.

Each commit has an id of its own, which every run that it writes keeps. When a connection is lost before the answer, the
old session is ended and the runs are read again: those that have the id were written, those that are as before were not
and are tried again. So the caller is told what happened, and "nobody knows" only when the database stays away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from clew.ports.store import CommitStatus, RunWrite, StoreError
from clew.storage.postgres.commit import Unit, UnitWriter, is_plain, touched_keys
from clew.storage.postgres.connections import Connections
from clew.storage.postgres.errors import is_connection_trouble, is_contention, is_outcome_open, to_store_error

if TYPE_CHECKING:
    from clew.storage.postgres.connections import Connection

_GROUP_UNITS_MAX: Final = 1_000
"""Units in one statement; bounds its time and memory."""

_CONTENTION_TRIES: Final = 20
_ENDED_SECONDS_MAX: Final = 5.0
"""How long the end of an old session is awaited."""

_log = logging.getLogger("clew.store")


class _Call(NamedTuple):
    units: Sequence[Unit]
    touched: set[object]
    future: asyncio.Future[list[CommitStatus]]


class Committer:
    """See the module docstring. All methods belong to the loop it was made on.

    Args:
        connections: Of the commits alone, one a lane.
        writer: Executes a group.
        writer_id: A number that no other committer of this database has.
        lane_count: Groups in flight at a time.
    """

    def __init__(self, connections: Connections, writer: UnitWriter, *, writer_id: int, lane_count: int) -> None:
        self._connections = connections
        self._writer = writer
        self._lane_count = lane_count
        self._next_commit_id = writer_id << 32
        self._queue: list[_Call] = []
        self._in_flight: set[object] = set()
        self._lanes: set[asyncio.Task[None]] = set()
        self._warming: set[asyncio.Task[None]] = set()
        """Those of the lanes that make their connection ahead of commits."""
        self._loop = asyncio.get_running_loop()

    def commit(self, units: Sequence[Unit]) -> asyncio.Future[list[CommitStatus]]:
        """Have these units committed; the answer comes when it is durable."""
        future: asyncio.Future[list[CommitStatus]] = self._loop.create_future()
        self._queue.append(_Call(units, touched_keys(units), future))
        self._fill_lanes()
        return future

    def warm_up(self) -> None:
        """Make the connections of the lanes soon, so that the first commits find them; commits wait for that."""
        for _ in range(self._lane_count - len(self._lanes)):
            lane = self._loop.create_task(self._warm_lane(), name="clew-commit-warm")
            self._lanes.add(lane)
            self._warming.add(lane)
            lane.add_done_callback(self._on_warm)

    async def wait_idle(self) -> None:
        """Return when all that was asked for is answered."""
        for lane in list(self._warming):
            lane.cancel()
        while self._lanes:
            await asyncio.wait(list(self._lanes))

    async def close(self) -> None:
        """Close the connections of the lanes."""
        await self._connections.close()

    async def _warm_lane(self) -> None:
        try:
            await self._connections.read(self._writer.warm_up)
        except StoreError as error:
            # Nothing hangs on it: a commit makes its connection itself, and tells its caller.
            _log.warning("store.warm_up_failed store=%s error=%r", self._connections.address.name, error)

    def _on_warm(self, lane: asyncio.Task[None]) -> None:
        self._warming.discard(lane)
        self._lanes.discard(lane)
        self._fill_lanes()

    def _fill_lanes(self) -> None:
        while len(self._lanes) < self._lane_count:
            calls = self._take_group()
            if not calls:
                return
            lane = self._loop.create_task(self._serve(calls), name="clew-commit")
            self._lanes.add(lane)

    def _take_group(self) -> list[_Call]:
        """The calls from the front of the queue that touch nothing in flight, nor what an earlier one left waiting."""
        taken: list[_Call] = []
        left: list[_Call] = []
        blocked: set[object] = set(self._in_flight)
        count = 0
        for call in self._queue:
            is_full = bool(taken) and count + len(call.units) > _GROUP_UNITS_MAX
            if is_full or not blocked.isdisjoint(call.touched):
                left.append(call)
                blocked |= call.touched
            else:
                taken.append(call)
                count += len(call.units)
        self._queue = left
        for call in taken:
            self._in_flight |= call.touched
        return taken

    async def _serve(self, calls: list[_Call]) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            for call, outcome in zip(calls, await self._commit_group(calls), strict=True):
                if call.future.done():
                    continue
                if isinstance(outcome, BaseException):
                    call.future.set_exception(outcome)
                else:
                    call.future.set_result(outcome)
        except BaseException as error:
            for call in calls:
                if not call.future.done():
                    call.future.set_exception(to_store_error(error, self._connections.address.name))
            raise
        finally:
            for call in calls:
                self._in_flight -= call.touched
            self._lanes.discard(task)
            self._fill_lanes()

    async def _commit_group(self, calls: list[_Call]) -> list[list[CommitStatus] | StoreError]:
        units = [unit for call in calls for unit in call.units]
        try:
            statuses = await self._commit_surely(units)
        except StoreError as error:
            if len(calls) == 1 or not _is_of_the_data(error):
                return [error] * len(calls)
            answers: list[list[CommitStatus] | StoreError] = []
            for call in calls:
                try:
                    answers.append(await self._commit_surely(call.units))
                except StoreError as of_call:
                    answers.append(of_call)
            return answers
        found: list[list[CommitStatus] | StoreError] = []
        start = 0
        for call in calls:
            found.append(statuses[start : start + len(call.units)])
            start += len(call.units)
        return found

    async def _commit_surely(self, units: Sequence[Unit]) -> list[CommitStatus]:
        """Commit, through contention and lost connections, until the outcome is known or patience ends."""
        connections = self._connections
        deadline = self._loop.time() + connections.patience_seconds
        answers: list[CommitStatus | None] = [None] * len(units)
        contended = 0
        while True:
            open_places = [place for place, answer in enumerate(answers) if answer is None]
            if not open_places:
                return [answer for answer in answers if answer is not None]
            wanted = [units[place] for place in open_places]
            commit_id = self._next_commit_id
            self._next_commit_id += 1
            connection = await connections.take(deadline)
            try:
                statuses, names = await self._execute(connection, wanted, commit_id)
            except Exception as error:
                connections.settle(connection, error)
                if is_contention(error) and contended < _CONTENTION_TRIES:
                    contended += 1
                    continue
                if not is_connection_trouble(error):
                    raise to_store_error(error, connections.address.name) from error
                if is_outcome_open(error):
                    _log.warning("store.outcome_unknown store=%s error=%r", connections.address.name, error)
                    found = await self._find_out(connection, wanted, commit_id, deadline)
                    for place, answer in zip(open_places, found, strict=True):
                        answers[place] = answer
                elif self._loop.time() >= deadline:
                    raise to_store_error(error, connections.address.name) from error
                continue
            except BaseException:
                connection.terminate()
                raise
            connections.give_back(connection)
            self._writer.known_names |= names
            for place, status in zip(open_places, statuses, strict=True):
                answers[place] = status

    async def _execute(
        self, connection: Connection, units: Sequence[Unit], commit_id: int
    ) -> tuple[list[CommitStatus], set[tuple[str, str]]]:
        connections = self._connections
        if len(units) == 1 and len(units[0]) == 1 and is_plain(units[0][0]) and not connections.address.is_pooled:
            status = await self._writer.commit_lone(
                connection, units[0][0], commit_id, timeout_seconds=connections.timeout_seconds
            )
            return [status], set()
        return await connections.run(connection, partial(self._writer.commit, units=units, commit_id=commit_id))

    # --- a lost acknowledgement -------------------------------------------------------------------------------------

    async def _find_out(
        self, lost: Connection, units: Sequence[Unit], commit_id: int, deadline: float
    ) -> list[CommitStatus | None]:
        """What became of units whose commit got no answer; None for those that were not done."""
        connections = self._connections
        pid = _server_pid(lost)
        while True:
            connection = await connections.take(max(deadline, self._loop.time() + connections.patience_seconds))
            try:
                if pid is not None and not connections.address.is_pooled:
                    await connections.run(connection, partial(_end_session, pid=pid))
                found = await connections.run(connection, partial(self._read_back, units=units, commit_id=commit_id))
            except Exception as error:
                connections.settle(connection, error)
                if not is_connection_trouble(error) or self._loop.time() >= deadline:
                    raise to_store_error(error, connections.address.name) from error
                continue
            except BaseException:
                connection.terminate()
                raise
            connections.give_back(connection)
            return found

    async def _read_back(
        self, connection: Connection, units: Sequence[Unit], commit_id: int
    ) -> list[CommitStatus | None]:
        schema = self._writer.schema
        writes = [write for unit in units for write in unit]
        rows = await connection.fetch(
            f"SELECT e.run_key, e.version, e.commit_id FROM {schema}.executions AS e "
            "JOIN unnest($1::int4[], $2::int8[]) AS d (shard, run_key) USING (shard, run_key) FOR UPDATE OF e",
            [write.shard for write in writes],
            [write.run_key for write in writes],
        )
        stored = {row["run_key"]: (row["version"], row["commit_id"]) for row in rows}
        return [await self._judge(connection, unit, stored, commit_id) for unit in units]

    async def _judge(
        self, connection: Connection, unit: Unit, stored: dict[int, tuple[int, int]], commit_id: int
    ) -> CommitStatus | None:
        for write in unit:
            version, by = stored.get(write.run_key, (0, 0))
            if by == commit_id:
                continue
            if version < write.version:
                return None  # as it was before, or another guard will tell: to be tried again
            if version == write.version:
                return CommitStatus.VERSION_CONFLICT  # this very version is another's
            # Written since by somebody: ours was among the versions before if its events are there, word for word.
            if not write.batches or not await self._has_events(connection, write):
                return CommitStatus.VERSION_CONFLICT
        return CommitStatus.COMMITTED

    async def _has_events(self, connection: Connection, write: RunWrite) -> bool:
        batch = write.batches[0]
        found = await connection.fetchval(
            f"SELECT events FROM {self._writer.schema}.history "
            "WHERE shard = $1 AND run_key = $2 AND first_event_id = $3",
            write.shard,
            write.run_key,
            batch.first_event_id,
        )
        return bool(found == batch.events)


async def _end_session(connection: Connection, pid: int) -> None:
    """Make sure that the session of a lost connection does nothing more."""
    ended = await connection.fetchval(
        # The name keeps a session of another program from being ended that has been given the number since.
        "SELECT pg_terminate_backend(pid, $2) FROM pg_stat_activity WHERE pid = $1 AND usename = current_user "
        "AND application_name = current_setting('application_name')",
        pid,
        round(_ENDED_SECONDS_MAX * 1000),
    )
    if ended is False:
        _log.warning("store.session_not_ended pid=%d", pid)


def _server_pid(connection: Connection) -> int | None:
    try:
        pid: Any = connection.get_server_pid()
    except Exception:  # noqa: BLE001 - a connection that never got so far
        return None
    return pid if isinstance(pid, int) else None


def _is_of_the_data(error: StoreError) -> bool:
    """Whether the error is about one call's data, so that other calls of the group may go on."""
    return type(error) is StoreError
