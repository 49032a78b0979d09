"""Which code is workflow code from the start, and whether its definitions can work.

Owns: finding workflow classes, handlers, interceptors and activities by their decorators; the checks of signatures.
Never: what stands in their bodies.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, final

from clew.lint._project import (
    External,
    FunctionNode,
    Module,
    Project,
    ProjectClass,
    ProjectFunction,
    dotted_text,
)
from clew.lint._rules import ASYNC_QUERY, NOT_DATA, LintRule

WORKFLOW: Final = "clew.workflow."
_HANDLERS: Final = frozenset({"run", "signal", "query", "update"})
_INTERCEPTORS: Final = ("WorkflowInboundInterceptor", "WorkflowOutboundInterceptor")

_NO_DATA_TYPES: Final = (
    "collections.abc.Callable", "collections.abc.Iterator", "collections.abc.Generator",
    "collections.abc.AsyncIterator",
    "collections.abc.AsyncGenerator", "collections.abc.Coroutine", "collections.abc.Awaitable", "typing.Callable",
    "typing.Iterator", "typing.Generator", "typing.AsyncIterator", "typing.AsyncGenerator", "typing.Coroutine",
    "typing.Awaitable", "typing.IO", "typing.TextIO", "typing.BinaryIO", "asyncio", "threading", "socket", "io",
    "multiprocessing", "concurrent.futures", "logging.Logger", "types", "sqlite3", "re.Pattern", "re.Match",
    "contextvars", "weakref",
)  # fmt: skip
"""Types, and modules of types, that no converter stores."""

Report: TypeAlias = Callable[[Module, ast.AST, Sequence[int], LintRule, str], None]


@final
@dataclass(frozen=True, slots=True)
class Entry:
    """A function that is workflow code because of where it stands."""

    function: ProjectFunction
    this: ProjectClass
    is_read_only: bool
    workflow: str


def entries_of(project: Project, module: Module) -> Iterator[Entry]:
    """Give the methods of a module's workflows and workflow interceptors, those of their bases too."""
    for node in _classes(module.tree):
        owner = ProjectClass(module, node)
        if is_workflow(project, owner) or _is_interceptor(project, owner):
            yield from _methods(project, owner, owner, set())


def check_definitions(project: Project, module: Module, report: Report) -> None:
    """Report handlers that are async and must not be, and parameters that are no data."""
    for owner in _classes(module.tree):
        for method in owner.body:
            if not isinstance(method, FunctionNode):
                continue
            handler = handler_kind(project, module, method)
            if handler in ("query", "validator") and isinstance(method, ast.AsyncFunctionDef):
                what = f"The {handler} {'handler ' if handler == 'query' else ''}{owner.name}.{method.name} is async"
                report(module, method, [method.lineno], ASYNC_QUERY, what)
            if handler is not None:
                _check_parameters(project, module, method, f"{owner.name}.{method.name}", report)
    for node in _statements(module.tree):
        if isinstance(node, FunctionNode) and is_activity(project, ProjectFunction(module, node)):
            _check_parameters(project, module, node, f"activity {node.name}", report)


def is_workflow(project: Project, owner: ProjectClass) -> bool:
    """Whether a class is decorated with ``workflow.defn``."""
    return any(name == f"{WORKFLOW}defn" for name in _decorators(project, owner.module, owner.node))


def is_activity(project: Project, function: ProjectFunction) -> bool:
    """Whether a function is decorated with ``activity.defn``."""
    return any(name == "clew.activity.defn" for name in _decorators(project, function.module, function.node))


def is_property(function: ProjectFunction) -> bool:
    """Whether a method is called by naming it."""
    names = {dotted_text(decorator) or "" for decorator in function.node.decorator_list}
    return any(name.rpartition(".")[2] in ("property", "cached_property") for name in names)


def handler_kind(project: Project, module: Module, method: FunctionNode) -> str | None:
    """Say what a method handles: ``run``, ``signal``, ``query``, ``update`` or ``validator``; None if nothing."""
    for decorator, name in zip(method.decorator_list, _decorators(project, module, method), strict=True):
        if name.startswith(WORKFLOW) and name.removeprefix(WORKFLOW) in _HANDLERS:
            return name.removeprefix(WORKFLOW)
        if isinstance(decorator, ast.Attribute) and decorator.attr == "validator":
            return "validator"
    return None


def _methods(project: Project, owner: ProjectClass, this: ProjectClass, seen: set[tuple[str, str]]) -> Iterator[Entry]:
    """Methods of a class and then of its bases, those it overrides left out."""
    for method in owner.node.body:
        if isinstance(method, FunctionNode) and ("", method.name) not in seen:
            seen.add(("", method.name))
            kind = handler_kind(project, owner.module, method)
            function = ProjectFunction(owner.module, method, owner.node)
            if not is_activity(project, function):
                yield Entry(function, this, kind in ("query", "validator"), this.node.name)
    for base in project.bases(owner):
        key = ("class", base.node.name) if isinstance(base, ProjectClass) else ("", "")
        if isinstance(base, ProjectClass) and key not in seen:
            seen.add(key)
            yield from _methods(project, base, this, seen)


def _classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    return (node for node in _statements(tree) if isinstance(node, ast.ClassDef))


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """All statements, at any depth; expressions, which hold none, are not gone through."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        inner: list[ast.AST] = getattr(node, name, [])
        for statement in inner:
            if isinstance(statement, ast.stmt):
                yield statement
            yield from _statements(statement)


def _is_interceptor(project: Project, owner: ProjectClass) -> bool:
    return any(
        isinstance(base, External) and base.dotted.startswith("clew.") and base.dotted.endswith(_INTERCEPTORS)
        for base in project.bases(owner)
    )


def _decorators(project: Project, module: Module, node: FunctionNode | ast.ClassDef) -> list[str]:
    """The full names of decorators, in their order; empty for those that have none."""
    names: list[str] = []
    for decorator in node.decorator_list:
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        symbol = project.named(module, target)
        names.append(symbol.dotted if isinstance(symbol, External) else "")
    return names


def _check_parameters(project: Project, module: Module, function: FunctionNode, shown: str, report: Report) -> None:
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    for parameter in positional:
        name = _no_data_type(project, module, parameter.annotation)
        if name is not None:
            what = f"Parameter {parameter.arg!r} of {shown} is a {name}"
            report(module, parameter, [function.lineno], NOT_DATA, what)
    for parameter, default in zip(positional[::-1], arguments.defaults[::-1], strict=False):
        name = _no_data_default(project, module, default)
        if name is not None:
            what = f"Parameter {parameter.arg!r} of {shown} has {name} as its default"
            report(module, default, [function.lineno], NOT_DATA, what)


def _no_data_type(project: Project, module: Module, annotation: ast.expr | None) -> str | None:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        try:
            annotation = ast.parse(annotation.value, mode="eval").body
        except SyntaxError:
            return None
    match annotation:
        case None:
            return None
        case ast.BinOp(left=left, right=right):
            return _no_data_type(project, module, left) or _no_data_type(project, module, right)
        case ast.Subscript(value=value, slice=inner):
            parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            found = [_no_data_type(project, module, part) for part in (value, *parts)]
            return next((name for name in found if name is not None), None)
        case _:
            symbol = project.named(module, annotation)
            return symbol.dotted if isinstance(symbol, External) and _is_no_data(symbol.dotted) else None


def _no_data_default(project: Project, module: Module, default: ast.expr) -> str | None:
    if isinstance(default, ast.Lambda):
        return "a lambda"
    if isinstance(default, ast.GeneratorExp):
        return "a generator"
    symbol = project.named(module, default.func if isinstance(default, ast.Call) else default)
    if isinstance(default, ast.Call) and isinstance(symbol, External):
        is_nothing = symbol.dotted in ("builtins.object", "builtins.open", "builtins.iter")
        return f"{ast.unparse(default)}" if is_nothing or _is_no_data(symbol.dotted) else None
    return f"the function {symbol.node.name}" if isinstance(symbol, ProjectFunction) and _is_name(default) else None


def _is_name(node: ast.expr) -> bool:
    return isinstance(node, (ast.Name, ast.Attribute))


def _is_no_data(dotted: str) -> bool:
    return any(dotted == name or dotted.startswith(f"{name}.") for name in _NO_DATA_TYPES)
