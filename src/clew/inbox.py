"""Doing what was asked for inside other people's transactions.

Owns: `InboxDrain`, the loop that hands the requests of an inbox to the engine. Never: SQL, or what a start means.

How it works: requests of one workflow id are handed over one after another, those of different ids together. What the
engine refuses for the moment is tried again with the next look; what it refuses for good is kept with the reason (and
logged), as nobody waits for an answer.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import msgspec

from clew.ports.store import StoreError
from clew.service import requests as r
from clew.service.contract import Service
from clew.service.errors import RPCError

if TYPE_CHECKING:
    from clew.storage.postgres.inbox import Inbox, Request

_log: Final = logging.getLogger("clew.service")
_decode_start: Final = msgspec.json.Decoder(r.StartWorkflowRequest).decode
_decode_signal: Final = msgspec.json.Decoder(r.SignalWorkflowRequest).decode


class InboxDrain:
    """See the module docstring. Belongs to the engine's loop."""

    def __init__(self, inbox: Inbox, service: Service) -> None:
        self._inbox = inbox
        self._service = service
        self._task = asyncio.get_running_loop().create_task(self._run(), name="clew-inbox")

    async def close(self) -> None:
        """Take no more requests."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            try:
                while await self._drain():
                    pass
            except StoreError as error:
                _log.warning("inbox.not_drained error=%s", error)
            except Exception:  # noqa: BLE001 - a bug: a loop that ended would leave every request waiting
                _log.exception("inbox.drain_failed")
            await self._inbox.wait()

    async def _drain(self) -> bool:
        """Hand over what there is; whether there may be more at once."""
        groups: dict[tuple[str, str], list[tuple[Request, r.StartWorkflowRequest | r.SignalWorkflowRequest]]] = {}
        found = await self._inbox.take()
        for request in found:
            try:
                asked = _decode_start(request.body) if request.kind == "start" else _decode_signal(request.body)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                await self._refuse(request, f"the request cannot be read: {error}")
                continue
            groups.setdefault((asked.namespace, asked.workflow_id), []).append((request, asked))
        outcomes = await asyncio.gather(*(self._hand_over(group) for group in groups.values()))
        return bool(found) and all(outcomes)

    async def _hand_over(self, group: list[tuple[Request, r.StartWorkflowRequest | r.SignalWorkflowRequest]]) -> bool:
        """Hand over the requests of one workflow id in order; False when the rest has to wait."""
        for request, asked in group:
            try:
                if isinstance(asked, r.StartWorkflowRequest):
                    await self._service.start_workflow(asked)
                else:
                    await self._service.signal_workflow(asked)
            except RPCError as error:
                if error.is_retryable:
                    _log.warning("inbox.delayed inbox_id=%d error=%s", request.inbox_id, error)
                    return False
                await self._refuse(request, str(error))
                continue
            await self._inbox.done([request.inbox_id])
        return True

    async def _refuse(self, request: Request, why: str) -> None:
        _log.error("inbox.refused inbox_id=%d kind=%s why=%s", request.inbox_id, request.kind, why)
        await self._inbox.failed(request.inbox_id, why)
