"""Histories of runs that are not cached, fetched from the engine.

Owns: the paging. Never: what is done with the events.
"""

from __future__ import annotations

import asyncio
from typing import Final

from clew.model.events import Event
from clew.service.contract import Service
from clew.service.requests import GetHistoryRequest, WorkflowTask
from clew.worker._reports import RETRY_SECONDS_FIRST, is_passing

EVENTS_MAX: Final = 1_000
"""Events a page."""


async def fetch_events(service: Service, task: WorkflowTask, before_event_id: int | None) -> list[Event]:
    """Read the events of the run of a task, up to and without `before_event_id` if there is one.

    Raises:
        RPCError: The engine refuses, or a passing fault lasts longer than the task may take.
    """
    events: list[Event] = []
    next_id = 1
    loop = asyncio.get_running_loop()
    deadline = loop.time() + task.workflow_task_timeout.total_seconds()
    while next_id and (before_event_id is None or next_id < before_event_id):
        request = GetHistoryRequest(
            namespace=task.token.namespace,
            workflow_id=task.token.workflow_id,
            run_id=task.token.run_id,
            from_event_id=next_id,
            events_max=EVENTS_MAX,
        )
        try:
            page = await service.get_history(request)
        except Exception as error:
            if not is_passing(error) or loop.time() > deadline:
                raise
            await asyncio.sleep(RETRY_SECONDS_FIRST)
            continue
        events.extend(page.events)
        next_id = page.next_event_id
    return [event for event in events if before_event_id is None or event.event_id < before_event_id]
