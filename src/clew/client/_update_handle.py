"""A handle on one update.

Owns: `WorkflowUpdateHandle`. Never: sends one (``_outbound`` does).
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, cast, final

from clew.client._calls import call_service
from clew.exceptions import WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from clew.model.events import UpdateOutcome
from clew.model.rejection import RejectionCode
from clew.service.errors import RPCError
from clew.service.requests import PollUpdateRequest, UpdateStage
from clew.types import LocalReturnType

if TYPE_CHECKING:
    from clew.client._client import Client


@final
class WorkflowUpdateHandle(Generic[LocalReturnType]):
    """A handle on one update; made by `WorkflowHandle.start_update` and `get_update_handle`."""

    def __init__(
        self,
        client: Client,
        id: str,
        workflow_id: str,
        *,
        workflow_run_id: str | None = None,
        result_type: Any | None = None,
        known_outcome: UpdateOutcome | None = None,
    ) -> None:
        self._client = client
        self._id = id
        self._workflow_id = workflow_id
        self._workflow_run_id = workflow_run_id
        self._result_type = result_type
        self._known_outcome = known_outcome

    def __repr__(self) -> str:
        return f"<WorkflowUpdateHandle {self._id!r} of {self._workflow_id!r}>"

    @property
    def id(self) -> str:
        """Update id."""
        return self._id

    @property
    def workflow_id(self) -> str:
        """The workflow it was sent to."""
        return self._workflow_id

    @property
    def workflow_run_id(self) -> str | None:
        """The run it was sent to, if known."""
        return self._workflow_run_id

    async def result(self, *, rpc_timeout: timedelta | None = None) -> LocalReturnType:
        """Wait for the update to end, and give what its handler returned.

        Args:
            rpc_timeout: Longest wait; None waits as long as it takes.

        Raises:
            WorkflowUpdateFailedError: It was rejected, or its handler failed.
            WorkflowUpdateRPCTimeoutOrCancelledError: The wait ended before the update did.
            RPCError: There is no such update.
        """
        values = self._client._values
        outcome = self._known_outcome or await self._wait_outcome(rpc_timeout)
        self._known_outcome = outcome
        if outcome.failure is not None:
            raise WorkflowUpdateFailedError(await values.decode_failure(outcome.failure))
        return cast(LocalReturnType, await values.decode_result(outcome.result, self._result_type))

    async def _wait_outcome(self, rpc_timeout: timedelta | None) -> UpdateOutcome:
        connection = self._client.connection
        request = PollUpdateRequest(
            namespace=self._client.namespace,
            workflow_id=self._workflow_id,
            run_id=self._workflow_run_id or "",
            update_id=self._id,
            wait_stage=UpdateStage.COMPLETED,
        )
        while True:
            try:
                response = await call_service(
                    connection, connection.service.poll_update, request, timeout=rpc_timeout, is_long_poll=True
                )
            except RPCError as error:
                if error.code is RejectionCode.DEADLINE_EXCEEDED:
                    raise WorkflowUpdateRPCTimeoutOrCancelledError(error.message) from error
                raise
            if response.outcome is not None:
                return response.outcome
