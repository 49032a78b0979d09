"""The modules of a project, read as text.

Owns: which file a module name stands for, what a name in a module is bound to, and where imports lead.
Never: imports or runs anything of the project.

How it works: a module is looked up in the *roots*: the directories above the packages of the checked files, the checked
directories themselves, the current directory and its ``src``. What is not found there is *external* and known by its
dotted name alone, as is everything of ``clew`` itself. Files are read once, when first asked for.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias, final

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@final
@dataclass(frozen=True, slots=True)
class External:
    """Something outside the project, by its dotted name."""

    dotted: str


@final
@dataclass(frozen=True, slots=True)
class ProjectModule:
    """A module of the project."""

    module: Module


@final
@dataclass(frozen=True, slots=True)
class ProjectFunction:
    """A function or method of the project; `owner` is the class it was found in."""

    module: Module
    node: FunctionNode
    owner: ast.ClassDef | None = None


@final
@dataclass(frozen=True, slots=True)
class ProjectClass:
    """A class of the project."""

    module: Module
    node: ast.ClassDef


@final
@dataclass(frozen=True, slots=True)
class ProjectValue:
    """A variable of a module, with what is assigned to it there."""

    module: Module
    name: str
    value: ast.expr | None
    annotation: ast.expr | None


Symbol: TypeAlias = External | ProjectModule | ProjectFunction | ProjectClass | ProjectValue

Binding: TypeAlias = External | FunctionNode | ast.ClassDef | ProjectValue


@final
@dataclass(eq=False, slots=True)
class Module:
    """One file.

    Args:
        name: As it is imported.
        path: Where it is.
        text: What is in it.
        tree: The same, parsed; empty if that failed.
        error: Why it could not be parsed.
        names: What its top level binds.
    """

    name: str
    path: Path
    text: str
    tree: ast.Module
    error: SyntaxError | None = None
    names: dict[str, Binding] = field(default_factory=dict[str, Binding])

    @property
    def package(self) -> str:
        """The package that relative imports start from."""
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]


@final
class Project:
    """All modules that can be reached from some files."""

    def __init__(self, files: Iterable[Path], directories: Iterable[Path]) -> None:
        here = Path.cwd()
        roots = [*directories, here, here / "src"]
        self._by_path: dict[Path, Module] = {}
        self._by_name: dict[str, Module | None] = {}
        self._files = [path.resolve() for path in files]
        self._roots = list(dict.fromkeys([*(_root_of(path) for path in self._files), *(r.resolve() for r in roots)]))

    def checked_modules(self) -> list[Module]:
        """The modules of the files that are to be checked."""
        return [self._load(path, _name_of(path)) for path in self._files]

    def module(self, name: str) -> Module | None:
        """Give the module of a name; None if it is not of the project."""
        if name not in self._by_name:
            path = self._find(name)
            self._by_name[name] = self._load(path, name) if path is not None else None
        return self._by_name[name]

    def lookup(self, dotted: str, depth: int = 0) -> Symbol:
        """Say what a dotted name stands for, through imports of imports."""
        parts = dotted.split(".")
        if parts[0] == "clew" or depth > 20:
            return External(dotted)
        for end in range(len(parts), 0, -1):
            module = self.module(".".join(parts[:end]))
            if module is not None:
                return self._within(module, parts[end:], dotted, depth)
        return External(dotted)

    def _within(self, module: Module, rest: list[str], dotted: str, depth: int) -> Symbol:
        if not rest:
            return ProjectModule(module)
        found = self.bound(module, rest[0], depth)
        if found is None:
            return External(dotted)
        for name in rest[1:]:
            if isinstance(found, External):
                found = External(f"{found.dotted}.{name}")
            elif isinstance(found, ProjectModule):
                found = self.lookup(f"{found.module.name}.{name}", depth + 1)
            elif isinstance(found, ProjectClass):
                found = self.member(found, name) or External(dotted)
            else:
                return External(dotted)
        return found

    def bound(self, module: Module, name: str, depth: int = 0) -> Symbol | None:
        """Say what a name at a module's top level stands for; None if it is not bound there."""
        binding = module.names.get(name)
        match binding:
            case None:
                submodule = self.module(f"{module.name}.{name}") if module.path.name == "__init__.py" else None
                return ProjectModule(submodule) if submodule is not None else None
            case External(dotted):
                return self.lookup(dotted, depth + 1)
            case ast.ClassDef():
                return ProjectClass(module, binding)
            case ProjectValue(value=ast.Name() | ast.Attribute() as value):
                alias = dotted_text(value)
                first, _, rest = (alias or "").partition(".")
                if alias is None or first == name or depth > 20:
                    return binding
                base = self.bound(module, first, depth + 1)
                return (
                    self._within(module, [first, *rest.split(".")] if rest else [first], alias, depth + 1)
                    if base
                    else (External(f"builtins.{alias}"))
                )
            case ProjectValue():
                return binding
            case _:
                return ProjectFunction(module, binding)

    def member(self, owner: ProjectClass, name: str, depth: int = 0) -> ProjectFunction | None:
        """Find a method of a class, or of its bases in the project."""
        for statement in owner.node.body:
            if isinstance(statement, FunctionNode) and statement.name == name:
                return ProjectFunction(owner.module, statement, owner.node)
        for base in self.bases(owner) if depth < 20 else ():
            found = self.member(base, name, depth + 1) if isinstance(base, ProjectClass) else None
            if found is not None:
                return found
        return None

    def bases(self, owner: ProjectClass) -> list[Symbol]:
        """What a class is derived from."""
        found: list[Symbol] = []
        for base in owner.node.bases:
            target = base.value if isinstance(base, ast.Subscript) else base
            symbol = self.named(owner.module, target)
            if symbol is not None:
                found.append(symbol)
        return found

    def named(self, module: Module, node: ast.expr) -> Symbol | None:
        """Say what a dotted expression at a module's top level stands for."""
        dotted = dotted_text(node)
        if dotted is None:
            return None
        first, *rest = dotted.split(".")
        if self.bound(module, first) is None:
            return External(f"builtins.{dotted}")
        return self._within(module, [first, *rest], dotted, 0)

    def _find(self, name: str) -> Path | None:
        parts = name.split(".")
        for root in self._roots:
            base = root.joinpath(*parts)
            for path in (base / "__init__.py", base.with_name(f"{base.name}.py")):
                if path.is_file():
                    return path.resolve()
        return None

    def _load(self, path: Path, name: str) -> Module:
        module = self._by_path.get(path)
        if module is None:
            module = _read(path, name)
            self._by_path[path] = module
        return module


def dotted_text(node: ast.expr) -> str | None:
    """Give ``a.b.c`` of an expression that is nothing else; None for any other."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted_text(node.value)
        return f"{base}.{node.attr}" if base is not None else None
    return None


def imported_names(node: ast.Import | ast.ImportFrom, package: str) -> dict[str, External]:
    """What an import statement binds."""
    if isinstance(node, ast.Import):
        return {
            alias.asname or alias.name.partition(".")[0]: External(
                alias.name if alias.asname else alias.name.partition(".")[0]
            )
            for alias in node.names
        }
    base = node.module or ""
    if node.level:
        parents = package.split(".") if package else []
        kept = parents[: len(parents) - (node.level - 1)]
        base = ".".join([*kept, *([base] if base else [])])
    return {
        alias.asname or alias.name: External(f"{base}.{alias.name}" if base else alias.name)
        for alias in node.names
        if alias.name != "*"
    }


def _read(path: Path, name: str) -> Module:
    text = path.read_bytes().decode("utf-8", "replace")
    try:
        tree = ast.parse(text, str(path))
    except (SyntaxError, ValueError) as error:
        problem = error if isinstance(error, SyntaxError) else SyntaxError(str(error))
        return Module(name, path, text, ast.Module([], []), problem)
    module = Module(name, path, text, tree)
    _bind(module, tree.body)
    return module


def _bind(module: Module, body: list[ast.stmt]) -> None:
    """Note what statements at the top level bind, also those within `if`, `try` and `with`."""
    for statement in body:
        match statement:
            case ast.Import() | ast.ImportFrom():
                module.names.update(imported_names(statement, module.package))
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                module.names[statement.name] = statement
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    if isinstance(target, ast.Name):
                        module.names[target.id] = ProjectValue(module, target.id, value, None)
            case ast.AnnAssign(target=ast.Name(id=name), value=value, annotation=annotation):
                module.names[name] = ProjectValue(module, name, value, annotation)
            case ast.If() | ast.Try() | ast.With():
                for inner in ("body", "orelse", "finalbody"):
                    _bind(module, getattr(statement, inner, []))
                for handler in getattr(statement, "handlers", []):
                    _bind(module, handler.body)
            case _:
                pass


def _root_of(path: Path) -> Path:
    directory = path.parent
    while (directory / "__init__.py").is_file():
        directory = directory.parent
    return directory


def _name_of(path: Path) -> str:
    parts = list(path.relative_to(_root_of(path)).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)
