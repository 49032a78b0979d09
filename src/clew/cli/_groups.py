"""Groups of commands that load them when they are wanted, and answer a typo, or an option in the wrong place, with what
was probably meant.

Owns: `NounGroup`. Never: a command.

How it works: a command that nobody runs is not imported: `clew dev` should answer at once, and needs none of what
`clew replay` does.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import Any, cast

import click


class NounGroup(click.Group):
    """A group whose unknown commands name the closest known ones.

    Args:
        later: Commands that are loaded when they are wanted: name to ``module:object``.
    """

    def __init__(self, *args: Any, later: Mapping[str, str] | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.later = dict(later or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands."""
        return sorted({*self.commands, *self.later})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, loaded if it was not."""
        if cmd_name in self.later:
            module, _, name = self.later[cmd_name].partition(":")
            self.add_command(cast(click.Command, getattr(importlib.import_module(module), name)), cmd_name)
            self.later.pop(cmd_name, None)
        return super().get_command(ctx, cmd_name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read what comes before the command; an option of the command itself is told where it belongs."""
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            path = self._path_to(ctx, given, error.option_name)
            if path is None:
                raise
            raise click.UsageError(
                f"{error.option_name} is an option of `{path}` and comes after it: "
                f"`{path} {error.option_name} …`, not before.",
                ctx=ctx,
            ) from error

    def _path_to(self, ctx: click.Context, args: list[str], option: str) -> str | None:
        """The command among the arguments that has such an option."""
        found: click.Command = self
        path = ctx.command_path
        for arg in args:
            below = found.get_command(ctx, arg) if isinstance(found, click.Group) and not arg.startswith("-") else None
            if below is not None:
                found, path = below, f"{path} {arg}"
        has_it = any(option in (*param.opts, *param.secondary_opts) for param in found.params)
        return path if found is not self and has_it else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the first argument names."""
        name = args[0]
        if self.get_command(ctx, name) is not None or name.startswith("-"):
            return super().resolve_command(ctx, args)
        known = self.list_commands(ctx)
        close = difflib.get_close_matches(name, known, n=3)
        meant = f"Did you mean {' or '.join(repr(c) for c in close)}?" if close else f"There are: {', '.join(known)}."
        raise click.UsageError(f"No command {name!r} in `{ctx.command_path}`. {meant}", ctx=ctx)
