"""Names of the published SDK's sandbox; accepted, and without effect.

Workflow code is not run in re-imported modules here: a guard meets what is not deterministic at the call. So a program
that configures the sandbox runs as it is, and its configuration says nothing any more.

Owns: the names. Never: restricts anything (the guard of ``replay`` does).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Self


@dataclass(frozen=True)
class SandboxRestrictions:
    """What a sandbox would let through; every method gives the same restrictions back."""

    passthrough_modules: frozenset[str] = frozenset()
    invalid_modules: Any = None
    invalid_module_members: Any = None
    passthrough_all_modules: bool = False

    default: ClassVar[SandboxRestrictions]
    """Nothing in particular."""

    def with_passthrough_modules(self, *modules: str) -> Self:
        """Accept modules to pass through."""
        return self

    def with_passthrough_all_modules(self) -> Self:
        """Accept that all modules pass through."""
        return self


SandboxRestrictions.default = SandboxRestrictions()


class WorkflowRunner:
    """Base of what a worker accepts as ``workflow_runner``."""


@dataclass(frozen=True)
class SandboxedWorkflowRunner(WorkflowRunner):
    """Accepted as ``workflow_runner``; workflows run as they always do."""

    restrictions: SandboxRestrictions = field(default_factory=SandboxRestrictions)


@dataclass(frozen=True)
class UnsandboxedWorkflowRunner(WorkflowRunner):
    """Accepted as ``workflow_runner``; workflows run as they always do."""
