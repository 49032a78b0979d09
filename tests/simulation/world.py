"""The simulated world: a disk, a node that comes and goes, workers, clients, and the misfortunes of a plan.

Owns: `World`: who lives, when what happens, and the course of a simulation: faults first, then quiet until everything
is closed. Never: judges the end (``checkers`` does), nor what each part does.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from clew.service.requests import ActivityTask
from tests.simulation.afar import EarlyWire, FarWorker
from tests.simulation.answers import Answers
from tests.simulation.clients import Call, SimClient, value_of
from tests.simulation.clock import SimClock
from tests.simulation.deploys import DEFINITIONS, Deploys
from tests.simulation.disks import Disk, ModelDisk, SqliteDisk, StoreFaults
from tests.simulation.hints import HintBus
from tests.simulation.inside import start_inside
from tests.simulation.leases import Leases, liar
from tests.simulation.loop import SimLoop
from tests.simulation.node import Node
from tests.simulation.outside import Outside
from tests.simulation.parked import Parking
from tests.simulation.places import MAIN, OTHER, ROWS, named
from tests.simulation.plan import ACCOUNTS, Action, Plan
from tests.simulation.record import LawBroken, Record
from tests.simulation.told import Known, untrue
from tests.simulation.wire import Wire, WireFaults
from tests.simulation.workers import SimWorker

QUIET_SECONDS_MAX = 1_800.0
"""How long everything may take to close once there are no more faults: many times the longest timeout in a program."""

LINK_SECONDS_MAX = 3.0
"""How long a node may be silent before the links to it are given up."""

CUT_AT_LAST_SECONDS = 2.0
"""How long a cut waits for something to be on the wire."""

NO_STORE_FAULTS = StoreFaults()
NO_WIRE_FAULTS = WireFaults()


class NotClosed(AssertionError):
    """Faults are over, time passes, and something is still open."""


class _Site:
    """Where a node lives, incarnation by incarnation."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.node: Node | None = None


class _Place:
    """Where a worker lives, incarnation by incarnation."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.incarnation = 0
        self.worker: SimWorker | None = None


_NOWHERE = _Place(0)
"""Where the worker would live that a plan without workers speaks of."""


class World:
    """See the module docstring."""

    def __init__(self, plan: Plan, *, keeps_log: bool = False) -> None:
        self.plan = plan
        self.loop = SimLoop(self.chance("order"))
        if keeps_log:
            self.loop.log = []
        has_one_time = not plan.skew and all(fault.kind != "jump_clock" for fault in plan.faults)
        self.has_one_time = has_one_time
        self.record = Record(SimClock(self.loop).now if has_one_time else None, self.loop.time)
        self.outside = Outside(ACCOUNTS, self.record, self.loop.time)
        self.outside.hand_over = self._hand_over
        self.answers = Answers(self.record, self.outside)
        self.leases = Leases(self.loop.time, is_fleet=plan.nodes > 1, broken=self.record.broken)
        self.disk: Disk = SqliteDisk(self.loop)
        if plan.store == "model":
            lies = liar(self.chance("leases"), lambda: self.plan.leases_lie if self.has_faults else 0.0)
            self.disk = ModelDisk(self.loop, plan.nodes, plan.shards, lies)
        self.sites = [_Site(number) for number in range(plan.nodes)]
        self.hints = HintBus(self.loop, self.chance("hints"), self._hints_lost) if plan.nodes > 1 else None
        self.are_hints_lost = False
        self.has_faults = True
        self.is_full = False
        self.wires: list[Wire] = []
        self.clients: list[SimClient] = []
        self.namespaces = (MAIN, OTHER) if plan.two_namespaces else (MAIN,)
        if plan.two_namespaces:
            for row in ROWS:
                self.disk.put_namespace(row)
        self.deploys = Deploys(self)
        self.places = [_Place(number) for number in range(plan.workers * len(self.namespaces))]
        self.incarnations = 0
        self._moments = 0
        self._calls_made = 0
        self._faults_chance = self.chance("faults")
        self._sites_chance = self.chance("sites")

    def chance(self, name: str) -> random.Random:
        """A stream of chance of its own, so that one more draw here changes nothing there."""
        return random.Random(f"{name}:{self.plan.seed}")

    # --- the course -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """From the beginning to the end.

        Raises:
            LawBroken: At the moment it is seen.
            NotClosed: Something does not come to an end.
        """
        plan, loop = self.plan, self.loop
        logging.disable(logging.CRITICAL)
        try:
            loop.post(loop.root, 0.0, self._begin)
            loop.run(self.is_broken, seconds_max=plan.seconds)
            self.raise_broken()
            self.has_faults = False
            self.is_full = False
            loop.post(loop.root, 0.0, self._quiet)
            self._wait_over()
            # What is left to do when everything is closed (parents are told, rows are dropped) is done in this time.
            loop.run(self.is_broken, seconds_max=200.0)
            self.raise_broken()
            if plan.parked:
                Parking(self).run()
                self._wait_over()
                loop.run(self.is_broken, seconds_max=200.0)
                self.raise_broken()
        finally:
            logging.disable(logging.NOTSET)

    def _wait_over(self) -> None:
        # A clock that was put back has to come to the time of a timer once more.
        back = sum(max(0.0, -fault.values["by"]) for fault in self.plan.faults if fault.kind == "jump_clock")
        self.loop.run(lambda: self.is_broken() or self.is_over(), seconds_max=QUIET_SECONDS_MAX + back)
        self.raise_broken()
        if not self.is_over():
            raise NotClosed("; ".join(self.what_is_open()))

    def restart_everything(self) -> None:
        """All processes but the clients die, and come back."""
        for site in self.sites:
            if site.node is not None:
                site.node.crash("with everything")
        self.restart_workers()

    def restart_workers(self) -> None:
        """All workers die, and come back."""
        for number, _ in enumerate(self.places):
            self._do_crash_worker(Action(at=0.0, kind="crash_worker", who=number, values={"seconds": 1.0}))

    def close(self) -> None:
        """Let go of everything."""
        self.loop.shut()
        if isinstance(self.disk, SqliteDisk):
            self.disk.close()

    def _begin(self) -> None:
        for site in self.sites:
            self._start_node(site)
        for place in self.places:
            self._start_worker(place)
        for number in range(self.plan.clients):
            lane = self.loop.lane(f"client{number}")
            name = f"client{number}"
            client = SimClient(
                name, loop=self.loop, lane=lane, wire=self._wire(lane), chance=self.chance(name), moment=self.moment,
                on_try=self._note_try, on_answer=self._check_answer, on_accepted=self._check_accepted,
            )  # fmt: skip
            self.clients.append(client)
        for call in self.plan.calls:
            self.loop.post(self.loop.root, call.at, self.call, call)
        self.deploys.begin()
        for fault in self.plan.faults:
            self.loop.post(self.loop.root, fault.at, self._misfortune, fault)

    def call(self, action: Action) -> None:
        """Have a client make a call."""
        self._calls_made += 1
        client = self.clients[action.who % len(self.clients)]
        self.loop.post(client.lane, 0.0, client.make, action, self._calls_made)

    def _quiet(self) -> None:
        """Faults are over: whoever waits for something that only a client ends is told to end."""
        for name in {action.values["id"]: None for action in self.plan.calls if action.kind == "start_register"}:
            self.call(Action(at=0.0, kind="stop_register", values={"id": name}))
        self._end_cron()
        self.loop.post(self.loop.root, 60.0, self._cut_short)

    def _cut_short(self) -> None:
        """Once more, for what was started by a call which came late."""
        for name in {action.values["id"]: None for action in self.plan.calls if action.kind == "start_register"}:
            if name in self.record.open_runs:
                self.call(Action(at=0.0, kind="stop_register", values={"id": name}))
        self._end_cron()

    def _end_cron(self) -> None:
        """Runs that come back by themselves are ended."""
        for action in self.plan.calls:
            if "cron" in action.values and action.values["id"] in self.record.open_runs:
                self.call(Action(at=0.0, kind="end_cron", values={"id": action.values["id"]}))

    def _hand_over(self, task: ActivityTask, key: str, values: dict[str, Any]) -> None:
        """Somebody else has the token of this attempt, and completes it some time later, or never."""
        if values["after"] is not None:
            result = self.outside.count(key, values["value"])
            who = self._calls_made
            name = named(task.token.namespace, task.token.workflow_id)
            told = {"id": name, "task": task, "result": result}
            action = Action(at=0.0, kind="complete", who=who, values=told)
            self.loop.post(self.loop.root, values["after"], self.call, action)
        for late in values.get("late", ()) if task.attempt == 1 else ():
            told = {"id": named(task.token.namespace, task.token.workflow_id), "task": task, "as": late["as"]}
            action = Action(at=0.0, kind="report", who=self._calls_made, values=told)
            self.loop.post(self.loop.root, late["after"], self.call, action)

    def is_over(self) -> bool:
        """Whether every call is answered and every run is closed."""
        return (
            self._calls_made >= len(self.plan.calls)
            and all(client.is_idle for client in self.clients)
            and not self.record.open_runs
            and all(site.node is not None and site.node.is_serving for site in self.sites)
        )

    def what_is_open(self) -> list[str]:
        """In words."""
        open_runs = [
            f"run {run.workflow_id} after {[type(event).__name__ for event in run.events[-4:]]}"
            for run in self.record.runs.values()
            if run.is_open
        ]
        calls = [f"call {call}" for client in self.clients for call in client.calls if call.ended_at is None]
        nodes = [site.node.name for site in self.sites if site.node is not None and site.node.is_serving]
        return [*open_runs, *calls, f"serving: {nodes}"]

    def moment(self) -> tuple[float, int]:
        """Now, in a form that also orders what happens at one instant."""
        self._moments += 1
        return (self.loop.time(), self._moments)

    # --- broken laws ------------------------------------------------------------------------------------------------

    def is_broken(self) -> bool:
        """Whether a law was found broken."""
        return bool(self.record.broken or self.outside.complaints or self.loop.errors)

    def raise_broken(self) -> None:
        """Raise the first law that was found broken."""
        if self.loop.errors:
            context = self.loop.errors[0]
            raise LawBroken(f"an error that nobody takes: {context.get('message')}") from context.get("exception")
        for text in (*self.record.broken, *self.outside.complaints):
            raise LawBroken(text)

    def _check_accepted(self, call: Call, run_id: str) -> None:
        """An acceptance that was told is durable at that moment, in the run that was told (law 3)."""
        if not self.record.has_accepted(run_id, call.request_id):
            self.record.broken.append(
                f"law 3: answered, but the store does not hold the acceptance of update {call.request_id} in {run_id}"
            )

    def _note_try(self, call: Call) -> None:
        call.known = Known.of(self.record, call.action.values["id"])
        if call.tries == 1:
            call.first_known, call.made_in = call.known, self.record.changes

    def _check_answer(self, call: Call) -> None:
        """What was told is true, and what was acknowledged is durable, at that moment (law 3)."""
        call.heard_in = self.record.changes
        if broken := untrue(self.record, call):
            self.record.broken.append(broken)
        if not call.is_ok:
            return
        values, record = call.action.values, self.record
        missing = ""
        match call.action.kind:
            case "start" | "start_register":
                if call.answer.run_id not in record.by_run_id:
                    missing = f"run {call.answer.run_id}"
            case "reset":
                if call.answer.run_id not in record.by_run_id:
                    missing = f"run {call.answer.run_id}, which a reset made"
            case "signal" | "stop_register" | "signal_with_start":
                if record.signals_of(values["id"], call.request_id) < 1:
                    missing = (
                        f"signal {call.request_id}, recorded {record.signals_of(values['id'], call.request_id)} times"
                    )
            case "update" | "write" | "swap" | "update_with_start":
                found = record.updates_of(values["id"], call.request_id)
                is_refusal = call.answer.outcome.failure is not None
                # A chain that began after another had ended does not know that one's updates (semantics 1.5).
                if not found and not is_refusal:
                    missing = f"update {call.request_id}"
                elif found and call.answer.outcome not in [event.outcome for event in found]:
                    missing = f"outcome {call.answer.outcome} of update {call.request_id}; recorded: {found}"
            case "cancel":
                if not record.was_cancelled(values["id"], call.request_id, call.made_in, call.heard_in):
                    missing = f"cancel request {call.request_id}"
            case "complete":
                task = values["task"]
                self.outside.note_verdict(task, None)
                if not record.has_outcome(task.token.run_id, task.token.scheduled_event_id):
                    missing = f"the outcome of activity {task.activity_id}"
            case "delete":
                if not record.by_run_id[call.answer.run_id].is_deleted:
                    missing = f"the deletion of run {call.answer.run_id}"
                look = Action(at=0.0, kind="look", values={"id": values["id"], "run_id": call.answer.run_id})
                for who in range(len(self.clients)):
                    self.loop.post(self.loop.root, 0.0, self.call, msgspec.structs.replace(look, who=who))
            case "look":
                missing = f"any more, as it was deleted, run {values['run_id']}"
            case "terminate" | "end_cron":
                if not record.is_terminated(values["id"], call.request_id):
                    missing = f"the end by terminate {call.request_id}"
            case "query":
                missing = record.what_is_ahead(value_of(call.answer.result))
            case _:
                pass
        if missing:
            record.broken.append(f"law 3: answered, but the store does not hold {missing}")

    # --- processes --------------------------------------------------------------------------------------------------

    def _wire(self, lane: Any, kind: type[Wire] = Wire) -> Wire:
        wire = kind(
            loop=self.loop, lane=lane, node=self._serving, chance=self.chance(f"wire:{lane.name}"),
            faults=lambda: self.plan.wire_faults if self.has_faults else NO_WIRE_FAULTS, arrived=self.answers.arrived,
        )  # fmt: skip
        self.wires.append(wire)
        return wire

    def _serving(self, last: Node | None) -> Node | None:
        """The node that a process talks to: the one it had, or else any that serves."""
        if last is not None and last.is_serving:
            return last
        serving = [site.node for site in self.sites if site.node is not None and site.node.is_serving]
        return self._sites_chance.choice(serving) if serving else None

    def _hints_lost(self) -> float:
        if self.are_hints_lost:
            return 1.0
        return self.plan.hints_lost if self.has_faults else 0.0

    def _start_node(self, site: _Site) -> None:
        self.incarnations += 1
        name = f"node{self.incarnations}"
        chance = self.chance(name)
        site.node = Node(
            name,
            loop=self.loop,
            disk=self.disk,
            chance=chance,
            late_chance=self.chance(f"late.{name}"),
            clock_offset=self.plan.skew * (2 * chance.random() - 1),
            faults=lambda: self.plan.store_faults if self.has_faults else NO_STORE_FAULTS,
            is_full=lambda: self.is_full,
            on_commit=self.record.note,
            on_delete=self.record.note_deletion,
            on_ready=self._node_ready,
            on_dead=lambda node: self._node_died(site),
            leases=self.leases,
            hints=self.hints,
        )
        site.node.start()

    def _node_ready(self, node: Node) -> None:
        for namespace in self.namespaces if self.plan.inside else ():
            start_inside(
                node, chance=self.chance(named(namespace, f"inside.{node.name}")), outside=self.outside,
                answers=self.answers, cached_runs=self.plan.cached_runs, slots=self.plan.slots, namespace=namespace,
            )  # fmt: skip

    def _node_died(self, site: _Site) -> None:
        pause = self._faults_chance.choice((0.0, 0.05, 2.0, 20.0)) if self.has_faults else 0.0
        self.loop.post(self.loop.root, pause, self._start_node, site)

    def _start_worker(self, place: _Place) -> None:
        place.incarnation += 1
        name = f"worker{place.number}.{place.incarnation}"
        lane = self.loop.lane(name)
        far = self.plan.far
        worker = (FarWorker if far else SimWorker)(
            name, loop=self.loop, lane=lane, wire=self._wire(lane, EarlyWire if far else Wire),
            chance=self.chance(name), outside=self.outside, cached_runs=self.plan.cached_runs, slots=self.plan.slots,
            namespace=self.namespaces[place.number % len(self.namespaces)],
            definitions=DEFINITIONS[self.deploys.version],
        )  # fmt: skip
        place.worker = worker
        worker.start()

    # --- misfortunes ------------------------------------------------------------------------------------------------

    def _misfortune(self, action: Action) -> None:
        self.loop.note(f"misfortune {action.kind} {action.who} {action.values}")
        act: Callable[[Action], None] = getattr(self, f"_do_{action.kind}")
        act(action)

    def _node(self, action: Action) -> Node | None:
        return self.sites[action.who % len(self.sites)].node

    def _do_crash_node(self, action: Action) -> None:
        node = self._node(action)
        if node is not None:
            node.crash("by the plan")

    def _do_stop_node(self, action: Action) -> None:
        node = self._node(action)
        if node is not None and node.is_serving:
            self.loop.spawn(node.lane, node.stop())

    def _do_freeze_node(self, action: Action) -> None:
        """It stands still; those who talk to it give it up after a while, and go to another if there is one."""
        node, seconds = self._node(action), action.values["seconds"]
        if node is None or node.lane.is_dead:
            return
        self.loop.freeze(node.lane, seconds)
        if len(self.sites) > 1 and seconds > LINK_SECONDS_MAX:
            self.loop.post(self.loop.root, LINK_SECONDS_MAX, node.be_given_up)

    def _do_lose_hints(self, action: Action) -> None:
        """No hint arrives for a while; then every node learns that some may be missing."""
        if self.hints is not None:
            self.are_hints_lost = True
            self.loop.post(self.loop.root, action.values["seconds"], self._find_hints)

    def _find_hints(self) -> None:
        self.are_hints_lost = False
        if self.hints is not None:
            self.hints.tell_gap()

    def _place(self, action: Action) -> _Place:
        return self.places[action.who % len(self.places)] if self.places else _NOWHERE

    def _do_crash_worker(self, action: Action) -> None:
        place = self._place(action)
        worker, place.worker = place.worker, None
        if worker is None:
            return
        self.loop.kill(worker.lane)
        worker.wire.lose(0.0, self._faults_chance.choice((0.0, 0.01, 1.0)))
        self.loop.post(self.loop.root, action.values["seconds"], self._start_worker, place)

    def _do_freeze_worker(self, action: Action) -> None:
        worker = self._place(action).worker
        if worker is not None:
            self.loop.freeze(worker.lane, action.values["seconds"])

    def _do_cut_worker(self, action: Action) -> None:
        worker = self._place(action).worker
        if worker is not None:
            self._cut(worker.wire, action.values)

    def _do_cut_client(self, action: Action) -> None:
        client = self.clients[action.who % len(self.clients)]
        self._cut(client.link, action.values)

    def _cut(self, wire: Wire, values: dict[str, Any]) -> None:
        cut = partial(wire.cut, values["seconds"], values["here"], values["there"], values.get("way", ""))
        when = values.get("when", "")
        if when:
            wire.cut_when(when, cut, CUT_AT_LAST_SECONDS)
        else:
            cut()

    def _do_full_disk(self, action: Action) -> None:
        self.is_full = True
        self.loop.post(self.loop.root, action.values["seconds"], self._make_room)

    def _make_room(self) -> None:
        self.is_full = False

    def _do_pause_disk(self, action: Action) -> None:
        self.loop.freeze(self.disk.lane, action.values["seconds"])

    def _do_jump_clock(self, action: Action) -> None:
        node = self._node(action)
        if node is not None:
            node.clock.jump(action.values["by"])
