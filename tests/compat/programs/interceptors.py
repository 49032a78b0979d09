"""User code around every call: a header from the client through the workflow to the activity."""

from __future__ import annotations

from contextvars import ContextVar
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client, OutboundInterceptor, StartWorkflowInput
from temporalio.client import Interceptor as ClientInterceptor
from temporalio.converter import PayloadConverter
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    ExecuteWorkflowInput,
    StartActivityInput,
    Worker,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)
from temporalio.worker import (
    Interceptor as WorkerInterceptor,
)

user: ContextVar[str] = ContextVar("user", default="nobody")
converter = PayloadConverter.default


class FromClient(OutboundInterceptor):
    async def start_workflow(self, input: StartWorkflowInput) -> Any:
        input.headers = {**input.headers, "user": converter.to_payloads([user.get()])[0]}
        return await super().start_workflow(input)


class IntoWorkflow(WorkflowInboundInterceptor):
    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        super().init(OutOfWorkflow(outbound))

    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
        user.set(converter.from_payload(input.headers["user"], str))
        return await super().execute_workflow(input)


class OutOfWorkflow(WorkflowOutboundInterceptor):
    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:
        input.headers = {**input.headers, "user": converter.to_payloads([user.get()])[0]}
        return super().start_activity(input)


class IntoActivity(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        user.set(converter.from_payload(input.headers["user"], str))
        return await super().execute_activity(input)


class Users(ClientInterceptor, WorkerInterceptor):
    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        return FromClient(super().intercept_client(next))

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return IntoActivity(super().intercept_activity(next))

    def workflow_interceptor_class(
        self, input: WorkflowInterceptorClassInput
    ) -> type[WorkflowInboundInterceptor] | None:
        return IntoWorkflow


@activity.defn
async def who() -> str:
    return user.get()


@workflow.defn(sandboxed=False)
class Who:
    @workflow.run
    async def run(self) -> list[str]:
        return [user.get(), await workflow.execute_activity(who, start_to_close_timeout=timedelta(seconds=5))]


async def main(address: str) -> list[str]:
    client = await Client.connect(address, interceptors=[Users()])
    async with Worker(client, task_queue="who", workflows=[Who], activities=[who]):
        user.set("Ada")
        return await client.execute_workflow(Who.run, id="who", task_queue="who")


EXPECTED = ["Ada", "Ada"]
