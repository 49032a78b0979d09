"""Goes through one function of workflow code.

Owns: what its lines do, in their order, and which functions of the project it calls. Never: leaves the function.

How it works: statements are visited as they stand, so that a name stands for what was assigned to it last. Functions,
lambdas and comprehensions within are part of it. Left out is what does not run in a workflow: blocks under
``workflow.unsafe.sandbox_unrestricted()``, ``if TYPE_CHECKING``, and the other side of ``if workflow.in_workflow()``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import TypeAlias, final

from clew.lint._calls import rule_of
from clew.lint._entries import WORKFLOW, is_activity, is_property, is_workflow
from clew.lint._names import (
    ACTIVITY_CALLS,
    ASKING,
    AWAITED,
    CLASSES,
    LOG_METHODS,
    MUTATORS,
    ORDERED,
    REFERENCE_CALLS,
    TIMEOUTS,
    UNORDERED,
    UNRESTRICTED,
    is_shared_attribute,
)
from clew.lint._project import External, FunctionNode, Project, ProjectClass, ProjectFunction, ProjectValue
from clew.lint._rules import (
    CHANCE,
    DIRECT_ACTIVITY,
    IDENTITY,
    NO_TIMEOUT,
    NOT_AWAITED,
    PRINTS,
    READ_ONLY,
    SET_ORDER,
    SHARED_STATE,
    SWALLOWS,
    LintRule,
)
from clew.lint._scope import A_GENERATOR, A_LOGGER, A_SET, CONTAINERS, Instance, Known, Scope

Report: TypeAlias = Callable[[ast.AST, Sequence[int], LintRule, str], None]
Follow: TypeAlias = Callable[[ProjectFunction, ProjectClass | None, ast.AST], None]


@final
class FunctionCheck(ast.NodeVisitor):
    """One function.

    Args:
        project: Where imports lead.
        function: The function.
        this: The class of its first parameter, if it is a method.
        is_read_only: Whether it runs for a query handler or validator.
        report: Told of what is found: where, the lines it concerns, the rule, what it is.
        follow: Told of functions of the project that are called.
    """

    def __init__(
        self,
        project: Project,
        function: ProjectFunction,
        *,
        this: ProjectClass | None,
        is_read_only: bool,
        report: Report,
        follow: Follow,
    ) -> None:
        self._project = project
        self._function = function
        self._scope = Scope(project, function, this=this)
        self._is_read_only = is_read_only
        self._report_to = report
        self._follow_to = follow
        self._statement: ast.stmt = function.node

    def run(self) -> None:
        """Go through it."""
        arguments = self._function.node.args
        for default in (*arguments.defaults, *(d for d in arguments.kw_defaults if d is not None)):
            if self._scope.this is not None and isinstance(default, ast.Call):
                self.visit(default)
        for statement in self._function.node.body:
            self.visit(statement)

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt):
            outer, self._statement = self._statement, node
            super().visit(node)
            self._statement = outer
        else:
            super().visit(node)

    # --- statements ----------------------------------------------------------------------------------------

    def visit_Import(self, node: ast.Import) -> None:
        self._scope.define(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self._scope.define(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._visit_inner(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._visit_inner(node)

    def _visit_inner(self, node: FunctionNode) -> None:
        self._scope.define(node)
        inner = Scope(self._project, ProjectFunction(self._function.module, node), outer=self._scope)
        outer, self._scope = self._scope, inner
        for statement in node.body:
            self.visit(statement)
        self._scope = outer

    def visit_Lambda(self, node: ast.Lambda) -> None:
        nothing = ast.FunctionDef("<lambda>", node.args, [], [])
        inner = Scope(self._project, ProjectFunction(self._function.module, nothing), outer=self._scope)
        outer, self._scope = self._scope, inner
        self.visit(node.body)
        self._scope = outer

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._scope.define(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        call = node.value
        if isinstance(call, ast.Call):
            known = self._scope.known(call.func)
            is_ours = isinstance(known, External) and known.dotted in AWAITED
            if is_ours or (isinstance(known, ProjectFunction) and _is_coroutine_function(known.node)):
                self._report(call, NOT_AWAITED, f"{ast.unparse(call.func)}(…) without await")
        self.visit(call)

    def visit_If(self, node: ast.If) -> None:
        always = self._condition(node.test)
        if always is None:
            self.visit(node.test)
        for branch, is_taken in ((node.body, always is not False), (node.orelse, always is not True)):
            for statement in branch if is_taken else ():
                self.visit(statement)

    def _condition(self, test: ast.expr) -> bool | None:
        """What a test always is in a workflow; None for most."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self._condition(test.operand)
            return None if inner is None else not inner
        known = self._scope.known(test.func if isinstance(test, ast.Call) else test)
        name = known.dotted if isinstance(known, External) else ""
        if name.endswith(".TYPE_CHECKING"):
            return False
        return True if isinstance(test, ast.Call) and name == f"{WORKFLOW}in_workflow" else None

    def visit_With(self, node: ast.With) -> None:
        for item in node.items:
            known = self._scope.known(item.context_expr.func) if isinstance(item.context_expr, ast.Call) else None
            if isinstance(known, External) and known.dotted in UNRESTRICTED:
                return
        self._visit_with(node)

    def visit_AsyncWith(self, node: ast.AsyncWith) -> None:
        self._visit_with(node)

    def _visit_with(self, node: ast.With | ast.AsyncWith) -> None:
        prefix = "a" if isinstance(node, ast.AsyncWith) else ""
        for item in node.items:
            self.visit(item.context_expr)
            known = self._scope.known(item.context_expr)
            if isinstance(known, Instance) and isinstance(known.of, ProjectClass):
                for name in (f"__{prefix}enter__", f"__{prefix}exit__"):
                    self._follow_member(known.of, name, node)
            if isinstance(item.optional_vars, ast.Name):
                self._scope.assign(item.optional_vars.id, known)
        for statement in node.body:
            self.visit(statement)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        known = self._scope.known(node.value)
        for target in node.targets:
            self._assign(target, known)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
        known = self._scope.annotated(node.annotation) or (self._scope.known(node.value) if node.value else None)
        if node.value is not None or isinstance(node.target, ast.Name):
            self._assign(node.target, known)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.visit(node.value)
        before = self._scope.known(node.target) if isinstance(node.target, ast.Name) else None
        self._assign(node.target, before)

    def visit_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            self._assign(target, None)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        self._scope.assign(node.target.id, self._scope.known(node.value))

    def _assign(self, target: ast.expr, known: Known | None) -> None:
        match target:
            case ast.Name(id=name):
                if name in self._scope.globals:
                    self._report(target, SHARED_STATE, f"A change of the module's variable {name}")
                self._scope.assign(name, known)
            case ast.Attribute(value=value) | ast.Subscript(value=value):
                self._check_write(target, value)
                self.generic_visit(target)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                for element in elements:
                    self._assign(element, None)
            case ast.Starred(value=value):
                self._assign(value, None)
            case _:
                pass

    def _check_write(self, target: ast.expr, value: ast.expr) -> None:
        """Look at a write into something: ``value.x = …`` or ``value[…] = …``."""
        shared = self._shared(value)
        if shared is None and isinstance(target, ast.Attribute):
            owner = self._scope.known(value)
            is_class = isinstance(owner, ProjectClass)
            is_module = isinstance(owner, External) and not self._is_local(value)
            shared = f"{ast.unparse(target)}" if is_class or is_module else None
        if shared is not None:
            self._report(target, SHARED_STATE, f"A change of {shared}")
        elif self._is_read_only and self._is_of_this(value):
            self._report(target, READ_ONLY, f"A change of {ast.unparse(target)} in a query handler or validator")

    def _shared(self, node: ast.expr) -> str | None:
        """Give the name of something that all runs share and that can be changed; None if it is none."""
        known = self._scope.known(node)
        if isinstance(known, ProjectValue) and self._is_container(self._scope.of_value(known)):
            return f"the module's variable {ast.unparse(node)}"
        if isinstance(node, ast.Attribute):
            owner = self._scope.known(node.value)
            of = owner.of if isinstance(owner, Instance) else owner
            if isinstance(of, ProjectClass) and is_shared_attribute(of.node, node.attr):
                return f"the class attribute {of.node.name}.{node.attr}"
        return None

    @staticmethod
    def _is_container(known: Known | None) -> bool:
        return isinstance(known, Instance) and isinstance(known.of, External) and known.of.dotted in CONTAINERS

    def _is_local(self, node: ast.expr) -> bool:
        while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
            node = node.func if isinstance(node, ast.Call) else node.value
        return not isinstance(node, ast.Name) or self._scope.is_local(node.id)

    def _is_of_this(self, node: ast.expr) -> bool:
        while isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        return isinstance(node, ast.Name) and node.id == self._scope.this_name != ""

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if self._catches_cancellation(node.type) and not any(isinstance(n, ast.Raise) for n in ast.walk(node)):
            caught = ast.unparse(node.type) if node.type is not None else "everything"
            self._report(node, SWALLOWS, f"An `except` of {caught} that does not raise")
        self.generic_visit(node)

    def _catches_cancellation(self, caught: ast.expr | None) -> bool:
        if caught is None:
            return True
        if isinstance(caught, ast.Tuple):
            return any(self._catches_cancellation(one) for one in caught.elts)
        known = self._scope.known(caught)
        return isinstance(known, External) and known.dotted == "builtins.BaseException"

    # --- sets ----------------------------------------------------------------------------------------------

    def visit_For(self, node: ast.For) -> None:
        self._check_order(node.iter)
        self.visit(node.iter)
        self._assign(node.target, None)
        for statement in (*node.body, *node.orelse):
            self.visit(statement)

    def visit_ListComp(self, node: ast.ListComp) -> None:
        self._visit_comprehension(node, node.generators, is_ordered=True)

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self._visit_comprehension(node, node.generators, is_ordered=True)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> None:
        self._visit_comprehension(node, node.generators, is_ordered=True)

    def visit_SetComp(self, node: ast.SetComp) -> None:
        self._visit_comprehension(node, node.generators, is_ordered=False)

    def _visit_comprehension(self, node: ast.AST, generators: Sequence[ast.comprehension], *, is_ordered: bool) -> None:
        for generator in generators:
            if is_ordered:
                self._check_order(generator.iter)
        self.generic_visit(node)

    def visit_Starred(self, node: ast.Starred) -> None:
        self._check_order(node.value)
        self.generic_visit(node)

    def _check_order(self, node: ast.expr) -> None:
        known = self._scope.known(node)
        if (self._scope.of_value(known) if isinstance(known, ProjectValue) else known) == A_SET:
            self._report(node, SET_ORDER, f"Going through the set {_short(node)}")

    # --- calls ---------------------------------------------------------------------------------------------

    def visit_Call(self, node: ast.Call) -> None:
        known = self._scope.known(node.func)
        match known:
            case External(dotted):
                self._visit_external(node, dotted)
                return
            case ProjectFunction():
                self._visit_project_call(node, known)
            case ProjectClass():
                self._visit_construction(node, known)
            case _:
                pass
        if isinstance(node.func, ast.Attribute):
            self._check_method(node, node.func)
        self._visit_children(node, node.args)

    def _visit_project_call(self, node: ast.Call, function: ProjectFunction) -> None:
        if is_activity(self._project, function):
            self._report(node, DIRECT_ACTIVITY, f"A direct call of activity {ast.unparse(node.func)}")
            return
        self._follow(function, node.func, node)

    def _visit_construction(self, node: ast.AST, owner: ProjectClass) -> None:
        if is_workflow(self._project, owner):
            return
        for name in ("__new__", "__init__", "__post_init__"):
            self._follow_member(owner, name, node)
        for statement in owner.node.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.value, ast.Call):
                for keyword in statement.value.keywords:
                    if keyword.arg == "default_factory":
                        self._check_factory(node, owner, keyword.value)

    def _check_factory(self, node: ast.AST, owner: ProjectClass, factory: ast.expr) -> None:
        """Look at what makes the default of a field: it runs where the object is made."""
        body = factory.body if isinstance(factory, ast.Lambda) else factory
        target = body.func if isinstance(body, ast.Call) else body
        symbol = self._project.named(owner.module, target)
        if isinstance(symbol, External):
            rule = rule_of(symbol.dotted, body if isinstance(body, ast.Call) else None)
            if rule is not None:
                self._report(node, rule, f"{owner.node.name}(…), whose default comes from {symbol.dotted},")
        elif isinstance(symbol, ProjectFunction):
            self._follow_to(symbol, None, node)

    def _visit_external(self, node: ast.Call, dotted: str) -> None:
        rule = rule_of(dotted, node)
        if rule is not None:
            self._report(node, rule, f"{_written(dotted)}()")
        if dotted in ("builtins.id", "builtins.hash"):
            self._report(node, IDENTITY, f"{_written(dotted)}()")
        if dotted == "builtins.print":
            self._report(node, PRINTS, "print()")
        if dotted in ORDERED:
            for arg in node.args:
                if not isinstance(arg, ast.Starred):
                    self._check_order(arg)
        if self._is_read_only and dotted in ASKING:
            self._report(node, READ_ONLY, f"{_written(dotted)}() in a query handler or validator")
        if dotted in ACTIVITY_CALLS and not any(k.arg is None or k.arg in TIMEOUTS for k in node.keywords):
            self._report(node, NO_TIMEOUT, f"{_written(dotted)}(…) without a timeout")
        if isinstance(node.func, ast.Attribute):
            self._check_method(node, node.func)
        if dotted in UNORDERED and len(node.args) == 1 and isinstance(node.args[0], ast.GeneratorExp):
            # sum(… for x in a_set) does not care either.
            self.generic_visit(node.args[0])
            self._visit_children(node, [])
            return
        self._visit_children(node, node.args[1:] if dotted in REFERENCE_CALLS else node.args)

    def _check_method(self, node: ast.Call, func: ast.Attribute) -> None:
        """Look at a call of a method: does it change what is shared, take from a set, or log?"""
        base, name = func.value, func.attr
        if name in MUTATORS:
            shared = self._shared(base)
            if shared is not None:
                self._report(node, SHARED_STATE, f"A change of {shared}")
            elif self._is_read_only and self._is_of_this(base) and self._is_plain_method(func):
                self._report(node, READ_ONLY, f"A change of {ast.unparse(base)} in a query handler or validator")
        known = self._scope.known(base)
        value = self._scope.of_value(known) if isinstance(known, ProjectValue) else known
        if isinstance(known, ProjectValue) and value == A_GENERATOR:
            self._report(node, CHANCE, f"{ast.unparse(func)}() of a generator that all runs share")
        if name == "pop" and value == A_SET:
            self._report(node, SET_ORDER, f"{ast.unparse(func)}() of a set")
        if name == "join" and node.args:
            self._check_order(node.args[0])
        if name in LOG_METHODS and value == A_LOGGER:
            self._report(node, PRINTS, f"{ast.unparse(func)}() of a logger of your own")

    def _is_plain_method(self, func: ast.Attribute) -> bool:
        """Whether a method is one of a container, as far as can be told, and not of the project."""
        is_own = isinstance(func.value, ast.Name)
        return not is_own and (self._scope.known(func) is None or self._is_container(self._scope.known(func.value)))

    def _visit_children(self, node: ast.Call, args: Sequence[ast.expr]) -> None:
        # The name itself was looked at; what it is called on was not.
        if isinstance(node.func, ast.Attribute):
            self.visit(node.func.value)
        elif not isinstance(node.func, ast.Name):
            self.visit(node.func)
        for argument in (*args, *(keyword.value for keyword in node.keywords)):
            if isinstance(argument, (ast.Name, ast.Attribute)):
                self._check_mention(argument)
            self.visit(argument)

    def _check_mention(self, node: ast.Name | ast.Attribute) -> None:
        """Look at a function that is handed on, and so will be called."""
        known = self._scope.known(node)
        if isinstance(known, External):
            # Only what reads the clock or throws dice: most others need arguments that decide.
            rule = rule_of(known.dotted, None)
            if rule is not None and rule.code in ("CLW101", "CLW103") and known.dotted not in CLASSES:
                self._report(node, rule, f"{_written(known.dotted)}, handed on,")
        elif isinstance(known, ProjectFunction) and not is_property(known) and not self._runs_elsewhere(known):
            self._follow(known, node, node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        known = self._scope.known(node)
        if isinstance(known, ProjectFunction) and is_property(known):
            self._follow(known, node, node)
        self._check_environment(node, known)
        self.visit(node.value)

    def visit_Name(self, node: ast.Name) -> None:
        self._check_environment(node, self._scope.known(node))

    def _check_environment(self, node: ast.expr, known: Known | None) -> None:
        if isinstance(known, External) and known.dotted in ("os.environ", "os.environb"):
            rule = rule_of(known.dotted, None)
            assert rule is not None, "it is in the table"
            self._report(node, rule, _written(known.dotted))

    # --- what is found -------------------------------------------------------------------------------------

    def _runs_elsewhere(self, function: ProjectFunction) -> bool:
        """Whether it is an activity, or a method of a workflow, which is gone through for its own sake."""
        owner = function.owner
        return is_activity(self._project, function) or (
            owner is not None and is_workflow(self._project, ProjectClass(function.module, owner))
        )

    def _follow(self, function: ProjectFunction, func: ast.expr, call: ast.AST) -> None:
        this: ProjectClass | None = None
        if isinstance(func, ast.Attribute):
            base = self._scope.known(func.value)
            if isinstance(base, ProjectValue):
                base = self._scope.of_value(base)
            of = base.of if isinstance(base, Instance) else base
            this = of if isinstance(of, ProjectClass) else None
        if this is None and function.owner is not None:
            this = ProjectClass(function.module, function.owner)
        self._follow_to(function, this, call)

    def _follow_member(self, owner: ProjectClass, name: str, node: ast.AST) -> None:
        member = self._project.member(owner, name)
        if member is not None:
            self._follow_to(member, owner, node)

    def _report(self, node: ast.AST, rule: LintRule, what: str) -> None:
        first = getattr(node, "lineno", 0)
        lines = (first, getattr(node, "end_lineno", None) or first, self._statement.lineno)
        self._report_to(node, lines, rule, what)


def _is_coroutine_function(function: FunctionNode) -> bool:
    return isinstance(function, ast.AsyncFunctionDef) and not any(isinstance(n, ast.Yield) for n in ast.walk(function))


def _written(dotted: str) -> str:
    """A name as its author writes it."""
    for long, short in (
        ("builtins.", ""),
        ("clew.", ""),
        ("datetime.datetime.", "datetime."),
        ("datetime.date.", "date."),
    ):
        if dotted.startswith(long):
            return f"{short}{dotted.removeprefix(long)}"
    return dotted


def _short(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 40 else f"{text[:39]}…"
