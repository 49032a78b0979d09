"""The operations of the API: the one table that routes, checks and documents.

Owns: which operations there are, and under which paths. Never: how one is done.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from clew.model.rejection import RejectionCode as C
from clew.server.api import activities as a
from clew.server.api import workflows as w
from clew.server.api.calls import Operation, contract_call
from clew.server.api.sse import EndOfRun, stream_list, stream_run
from clew.server.api.values import body_of
from clew.service import deployments as d
from clew.service import keys as k
from clew.service import operations as o
from clew.service import requests as r

_NAMESPACE: Final = "/namespaces/{namespace}"
_WORKFLOW: Final = f"{_NAMESPACE}/workflows/{{workflow_id}}"
_ACTIVITY: Final = f"{_WORKFLOW}/activities/{{activity_id}}"
_TOKEN: Final = f"{_NAMESPACE}/task-tokens/{{task_token}}"
_CALLBACK: Final = "/callbacks/{token}"
_DEPLOYMENT: Final = f"{_NAMESPACE}/deployments/{{deployment_name}}"

_FIND: Final = (C.NAMESPACE_NOT_FOUND, C.WORKFLOW_NOT_FOUND)
_CHANGE: Final = (*_FIND, C.WORKFLOW_ALREADY_COMPLETED, C.WORKFLOW_CLOSING, C.LIMIT_EXCEEDED)
_START: Final = (C.NAMESPACE_NOT_FOUND, C.WORKFLOW_ALREADY_STARTED, C.LIMIT_EXCEEDED)


class _DeleteVersionQuery(msgspec.Struct, frozen=True):
    skip_drainage: bool = False
    identity: str = ""


_CreateNamespaceBody: Any = body_of(o.CreateNamespaceRequest, "CreateNamespace", without=())
_DeploymentBody: Final = ("namespace", "deployment_name")
_SetCurrentBody: Any = body_of(d.SetCurrentVersionRequest, "SetCurrentVersion", without=_DeploymentBody)
_SetRampingBody: Any = body_of(d.SetRampingVersionRequest, "SetRampingVersion", without=_DeploymentBody)


class _ListKeysQuery(msgspec.Struct, frozen=True):
    include_ended: bool = False


_CreateKeyBody: Any = body_of(k.CreateApiKeyRequest, "CreateApiKey", without=())
_RevokeKeyBody: Any = body_of(k.RevokeApiKeyRequest, "RevokeApiKey", without=("key_id",))
_RotateKeyBody: Any = body_of(k.RotateApiKeyRequest, "RotateApiKey", without=("key_id",))
_KEY_CODES: Final = (C.API_KEY_NOT_FOUND,)

_NAMESPACES: Final = (
    Operation(
        name="listNamespaces",
        tag="namespaces",
        method="GET",
        path="/namespaces",
        summary="List the namespaces.",
        act=contract_call("list_namespaces", o.ListNamespacesRequest),
        response=o.ListNamespacesResponse,
    ),
    Operation(
        name="createNamespace",
        tag="namespaces",
        method="POST",
        path="/namespaces",
        summary="Make a namespace.",
        act=contract_call("create_namespace", o.CreateNamespaceRequest, status=201),
        body=_CreateNamespaceBody,
        response=o.NamespaceInfo,
        status=201,
        codes=(C.NAMESPACE_ALREADY_EXISTS,),
    ),
    Operation(
        name="describeNamespace",
        tag="namespaces",
        method="GET",
        path=_NAMESPACE,
        summary="Describe a namespace.",
        act=contract_call("describe_namespace", o.DescribeNamespaceRequest),
        response=o.NamespaceInfo,
        codes=(C.NAMESPACE_NOT_FOUND,),
    ),
)

_WORKFLOWS: Final = (
    Operation(
        name="listWorkflows",
        tag="workflows",
        method="GET",
        path=f"{_NAMESPACE}/workflows",
        summary="List runs, newest first, page by page.",
        act=contract_call("list_workflows", r.ListWorkflowsRequest),
        query=w.ListQuery,
        response=r.ListWorkflowsResponse,
        codes=(C.NAMESPACE_NOT_FOUND,),
    ),
    Operation(
        name="countWorkflows",
        tag="workflows",
        method="GET",
        path=f"{_NAMESPACE}/workflow-count",
        summary="Count runs, in all and by status.",
        act=contract_call("count_workflows", r.CountWorkflowsRequest),
        query=w.CountQuery,
        response=r.CountWorkflowsResponse,
        codes=(C.NAMESPACE_NOT_FOUND,),
    ),
    Operation(
        name="streamWorkflows",
        tag="workflows",
        method="GET",
        path=f"{_NAMESPACE}/workflow-stream",
        summary="Follow a list: a message `run` for each run that is new or changed, `gone` for one that left it.",
        act=stream_list,
        query=w.StreamListQuery,
        response=r.WorkflowExecutionInfo,
        codes=(C.NAMESPACE_NOT_FOUND, C.LIMIT_EXCEEDED),
        is_stream=True,
    ),
    Operation(
        name="startWorkflow",
        tag="workflows",
        method="POST",
        path=f"{_NAMESPACE}/workflows",
        summary="Start a run. 201 when this request started it, 200 when it was there.",
        act=w.start,
        body=w.StartBody,
        response=r.StartWorkflowResponse,
        status=201,
        codes=_START,
        is_idempotent=True,
    ),
    Operation(
        name="describeWorkflow",
        tag="workflows",
        method="GET",
        path=_WORKFLOW,
        summary="Describe a run: what it is, what is pending, and why it waits.",
        act=contract_call("describe_workflow", r.DescribeWorkflowRequest),
        query=w.RunQuery,
        response=r.WorkflowDescription,
        codes=_FIND,
    ),
    Operation(
        name="getHistory",
        tag="workflows",
        method="GET",
        path=f"{_WORKFLOW}/history",
        summary="Read the events of a run, page by page; with `wait_new_event` up to 20 s for the next.",
        act=contract_call("get_history", r.GetHistoryRequest),
        query=w.HistoryQuery,
        response=r.GetHistoryResponse,
        codes=_FIND,
    ),
    Operation(
        name="streamHistory",
        tag="workflows",
        method="GET",
        path=f"{_WORKFLOW}/stream",
        summary="Follow a run: a message `event` for each event, and `end` when it has closed.",
        act=stream_run,
        query=w.StreamRunQuery,
        response=EndOfRun,
        codes=(*_FIND, C.LIMIT_EXCEEDED),
        is_stream=True,
    ),
    Operation(
        name="getResult",
        tag="workflows",
        method="GET",
        path=f"{_WORKFLOW}/result",
        summary="How a run ended; 202 when it has not.",
        act=w.result,
        query=w.ResultQuery,
        response=w.WorkflowResult,
        codes=_FIND,
    ),
    Operation(
        name="signalWorkflow",
        tag="workflows",
        method="POST",
        path=f"{_WORKFLOW}/signal",
        summary="Send a signal.",
        act=contract_call("signal_workflow", r.SignalWorkflowRequest),
        body=w.SignalBody,
        status=204,
        codes=_CHANGE,
        is_idempotent=True,
    ),
    Operation(
        name="signalWithStart",
        tag="workflows",
        method="POST",
        path=f"{_WORKFLOW}/signal-with-start",
        summary="Signal the open run, or start one with the signal in its first task.",
        act=w.signal_with_start,
        body=w.SignalWithStartBody,
        response=r.StartWorkflowResponse,
        status=201,
        codes=_START,
        is_idempotent=True,
    ),
    Operation(
        name="queryWorkflow",
        tag="workflows",
        method="POST",
        path=f"{_WORKFLOW}/query",
        summary="Ask a run's code a question; a worker answers.",
        act=contract_call("query_workflow", r.QueryWorkflowRequest),
        body=w.QueryBody,
        response=r.QueryWorkflowResponse,
        codes=(*_FIND, C.QUERY_FAILED, C.QUERY_REJECTED, C.QUERY_BUFFER_FULL, C.NO_WORKER, C.WORKFLOW_NOT_READY),
    ),
    Operation(
        name="updateWorkflow",
        tag="workflows",
        method="POST",
        path=f"{_WORKFLOW}/update",
        summary="Send an update, and wait up to 20 s until it has come to a stage.",
        act=w.update,
        body=w.UpdateBody,
        response=r.UpdateResponse,
        codes=(*_CHANGE, C.WORKFLOW_NOT_READY),
    ),
    Operation(
        name="pollUpdate",
        tag="workflows",
        method="GET",
        path=f"{_WORKFLOW}/updates/{{update_id}}",
        summary="Wait up to 20 s for the stage of an update that was sent before.",
        act=contract_call("poll_update", r.PollUpdateRequest),
        query=w.UpdateQuery,
        response=r.UpdateResponse,
        codes=(*_FIND, C.UPDATE_NOT_FOUND),
    ),
    Operation(
        name="updateWithStart",
        tag="workflows",
        method="POST",
        path=f"{_WORKFLOW}/update-with-start",
        summary="Start a run with an update in its first task, or send the update to the open run.",
        act=w.update_with_start,
        body=w.UpdateWithStartBody,
        response=r.UpdateWithStartResponse,
        codes=(*_START, *_CHANGE, C.WORKFLOW_NOT_READY),
        is_idempotent=True,
    ),
    Operation(
        name="cancelWorkflow",
        tag="workflows",
        method="POST",
        path=f"{_WORKFLOW}/cancel",
        summary="Ask a run to stop; its code may clean up first.",
        act=contract_call("request_cancel_workflow", r.RequestCancelRequest),
        body=w.CancelBody,
        status=204,
        codes=_CHANGE,
        is_idempotent=True,
    ),
    Operation(
        name="terminateWorkflow",
        tag="workflows",
        method="POST",
        path=f"{_WORKFLOW}/terminate",
        summary="End a run at once; its code gets no say.",
        act=contract_call("terminate_workflow", r.TerminateWorkflowRequest),
        body=w.TerminateBody,
        status=204,
        codes=_CHANGE,
    ),
    Operation(
        name="resetWorkflow",
        tag="workflows",
        method="POST",
        path=f"{_WORKFLOW}/reset",
        summary="Go on from an earlier point of a run, as a new run; the latest run is ended if it is open.",
        act=contract_call("reset_workflow", r.ResetWorkflowRequest),
        body=w.ResetBody,
        response=r.ResetWorkflowResponse,
        codes=_CHANGE,
        is_idempotent=True,
    ),
    Operation(
        name="deleteWorkflow",
        tag="workflows",
        method="DELETE",
        path=_WORKFLOW,
        summary="Remove a closed run and its history, before its retention time is over.",
        act=contract_call("delete_workflow", o.DeleteWorkflowRequest),
        query=w.RunQuery,
        response=o.DeleteWorkflowResponse,
        codes=(*_FIND, C.WORKFLOW_NOT_CLOSED, C.WORKFLOW_CLOSING),
    ),
    Operation(
        name="updateWorkflowOptions",
        tag="workflows",
        method="POST",
        path=f"{_WORKFLOW}/options",
        summary="Change what an open run was started with.",
        act=contract_call("update_workflow_options", r.UpdateWorkflowOptionsRequest),
        body=w.OptionsBody,
        response=r.UpdateWorkflowOptionsResponse,
        codes=_CHANGE,
    ),
)

_TELLABLE: Final[tuple[tuple[str, str, a.Tell, Any, Any], ...]] = (
    ("complete", "Tell that an activity succeeded.", a.complete, a.CompleteBody, None),
    ("fail", "Tell that an attempt failed.", a.fail, a.FailBody, None),
    ("cancel", "Tell that an activity ended because it was asked to.", a.cancel, a.CancelBody, None),
    (
        "heartbeat",
        "Tell that an attempt is alive; the answer says whether it should stop.",
        a.heartbeat,
        a.HeartbeatBody,
        r.HeartbeatActivityResponse,
    ),
)
_NAMED: Final[tuple[tuple[str, str, a.Find], ...]] = (
    ("activities", _ACTIVITY, a.by_ids),
    ("task tokens", _TOKEN, a.by_task_token),
    ("callbacks", _CALLBACK, a.by_callback),
)
_SUFFIXES: Final = {"activities": "Activity", "task tokens": "ActivityByToken", "callbacks": "ActivityByCallback"}

_ACTIVITIES: Final = (
    *(
        Operation(
            name=f"{verb}{_SUFFIXES[tag]}",
            tag=tag,
            method="POST",
            path=f"{path}/{verb}",
            summary=summary,
            act=a.telling(find, tell),
            body=body,
            response=response,
            status=200 if response else 204,
            codes=(C.ACTIVITY_NOT_FOUND, C.CALLBACK_REFUSED)
            if find is a.by_callback
            else (*_FIND, C.ACTIVITY_NOT_FOUND),
            is_public=find is a.by_callback,
        )
        for tag, path, find in _NAMED
        for verb, summary, tell, body, response in _TELLABLE
    ),
    Operation(
        name="issueCallback",
        tag="activities",
        method="POST",
        path=f"{_ACTIVITY}/callback",
        summary="Make a signed, expiring URL by which somebody without other credentials may end this activity.",
        act=a.issue_callback,
        body=a.CallbackBody,
        response=a.CallbackView,
        status=201,
        codes=(*_FIND, C.ACTIVITY_NOT_FOUND),
    ),
    Operation(
        name="describeCallback",
        tag="callbacks",
        method="GET",
        path=_CALLBACK,
        summary="Which activity a callback is for, and until when it is good.",
        act=a.describe_callback,
        response=a.CallbackTargetView,
        codes=(C.CALLBACK_REFUSED,),
        is_public=True,
    ),
)

_DEPLOYMENTS: Final = (
    Operation(
        name="listDeployments",
        tag="deployments",
        method="GET",
        path=f"{_NAMESPACE}/deployments",
        summary="List worker deployments.",
        act=contract_call("list_deployments", d.ListDeploymentsRequest),
        response=d.ListDeploymentsResponse,
        codes=(C.NAMESPACE_NOT_FOUND,),
    ),
    Operation(
        name="describeDeployment",
        tag="deployments",
        method="GET",
        path=_DEPLOYMENT,
        summary="Describe a worker deployment and its versions.",
        act=contract_call("describe_deployment", d.DescribeDeploymentRequest),
        response=d.DeploymentDescription,
        codes=(C.NAMESPACE_NOT_FOUND, C.DEPLOYMENT_NOT_FOUND),
    ),
    Operation(
        name="setCurrentVersion",
        tag="deployments",
        method="POST",
        path=f"{_DEPLOYMENT}/current",
        summary="Give runs that are not pinned this version.",
        act=contract_call("set_current_version", d.SetCurrentVersionRequest),
        body=_SetCurrentBody,
        response=d.DeploymentInfo,
        codes=(C.DEPLOYMENT_NOT_FOUND, C.DEPLOYMENT_CHANGED, C.DEPLOYMENT_NOT_READY),
    ),
    Operation(
        name="setRampingVersion",
        tag="deployments",
        method="POST",
        path=f"{_DEPLOYMENT}/ramping",
        summary="Give a share of the runs that are not pinned this version.",
        act=contract_call("set_ramping_version", d.SetRampingVersionRequest),
        body=_SetRampingBody,
        response=d.DeploymentInfo,
        codes=(C.DEPLOYMENT_NOT_FOUND, C.DEPLOYMENT_CHANGED, C.DEPLOYMENT_NOT_READY),
    ),
    Operation(
        name="deleteDeploymentVersion",
        tag="deployments",
        method="DELETE",
        path=f"{_DEPLOYMENT}/versions/{{build_id}}",
        summary="Forget a version that nothing needs.",
        act=contract_call("delete_deployment_version", d.DeleteDeploymentVersionRequest),
        query=_DeleteVersionQuery,
        status=204,
        codes=(C.DEPLOYMENT_NOT_FOUND, C.DEPLOYMENT_NOT_READY),
    ),
)

_TASK_QUEUES: Final = (
    Operation(
        name="listTaskQueues",
        tag="task queues",
        method="GET",
        path=f"{_NAMESPACE}/task-queues",
        summary="List the task queues with work waiting or workers attached.",
        act=contract_call("list_task_queues", o.ListTaskQueuesRequest),
        response=o.ListTaskQueuesResponse,
        codes=(C.NAMESPACE_NOT_FOUND,),
    ),
    Operation(
        name="describeTaskQueue",
        tag="task queues",
        method="GET",
        path=f"{_NAMESPACE}/task-queues/{{task_queue}}",
        summary="What waits in a task queue, since when, and who polls it.",
        act=contract_call("describe_task_queue", o.DescribeTaskQueueRequest),
        response=o.TaskQueueInfo,
        codes=(C.NAMESPACE_NOT_FOUND,),
    ),
)

_KEY: Final = "/api-keys/{key_id}"
_API_KEYS: Final = (
    Operation(
        name="listApiKeys",
        tag="API keys",
        method="GET",
        path="/api-keys",
        summary="List the API keys; what lets somebody in is told by none of them.",
        act=contract_call("list_api_keys", k.ListApiKeysRequest),
        query=_ListKeysQuery,
        response=k.ListApiKeysResponse,
    ),
    Operation(
        name="createApiKey",
        tag="API keys",
        method="POST",
        path="/api-keys",
        summary="Make an API key; the answer is the only one that tells it.",
        act=contract_call("create_api_key", k.CreateApiKeyRequest, status=201),
        body=_CreateKeyBody,
        response=k.CreateApiKeyResponse,
        status=201,
    ),
    Operation(
        name="revokeApiKey",
        tag="API keys",
        method="POST",
        path=f"{_KEY}/revoke",
        summary="Take an API key back, for good.",
        act=contract_call("revoke_api_key", k.RevokeApiKeyRequest),
        body=_RevokeKeyBody,
        response=k.ApiKeyInfo,
        codes=_KEY_CODES,
    ),
    Operation(
        name="rotateApiKey",
        tag="API keys",
        method="POST",
        path=f"{_KEY}/rotate",
        summary="Make another API key in the place of one that ends soon.",
        act=contract_call("rotate_api_key", k.RotateApiKeyRequest, status=201),
        body=_RotateKeyBody,
        response=k.CreateApiKeyResponse,
        status=201,
        codes=_KEY_CODES,
    ),
)

OPERATIONS: Final[tuple[Operation, ...]] = (
    *_NAMESPACES,
    *_WORKFLOWS,
    *_ACTIVITIES,
    *_DEPLOYMENTS,
    *_TASK_QUEUES,
    *_API_KEYS,
)
"""Every operation, once."""
