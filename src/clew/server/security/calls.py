"""Which permission each call of the contract needs: the one table.

Owns: `CALLS`. Never: who has which permission (``model.access``), or refusing (``authorized``).

How it works: a rule says which permissions let a caller through (any one of them), in which namespaces it must have
them, and whether the call changes something, which makes the audit log note it. What belongs to no namespace is asked
for in `EVERYWHERE`. A call that is not in the table does not exist for callers; a test holds the table against the
contract, and `docs/reference/permissions.md` is made from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from clew.model.access import EVERYWHERE, Permission
from clew.model.inputs import TaskToken

_P: Final = Permission


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRule:
    """One row.

    Args:
        any_of: The permissions of which one is needed.
        namespaces_of: From the request to every namespace in which it acts.
        any_of_by_ids: For calls that name an activity by its ids in place of a token: what they need then.
        changes: Whether it changes something that lasts: the audit log notes it.
        is_task: Whether it belongs to the traffic of tasks, whose pace the engine sets by what it hands out; it is not
            counted in the rate limit of calls.
    """

    any_of: frozenset[Permission]
    namespaces_of: Callable[[Any], tuple[str, ...]]
    any_of_by_ids: frozenset[Permission] | None = None
    changes: bool = False
    is_task: bool = False

    def needed_for(self, request: Any) -> frozenset[Permission]:
        """The permissions of which this very request needs one."""
        if self.any_of_by_ids is not None:
            named = getattr(request, "token", None) or getattr(request, "target", None)
            if type(named) is not TaskToken:
                return self.any_of_by_ids
        return self.any_of


def _own(request: Any) -> tuple[str, ...]:
    return (request.namespace,)


def _of_token(request: Any) -> tuple[str, ...]:
    return (request.token.namespace,)


def _of_start(request: Any) -> tuple[str, ...]:
    return (request.start.namespace,)


def _of_start_and_update(request: Any) -> tuple[str, ...]:
    return (request.start.namespace, request.update.namespace)


def _nowhere(_: Any) -> tuple[str, ...]:
    """It acts in none that can be told from the request; the answer has only what the caller may see."""
    return ()


def _everywhere(_: Any) -> tuple[str, ...]:
    return (EVERYWHERE,)


def _reads(permission: Permission = _P.READ) -> CallRule:
    return CallRule(any_of=frozenset({permission}), namespaces_of=_own)


def _changes(permission: Permission, namespaces_of: Callable[[Any], tuple[str, ...]] = _own) -> CallRule:
    return CallRule(any_of=frozenset({permission}), namespaces_of=namespaces_of, changes=True)


def _works(*, changes: bool = True) -> CallRule:
    return CallRule(any_of=frozenset({_P.WORK}), namespaces_of=_of_token, changes=changes, is_task=True)


def _reports(*, changes: bool = True) -> CallRule:
    """On an activity: by the token that a worker was given (and may have handed on), or by ids."""
    return CallRule(
        any_of=frozenset({_P.WORK, _P.COMPLETE}),
        any_of_by_ids=frozenset({_P.COMPLETE}),
        namespaces_of=_of_token,
        changes=changes,
        is_task=True,
    )


def _administers(*, changes: bool = True) -> CallRule:
    return CallRule(any_of=frozenset({_P.ADMIN}), namespaces_of=_everywhere, changes=changes)


CALLS: Final[dict[str, CallRule]] = {
    # runs
    "start_workflow": _changes(_P.WRITE),
    "signal_workflow": _changes(_P.WRITE),
    "signal_with_start": _changes(_P.WRITE, _of_start),
    "request_cancel_workflow": _changes(_P.WRITE),
    "terminate_workflow": _changes(_P.WRITE),
    "reset_workflow": _changes(_P.OPERATE),
    "delete_workflow": _changes(_P.OPERATE),
    "update_workflow": _changes(_P.WRITE),
    "poll_update": _reads(),
    "update_with_start": _changes(_P.WRITE, _of_start_and_update),
    "update_workflow_options": _changes(_P.OPERATE),
    "query_workflow": _reads(_P.QUERY),
    "describe_workflow": _reads(),
    "get_history": _reads(),
    "list_workflows": _reads(),
    "count_workflows": _reads(),
    # worker deployments
    "set_current_version": _changes(_P.OPERATE),
    "set_ramping_version": _changes(_P.OPERATE),
    "describe_deployment": _reads(),
    "list_deployments": _reads(),
    "delete_deployment_version": _changes(_P.OPERATE),
    # namespaces and task queues
    "create_namespace": _administers(),
    "describe_namespace": CallRule(any_of=frozenset(_P), namespaces_of=_own),
    "list_namespaces": CallRule(any_of=frozenset({_P.READ}), namespaces_of=_nowhere),
    "describe_task_queue": _reads(),
    "list_task_queues": _reads(),
    # callbacks of activities
    "issue_callback": CallRule(
        any_of=frozenset({_P.WORK, _P.COMPLETE}),
        any_of_by_ids=frozenset({_P.COMPLETE}),
        namespaces_of=lambda request: (request.target.namespace,),
        changes=True,
    ),
    "open_callback": _administers(changes=False),
    # API keys
    "create_api_key": _administers(),
    "list_api_keys": _administers(changes=False),
    "revoke_api_key": _administers(),
    "rotate_api_key": _administers(),
    # workers
    "attach_worker": _changes(_P.WORK),
    "complete_workflow_task": _works(),
    "fail_workflow_task": _works(),
    "record_markers": _works(),
    "answer_query": _works(changes=False),
    "complete_activity": _reports(),
    "fail_activity": _reports(),
    "cancel_activity": _reports(),
    "release_activity": _works(),
    "detach_activity": CallRule(
        any_of=frozenset({_P.WORK}), namespaces_of=lambda token: (token.namespace,), changes=True, is_task=True
    ),
    "heartbeat_activity": _reports(changes=False),
}
"""Every call of ``service.contract.Service``. A heartbeat and the answer to a query change nothing that lasts."""
