"""What expressions in a function stand for, as far as the text tells.

Owns: names in their scopes and the kinds of objects. Never: reports anything.

How it works: the checker walks a function in the order of its lines and tells a `Scope` what is assigned; asked for an
expression, the scope gives a symbol, an `Instance` of a class, or None if it cannot tell. It never guesses: what it
does not know is not reported.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Final, TypeAlias, final

from clew.lint._project import (
    External,
    FunctionNode,
    Project,
    ProjectClass,
    ProjectFunction,
    ProjectModule,
    ProjectValue,
    Symbol,
    imported_names,
)

SET: Final = External("builtins.set")


@final
@dataclass(frozen=True, slots=True)
class Instance:
    """An object of a class."""

    of: External | ProjectClass


Known: TypeAlias = Symbol | Instance

A_SET: Final = Instance(SET)
A_PATH: Final = Instance(External("pathlib.Path"))
A_GENERATOR: Final = Instance(External("random.Random"))
A_LOGGER: Final = Instance(External("logging.Logger"))
A_LOOP: Final = Instance(External("asyncio.AbstractEventLoop"))

_SET_ANNOTATIONS: Final = frozenset({
    "builtins.set", "builtins.frozenset", "typing.Set", "typing.FrozenSet", "typing.AbstractSet", "typing.MutableSet",
    "collections.abc.Set", "collections.abc.MutableSet",
})  # fmt: skip
_SET_METHODS: Final = frozenset({"union", "difference", "intersection", "symmetric_difference", "copy"})
_SET_OPERATORS: Final = (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor)

_RESULTS: Final = {
    "builtins.set": A_SET,
    "builtins.frozenset": A_SET,
    "logging.getLogger": A_LOGGER,
    "asyncio.get_event_loop": A_LOOP,
    "asyncio.get_running_loop": A_LOOP,
    "asyncio.new_event_loop": A_LOOP,
    "threading.Thread": Instance(External("threading.Thread")),
}
"""What functions give."""

CONTAINERS: Final = frozenset({
    "builtins.list", "builtins.dict", "builtins.set", "collections.defaultdict", "collections.deque",
    "collections.Counter", "collections.OrderedDict", "builtins.bytearray", "collections.ChainMap",
})  # fmt: skip


@final
class Scope:
    """The names of one function.

    Args:
        project: Where imports lead.
        function: The function; its parameters are known by their annotations.
        this: The class whose objects its first parameter stands for, if it is a method.
        outer: The scope around it, for a function within a function.
    """

    def __init__(
        self,
        project: Project,
        function: ProjectFunction,
        *,
        this: ProjectClass | None = None,
        outer: Scope | None = None,
    ) -> None:
        self._project = project
        self._outer = outer
        self.module = function.module
        self.this = this
        self.this_name = ""
        self._locals: dict[str, Known | None] = {}
        self.globals: set[str] = set()
        """Names that the function declares as the module's."""
        for node in ast.walk(function.node):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self._locals.setdefault(node.id, None)
            elif isinstance(node, ast.Global):
                self.globals.update(node.names)
        for name in self.globals:
            self._locals.pop(name, None)
        self.add_parameters(function.node.args)
        if this is not None and not _is_static(function.node):
            positional = [*function.node.args.posonlyargs, *function.node.args.args]
            if positional:
                self.this_name = positional[0].arg
                is_class = any(isinstance(d, ast.Name) and d.id == "classmethod" for d in function.node.decorator_list)
                self._locals[self.this_name] = this if is_class else Instance(this)

    def add_parameters(self, arguments: ast.arguments) -> None:
        """Take the parameters of a function, or of a lambda in it, as names of the scope."""
        for parameter in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            self._locals[parameter.arg] = self.annotated(parameter.annotation)
        for rest in (arguments.vararg, arguments.kwarg):
            if rest is not None:
                self._locals[rest.arg] = None

    def assign(self, name: str, known: Known | None) -> None:
        """Note what a name stands for from here on."""
        if name not in self.globals:
            self._locals[name] = known

    def define(self, node: ast.Import | ast.ImportFrom | FunctionNode | ast.ClassDef) -> None:
        """Note an import, function or class within the function."""
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for name, external in imported_names(node, self.module.package).items():
                self._locals[name] = self._project.lookup(external.dotted)
        elif isinstance(node, ast.ClassDef):
            self._locals[node.name] = ProjectClass(self.module, node)
        else:
            # Its body is gone through where it stands.
            self._locals[node.name] = None

    def is_local(self, name: str) -> bool:
        """Whether a name is one of the function, or of one around it."""
        return name in self._locals or (self._outer is not None and self._outer.is_local(name))

    # --- expressions ---------------------------------------------------------------------------------------

    def known(self, node: ast.expr) -> Known | None:
        """Say what an expression stands for; None if it cannot be told."""
        match node:
            case ast.Name(id=name):
                return self._named(name)
            case ast.Attribute(value=value, attr=attr):
                return self._attribute(self.known(value), attr)
            case ast.Call(func=func):
                return self._result(self.known(func))
            case ast.Set() | ast.SetComp():
                return A_SET
            case ast.BinOp(left=left, op=op, right=right):
                return self._operation(self.known(left), op, self.known(right))
            case ast.NamedExpr(value=value) | ast.Starred(value=value):
                return self.known(value)
            case ast.IfExp(body=body, orelse=orelse):
                return self.known(body) or self.known(orelse)
            case _:
                return None

    def _named(self, name: str) -> Known | None:
        if name in self._locals:
            return self._locals[name]
        if self._outer is not None and self._outer.is_local(name):
            return self._outer._named(name)
        found = self._project.bound(self.module, name)
        return found if found is not None else External(f"builtins.{name}")

    def _attribute(self, base: Known | None, attr: str) -> Known | None:
        match base:
            case External(dotted):
                return External(f"{dotted}.{attr}")
            case ProjectModule(module):
                return self._project.lookup(f"{module.name}.{attr}")
            case ProjectClass():
                return self._project.member(base, attr)
            case ProjectValue():
                return self._attribute(self.of_value(base), attr)
            case Instance(of=External(dotted)):
                return External(f"{dotted}.{attr}")
            case Instance(of=ProjectClass() as owner):
                return self._project.member(owner, attr) or self._attribute_of(owner, attr)
            case _:
                return None

    def _attribute_of(self, owner: ProjectClass, attr: str) -> Known | None:
        """What an attribute of an object is, from its annotation or from what a method assigns to it."""
        for statement in owner.node.body:
            match statement:
                case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation) if name == attr:
                    return Scope._of_module(self._project, owner).annotated(annotation)
                case _:
                    pass
        for statement in owner.node.body:
            if isinstance(statement, FunctionNode):
                found = self._assigned_in(owner, statement, attr)
                if found is not None:
                    return found
        for base in self._project.bases(owner):
            if isinstance(base, ProjectClass) and base.node is not owner.node:
                return self._attribute_of(base, attr)
        return None

    def _assigned_in(self, owner: ProjectClass, method: FunctionNode, attr: str) -> Known | None:
        for node in ast.walk(method):
            match node:
                case ast.Assign(targets=[ast.Attribute(value=ast.Name(id=this), attr=name)], value=value):
                    annotation = None
                case ast.AnnAssign(target=ast.Attribute(value=ast.Name(id=this), attr=name), value=value):
                    annotation = node.annotation
                case _:
                    continue
            if name != attr or not method.args.args or this != method.args.args[0].arg:
                continue
            scope = Scope(self._project, ProjectFunction(owner.module, method, owner.node))
            if annotation is not None:
                return scope.annotated(annotation)
            # No attributes of the object itself, lest two that are made of each other never end.
            return scope.known(value) if value is not None and attr not in _attributes_of(value, this) else None
        return None

    def _result(self, function: Known | None) -> Known | None:
        match function:
            case ProjectClass():
                return Instance(function)
            case ProjectFunction():
                scope = Scope(self._project, function)
                return scope.annotated(function.node.returns)
            case External(dotted):
                if dotted in _RESULTS:
                    return _RESULTS[dotted]
                owner, _, name = dotted.rpartition(".")
                if owner in ("builtins.set", "builtins.frozenset"):
                    return A_SET if name in _SET_METHODS else None
                return Instance(function) if name[:1].isupper() or dotted in CONTAINERS else None
            case _:
                return None

    def _operation(self, left: Known | None, op: ast.operator, right: Known | None) -> Known | None:
        if isinstance(op, _SET_OPERATORS) and (left == A_SET or right == A_SET):
            return A_SET
        if isinstance(op, ast.Div) and A_PATH in (left, right):
            return A_PATH
        return None

    def of_value(self, value: ProjectValue) -> Known | None:
        """What a variable of a module is."""
        if value.annotation is not None:
            found = Scope._of_module(self._project, value).annotated(value.annotation)
            if found is not None:
                return found
        match value.value:
            case None:
                return None
            case ast.List() | ast.ListComp():
                return Instance(External("builtins.list"))
            case ast.Dict() | ast.DictComp():
                return Instance(External("builtins.dict"))
            case node:
                return Scope._of_module(self._project, value).known(node)

    # --- annotations ---------------------------------------------------------------------------------------

    def annotated(self, node: ast.expr | None) -> Instance | None:
        """What an object is that is annotated so."""
        match node:
            case None:
                return None
            case ast.Constant(value=str() as text):
                try:
                    return self.annotated(ast.parse(text, mode="eval").body)
                except SyntaxError:
                    return None
            case ast.Subscript(value=value, slice=inner):
                outer = self.known(value)
                name = outer.dotted if isinstance(outer, External) else ""
                if name.endswith((".Optional", ".Annotated", ".Final", ".ClassVar")):
                    return self.annotated(inner.elts[0] if isinstance(inner, ast.Tuple) and inner.elts else inner)
                return self.annotated(value)
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return self.annotated(left) or self.annotated(right)
            case _:
                found = self.known(node)
                if isinstance(found, External):
                    return A_SET if found.dotted in _SET_ANNOTATIONS else Instance(found)
                return Instance(found) if isinstance(found, ProjectClass) else None

    @staticmethod
    def _of_module(project: Project, of: ProjectClass | ProjectValue) -> Scope:
        nothing = ast.FunctionDef("", ast.arguments([], [], None, [], [], None, []), [], [])
        return Scope(project, ProjectFunction(of.module, nothing))


def _attributes_of(node: ast.expr, this: str) -> set[str]:
    return {
        inner.attr
        for inner in ast.walk(node)
        if isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name) and inner.value.id == this
    }


def _is_static(function: FunctionNode) -> bool:
    return any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in function.decorator_list)
