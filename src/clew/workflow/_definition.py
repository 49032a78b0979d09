"""The decorators that make a class a workflow, and what they note down.

Owns: `defn`, `run`, `init`, `signal`, `query`, `update`, and the definitions they leave on classes and functions.
Never: runs anything (``replay`` does).

How it works: the decorators on methods only mark them; `defn` reads the finished class, checks the whole and keeps
one `Definition`. Mistakes are reported there, with class, method and remedy, so that none shows up at run time only.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Protocol, TypeVar, cast, final, overload, runtime_checkable

from clew.converter.signature import CallableSignature
from clew.model.policies import VersioningBehavior
from clew.types import (
    CallableAsyncType,
    CallableSyncOrAsyncReturnNoneType,
    CallableType,
    ClassType,
    MultiParamSpec,
    ReturnType,
)

_DEFINITION: Final = "__clew_workflow_definition"
_RUN: Final = "__clew_workflow_run"
_INIT: Final = "__clew_workflow_init"
_SIGNAL: Final = "__clew_signal_definition"
_QUERY: Final = "__clew_query_definition"
_UPDATE: Final = "__clew_update_definition"

RESERVED_PREFIXES: Final = ("__temporal_", "__clew_")
"""Names of handlers that begin so are ours (semantics 1.5)."""
_RESERVED_QUERIES: Final = ("__stack_trace", "__enhanced_stack_trace")

InitT = TypeVar("InitT", bound=Callable[..., None])
UpdateReturnT = TypeVar("UpdateReturnT", covariant=True)
ValidatorT = TypeVar("ValidatorT", bound=Callable[..., None])


class HandlerUnfinishedPolicy(IntEnum):
    """What happens when a run closes while a handler has not finished."""

    WARN_AND_ABANDON = 1
    """One warning names the handlers; they are abandoned."""
    ABANDON = 2
    """They are abandoned without a word."""


@final
@dataclass(frozen=True)
class SignalDefinition:
    """What is known of a signal handler.

    Args:
        name: Of the signal; None for the handler of signals that have no own.
        fn: The handler; its first parameter is the workflow if `is_method`.
        is_method: Whether it belongs to a class.
        description: For people.
        unfinished_policy: What happens to it when the run closes.
    """

    name: str | None
    fn: Callable[..., Any]
    is_method: bool
    description: str | None = None
    unfinished_policy: HandlerUnfinishedPolicy = HandlerUnfinishedPolicy.WARN_AND_ABANDON

    @functools.cached_property
    def signature(self) -> CallableSignature:
        """Parameters of `fn`, without the workflow itself."""
        return CallableSignature(self.fn, skip_self=self.is_method)

    @functools.cached_property
    def is_async(self) -> bool:
        """Whether `fn` is a coroutine function."""
        return inspect.iscoroutinefunction(self.fn)

    @staticmethod
    def must_name_from_fn_or_str(signal: str | Callable[..., Any]) -> str:
        """Give the name of a signal that is named by its handler or directly.

        Raises:
            TypeError: The function is no signal handler.
            ValueError: It is the dynamic handler, which has no name.
        """
        return _must_name(signal, _SIGNAL, "signal")


@final
@dataclass(frozen=True)
class QueryDefinition:
    """What is known of a query handler; see `SignalDefinition`."""

    name: str | None
    fn: Callable[..., Any]
    is_method: bool
    description: str | None = None

    @functools.cached_property
    def signature(self) -> CallableSignature:
        """Parameters and result of `fn`, without the workflow itself."""
        return CallableSignature(self.fn, skip_self=self.is_method)

    @functools.cached_property
    def ret_type(self) -> Any | None:
        """The type of the answer; None without annotation."""
        return self.signature.return_type

    @staticmethod
    def must_name_from_fn_or_str(query: str | Callable[..., Any]) -> str:
        """Give the name of a query that is named by its handler or directly; see `SignalDefinition`."""
        return _must_name(query, _QUERY, "query")


@final
@dataclass(frozen=True)
class UpdateDefinition:
    """What is known of an update handler; see `SignalDefinition`.

    Args:
        validator: Raises if the update is to be refused; takes what `fn` takes.
    """

    name: str | None
    fn: Callable[..., Any]
    is_method: bool
    description: str | None = None
    unfinished_policy: HandlerUnfinishedPolicy = HandlerUnfinishedPolicy.WARN_AND_ABANDON
    validator: Callable[..., None] | None = None

    @functools.cached_property
    def signature(self) -> CallableSignature:
        """Parameters and result of `fn`, without the workflow itself."""
        return CallableSignature(self.fn, skip_self=self.is_method)

    @functools.cached_property
    def ret_type(self) -> Any | None:
        """The type of the result; None without annotation."""
        return self.signature.return_type

    @functools.cached_property
    def is_async(self) -> bool:
        """Whether `fn` is a coroutine function."""
        return inspect.iscoroutinefunction(self.fn)

    @staticmethod
    def must_name_from_fn_or_str(update: str | Callable[..., Any] | UpdateMethodMultiParam[..., Any]) -> str:
        """Give the name of an update that is named by its handler or directly; see `SignalDefinition`."""
        return _must_name(update, _UPDATE, "update")


@dataclass
class DynamicWorkflowConfig:
    """What a dynamic workflow answers per type when asked by its `dynamic_config` method.

    Args:
        failure_exception_types: Exceptions that fail the run in place of the workflow task.
        versioning_behavior: Whether a run stays on the worker version it started on.
    """

    failure_exception_types: Sequence[type[BaseException]] | None = None
    versioning_behavior: VersioningBehavior = VersioningBehavior.UNSPECIFIED


@final
@dataclass(frozen=True)
class Definition:
    """What is known of a workflow class.

    Args:
        name: The workflow type; None for the workflow that takes every type that has no own.
        cls: The class.
        run_fn: Its `run` method, unbound.
        has_init: Whether ``__init__`` takes the arguments of the run.
        signals: By name; None is the key of the dynamic handler.
        queries: By name, likewise.
        updates: By name, likewise.
        failure_exception_types: Exceptions that fail the run in place of the workflow task.
        versioning_behavior: Whether a run stays on the worker version it started on.
        dynamic_config_fn: The method marked by `dynamic_config`, if any.
    """

    name: str | None
    cls: type[Any]
    run_fn: Callable[..., Awaitable[Any]]
    has_init: bool
    signals: Mapping[str | None, SignalDefinition]
    queries: Mapping[str | None, QueryDefinition]
    updates: Mapping[str | None, UpdateDefinition]
    sandboxed: bool = True
    failure_exception_types: Sequence[type[BaseException]] = ()
    versioning_behavior: VersioningBehavior = VersioningBehavior.UNSPECIFIED
    dynamic_config_fn: Callable[..., Any] | None = None

    @functools.cached_property
    def signature(self) -> CallableSignature:
        """Parameters and result of the run method, without the workflow itself."""
        return CallableSignature(self.run_fn, skip_self=True)

    @property
    def arg_types(self) -> tuple[Any, ...]:
        """The type of each parameter of the run method; `Any` where there is no annotation."""
        return self.signature.arg_types

    @property
    def ret_type(self) -> Any | None:
        """The type of the result; None without annotation."""
        return self.signature.return_type

    @property
    def is_dynamic(self) -> bool:
        """Whether it takes every type that has no workflow of its own."""
        return self.name is None

    @staticmethod
    def from_class(workflow_class: type[Any]) -> Definition | None:
        """Give the definition of this very class (not of a base); None if it is not a workflow."""
        found = workflow_class.__dict__.get(_DEFINITION)
        return found if isinstance(found, Definition) else None

    @staticmethod
    def must_from_class(workflow_class: type[Any]) -> Definition:
        """Give the definition of this very class.

        Raises:
            ValueError: It is not a workflow.
        """
        given = cast("object", workflow_class)
        if not isinstance(given, type):
            raise ValueError(
                f"{given!r:.80} (of type {type(given).__name__}) is not a workflow class. Give the class that is "
                "decorated with @workflow.defn, not an instance, its run method or its name."
            )
        found = Definition.from_class(workflow_class)
        if found is None:
            raise ValueError(f"Class {_place(workflow_class)} is not a workflow. Decorate it with @workflow.defn.")
        return found

    @staticmethod
    def from_run_fn(fn: Callable[..., Any]) -> Definition | None:
        """Give the definition of the workflow whose run method this is; None if it is none."""
        found = getattr(fn, _DEFINITION, None)
        return found if isinstance(found, Definition) else None

    @staticmethod
    def must_from_run_fn(fn: Callable[..., Any]) -> Definition:
        """Give the definition of the workflow whose run method this is.

        Raises:
            ValueError: It is the run method of no workflow.
        """
        found = Definition.from_run_fn(fn)
        if found is None:
            raise ValueError(
                f"{_place(fn)} is not the run method of a workflow. Pass Class.run of a class decorated with "
                "@workflow.defn, or the name of a workflow type."
            )
        return found

    @staticmethod
    def get_name_and_result_type(name_or_run_fn: str | Callable[..., Any]) -> tuple[str, Any | None]:
        """Give name and result type of a workflow that is named by its run method or directly.

        Raises:
            ValueError: The function is no run method, or that of a dynamic workflow.
            TypeError: It is neither text nor function.
        """
        if isinstance(name_or_run_fn, str):
            return name_or_run_fn, None
        if not callable(name_or_run_fn):
            raise TypeError(f"A workflow is given as its run method or by name, not as {name_or_run_fn!r}.")
        definition = Definition.must_from_run_fn(name_or_run_fn)
        if definition.name is None:
            raise ValueError(
                f"{_place(definition.cls)} is a dynamic workflow, which has no name; give the type as text."
            )
        return definition.name, definition.ret_type


# --- the class --------------------------------------------------------------------------------------------


@overload
def defn(cls: ClassType) -> ClassType: ...
@overload
def defn(
    *,
    name: str | None = None,
    sandboxed: bool = True,
    dynamic: bool = False,
    failure_exception_types: Sequence[type[BaseException]] = (),
    versioning_behavior: VersioningBehavior = VersioningBehavior.UNSPECIFIED,
) -> Callable[[ClassType], ClassType]: ...
def defn(
    cls: ClassType | None = None,
    *,
    name: str | None = None,
    sandboxed: bool = True,
    dynamic: bool = False,
    failure_exception_types: Sequence[type[BaseException]] = (),
    versioning_behavior: VersioningBehavior = VersioningBehavior.UNSPECIFIED,
) -> ClassType | Callable[[ClassType], ClassType]:
    """Make a class a workflow.

    Args:
        cls: The class.
        name: The workflow type; by default the name of the class.
        sandboxed: Accepted for compatibility and without effect: there is no sandbox (semantics 0.8).
        dynamic: Take every workflow type that has no class of its own. `run` then takes one parameter, of type
            ``Sequence[RawValue]``.
        failure_exception_types: Exceptions that, raised by workflow code, fail the run in place of the workflow task.
        versioning_behavior: Whether a run stays on the worker version it started on.

    Raises:
        ValueError: The class cannot be a workflow; the message names the method and the remedy.
    """
    if name is not None and dynamic:
        raise ValueError("A workflow cannot have a name and be dynamic; give one of the two.")
    if name == "":
        raise ValueError("The name of a workflow is empty; leave it out to use the name of the class.")

    def decorate(decorated: ClassType) -> ClassType:
        definition = _read_class(
            decorated,
            None if dynamic else name or decorated.__name__,
            sandboxed,
            failure_exception_types,
            versioning_behavior,
        )
        setattr(decorated, _DEFINITION, definition)
        own_run = decorated.__dict__.get(definition.run_fn.__name__)
        if own_run is definition.run_fn:
            setattr(definition.run_fn, _DEFINITION, definition)
        return decorated

    return decorate if cls is None else decorate(cls)


def run(fn: CallableAsyncType) -> CallableAsyncType:
    """Make an async method the one that a run of the workflow executes.

    Raises:
        ValueError: It is not async, or not a method at the top of a class.
    """
    if not inspect.iscoroutinefunction(fn):
        raise ValueError(f"{_place(fn)} is marked @workflow.run but is not async. Write `async def`.")
    if "<locals>" in fn.__qualname__.rsplit(".", 1)[-1] or "self" not in list(inspect.signature(fn).parameters)[:1]:
        raise ValueError(f"{_place(fn)} is marked @workflow.run and must be a method whose first parameter is self.")
    setattr(cast(Any, fn), _RUN, True)
    return cast("CallableAsyncType", fn)


def init(init_fn: InitT) -> InitT:
    """Make ``__init__`` take the arguments of the run, so that handlers see a finished object.

    Raises:
        ValueError: It is not ``__init__``.
    """
    if init_fn.__name__ != "__init__":
        raise ValueError(f"@workflow.init is for __init__, not for {_place(init_fn)}.")
    setattr(init_fn, _INIT, True)
    return init_fn


def dynamic_config(fn: Callable[[Any], DynamicWorkflowConfig]) -> Callable[[Any], DynamicWorkflowConfig]:
    """Make a method of a dynamic workflow tell the options of the type at hand.

    Raises:
        ValueError: It is async.
    """
    if inspect.iscoroutinefunction(fn):
        raise ValueError(f"{_place(fn)} is marked @workflow.dynamic_config and cannot be async.")
    setattr(fn, "__clew_workflow_dynamic_config", True)
    return fn


# --- handlers ---------------------------------------------------------------------------------------------


@overload
def signal(fn: CallableSyncOrAsyncReturnNoneType) -> CallableSyncOrAsyncReturnNoneType: ...
@overload
def signal(
    *,
    name: str | None = None,
    dynamic: bool | None = False,
    unfinished_policy: HandlerUnfinishedPolicy = HandlerUnfinishedPolicy.WARN_AND_ABANDON,
    description: str | None = None,
) -> Callable[[CallableSyncOrAsyncReturnNoneType], CallableSyncOrAsyncReturnNoneType]: ...
def signal(
    fn: CallableSyncOrAsyncReturnNoneType | None = None,
    *,
    name: str | None = None,
    dynamic: bool | None = False,
    unfinished_policy: HandlerUnfinishedPolicy = HandlerUnfinishedPolicy.WARN_AND_ABANDON,
    description: str | None = None,
) -> (
    CallableSyncOrAsyncReturnNoneType | Callable[[CallableSyncOrAsyncReturnNoneType], CallableSyncOrAsyncReturnNoneType]
):
    """Make a method, async or not, handle a signal.

    Args:
        fn: The method.
        name: Of the signal; by default the method's name.
        dynamic: Take every signal that has no handler of its own. The method then takes the name and, of type
            ``Sequence[RawValue]``, the arguments.
        unfinished_policy: What happens to it when the run closes.
        description: One line for people.

    Raises:
        ValueError: The options exclude each other, or the method cannot be a handler.
    """
    _check_handler_options("signal", name, dynamic)

    def decorate(decorated: CallableSyncOrAsyncReturnNoneType) -> CallableSyncOrAsyncReturnNoneType:
        definition = SignalDefinition(
            name=None if dynamic else name or decorated.__name__,
            fn=decorated,
            is_method=True,
            description=description,
            unfinished_policy=unfinished_policy,
        )
        _check_handler("signal", definition.name, definition.signature, decorated)
        setattr(decorated, _SIGNAL, definition)
        return decorated

    return decorate if fn is None else decorate(fn)


@overload
def query(fn: CallableType) -> CallableType: ...
@overload
def query(
    *, name: str | None = None, dynamic: bool | None = False, description: str | None = None
) -> Callable[[CallableType], CallableType]: ...
def query(
    fn: CallableType | None = None,
    *,
    name: str | None = None,
    dynamic: bool | None = False,
    description: str | None = None,
) -> CallableType | Callable[[CallableType], CallableType]:
    """Make a method answer a query. It must not be async, and must not change anything.

    Args:
        fn: The method.
        name: Of the query; by default the method's name.
        dynamic: Answer every query that has no handler of its own. The method then takes the name and, of type
            ``Sequence[RawValue]``, the arguments.
        description: One line for people.

    Raises:
        ValueError: The options exclude each other, or the method cannot be a handler.
    """
    _check_handler_options("query", name, dynamic)

    def decorate(decorated: CallableType) -> CallableType:
        if inspect.iscoroutinefunction(decorated):
            raise ValueError(f"Query handler {_place(decorated)} is async, but a query must answer at once. Use `def`.")
        definition = QueryDefinition(
            name=None if dynamic else name or decorated.__name__, fn=decorated, is_method=True, description=description
        )
        _check_handler("query", definition.name, definition.signature, decorated)
        setattr(decorated, _QUERY, definition)
        return decorated

    return decorate if fn is None else decorate(fn)


@runtime_checkable
class UpdateMethodMultiParam(Protocol[MultiParamSpec, UpdateReturnT]):
    """A method decorated with `update`: callable as before, with `validator` to decorate its validator."""

    def __call__(
        self, *args: MultiParamSpec.args, **kwargs: MultiParamSpec.kwargs
    ) -> ReturnType | Awaitable[ReturnType]:
        """Call the method itself."""
        ...

    def validator(self, vfunc: Callable[MultiParamSpec, None]) -> Callable[MultiParamSpec, None]:
        """Make a method check the arguments of the update; it refuses them by raising."""
        ...


@overload
def update(
    fn: Callable[MultiParamSpec, Awaitable[ReturnType]],
) -> UpdateMethodMultiParam[MultiParamSpec, ReturnType]: ...
@overload
def update(fn: Callable[MultiParamSpec, ReturnType]) -> UpdateMethodMultiParam[MultiParamSpec, ReturnType]: ...
@overload
def update(
    *,
    name: str | None = None,
    dynamic: bool | None = False,
    unfinished_policy: HandlerUnfinishedPolicy = HandlerUnfinishedPolicy.WARN_AND_ABANDON,
    description: str | None = None,
) -> Callable[[Callable[MultiParamSpec, ReturnType]], UpdateMethodMultiParam[MultiParamSpec, ReturnType]]: ...
def update(
    fn: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    dynamic: bool | None = False,
    unfinished_policy: HandlerUnfinishedPolicy = HandlerUnfinishedPolicy.WARN_AND_ABANDON,
    description: str | None = None,
) -> Any:
    """Make a method, async or not, handle an update: a signal with an answer, which may be refused.

    Args:
        fn: The method.
        name: Of the update; by default the method's name.
        dynamic: Take every update that has no handler of its own. The method then takes the name and, of type
            ``Sequence[RawValue]``, the arguments.
        unfinished_policy: What happens to it when the run closes.
        description: One line for people.

    Raises:
        ValueError: The options exclude each other, or the method cannot be a handler.
    """
    _check_handler_options("update", name, dynamic)

    def decorate(decorated: Callable[..., Any]) -> Callable[..., Any]:
        definition = UpdateDefinition(
            name=None if dynamic else name or decorated.__name__,
            fn=decorated,
            is_method=True,
            description=description,
            unfinished_policy=unfinished_policy,
        )
        _check_handler("update", definition.name, definition.signature, decorated)
        setattr(decorated, _UPDATE, definition)
        cast(Any, decorated).validator = functools.partial(_set_validator, decorated)
        return decorated

    return decorate if fn is None else decorate(fn)


def _set_validator(update_fn: Callable[..., Any], validator: ValidatorT) -> ValidatorT:
    definition = cast(UpdateDefinition, getattr(update_fn, _UPDATE))
    if definition.validator is not None:
        raise ValueError(f"Update handler {_place(update_fn)} has a validator already; decorate one.")
    if inspect.iscoroutinefunction(validator):
        raise ValueError(f"Validator {_place(validator)} is async, but it must decide at once. Use `def`.")
    takes, expected = CallableSignature(validator, skip_self=True), definition.signature
    if takes.args_max != expected.args_max or takes.required_count != expected.required_count:
        raise ValueError(
            f"Validator {_place(validator)} takes {takes.arg_names}, but the update it checks takes "
            f"{expected.arg_names}. Give both the same parameters."
        )
    # The definition may be shared by subclasses already, so it is changed in place; it is a fact only from here on.
    object.__setattr__(definition, "validator", validator)
    return validator


# --- checks -----------------------------------------------------------------------------------------------


def _check_handler_options(kind: str, name: str | None, dynamic: bool | None) -> None:
    if name is not None and dynamic:
        raise ValueError(f"A {kind} handler cannot have a name and be dynamic; give one of the two.")
    if name == "":
        raise ValueError(f"The name of a {kind} is empty; leave it out to use the method's name.")


def _check_handler(kind: str, name: str | None, signature: CallableSignature, fn: Callable[..., Any]) -> None:
    check_handler_name(kind, name)
    parameters = list(inspect.signature(fn).parameters)
    if not parameters or parameters[0] != "self":
        raise ValueError(f"{kind.title()} handler {_place(fn)} must be a method whose first parameter is self.")
    if name is None:
        _check_dynamic(kind, signature, fn)


def check_handler_name(kind: str, name: str | None) -> None:
    """Refuse names that are ours.

    Raises:
        ValueError: The name begins with a reserved prefix.
    """
    if name is not None and (name.startswith(RESERVED_PREFIXES) or (kind == "query" and name in _RESERVED_QUERIES)):
        raise ValueError(
            f"The {kind} name {name!r} is reserved; choose one that does not begin with an underscore pair."
        )


def _check_dynamic(kind: str, signature: CallableSignature, fn: Callable[..., Any]) -> None:
    if signature.args_max != 2:
        raise ValueError(
            f"Dynamic {kind} handler {_place(fn)} takes {signature.arg_names}, but must take name and arguments: "
            "(self, name: str, args: Sequence[RawValue])."
        )


def _read_class(
    cls: type[Any],
    name: str | None,
    sandboxed: bool,
    failure_exception_types: Sequence[type[BaseException]],
    versioning_behavior: VersioningBehavior,
) -> Definition:
    problems: list[str] = []
    handlers: dict[str, dict[str | None, Any]] = {_SIGNAL: {}, _QUERY: {}, _UPDATE: {}}
    run_fn: Callable[..., Awaitable[Any]] | None = None
    dynamic_config_fn: Callable[..., Any] | None = None
    for member_name, member in inspect.getmembers(cls):
        if getattr(member, _RUN, False):
            if run_fn is not None:
                problems.append(f"{member_name} and {run_fn.__name__} are both marked @workflow.run; keep one")
            run_fn = member
        if getattr(member, "__clew_workflow_dynamic_config", False):
            dynamic_config_fn = member
        for marker, found in handlers.items():
            definition = getattr(member, marker, None)
            if definition is not None:
                _add_handler(found, definition, member_name, problems)
    problems += _forgotten_decorators(cls)
    if run_fn is None:
        problems.append("it has no method marked @workflow.run; mark one `async def run(self, …)`")
    elif _owner(cls, run_fn.__name__) is not cls:
        problems.append(
            f"its run method {run_fn.__name__} is inherited; define it in this class (it may call the inherited one)"
        )
    has_init = bool(getattr(cls.__init__, _INIT, False))
    if run_fn is not None and not problems:
        problems += _init_problems(cls, run_fn, has_init)
        if name is None and CallableSignature(run_fn, skip_self=True).args_max != 1:
            problems.append("it is dynamic, so run must take one parameter: `args: Sequence[RawValue]`")
    if dynamic_config_fn is not None and name is not None:
        problems.append("it has a @workflow.dynamic_config method but is not dynamic; remove it or pass dynamic=True")
    if problems or run_fn is None:
        raise ValueError(f"Class {_place(cls)} cannot be a workflow: {'; '.join(problems)}.")
    return Definition(
        name=name,
        cls=cls,
        run_fn=run_fn,
        has_init=has_init,
        signals=handlers[_SIGNAL],
        queries=handlers[_QUERY],
        updates=handlers[_UPDATE],
        sandboxed=sandboxed,
        failure_exception_types=tuple(failure_exception_types),
        versioning_behavior=versioning_behavior,
        dynamic_config_fn=dynamic_config_fn,
    )


def _add_handler(found: dict[str | None, Any], definition: Any, member_name: str, problems: list[str]) -> None:
    other = found.get(definition.name)
    if other is not None:
        called = "dynamic handlers" if definition.name is None else f"handlers of {definition.name!r}"
        problems.append(f"{member_name} and {other.fn.__name__} are both {called}; keep one, or give one another name")
    found[definition.name] = definition


def _forgotten_decorators(cls: type[Any]) -> list[str]:
    """Methods that override a decorated one without being decorated alike, which is easily forgotten."""
    problems: list[str] = []
    for member_name, member in vars(cls).items():
        if not inspect.isfunction(member):
            continue
        for base in cls.__mro__[1:]:
            overridden = vars(base).get(member_name)
            for marker, decorator in ((_RUN, "run"), (_SIGNAL, "signal"), (_QUERY, "query"), (_UPDATE, "update")):
                if hasattr(overridden, marker) and not hasattr(member, marker):
                    problems.append(
                        f"{member_name} overrides the @workflow.{decorator} method of {base.__qualname__} without that "
                        "decorator; decorate it too"
                    )
    return problems


def _init_problems(cls: type[Any], run_fn: Callable[..., Any], has_init: bool) -> list[str]:
    if cls.__init__ is object.__init__:
        return []
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    if not has_init:
        required = [
            p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
        if required:
            return [
                f"__init__ requires {', '.join(required)}, but nobody passes it; decorate __init__ with @workflow.init "
                "to give it the arguments of run, or give defaults"
            ]
        return []
    own, expected = CallableSignature(cls.__init__, skip_self=True), CallableSignature(run_fn, skip_self=True)
    if (own.arg_names, own.required_count) == (expected.arg_names, expected.required_count):
        return []
    if own.args_max == expected.args_max and own.required_count == expected.required_count:
        return []
    return [
        f"__init__ is marked @workflow.init and takes {own.arg_names}, but run takes {expected.arg_names}; "
        "make them alike"
    ]


def _owner(cls: type[Any], name: str) -> type[Any] | None:
    return next((base for base in cls.__mro__ if name in vars(base)), None)


def _must_name(named: Any, marker: str, kind: str) -> str:
    if isinstance(named, str):
        return named
    definition = getattr(named, marker, None)
    if definition is None:
        raise TypeError(
            f"{_place(named)} is not a {kind} handler. Decorate it with @workflow.{kind}, or pass its name."
        )
    if definition.name is None:
        raise ValueError(f"{_place(named)} is a dynamic {kind} handler, which has no name; give the name as text.")
    return cast(str, definition.name)


def _place(thing: Any) -> str:
    code = getattr(thing, "__code__", None)
    name = getattr(thing, "__qualname__", None) or repr(thing)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code is not None else str(name)
