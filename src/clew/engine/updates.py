"""Updates: calls that wait for workflow code's word.

Owns: admission through the funnel, and the waiting for a stage. Never: the rules of updates (``core.updates``).

How it works: an admitted update lives in the run's memory until its workflow task answers, and is durable once it is
accepted. Callers wait on the run's entry under the update id; every settled stage wakes them. When the run continues as
new before it has accepted the update, they move to the next run with it; when it closes, they are told. A call that
outlives the long poll answers with the stage reached so far, and the client asks again. Most calls do without a
coroutine: see ``update_calls``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final, final

from clew.core.closing import abandoned_outcome
from clew.core.decisions import decide_admit_update, find_update
from clew.core.replies import UpdateAdmission
from clew.core.transition import Transition, UpdateSettled
from clew.engine.funnel import Funnel, Operation
from clew.engine.history import LONG_POLL_SECONDS, read_events
from clew.engine.locate import Locator
from clew.engine.namespaces import Namespaces
from clew.engine.peers import Peers
from clew.engine.runs import RunCache, RunEntry
from clew.engine.update_calls import UpdateCall, Waiter
from clew.model.events import UpdateOutcome, WorkflowExecutionUpdateCompleted
from clew.model.limits import Limits
from clew.model.rejection import Rejection, RejectionCode
from clew.ports.store import Store
from clew.service.errors import RPCError
from clew.service.reply import Reply
from clew.service.requests import PollUpdateRequest, UpdateResponse, UpdateStage, UpdateWorkflowRequest

WORDS_MAX: Final = 1_000

WORD_SECONDS: Final = 2.0
"""How long word of a rejection by another node is waited for, before the caller is told to send the update again."""


class UpdateDesk:
    """See the module docstring. All methods belong to the engine's loop."""

    def __init__(
        self,
        store: Store,
        cache: RunCache,
        funnel: Funnel,
        locator: Locator,
        namespaces: Namespaces,
        peers: Peers,
    ) -> None:
        self._store = store
        self._cache = cache
        self._peers = peers
        self._funnel = funnel
        self._locator = locator
        self._namespaces = namespaces
        self._words: dict[tuple[int, str], UpdateSettled] = {}
        """The latest words of rejections by other nodes, by run key and update id."""
        self._loop = asyncio.get_running_loop()

    def update_at_hand(self, request: UpdateWorkflowRequest) -> Reply[UpdateResponse] | None:
        """The same as `update` for a run in memory, on a node that is alone; None, and nothing done, for others."""
        namespace = self._namespaces.known(request.namespace)
        if namespace is None or not self._peers.is_alone:
            return None
        entry = self._locator.at_hand(request.namespace, request.workflow_id, request.run_id)
        if (
            entry is None
            or entry.is_discarded
            or not entry.durable_last_event_id
            or (request.first_execution_run_id and entry.state.first_execution_run_id != request.first_execution_run_id)
        ):
            return None
        call = UpdateCall(self, entry, request)
        self._admit(entry, request, call.admitted, namespace.limits)
        return call.reply

    async def update(self, request: UpdateWorkflowRequest) -> UpdateResponse:
        """Admit the update and wait for its stage.

        Raises:
            RPCError: ``workflow_not_found``, ``workflow_already_completed``, ``workflow_not_ready``,
                ``limit_exceeded`` …
        """
        entry = await self._locator.find(request.namespace, request.workflow_id, request.run_id)
        while True:
            self._check_chain(entry, request.first_execution_run_id)
            try:
                return await self.admit_and_wait(entry, request)
            except RPCError as error:
                entry = await self._following(entry, request, error)

    async def _following(self, entry: RunEntry, request: UpdateWorkflowRequest, error: RPCError) -> RunEntry:
        """The run that is meant in place of one in memory: an open one that another node has put in its place, or any
        when this one was about to be started, and that start has lost.

        Raises:
            RPCError: The refusal itself: there is none, or this very run was meant.
        """
        is_lost = error.code is RejectionCode.WORKFLOW_NOT_FOUND and not entry.durable_last_event_id
        is_over = error.code is RejectionCode.WORKFLOW_ALREADY_COMPLETED and not self._peers.is_alone
        if request.run_id or not (is_lost or is_over):
            raise error
        latest = await self._locator.find_current(request.namespace, request.workflow_id)
        if latest.run_key == entry.run_key or (is_over and not latest.state.is_open):
            raise error
        return latest

    async def admit_and_wait(self, entry: RunEntry, request: UpdateWorkflowRequest) -> UpdateResponse:
        """The same for a run at hand."""
        update_id = request.request.update_id
        waiter = self.register(entry, update_id)
        try:
            answer: asyncio.Future[Any] = self._loop.create_future()
            self._admit(entry, request, answer, self._namespaces.get(request.namespace).limits)
            admission: UpdateAdmission = await answer
            if admission.is_new:
                self._words.pop((entry.run_key, update_id), None)  # It was of another try under the same id.
            return await self.wait_on(_home(entry, update_id, waiter), admission, request.wait_stage, waiter)
        finally:
            self.unregister(entry, update_id, waiter)

    def _admit(
        self,
        entry: RunEntry,
        request: UpdateWorkflowRequest,
        answer: asyncio.Future[Any] | Reply[Any],
        limits: Limits,
    ) -> None:
        state = entry.state
        self._funnel.apply(
            entry,
            Operation(
                lambda s, now: decide_admit_update(s, request.request, now, limits),
                answer,
                locate=lambda: self._locator.find(request.namespace, request.workflow_id, state.run_id),
                reply=lambda _, transition: transition.reply,
                may_be_early=True,
            ),
        )

    async def wait_if_known(self, request: UpdateWorkflowRequest) -> UpdateResponse | None:
        """Wait for the stage of an update that the latest run knows, open or closed; None when it does not know it.

        Raises:
            RPCError: ``workflow_not_found``.
        """
        entry = await self._find_durable(request.namespace, request.workflow_id, request.run_id)
        update_id = request.request.update_id
        admission = known_update(entry, update_id)
        if admission is None:
            return None
        return await self.wait_on(entry, admission, request.wait_stage, self.register(entry, update_id))

    async def wait_admitted(
        self, entry: RunEntry, request: UpdateWorkflowRequest, waiter: asyncio.Future[Any]
    ) -> UpdateResponse:
        """Wait for the stage of an update that was admitted with `waiter` registered; it is unregistered here."""
        update_id = request.request.update_id
        admission = known_update(entry, update_id) or UpdateAdmission(update_id=update_id)
        return await self.wait_on(entry, admission, request.wait_stage, waiter)

    async def poll(self, request: PollUpdateRequest) -> UpdateResponse:
        """Wait for the stage of an update that was sent before.

        Raises:
            RPCError: ``update_not_found``.
        """
        update_id = request.update_id
        asker = _Asker(self, update_id)
        try:
            entry = await self._find_durable(request.namespace, request.workflow_id, request.run_id, asker)
        except BaseException:
            asker.leave()
            raise
        waiter = asker.waiter
        assert waiter is not None, "it asks at each run that is found"
        # What was in memory of a run that another node has changed need not have become durable: the word counts.
        admission = None if entry.is_discarded else known_update(entry, update_id)
        if admission is None and not waiter.done() and asker.was_known:
            self._expect_word(entry, update_id, waiter)
        elif admission is None and not waiter.done():
            asker.leave()
            raise RPCError(
                Rejection(
                    code=RejectionCode.UPDATE_NOT_FOUND,
                    message=f"update {update_id!r} is not known to run {entry.state.run_id} of workflow "
                    f"{request.workflow_id!r}: it was rejected, never arrived, or went to another run; send it again",
                )
            )
        return await self.wait_on(entry, admission or UpdateAdmission(update_id=update_id), request.wait_stage, waiter)

    async def _find_durable(
        self, namespace: str, workflow_id: str, run_id: str, asker: _Asker | None = None
    ) -> RunEntry:
        """The run, once all that is known of it now is durable: what it says of an update is an answer (law 3)."""
        while True:
            entry = await self._locator.find_current(namespace, workflow_id, run_id)
            if asker is not None:
                asker.ask(entry)
            await self._durable(entry)
            if not entry.is_discarded or (asker is not None and asker.has_heard):
                return entry

    async def _durable(self, entry: RunEntry) -> None:
        """Wait until all that is known of the run now is durable."""
        settled: asyncio.Future[Any] = self._loop.create_future()
        self._funnel.apply(entry, Operation(lambda s, now: None, settled))
        await settled

    def wake(self, entry: RunEntry, transition: Transition) -> None:
        """A committed transition settled updates of this run."""
        words: dict[str, UpdateSettled] = {}
        for effect in transition.effects:
            if type(effect) is UpdateSettled:
                # The last word is what counts: of one that was accepted and has ended, the outcome.
                words[effect.update_id] = effect
        for update_id, effect in words.items():
            for waiter in entry.update_waiters.pop(update_id, ()):
                if not waiter.done():
                    waiter.set_result((entry, effect))

    async def move(self, old: RunEntry, *, was_durable: bool) -> None:
        """Another node has changed the run: those who wait on what was in memory of it wait on what is stored now.

        Args:
            old: What was in memory.
            was_durable: Whether that is what was stored before: an update that it knew and the run does not know now
                was rejected, and the node that did so has sent word.

        Raises:
            StoreError: The run could not be read; nobody was moved.
        """
        entry = await self._cache.load(old.shard, old.run_key)
        while entry is not None and entry.is_discarded and entry is not old:  # Changed once more on its way to here.
            entry = await self._cache.load(old.shard, old.run_key)
        waiting, old.update_waiters = old.update_waiters, {}
        if entry is None or entry is old:
            old.update_waiters = waiting
            self.abandon(old)
            return
        old.successor = entry
        for update_id, futures in waiting.items():
            if (
                was_durable
                and entry.state.is_open
                and known_update(old, update_id)
                and not known_update(entry, update_id)
            ):
                self._loop.call_later(WORD_SECONDS, _fail_all, tuple(futures), _lost(update_id))
            entry.update_waiters.setdefault(update_id, []).extend(futures)
        self.look_again(entry)
        for update_id in waiting:
            word = self._words.get((entry.run_key, update_id))
            if word is not None and known_update(entry, update_id) is None:
                self.settle(entry.run_key, word)

    def look_again(self, entry: RunEntry) -> None:
        """Wake those who wait for updates that another node brought on: they look at the run themselves."""
        for update_id in list(entry.update_waiters):
            admission = known_update(entry, update_id)
            is_waiting = admission is None or not (admission.accepted_event_id or admission.run_id)
            if is_waiting and entry.state.is_open:
                continue
            for future in entry.update_waiters.pop(update_id):
                if not future.done():
                    future.set_result((entry, None))

    def settle(self, run_key: int, settled: UpdateSettled) -> None:
        """Another node rejected an update. Who asks for it may just be on the way to what is stored now."""
        entry = self._cache.get(run_key)
        if entry is not None and settled.update_id in entry.update_waiters:
            for future in entry.update_waiters.pop(settled.update_id):
                if not future.done():
                    future.set_result((entry, settled))
        self._words[run_key, settled.update_id] = settled
        if len(self._words) > WORDS_MAX:
            del self._words[next(iter(self._words))]

    def _expect_word(self, entry: RunEntry, update_id: str, waiter: asyncio.Future[Any]) -> None:
        """Another node has rejected the update: its word is here, or on its way."""
        word = self._words.get((entry.run_key, update_id))
        if word is not None:
            waiter.set_result((entry, word))
        else:
            self._loop.call_later(WORD_SECONDS, _fail_all, (waiter,), _lost(update_id))

    def abandon(self, entry: RunEntry) -> None:
        """The run's memory is gone, and with it what was only admitted: callers send it again."""
        waiting, entry.update_waiters = entry.update_waiters, {}
        for update_id, futures in waiting.items():
            _fail_all(futures, _lost(update_id))

    async def wait_on(
        self, entry: RunEntry, admission: UpdateAdmission, stage: UpdateStage, waiter: asyncio.Future[Any]
    ) -> UpdateResponse:
        """Wait for the stage; `waiter`, and what takes its place, is unregistered here."""
        deadline = self._loop.time() + LONG_POLL_SECONDS
        update_id = admission.update_id
        try:
            while True:
                if admission.run_id:
                    return await self.poll(_elsewhere(entry, admission, stage))
                if admission.completed_event_id:
                    return await self._completed(entry, admission)
                if admission.accepted_event_id and not entry.state.is_open:
                    return await self._after_close(entry, update_id)
                if admission.accepted_event_id and stage is not UpdateStage.COMPLETED:
                    return await self._accepted(entry, admission)
                if not waiter.done():  # It usually is: an update that is admitted and answered in one commit.
                    await asyncio.wait([waiter], timeout=max(deadline - self._loop.time(), 0))
                if not waiter.done():
                    return await self._not_settled(_home(entry, update_id, waiter), admission)
                settled: UpdateSettled | None
                entry, settled = waiter.result()
                if settled is not None and settled.outcome is not None:
                    return self._response(entry, update_id, UpdateStage.COMPLETED, settled.outcome)
                if settled is not None and settled.rejected:
                    raise _closed_before(entry, update_id)
                # What woke us is a moment old: the run may have left memory since, or be another's by now.
                entry = await self._in_memory(entry)
                known = known_update(entry, update_id)
                if known is None and settled is None:
                    known = await self._moved_on(entry, update_id)
                admission = known or admission
                waiter = self.register(entry, update_id)
        finally:
            self.unregister(entry, update_id, waiter)

    async def _not_settled(self, entry: RunEntry, admission: UpdateAdmission) -> UpdateResponse:
        """The answer when the time for one is over: how far the update has come."""
        if not self._peers.is_alone and known_update(await self._current(entry), admission.update_id) is None:
            raise _lost(admission.update_id)
        is_accepted = 0 < admission.accepted_event_id <= entry.durable_last_event_id
        reached = UpdateStage.ACCEPTED if is_accepted else UpdateStage.ADMITTED
        return self._response(entry, admission.update_id, reached)

    async def _in_memory(self, entry: RunEntry) -> RunEntry:
        """The run, as whoever changes it will find it: nobody wakes those who wait on what memory has let go."""
        while entry.is_discarded:
            entry = await self._current(entry)
        return entry

    async def _after_close(self, entry: RunEntry, update_id: str) -> UpdateResponse:
        """The outcome of an update that a run had accepted which has closed: by the run as it is stored.

        What the caller knows of the update may be older than the close, which may not be durable yet.
        """
        state = entry.state
        entry = await self._find_durable(state.namespace, state.workflow_id, state.run_id)
        admission = known_update(entry, update_id)
        if admission is None or entry.state.is_open:
            raise _lost(update_id)
        if admission.completed_event_id:
            return await self._completed(entry, admission)
        return self._response(entry, update_id, UpdateStage.COMPLETED, abandoned_outcome(update_id))

    async def _moved_on(self, entry: RunEntry, update_id: str) -> UpdateAdmission:
        """How far the update has come that a closed run does not know: the run that followed may have taken it over."""
        state = entry.state
        latest = await self._locator.find_current(state.namespace, state.workflow_id)
        if latest.run_key == entry.run_key or known_update(latest, update_id) is None:
            raise _closed_before(entry, update_id)
        return UpdateAdmission(update_id=update_id, run_id=latest.state.run_id)

    async def _accepted(self, entry: RunEntry, admission: UpdateAdmission) -> UpdateResponse:
        entry, _ = await self._durably(entry, admission, lambda known: known.accepted_event_id)
        return self._response(entry, admission.update_id, UpdateStage.ACCEPTED)

    async def _durably(
        self, entry: RunEntry, admission: UpdateAdmission, event_id_of: Callable[[UpdateAdmission], int]
    ) -> tuple[RunEntry, UpdateAdmission]:
        """The run with an event of the update once that is durable, and what is known of the update then.

        Who looks at a run in memory may see what is only on its way, and another node may come before it (law 3).
        """
        if event_id_of(admission) > entry.durable_last_event_id:
            state = entry.state
            entry = await self._find_durable(state.namespace, state.workflow_id, state.run_id)
            known = known_update(entry, admission.update_id)
            if known is None or not 0 < event_id_of(known) <= entry.durable_last_event_id:
                raise _lost(admission.update_id)
            admission = known
        return entry, admission

    async def _completed(self, entry: RunEntry, admission: UpdateAdmission) -> UpdateResponse:
        entry, admission = await self._durably(entry, admission, lambda known: known.completed_event_id)
        event_id = admission.completed_event_id
        at_hand = entry.events_from(event_id)
        events = at_hand or await read_events(self._store, entry.shard, entry.run_key, event_id, event_id)
        event = events[0]
        assert isinstance(event, WorkflowExecutionUpdateCompleted), f"event {event_id} completes an update"
        return self._response(entry, admission.update_id, UpdateStage.COMPLETED, event.outcome)

    async def _current(self, entry: RunEntry) -> RunEntry:
        state = entry.state
        return await self._locator.find_current(state.namespace, state.workflow_id, state.run_id)

    def register(self, entry: RunEntry, update_id: str) -> asyncio.Future[Any]:
        """A future that the next settled stage of this update wakes."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self.add_waiter(entry, update_id, future)
        return future

    def add_waiter(self, entry: RunEntry, update_id: str, waiter: Waiter) -> None:
        """Have the next settled stage of this update wake `waiter`."""
        self._peers.on_waiting(entry, close_only=False)
        entry.update_waiters.setdefault(update_id, []).append(waiter)

    def change_waiter(self, entry: RunEntry, update_id: str, waiter: Waiter, to: Waiter) -> RunEntry:
        """Let `to` wait where `waiter` does, and give the run at which that is: this one, or one that followed it."""
        home = _home(entry, update_id, waiter)
        self.unregister(home, update_id, waiter)
        self.add_waiter(home, update_id, to)
        return home

    def after_current(self, entry: RunEntry, callback: Callable[[], None]) -> None:
        """Call back once all that this run has submitted so far is settled."""
        self._funnel.after_current(entry, callback)

    @staticmethod
    def unregister(entry: RunEntry, update_id: str, waiter: Waiter) -> None:
        """Nobody waits on this waiter any more."""
        if waiter.done() and not waiter.cancelled():
            waiter.exception()  # Looked at also when nobody waits any more, so that it counts as seen.
        entry = _home(entry, update_id, waiter)
        futures = entry.update_waiters.get(update_id)
        if futures and waiter in futures:
            futures.remove(waiter)
            if not futures:
                del entry.update_waiters[update_id]

    @staticmethod
    def _response(
        entry: RunEntry, update_id: str, stage: UpdateStage, outcome: UpdateOutcome | None = None
    ) -> UpdateResponse:
        state = entry.state
        return UpdateResponse(
            update_id=update_id, workflow_id=state.workflow_id, run_id=state.run_id, stage=stage, outcome=outcome
        )

    @staticmethod
    def _check_chain(entry: RunEntry, first_execution_run_id: str) -> None:
        check_chain(entry, first_execution_run_id)


@final
class _Asker:
    """A call that asks for an update by its id, and waits at the run while it is found out whether that knows it.

    An update that is rejected meanwhile is not known afterwards, and one that another node rejects not even to the run
    that is read next.
    """

    def __init__(self, desk: UpdateDesk, update_id: str) -> None:
        self._desk = desk
        self._update_id = update_id
        self._entry: RunEntry | None = None
        self.waiter: asyncio.Future[Any] | None = None
        self.was_known = False

    @property
    def has_heard(self) -> bool:
        """Whether the answer has come already."""
        return self.waiter is not None and self.waiter.done()

    def ask(self, entry: RunEntry) -> None:
        """Wait at this run, and no longer at one that was found before."""
        self.leave()
        self.was_known = self.was_known or known_update(entry, self._update_id) is not None
        self._entry, self.waiter = entry, self._desk.register(entry, self._update_id)

    def leave(self) -> None:
        """Wait no more."""
        if self._entry is not None and self.waiter is not None:
            home = _home(self._entry, self._update_id, self.waiter)
            self._desk.unregister(home, self._update_id, self.waiter)


def check_chain(entry: RunEntry, first_execution_run_id: str) -> None:
    """Refuse when the current run is not of the chain that the caller means."""
    state = entry.state
    if first_execution_run_id and state.first_execution_run_id != first_execution_run_id:
        raise RPCError(
            Rejection(
                code=RejectionCode.WORKFLOW_NOT_FOUND,
                message=f"workflow {state.workflow_id!r} is now another chain: it began with run "
                f"{state.first_execution_run_id}, not {first_execution_run_id}; the chain you mean has ended",
                details={"workflow_id": state.workflow_id, "run_id": state.run_id},
            )
        )


def known_update(entry: RunEntry, update_id: str) -> UpdateAdmission | None:
    """How far the run has come with this update; None when it does not know it."""
    return find_update(entry.state, update_id)


def _home(entry: RunEntry, update_id: str, waiter: Waiter) -> RunEntry:
    """Where the future waits: the run itself, or one that followed it and took the update over."""
    at: RunEntry | None = entry
    while at is not None:
        if waiter in at.update_waiters.get(update_id, ()):
            return at
        at = at.successor
    return entry


def _elsewhere(entry: RunEntry, admission: UpdateAdmission, stage: UpdateStage) -> PollUpdateRequest:
    state = entry.state
    return PollUpdateRequest(
        namespace=state.namespace,
        workflow_id=state.workflow_id,
        run_id=admission.run_id,
        update_id=admission.update_id,
        wait_stage=stage,
    )


def _fail_all(futures: Iterable[Waiter], error: RPCError) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)


def _lost(update_id: str) -> RPCError:
    return RPCError(
        Rejection(
            code=RejectionCode.UNAVAILABLE,
            message=f"update {update_id!r} was not yet accepted when the engine lost its memory of it; send it again "
            "under the same update id",
        )
    )


def _closed_before(entry: RunEntry, update_id: str) -> RPCError:
    state = entry.state
    return RPCError(
        Rejection(
            code=RejectionCode.WORKFLOW_ALREADY_COMPLETED,
            message=f"Workflow {state.workflow_id!r} is closed ({state.status.value}). It had not accepted update "
            f"{update_id!r}, which therefore had no effect.",
            details={"workflow_id": state.workflow_id, "run_id": state.run_id},
        )
    )
