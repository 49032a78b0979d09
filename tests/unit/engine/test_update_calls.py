"""What one call of an update does with each word that comes, in whatever order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from clew.core.replies import UpdateAdmission
from clew.core.transition import UpdateSettled
from clew.engine.runs import RunEntry
from clew.engine.update_calls import UpdateCall, Waiter
from clew.model.events import UpdateOutcome, UpdateRequest
from clew.model.rejection import Rejection, RejectionCode
from clew.ports.store import StoreUnavailable
from clew.service.errors import RPCError
from clew.service.reply import Reply
from clew.service.requests import UpdateResponse, UpdateStage, UpdateWorkflowRequest

ENTRY = cast(RunEntry, SimpleNamespace(state=SimpleNamespace(workflow_id="w", run_id="r")))
REQUEST = UpdateWorkflowRequest(
    namespace="default",
    workflow_id="w",
    request=UpdateRequest(update_id="u", name="add"),
    wait_stage=UpdateStage.COMPLETED,
)
OUTCOME = UpdateOutcome(result=())
ENDED = UpdateSettled(update_id="u", outcome=OUTCOME)
TAKEN = UpdateSettled(update_id="u")
TOLD = UpdateResponse(update_id="u", workflow_id="w", run_id="r", stage=UpdateStage.COMPLETED, outcome=OUTCOME)
LOST = RPCError(Rejection(code=RejectionCode.UNAVAILABLE, message="lost"))


class Desk:
    """Keeps what it is asked; `end` is what the coroutine comes to, once `gate` is open."""

    def __init__(self) -> None:
        self.waiters: list[Waiter] = []
        self.looks: list[Callable[[], None]] = []
        self.waits: list[asyncio.Future[Any]] = []
        self.gate = asyncio.Event()
        self.end: UpdateResponse | Exception = TOLD

    def add_waiter(self, entry: RunEntry, update_id: str, waiter: Waiter) -> None:
        self.waiters.append(waiter)

    def unregister(self, entry: RunEntry, update_id: str, waiter: Waiter) -> None:
        self.waiters.remove(waiter)

    def change_waiter(self, entry: RunEntry, update_id: str, waiter: Waiter, to: Waiter) -> RunEntry:
        self.waiters[self.waiters.index(waiter)] = to
        return entry

    def after_current(self, entry: RunEntry, callback: Callable[[], None]) -> None:
        self.looks.append(callback)

    async def wait_on(
        self, entry: RunEntry, admission: UpdateAdmission, stage: UpdateStage, waiter: asyncio.Future[Any]
    ) -> UpdateResponse:
        self.waits.append(waiter)
        await self.gate.wait()
        if isinstance(self.end, Exception):
            raise self.end
        return self.end

    @property
    def word(self) -> Reply[Any]:
        (waiter,) = self.waiters
        assert isinstance(waiter, Reply)
        return waiter


def admit(call: UpdateCall, *, is_new: bool = True) -> None:
    call.admitted.set_result(UpdateAdmission(update_id="u", is_new=is_new))


async def test_an_outcome_is_the_answer_at_once() -> None:
    desk = Desk()
    call = UpdateCall(desk, ENTRY, REQUEST)
    admit(call)
    assert not call.reply.done()
    desk.word.set_result((ENTRY, ENDED))
    assert call.reply.result() == TOLD
    (look,) = desk.looks
    look()
    assert not desk.waits


async def test_a_refused_admission_is_the_answer_and_nobody_waits() -> None:
    desk = Desk()
    call = UpdateCall(desk, ENTRY, REQUEST)
    call.admitted.set_exception(LOST)
    assert call.reply.exception() is LOST
    assert not desk.waiters


async def test_without_an_answer_after_all_is_settled_a_coroutine_waits_in_its_place() -> None:
    desk = Desk()
    call = UpdateCall(desk, ENTRY, REQUEST)
    admit(call)
    desk.looks[0]()
    await asyncio.sleep(0)
    assert desk.waits == desk.waiters, "the future of the coroutine stands where the reply stood"
    assert not desk.waits[0].done()
    desk.gate.set()
    assert await call.reply == TOLD


@pytest.mark.parametrize(
    ("word", "is_new"),
    [((ENTRY, TAKEN), True), ((ENTRY, None), True), (LOST, True), ((ENTRY, ENDED), False)],
    ids=["accepted", "look again", "lost", "known"],
)
@pytest.mark.parametrize("order", ["word first", "admission first"])
async def test_any_other_word_is_for_the_coroutine_to_look_at(word: Any, is_new: bool, order: str) -> None:
    desk = Desk()
    call = UpdateCall(desk, ENTRY, REQUEST)
    first = desk.word

    def say() -> None:
        if isinstance(word, Exception):
            first.set_exception(word)
        else:
            first.set_result(word)

    if order == "word first":
        say()
        assert not call.reply.done(), "it is not admitted yet"
        admit(call, is_new=is_new)
    elif is_new:
        admit(call)
        say()
    else:
        admit(call, is_new=False)
    await asyncio.sleep(0)
    (waiter,) = desk.waits
    if order == "word first" or is_new:
        assert waiter.done()
        assert (waiter.exception() or waiter.result()) == word
    desk.gate.set()
    assert await call.reply == TOLD
    for look in desk.looks:
        look()
    assert len(desk.waits) == 1


@pytest.mark.parametrize(
    ("end", "message"),
    [(LOST, "lost"), (StoreUnavailable("the disk is away"), "the disk is away")],
    ids=["refused", "store"],
)
async def test_an_error_of_the_coroutine_is_the_answer(end: Exception, message: str) -> None:
    desk = Desk()
    desk.end = end
    call = UpdateCall(desk, ENTRY, REQUEST)
    admit(call)
    desk.looks[0]()
    desk.gate.set()
    with pytest.raises(RPCError, match=message):
        await call.reply


async def test_whoever_waits_when_the_engine_stops_is_told() -> None:
    desk = Desk()
    call = UpdateCall(desk, ENTRY, REQUEST)
    admit(call)
    desk.looks[0]()
    await asyncio.sleep(0)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    with pytest.raises(RPCError, match="stopped while the update was waited for"):
        await call.reply
