"""Groups of commands that answer a typo with what was probably meant.

Owns: `NounGroup`. Never: a command.
"""

from __future__ import annotations

import difflib

import click


class NounGroup(click.Group):
    """A group whose unknown commands name the closest known ones."""

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
