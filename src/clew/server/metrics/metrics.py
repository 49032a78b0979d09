"""The metrics of a node, by name.

Owns: which metrics there are, and the answer of ``/metrics``. Never: where a number comes from.

How it works: what happens (calls, commits, tasks) is counted as it happens, by wrappers around the service and the
store; what is (backlogs, pollers, memory) is looked at when somebody asks, at most once in `LOOK_SECONDS`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Final, final

from clew.adapters import wall_now
from clew.ports.store import TaskKind
from clew.server.metrics.registry import COUNTS, Counter, Gauge, Histogram, Metric, render
from clew.service import operations as o
from clew.service.contract import Service
from clew.service.errors import RPCError

LOOK_SECONDS: Final = 5.0
"""Scrapes are usually 15 to 60 seconds apart; somebody who asks more often gets the same numbers."""

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4_096


@final
class Metrics:
    """All metrics of one node; belongs to the service loop."""

    def __init__(self) -> None:
        self.calls = Counter("clew_service_calls_total", "Calls of the service, by outcome.", ("method", "code"))
        self.call_seconds = Histogram("clew_service_call_seconds", "Time until a call is answered.", ("method",))
        self.http_requests = Counter("clew_http_requests_total", "Requests over HTTP.", ("operation", "status"))
        self.http_seconds = Histogram("clew_http_request_seconds", "Time of a request over HTTP.", ("operation",))
        self.runs_started = Counter("clew_workflows_started_total", "Runs that were started.", ("namespace",))
        self.runs_closed = Counter("clew_workflows_closed_total", "Runs that closed.", ("namespace", "status"))
        self.task_waits = Histogram(
            "clew_task_schedule_to_start_seconds",
            "Time from a task being ready until a worker gets it.",
            ("kind", "task_queue"),
        )
        self.task_runs = Histogram(
            "clew_task_start_to_end_seconds",
            "Time from a worker getting a task until its answer.",
            ("kind", "task_queue"),
        )
        self.task_failures = Counter(
            "clew_task_failures_total",
            "Tasks that failed: workflow tasks by cause, attempts of activities by type of error.",
            ("kind", "cause"),
        )
        self.commit_seconds = Histogram("clew_commit_seconds", "Time until a batch is durable.")
        self.commit_units = Histogram("clew_commit_batch_size", "Transitions in one batch.", bounds=COUNTS)
        self.commit_conflicts = Counter("clew_commit_conflicts_total", "Transitions decided again.", ("status",))
        self.store_errors = Counter("clew_store_errors_total", "Calls of the store that failed.", ("method", "kind"))
        self.run_lookups = Counter(
            "clew_run_cache_lookups_total", "Looks for a run in memory; a miss reads the store.", ("result",)
        )
        self.timer_lag = Histogram("clew_timer_lag_seconds", "How late a deadline of a run was looked at.")
        self.lease_changes = Counter("clew_shard_lease_changes_total", "Leases of shards.", ("change",))
        self.nodes = Gauge("clew_nodes", "Nodes that share the store, as this one sees it.")
        self.backlog = Gauge(
            "clew_task_queue_backlog", "Tasks that wait for a worker.", ("namespace", "task_queue", "kind")
        )
        self.backlog_age = Gauge(
            "clew_task_queue_oldest_seconds",
            "How long the oldest of them has waited.",
            ("namespace", "task_queue", "kind"),
        )
        self.pollers = Gauge(
            "clew_task_queue_pollers", "Workers attached to this node.", ("namespace", "task_queue", "kind")
        )
        self.link_sessions = Gauge("clew_link_sessions", "Workers and clients of the link.")
        self.link_connections = Gauge("clew_link_connections", "Connections of the link.")
        self.streams = Gauge("clew_streams", "Live views that are open.")
        self.cpu_seconds = Gauge("process_cpu_seconds_total", "CPU time of this process.")
        self.cpu_seconds.kind = "counter"
        self.memory_bytes = Gauge("process_resident_memory_bytes", "Memory of this process.")
        self.open_files = Gauge("process_open_fds", "Open file descriptors of this process.")
        self.looks_failed = Counter("clew_metrics_looks_failed_total", "Times that backlogs could not be read.")
        self._probes: list[Callable[[], None]] = [self._look_at_process]
        self._looked_at = float("-inf")

    def run_was_at_hand(self) -> None:
        """A call found its run in memory (``ports.telemetry``)."""
        self.run_lookups.add("hit")

    def deadline_was_due(self, lag: timedelta) -> None:
        """A deadline of a run was looked at (``ports.telemetry``)."""
        self.timer_lag.observe(lag.total_seconds())

    def add_probe(self, probe: Callable[[], None]) -> None:
        """Call this before each answer, to set gauges."""
        self._probes.append(probe)

    async def text(self, service: Service) -> str:
        """All metrics as text."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._looked_at >= LOOK_SECONDS:
            self._looked_at = loop.time()
            try:
                await self._look_at_queues(service)
            except RPCError:
                self.looks_failed.add()
        for probe in self._probes:
            probe()
        found: list[Metric] = [one for one in vars(self).values() if isinstance(one, Metric)]
        return render(found)

    async def _look_at_queues(self, service: Service) -> None:
        namespaces = (await service.list_namespaces(o.ListNamespacesRequest())).namespaces
        found = [
            queue
            for namespace in namespaces
            for queue in (await service.list_task_queues(o.ListTaskQueuesRequest(namespace=namespace.name))).task_queues
        ]
        now = wall_now()
        for gauge in (self.backlog, self.backlog_age, self.pollers):
            gauge.clear()
        for queue in found:
            names = (queue.namespace, queue.task_queue)
            for kind, count, oldest, pollers in (
                (WORKFLOW, queue.workflow_backlog, queue.workflow_oldest_at, _workflow_pollers(queue)),
                (ACTIVITY, queue.activity_backlog, queue.activity_oldest_at, _activity_pollers(queue)),
            ):
                self.backlog.set(count, *names, kind)
                age = (now - oldest).total_seconds() if oldest is not None else 0.0
                self.backlog_age.set(max(0.0, age), *names, kind)
                self.pollers.set(pollers, *names, kind)

    def _look_at_process(self) -> None:
        times = os.times()
        self.cpu_seconds.set(round(times.user + times.system, 3))
        try:
            with open("/proc/self/statm", encoding="ascii") as file:
                self.memory_bytes.set(int(file.read().split()[1]) * _PAGE_BYTES)
            self.open_files.set(len(os.listdir("/proc/self/fd")))
        except FileNotFoundError:
            return  # no such files on this system: these two gauges are Linux's


WORKFLOW: Final = TaskKind.WORKFLOW.name.lower()
ACTIVITY: Final = TaskKind.ACTIVITY.name.lower()


def _workflow_pollers(queue: o.TaskQueueInfo) -> int:
    return sum(poller.takes_workflow_tasks for poller in queue.pollers)


def _activity_pollers(queue: o.TaskQueueInfo) -> int:
    return sum(poller.takes_activity_tasks for poller in queue.pollers)
