"""The determinism guard: refuses calls that no replay can repeat, at the call, while workflow code runs (design §7).

Owns: which calls are caught, how, and the error. Never: what then happens to the workflow task (the machine fails it).

How it works: a thread is *guarded* between `enter` and `exit` (or inside `activated`), while it runs an activation.
Elsewhere, on other threads and outside of workflows, nothing changes but some nanoseconds a call. There are three nets:

1. **Audit events** (`sys.addaudithook`): files, sockets, subprocesses, threads, SQLite. The interpreter reports these
   itself, whatever name or alias they were called by.
2. **Wrapped functions**: the clock, random numbers, ids, the environment, waits of threads. The wrapper stands in the
   module or class the function lives in. Names bound before (``from time import sleep``) are rebound in the modules of
   the user's project (`install`, `adopt`), including default arguments, class attributes and dataclass factories.
3. **`datetime.now` and `datetime.utcnow`** are methods of a C type that no subclass or proxy may stand in for, since
   libraries would see it. They are exchanged in the type's own dictionary; the type stays what it was. (`today` reads
   ``time.time`` by itself.) Where the interpreter does not allow that, `uncaught` says so; `clew lint` still finds it.

A caught call is looked at along the stack, up to the activation. It passes if an import, a logger, a debugger or one
of the other `PASSED_MODULES` made it, if a finaliser did, or if only Clew and the standard library took part. Else it
raises `RestrictedWorkflowAccessError`, which names the call, the workflow's source line and the replacement.

What it cannot see: C code that reads the clock or opens files by itself (pydantic's ``past``/``future`` checks, drivers
not in `LATE_PATCHES`); aliases hidden in C objects before `install` (the ``default_factory`` of a pydantic or msgspec
field); taking a free `threading.Lock` of module level, which changes nothing (a contended one is found by the
blocked-thread watchdog); numpy's global generator. If ``time_machine`` is in the process, the clock is left to it.
"""

from __future__ import annotations

import functools
import gc
import importlib
import linecache
import logging
import sys
import types
from _thread import get_ident  # Whose thread this is; no thread is made here.
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final, cast, final

from clew.exceptions import RestrictedWorkflowAccessError
from clew.replay._guard_rules import (
    AUDITED,
    CLOCK,
    CLOCK_PATCHES,
    CLOCK_REPLACERS,
    LATE_PATCHES,
    PASSED_MODULES,
    PATCHES,
    Patch,
    Rule,
)

_log: Final = logging.getLogger("clew.guard")

_guarded: Final[dict[int, tuple[str, types.CodeType]]] = {}
"""Thread id → what it runs and the function in which the activation began."""

_collecting: Final[set[int]] = set()
"""Threads in a garbage collection: what finalisers do then is nobody's workflow."""

_UNRESTRICTED: Final = "If the answer cannot influence the workflow: `with workflow.unsafe.sandbox_unrestricted():`."


def enter(run_label: str, root: types.CodeType | None = None) -> None:
    """Guard the calling thread until `exit`.

    To be called by the very function that runs the activation: calls are looked at along the stack down to its frame,
    and once that is gone nothing is refused any more.

    Args:
        run_label: Says in errors which workflow it was, as ``ClaimWorkflow claim-17``.
        root: The code of that function, from whom knows it: asking the interpreter is an audit event.
    """
    _guarded[get_ident()] = (run_label, sys._getframe(1).f_code if root is None else root)


def exit() -> None:
    """Guard the calling thread no more; no error if it was not."""
    _guarded.pop(get_ident(), None)


def is_guarded() -> bool:
    """Whether the calling thread is guarded now."""
    return get_ident() in _guarded


@final
class activated:  # noqa: N801 (a context manager, read as a function)
    """Guard the calling thread inside a ``with`` block."""

    __slots__ = ("_run_label",)

    def __init__(self, run_label: str) -> None:
        self._run_label = run_label

    def __enter__(self) -> None:
        _guarded[get_ident()] = (self._run_label, sys._getframe(1).f_code)

    def __exit__(self, *exc_info: object) -> None:
        _guarded.pop(get_ident(), None)


@contextmanager
def suspended() -> Generator[None]:
    """Let everything pass inside the block (`workflow.unsafe.sandbox_unrestricted`). Do not await inside it."""
    thread_id = get_ident()
    before = _guarded.pop(thread_id, None)
    try:
        yield
    finally:
        # An activation that ended meanwhile (an await inside) has nothing to restore.
        if before is not None and thread_id not in _guarded:
            _guarded[thread_id] = before


# --- the verdict on a caught call -----------------------------------------------------------------


def _judge(rule: Rule, name: str) -> None:
    """Raise if workflow code is behind the call that the calling thread is about to make."""
    thread_id = get_ident()
    if thread_id in _collecting:
        return
    entry = _guarded.pop(thread_id)  # What follows may open files itself, to show the source line.
    try:
        frame, called = _find_caller(rule, name, entry[1])
        if frame is not None:
            raise _refusal(rule, called, frame, entry[0])
    finally:
        _guarded[thread_id] = entry


def _find_caller(rule: Rule, name: str, root: types.CodeType) -> tuple[types.FrameType | None, str]:
    """The frame to blame, None for nobody; and the call as its author wrote it."""
    frame: types.FrameType | None = sys._getframe(2)
    caller: types.FrameType | None = None
    blamed: types.FrameType | None = None
    called = name
    gc_callbacks = {getattr(getattr(callback, "__func__", callback), "__code__", None) for callback in gc.callbacks}
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        top = module.partition(".")[0]
        if module in PASSED_MODULES or top in PASSED_MODULES or _is_of_collector(frame.f_code, gc_callbacks):
            return None, called
        if caller is None and module != __name__:
            if top == "clew" or (rule.is_user_only and top in sys.stdlib_module_names and not _is_through(module)):
                return None, called
            if top not in sys.stdlib_module_names:
                caller = blamed = frame
            elif not _is_through(module):
                # A private module is where the interpreter of the day keeps it (3.13 has pathlib._local).
                public = ".".join(part for part in module.split(".") if not part.startswith("_"))
                called = f"{public or module}.{frame.f_code.co_qualname}".removesuffix(".__init__")
        elif blamed is not None and _is_remote(blamed) and top != "clew" and top not in sys.stdlib_module_names:
            blamed = frame
        if frame.f_code is root:
            break
        frame = frame.f_back
    else:
        return None, called  # A thread that was interrupted before it could `exit`: its activation is over.
    if caller is not None and _is_spared(rule, caller):
        blamed = None
    return blamed, called


def _is_of_collector(code: types.CodeType, gc_callbacks: set[Any]) -> bool:
    """Whether it runs because an object ended, or a collection began or ended, at this moment by chance."""
    return code.co_name == "__del__" or code in gc_callbacks


def _is_through(module: str) -> bool:
    """Whether workflow code reads the environment itself through this module."""
    return module in ("os", "collections.abc", "_collections_abc", "posixpath", "ntpath")


def _is_remote(frame: types.FrameType) -> bool:
    """Whether the line of the user's project that led here tells more: this is a package's, or generated code."""
    file = frame.f_code.co_filename
    return _in_packages(file) or file.startswith("<")


def _in_packages(file: str) -> bool:
    return "site-packages" in file or "dist-packages" in file


def _is_spared(rule: Rule, frame: types.FrameType) -> bool:
    if not rule.spared_packages or not _in_packages(frame.f_code.co_filename):
        return False
    return "*" in rule.spared_packages or frame.f_globals["__name__"].partition(".")[0] in rule.spared_packages


def _refusal(rule: Rule, called: str, frame: types.FrameType, run_label: str) -> RestrictedWorkflowAccessError:
    place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno, frame.f_globals).strip()
    message = (
        f"Workflow code ({run_label}) used {called} at {place}, in {frame.f_code.co_qualname}"
        f"{f': `{line}`' if line else ''}. It was refused, because {rule.reason}. {rule.remedy} {_UNRESTRICTED}"
    )
    return RestrictedWorkflowAccessError(message, qualified_name=called, source_line=place)


# --- net 1: audit events --------------------------------------------------------------------------


_WATCHED: Final = frozenset((*AUDITED, "import"))


def _audit(event: str, args: tuple[Any, ...]) -> None:
    # Most of what the interpreter tells is none of these, and is told of Clew's own doings.
    if event in _WATCHED:
        _look_at(event, args)


def _look_at(event: str, args: tuple[Any, ...]) -> None:
    if event == "import":
        if args[0] in CLOCK_REPLACERS:
            _leave_clock_alone(str(args[0]))
    elif _guarded and get_ident() in _guarded and not (event == "open" and _is_time_zone(args[0])):
        _judge(AUDITED[event], event)


def _is_time_zone(path: object) -> bool:
    """`zoneinfo` is C code that opens its tables with no frame of its own on the stack."""
    zoneinfo = sys.modules.get("zoneinfo")
    return zoneinfo is not None and isinstance(path, str) and path.startswith(zoneinfo.TZPATH)


def _note_collection(phase: str, info: dict[str, int]) -> None:
    if _guarded and get_ident() in _guarded:
        (_collecting.add if phase == "start" else _collecting.discard)(get_ident())


# --- net 2: wrapped functions ---------------------------------------------------------------------


@final
class _Installation:
    """What was changed in this process, so that it can be taken back."""

    def __init__(self) -> None:
        self.is_audited = False
        self.is_installed = False
        self.is_clock_left_alone = False
        self.clock_undo: list[Callable[[], None]] = []
        self.undo: list[Callable[[], None]] = []
        self.wrappers: dict[Any, Callable[..., Any]] = {}
        """Original → wrapper; equal bound methods of C count as one."""
        self.clock_originals: set[Any] = set()
        self.patched: set[tuple[str, str]] = set()
        self.adopted: set[str] = set()
        self.uncaught: dict[str, str] = {}


_installation: Final = _Installation()


def uncaught() -> dict[str, str]:
    """What is not caught at the call in this process, with the reason; empty on a usual CPython."""
    return dict(_installation.uncaught)


def install() -> None:
    """Set the nets up in this process. Does nothing the second time, except for modules imported since."""
    state = _installation
    if not state.is_audited:
        sys.addaudithook(_audit)  # Never to be removed; without guarded threads it costs some nanoseconds.
        state.is_audited = True
    if not state.is_installed:
        state.is_installed = True
        gc.callbacks.insert(0, _note_collection)
        state.undo.append(functools.partial(gc.callbacks.remove, _note_collection))
        for patch in PATCHES:
            _apply(patch, state.undo)
        replacer = next((name for name in sorted(CLOCK_REPLACERS) if name in sys.modules), None)
        if replacer is not None:
            _leave_clock_alone(replacer)
        else:
            _wrap_clock()
    for patch in LATE_PATCHES:
        if patch.owner.partition(":")[0] in sys.modules:
            _apply(patch, state.undo)
    for name, module in list(sys.modules.items()):
        if name not in state.adopted and _is_of_user(name, module):
            _adopt(name, module)


def uninstall() -> None:
    """Take back every change but the dormant audit hook (tests of the guard itself need this)."""
    state = _installation
    for undo in reversed(state.clock_undo + state.undo):
        undo()
    state.clock_undo.clear()
    state.undo.clear()
    state.wrappers.clear()
    state.clock_originals.clear()
    state.patched.clear()
    state.adopted.clear()
    state.uncaught.clear()
    state.is_installed = state.is_clock_left_alone = False


def _wrap_clock() -> None:
    state = _installation
    before = set(state.wrappers)
    for patch in CLOCK_PATCHES:
        _apply(patch, state.clock_undo)
    _exchange_datetime_methods()
    state.clock_originals = set(state.wrappers) - before


def _leave_clock_alone(replacer: str) -> None:
    state = _installation
    if state.is_clock_left_alone:
        return
    state.is_clock_left_alone = True
    for undo in reversed(state.clock_undo):
        undo()
    state.clock_undo.clear()
    for original in state.clock_originals:
        state.wrappers.pop(original, None)
    state.uncaught["time and datetime"] = f"{replacer} replaces the clock in this process"
    _log.warning("guard.clock_uncaught reason=%s", state.uncaught["time and datetime"])


def _apply(patch: Patch, undo: list[Callable[[], None]]) -> None:
    key = (patch.owner, patch.name)
    owner = _resolve(patch.owner)
    original: Any = _own_attribute(owner, patch.name)
    if owner is None or original is None or key in _installation.patched:
        return  # This Python has no such function, or it is wrapped already.
    if isinstance(original, type):
        return  # From 3.13 on `threading.Lock` is a class: people check instances against it.
    _installation.patched.add(key)
    shown = patch.shown or f"{patch.owner.replace(':', '.')}.{patch.name}"
    kind: Any = cast(Any, type(original))
    wrapper: Any = _wrap(original.__func__ if kind in (classmethod, staticmethod) else original, patch, shown)
    if kind in (classmethod, staticmethod):
        wrapper = cast(Any, kind(wrapper))
    elif not isinstance(owner, type):
        _installation.wrappers[original] = wrapper
    setattr(owner, patch.name, wrapper)
    undo.append(functools.partial(setattr, owner, patch.name, original))


def _wrap(original: Callable[..., Any], patch: Patch, shown: str) -> Callable[..., Any]:
    rule, when, guarded, thread_id, judge = patch.rule, patch.when, _guarded, get_ident, _judge

    if when is None:

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if guarded and thread_id() in guarded:
                judge(rule, shown)
            return original(*args, **kwargs)

    else:

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if guarded and thread_id() in guarded and when(args, kwargs):
                judge(rule, shown)
            return original(*args, **kwargs)

    return functools.update_wrapper(wrapper, original)


def _own_attribute(owner: Any, name: str) -> Any:
    """What stands in the owner's own namespace, unbound; None if nothing does."""
    namespace: dict[str, Any] = cast(Any, vars(owner)) if owner is not None else {}
    return namespace.get(name)


def _resolve(owner: str) -> Any:
    module_name, _, class_name = owner.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError:
        return None
    return getattr(module, class_name, None) if class_name else module


# --- names that were bound before the wrapper stood there -----------------------------------------


def adopt(module_name: str) -> None:
    """Rebind what a module imported by name before `install`, wherever it lies (an installed package too)."""
    module = sys.modules.get(module_name)
    if module is not None and module_name not in _installation.adopted:
        _adopt(module_name, module)


def _is_of_user(name: str, module: types.ModuleType) -> bool:
    top = name.partition(".")[0]
    if top == "clew" or top in sys.stdlib_module_names:
        return False
    file = getattr(module, "__dict__", {}).get("__file__")
    return isinstance(file, str) and not _in_packages(file)


def _adopt(name: str, module: types.ModuleType) -> None:
    _installation.adopted.add(name)
    for key, value in list(vars(module).items()):
        _rebind(value, functools.partial(_set_item, vars(module), key))
        if isinstance(value, type) and value.__module__ == name:
            for attribute, member in list(vars(value).items()):
                _rebind(member, functools.partial(_set_attribute, value, attribute))
                _rebind_in_function(member, vars(module))
        else:
            _rebind_in_function(value, vars(module))


def _rebind_in_function(value: Any, module_globals: dict[str, Any]) -> None:
    function: Any = getattr(value, "__func__", value)
    # Only what the module defines itself: a wrapper of ours that it has imported holds the original for good reason.
    if not isinstance(function, types.FunctionType) or function.__globals__ is not module_globals:
        return
    for cell in function.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError:
            continue  # Not filled yet.
        _rebind(content, functools.partial(_set_attribute, cell, "cell_contents"))
    keyword_defaults = function.__kwdefaults__ or {}
    for name, default in list(keyword_defaults.items()):
        _rebind(default, functools.partial(_set_item, keyword_defaults, name))
    for index, default in enumerate(function.__defaults__ or ()):
        _rebind(default, functools.partial(_set_default, function, index))


def _rebind(value: Any, assign: Callable[[Any], None]) -> None:
    if isinstance(value, staticmethod):
        _rebind(value.__func__, lambda function: assign(staticmethod(function)))
        return
    if not isinstance(value, (types.BuiltinFunctionType, types.FunctionType, types.MethodType)):
        return
    state = _installation
    wrapper = state.wrappers.get(value)
    if wrapper is None:
        return
    assign(wrapper)
    undo = state.clock_undo if value in state.clock_originals else state.undo
    undo.append(functools.partial(assign, value))


def _set_item(mapping: dict[str, Any], key: str, value: Any) -> None:
    mapping[key] = value


def _set_attribute(owner: Any, name: str, value: Any) -> None:
    setattr(owner, name, value)


def _set_default(function: types.FunctionType, index: int, value: Any) -> None:
    defaults = list(function.__defaults__ or ())
    defaults[index] = value
    function.__defaults__ = tuple(defaults)


# --- net 3: the methods of datetime ---------------------------------------------------------------


def _exchange_datetime_methods() -> None:
    """Put wrappers for `now` and `utcnow` into the C type's own dictionary."""
    state = _installation
    datetime_type = importlib.import_module("datetime").datetime
    try:
        namespace = _namespace_of(datetime_type)
        announce = _announcer()
    except (ImportError, AttributeError, LookupError) as error:
        state.uncaught["datetime.now"] = f"this Python does not let it be wrapped: {error!r}"
        return
    for name in ("now", "utcnow"):
        original = namespace[name]
        bound = getattr(datetime_type, name)
        namespace[name] = classmethod(_wrap_datetime_method(original, f"datetime.{name}"))
        announce(datetime_type)
        state.wrappers[bound] = getattr(datetime_type, name)
        state.clock_undo.append(functools.partial(_restore_method, datetime_type, name, original))
    if not all(isinstance(vars(datetime_type)[name], classmethod) for name in ("now", "utcnow")):
        state.uncaught["datetime.now"] = "this Python does not let it be wrapped"


def _wrap_datetime_method(original: Any, shown: str) -> Callable[..., Any]:
    guarded, thread_id, judge, bind = _guarded, get_ident, _judge, original.__get__

    def wrapper(cls: type[Any], *args: Any, **kwargs: Any) -> Any:
        if guarded and thread_id() in guarded:
            judge(CLOCK, shown)
        return bind(None, cls)(*args, **kwargs)

    return functools.update_wrapper(wrapper, original)


def _restore_method(datetime_type: type[Any], name: str, original: Any) -> None:
    _namespace_of(datetime_type)[name] = original
    _announcer()(datetime_type)


def _namespace_of(cls: type[Any]) -> dict[str, Any]:
    referents: list[Any] = gc.get_referents(vars(cls))
    for referent in referents:
        is_dict: bool = type(referent) is dict
        if is_dict and "now" in referent:
            return cast(dict[str, Any], referent)
    raise LookupError(f"the dictionary of {cls.__name__} is not reachable")


def _announcer() -> Callable[[type[Any]], None]:
    """The interpreter's own way to drop what it has cached about a type."""
    ctypes: Any = importlib.import_module("ctypes")
    modified = ctypes.pythonapi.PyType_Modified
    return lambda cls: modified(ctypes.py_object(cls))
