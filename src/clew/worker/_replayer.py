"""Replaying recorded runs against the code at hand, before it is deployed.

Owns: `Replayer` and what it reports. Never: an engine; nothing is executed but workflow code, and that as in the past.

How it works: each history goes through a machine of its own, which compares what the code asks for with what is
recorded, to the last event of the history. Machines run on a thread of their own, so that workflow code is as far from
the caller's loop as it is in a worker. With ``processes`` they run in other interpreters (`_replay_pool`), several at a
time; results still come in the order of the histories.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, final

from clew.converter import DataConverter
from clew.model.history import WorkflowHistory
from clew.model.limits import LIMITS_DEFAULT
from clew.model.payload import Payloads
from clew.replay import MachineOptions, WorkflowMachine
from clew.worker import _settings as settings
from clew.worker._codecs import rewrite
from clew.worker._interceptor import Interceptor
from clew.worker._machines import UnknownWorkflowError, interceptor_classes
from clew.worker._plugin import Plugin, ReplayerConfig, replay_through
from clew.worker._rebuilding import RebuiltRun, rebuild
from clew.worker._replay_pool import replay_in_processes


@dataclass(frozen=True)
class WorkflowReplayResult:
    """What came of one history.

    Args:
        history: The history.
        replay_failure: Why it does not fit the code; None if it does.
    """

    history: WorkflowHistory
    replay_failure: Exception | None


@dataclass(frozen=True)
class WorkflowReplayResults:
    """What came of many histories.

    Args:
        replay_failures: By run id, of those that do not fit the code.
    """

    replay_failures: Mapping[str, Exception]


@final
class Replayer:
    """Replays histories against workflow classes.

    Args:
        workflows: The classes.
        namespace: What `workflow.info().namespace` says.
        task_queue: The queue of activities that name none.
        data_converter: That of the runs.
        interceptors: Those of the worker.
        workflow_failure_exception_types: Those of the worker.
        processes: Replay many histories in so many processes; 0 replays them in this one. Classes, converter and
            interceptors must be picklable then, which those at the top level of a module are.
        plugins: Bundles of settings, applied in order to what is given here.
        workflow_task_executor: Accepted for compatibility and without effect, like the remaining arguments.

    Raises:
        ValueError: No workflow was given, or one is not a workflow, or two have the same type.
    """

    def __init__(
        self,
        *,
        workflows: Sequence[type[Any]],
        namespace: str = "default",
        task_queue: str = "replay",
        data_converter: DataConverter | None = None,
        interceptors: Sequence[Interceptor] = (),
        workflow_failure_exception_types: Sequence[type[BaseException]] = (),
        processes: int = 0,
        build_id: str | None = None,
        identity: str | None = None,
        debug_mode: bool = False,
        workflow_task_executor: Any = None,
        workflow_runner: Any = None,
        unsandboxed_workflow_runner: Any = None,
        disable_safe_workflow_eviction: bool = False,
        plugins: Sequence[Plugin] = (),
    ) -> None:
        del build_id, identity, debug_mode, workflow_task_executor, workflow_runner, unsandboxed_workflow_runner
        del disable_safe_workflow_eviction
        config: ReplayerConfig = {
            "workflows": workflows,
            "namespace": namespace,
            "data_converter": data_converter,
            "interceptors": interceptors,
            "workflow_failure_exception_types": workflow_failure_exception_types,
        }
        self._plugins = tuple(plugins)
        for plugin in self._plugins:
            config = plugin.configure_replayer(config)
        workflows, namespace, data_converter = config["workflows"], config["namespace"], config["data_converter"]
        interceptors = config["interceptors"]
        workflow_failure_exception_types = config["workflow_failure_exception_types"]
        if not workflows:
            raise ValueError("The replayer has no workflows. Pass the classes whose histories it is to replay.")
        settings.check_counts({"processes": processes}, at_least=0)
        self._definitions = settings.read_workflows(workflows)
        self._processes = processes
        self._arguments: dict[str, Any] = {
            "workflows": tuple(workflows),
            "namespace": namespace,
            "task_queue": task_queue,
            "data_converter": data_converter,
            "interceptors": tuple(interceptors),
            "workflow_failure_exception_types": tuple(workflow_failure_exception_types),
        }
        self._namespace = namespace
        self._task_queue = task_queue
        self._data_converter = data_converter or DataConverter.default
        classes, externs = interceptor_classes(interceptors)
        self._options = MachineOptions(
            failure_exception_types=tuple(workflow_failure_exception_types),
            interceptors=tuple(classes),
            extern_functions=externs,
            reports_waiting=False,
            runs_local_activities=True,
        )

    async def replay_workflow(
        self, history: WorkflowHistory, *, raise_on_replay_failure: bool = True, is_whole: bool = False
    ) -> WorkflowReplayResult:
        """Replay one history.

        Args:
            history: Of an open or a closed run.
            raise_on_replay_failure: Raise what is wrong, rather than return it.
            is_whole: The history has all that has happened, and is not cut off between the events of a step. Then a
                request of the code for which there is no event at the end is a mismatch too.

        Raises:
            NondeterminismError: The code no longer fits the history.
            UnknownWorkflowError: There is no workflow of the history's type.
            Exception: What the code raised that is no failure of the run.
        """
        if not self._plugins:
            result = await self._replay_one(history, is_whole)
        else:
            run = replay_through(self._plugins, lambda replayer, some: replayer._results(some, is_whole, 0))
            async with run(self, _only(history)) as results:
                (result,) = [result async for result in results]
        if raise_on_replay_failure and result.replay_failure is not None:
            raise result.replay_failure
        return result

    async def _replay_one(self, history: WorkflowHistory, is_whole: bool) -> WorkflowReplayResult:
        try:
            decoded = await self._decode(history)
            await asyncio.to_thread(self._replay, decoded, is_whole)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what came of this history
            return WorkflowReplayResult(history, error)
        return WorkflowReplayResult(history, None)

    async def replay_workflows(
        self,
        histories: AsyncIterator[WorkflowHistory],
        *,
        raise_on_replay_failure: bool = True,
        is_whole: bool = False,
    ) -> WorkflowReplayResults:
        """Replay many histories.

        Args:
            histories: The histories.
            raise_on_replay_failure: Raise what is wrong with the first that does not fit, rather than go on.
            is_whole: See `replay_workflow`.

        Raises:
            Exception: See `replay_workflow`.
        """
        failures: dict[str, Exception] = {}
        async with self.workflow_replay_iterator(histories, is_whole=is_whole) as results:
            async for result in results:
                if result.replay_failure is None:
                    continue
                if raise_on_replay_failure:
                    raise result.replay_failure
                failures[result.history.run_id] = result.replay_failure
        return WorkflowReplayResults(failures)

    async def rebuild(self, history: WorkflowHistory, *, event_id: int | None = None) -> RebuiltRun:
        """Replay a history up to one event, and give the run as its code stands there, for a debugger.

        Args:
            history: Of an open or a closed run.
            event_id: The last event to take into account; the last there is, if None.

        Raises:
            UnknownWorkflowError: There is no workflow of the history's type.
        """
        options = dataclasses.replace(self._options, is_guarded=False)
        decoded = await self._decode(history)
        return rebuild(decoded, lambda one: self._make_machine(one, options), event_id)

    @asynccontextmanager
    async def workflow_replay_iterator(
        self, histories: AsyncIterator[WorkflowHistory], *, is_whole: bool = False
    ) -> AsyncGenerator[AsyncIterator[WorkflowReplayResult], None]:
        """Give an iterator over the results of many histories, in their order, each as soon as it is there.

        Args:
            histories: The histories; so many are read ahead as keep the processes busy.
            is_whole: See `replay_workflow`.
        """
        processes = self._processes
        run = replay_through(self._plugins, lambda replayer, some: replayer._results(some, is_whole, processes))
        async with run(self, histories) as results:
            yield results

    @asynccontextmanager
    async def _results(
        self, histories: AsyncIterator[WorkflowHistory], is_whole: bool, processes: int
    ) -> AsyncGenerator[AsyncIterator[WorkflowReplayResult], None]:
        if processes:
            iterator = replay_in_processes(Replayer, self._arguments, histories, processes, is_whole)
        else:
            iterator = self._replay_here(histories, is_whole)
        try:
            yield (WorkflowReplayResult(history, failure) async for history, failure in iterator)
        finally:
            await iterator.aclose()

    async def _replay_here(
        self, histories: AsyncIterator[WorkflowHistory], is_whole: bool
    ) -> AsyncGenerator[tuple[WorkflowHistory, Exception | None], None]:
        async for history in histories:
            result = await self._replay_one(history, is_whole)
            yield history, result.replay_failure

    def _replay(self, history: WorkflowHistory, is_whole: bool) -> None:
        machine = self._make_machine(history)
        try:
            machine.replay(history.events, is_whole=is_whole)
        finally:
            machine.evict()

    def _make_machine(self, history: WorkflowHistory, options: MachineOptions | None = None) -> WorkflowMachine:
        started = history.started
        _check_order(history)
        definition = self._definitions.get(started.workflow_type) or self._definitions.get(None)
        if definition is None:
            known = ", ".join(sorted(name for name in self._definitions if name is not None)) or "none"
            raise UnknownWorkflowError(
                f"This is a history of workflow {started.workflow_type!r}, but the replayer has: {known}. "
                "Pass its class in Replayer(workflows=[…])."
            )
        return WorkflowMachine(
            definition=definition,
            namespace=self._namespace,
            task_queue=self._task_queue,
            workflow_id=history.workflow_id or started.workflow_id,
            run_id=history.run_id,
            workflow_type=started.workflow_type,
            payload_converter=self._data_converter.payload_converter,
            failure_converter=self._data_converter.failure_converter,
            limits=LIMITS_DEFAULT,
            options=options or self._options,
        )

    async def _decode(self, history: WorkflowHistory) -> WorkflowHistory:
        if self._data_converter.payload_codec is None:
            return history
        found: list[Payloads] = []
        for event in history.events:
            rewrite(event, _into(found))
        decoded = iter([await self._data_converter.decode_stored(payloads) for payloads in found])
        return WorkflowHistory(
            history.workflow_id, [rewrite(event, lambda _: next(decoded)) for event in history.events]
        )


def _check_order(history: WorkflowHistory) -> None:
    """Events are numbered without gaps from 1: a file that somebody edited may have others."""
    for position, event in enumerate(history.events, 1):
        if event.event_id != position:
            raise ValueError(
                f"Event {position} of the history of {history.workflow_id!r} has the number {event.event_id}. "
                "Expected: all events from 1 on, in order; export it again."
            )


async def _only(history: WorkflowHistory) -> AsyncGenerator[WorkflowHistory, None]:
    yield history


def _into(found: list[Payloads]) -> Callable[[Payloads], Payloads]:
    def collect(payloads: Payloads) -> Payloads:
        found.append(payloads)
        return payloads

    return collect
