"""Every call of the contract, as a client of a link makes it.

Owns: one method a call. Never: how a call travels (`remote`). A call that is added to the contract is added here too;
the type check of `remote.RemoteService` and a test see to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from clew.model import inputs as i
from clew.service import deployments as d
from clew.service import keys as k
from clew.service import operations as o
from clew.service import requests as r
from clew.service.reply import Reply


class RemoteCalls(ABC):
    """The calls; all but ``attach_worker``."""

    @abstractmethod
    def _call(self, name: str, request: Any) -> Reply[Any]:
        """Make a call."""

    @abstractmethod
    async def _wait(self, name: str, request: Any) -> Any:
        """Make a call that is taken back when nobody waits for it any more."""

    @abstractmethod
    def _answer_task(self, name: str, request: Any, token: i.TaskToken) -> Reply[Any]:
        """Make a call that says something about a workflow task."""

    @abstractmethod
    def _tell_of_attempt(self, name: str, request: Any, token: i.TaskToken | i.ActivityTarget) -> Reply[Any]:
        """Make a call that says something about an attempt at an activity."""

    def start_workflow(self, request: r.StartWorkflowRequest) -> Reply[r.StartWorkflowResponse]:
        """As in the contract; so are all below."""
        return self._call("start_workflow", request)

    def signal_workflow(self, request: r.SignalWorkflowRequest) -> Reply[None]:
        return self._call("signal_workflow", request)

    def signal_with_start(self, request: r.SignalWithStartRequest) -> Reply[r.StartWorkflowResponse]:
        return self._call("signal_with_start", request)

    def request_cancel_workflow(self, request: r.RequestCancelRequest) -> Reply[None]:
        return self._call("request_cancel_workflow", request)

    def terminate_workflow(self, request: r.TerminateWorkflowRequest) -> Reply[None]:
        return self._call("terminate_workflow", request)

    def reset_workflow(self, request: r.ResetWorkflowRequest) -> Reply[r.ResetWorkflowResponse]:
        return self._call("reset_workflow", request)

    def delete_workflow(self, request: o.DeleteWorkflowRequest) -> Reply[o.DeleteWorkflowResponse]:
        return self._call("delete_workflow", request)

    def update_workflow(self, request: r.UpdateWorkflowRequest) -> Reply[r.UpdateResponse]:
        return self._call("update_workflow", request)

    async def poll_update(self, request: r.PollUpdateRequest) -> r.UpdateResponse:
        response: r.UpdateResponse = await self._wait("poll_update", request)
        return response

    def update_with_start(self, request: r.UpdateWithStartRequest) -> Reply[r.UpdateWithStartResponse]:
        return self._call("update_with_start", request)

    def update_workflow_options(
        self, request: r.UpdateWorkflowOptionsRequest
    ) -> Reply[r.UpdateWorkflowOptionsResponse]:
        return self._call("update_workflow_options", request)

    async def query_workflow(self, request: r.QueryWorkflowRequest) -> r.QueryWorkflowResponse:
        response: r.QueryWorkflowResponse = await self._wait("query_workflow", request)
        return response

    def describe_workflow(self, request: r.DescribeWorkflowRequest) -> Reply[r.WorkflowDescription]:
        return self._call("describe_workflow", request)

    async def get_history(self, request: r.GetHistoryRequest) -> r.GetHistoryResponse:
        response: r.GetHistoryResponse = await self._wait("get_history", request)
        return response

    def list_workflows(self, request: r.ListWorkflowsRequest) -> Reply[r.ListWorkflowsResponse]:
        return self._call("list_workflows", request)

    def count_workflows(self, request: r.CountWorkflowsRequest) -> Reply[r.CountWorkflowsResponse]:
        return self._call("count_workflows", request)

    def set_current_version(self, request: d.SetCurrentVersionRequest) -> Reply[d.DeploymentInfo]:
        return self._call("set_current_version", request)

    def set_ramping_version(self, request: d.SetRampingVersionRequest) -> Reply[d.DeploymentInfo]:
        return self._call("set_ramping_version", request)

    def describe_deployment(self, request: d.DescribeDeploymentRequest) -> Reply[d.DeploymentDescription]:
        return self._call("describe_deployment", request)

    def list_deployments(self, request: d.ListDeploymentsRequest) -> Reply[d.ListDeploymentsResponse]:
        return self._call("list_deployments", request)

    def delete_deployment_version(self, request: d.DeleteDeploymentVersionRequest) -> Reply[None]:
        return self._call("delete_deployment_version", request)

    def create_namespace(self, request: o.CreateNamespaceRequest) -> Reply[o.NamespaceInfo]:
        return self._call("create_namespace", request)

    def describe_namespace(self, request: o.DescribeNamespaceRequest) -> Reply[o.NamespaceInfo]:
        return self._call("describe_namespace", request)

    def list_namespaces(self, request: o.ListNamespacesRequest) -> Reply[o.ListNamespacesResponse]:
        return self._call("list_namespaces", request)

    def describe_task_queue(self, request: o.DescribeTaskQueueRequest) -> Reply[o.TaskQueueInfo]:
        return self._call("describe_task_queue", request)

    def list_task_queues(self, request: o.ListTaskQueuesRequest) -> Reply[o.ListTaskQueuesResponse]:
        return self._call("list_task_queues", request)

    def issue_callback(self, request: o.IssueCallbackRequest) -> Reply[o.IssueCallbackResponse]:
        return self._call("issue_callback", request)

    def open_callback(self, request: o.OpenCallbackRequest) -> Reply[o.OpenCallbackResponse]:
        return self._call("open_callback", request)

    def create_api_key(self, request: k.CreateApiKeyRequest) -> Reply[k.CreateApiKeyResponse]:
        return self._call("create_api_key", request)

    def list_api_keys(self, request: k.ListApiKeysRequest) -> Reply[k.ListApiKeysResponse]:
        return self._call("list_api_keys", request)

    def revoke_api_key(self, request: k.RevokeApiKeyRequest) -> Reply[k.ApiKeyInfo]:
        return self._call("revoke_api_key", request)

    def rotate_api_key(self, request: k.RotateApiKeyRequest) -> Reply[k.CreateApiKeyResponse]:
        return self._call("rotate_api_key", request)

    def complete_workflow_task(self, request: i.CompleteWorkflowTaskRequest) -> Reply[None]:
        return self._answer_task("complete_workflow_task", request, request.token)

    def fail_workflow_task(self, request: i.FailWorkflowTaskRequest) -> Reply[None]:
        return self._answer_task("fail_workflow_task", request, request.token)

    def record_markers(self, request: i.RecordMarkersRequest) -> Reply[r.RecordMarkersResponse]:
        return self._answer_task("record_markers", request, request.token)

    def answer_query(self, request: r.AnswerQueryRequest) -> Reply[None]:
        return self._call("answer_query", request)

    def complete_activity(self, request: i.CompleteActivityRequest) -> Reply[None]:
        return self._tell_of_attempt("complete_activity", request, request.token)

    def fail_activity(self, request: i.FailActivityRequest) -> Reply[None]:
        return self._tell_of_attempt("fail_activity", request, request.token)

    def cancel_activity(self, request: i.CancelActivityRequest) -> Reply[None]:
        return self._tell_of_attempt("cancel_activity", request, request.token)

    def release_activity(self, request: i.ReleaseActivityRequest) -> Reply[None]:
        return self._tell_of_attempt("release_activity", request, request.token)

    def detach_activity(self, token: i.TaskToken) -> Reply[None]:
        return self._tell_of_attempt("detach_activity", token, token)

    def heartbeat_activity(self, request: i.HeartbeatActivityRequest) -> Reply[r.HeartbeatActivityResponse]:
        return self._tell_of_attempt("heartbeat_activity", request, request.token)
