"""Operations on activities that are ended from elsewhere: by ids, by task token, by callback.

Owns: the bodies and what is done with them. Never: whether an attempt is still under way (the engine decides).

How it works: each of the three ways names an activity; the four things that can be told of it (result, failure,
cancellation, sign of life) are the same for all. A callback's token is its own permission: it is opened and used with
the rights of the server, whoever sends it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final

import msgspec
from starlette.responses import Response

from clew.model.events import ZERO
from clew.model.failure import ApplicationInfo, Failure
from clew.model.inputs import ActivityTarget, Message, TaskToken
from clew.model.payload import Payloads
from clew.server.api.calls import Act, Call, json_response
from clew.server.problems import bad_request
from clew.service import operations as o
from clew.service import requests as r
from clew.service.contract import Service
from clew.service.tokens import decode_task_token

SOURCE: Final = "http"

Target = TaskToken | ActivityTarget


class _Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of the bodies.

    Args:
        run_id: A certain run; for activities named by ids.
        identity: Who tells it, for the history.
    """

    run_id: str = ""
    identity: str = ""


class CompleteBody(_Body, frozen=True, kw_only=True):
    """The activity succeeded; `result` is what it returned."""

    result: Payloads = ()


class FailBody(_Body, frozen=True, kw_only=True):
    """The attempt failed; by the retry policy there is another.

    Args:
        message: What happened.
        type: Name of the kind of error, which retry policies and workflow code select by.
        non_retryable: Whether there must be no other attempt.
        details: Values for workflow code.
    """

    message: str = ""
    type: str = ""
    non_retryable: bool = False
    details: Payloads = ()


class CancelBody(_Body, frozen=True, kw_only=True):
    """The activity ended because it was asked to."""

    details: Payloads = ()


class HeartbeatBody(_Body, frozen=True, kw_only=True):
    """The attempt is alive; `details` say how far it is."""

    details: Payloads = ()


class CallbackBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Make a callback token for a pending activity.

    Args:
        run_id: A certain run; the current one when not given.
        expires_in: How long it is good; seven days when not given.
    """

    run_id: str = ""
    expires_in: timedelta = ZERO


class CallbackTargetView(Message, frozen=True, kw_only=True):
    """What a callback token is for."""

    namespace: str
    workflow_id: str
    run_id: str
    activity_id: str
    expires_at: str


class CallbackView(Message, frozen=True, kw_only=True):
    """A callback token with the path at which it is used."""

    token: str
    path: str
    expires_at: str


Find = Callable[[Call], Awaitable[Target]]
Tell = Callable[[Service, Target, Any, str], Awaitable[Any]]


def telling(find: Find, tell: Tell) -> Act:
    """An operation that tells one thing of an activity that was named one way."""

    async def act(call: Call) -> Response:
        identity = call.body.identity or call.identity
        return json_response(await tell(call.service, await find(call), call.body, identity))

    return act


# --- ways to name an activity ----------------------------------------------------------------------------------------


async def by_ids(call: Call) -> Target:
    """The attempt that is under way of the activity with these ids."""
    return ActivityTarget(
        namespace=call.path["namespace"],
        workflow_id=call.path["workflow_id"],
        activity_id=call.path["activity_id"],
        run_id=call.body.run_id,
    )


async def by_task_token(call: Call) -> Target:
    """The very attempt that was handed to a worker with this token."""
    text = call.path["task_token"]
    try:
        token = decode_task_token(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error, RecursionError) as error:
        raise bad_request(
            f"The task token cannot be read: {error}. Give activity.info().task_token in URL-safe base64."
        ) from error
    if token.namespace != call.path["namespace"]:
        raise bad_request(f"The task token is of another namespace than {call.path['namespace']!r}.")
    return token


async def by_callback(call: Call) -> Target:
    """The activity that a callback token is for."""
    return (await call.service.open_callback(o.OpenCallbackRequest(token=call.path["token"]))).target


# --- what can be told of it ------------------------------------------------------------------------------------------


def complete(service: Service, target: Target, body: CompleteBody, identity: str) -> Awaitable[None]:
    """It succeeded."""
    return service.complete_activity(r.CompleteActivityRequest(token=target, result=body.result, identity=identity))


def fail(service: Service, target: Target, body: FailBody, identity: str) -> Awaitable[None]:
    """The attempt failed."""
    info = ApplicationInfo(type=body.type, non_retryable=body.non_retryable, details=body.details)
    failure = Failure(message=body.message, source=SOURCE, info=info)
    return service.fail_activity(r.FailActivityRequest(token=target, failure=failure, identity=identity))


def cancel(service: Service, target: Target, body: CancelBody, identity: str) -> Awaitable[None]:
    """It ended because it was asked to."""
    return service.cancel_activity(r.CancelActivityRequest(token=target, details=body.details, identity=identity))


def heartbeat(
    service: Service, target: Target, body: HeartbeatBody, identity: str
) -> Awaitable[r.HeartbeatActivityResponse]:
    """It is alive."""
    return service.heartbeat_activity(r.HeartbeatActivityRequest(token=target, details=body.details, identity=identity))


# --- callbacks -------------------------------------------------------------------------------------------------------


async def issue_callback(call: Call) -> Response:
    """Make a callback token."""
    request = o.IssueCallbackRequest(target=await by_ids(call), expires_in=call.body.expires_in)
    issued = await call.service.issue_callback(request)
    view = CallbackView(
        token=issued.token,
        path=f"/api/v1/callbacks/{issued.token}",
        expires_at=issued.expires_at.isoformat(),
    )
    return json_response(view, status=201, headers={"cache-control": "no-store"})


async def describe_callback(call: Call) -> Response:
    """Which activity a callback token is for."""
    opened = await call.service.open_callback(o.OpenCallbackRequest(token=call.path["token"]))
    target = opened.target
    view = CallbackTargetView(
        namespace=target.namespace,
        workflow_id=target.workflow_id,
        run_id=target.run_id,
        activity_id=target.activity_id,
        expires_at=opened.expires_at.isoformat(),
    )
    return json_response(view, headers={"cache-control": "no-store"})
