"""The `clew` command.

Owns: the entry point. Everything else is loaded when the command runs, and needs the extra ``clew[cli]``.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        args: Arguments without the program's name; those of the process when not given.

    Returns:
        The exit code; ``docs/reference/cli.md`` lists them.
    """
    if importlib.util.find_spec("click") is None:
        print(
            "The clew command needs the library click, which is not installed. Install it with: "
            "pip install 'clew[cli]'",
            file=sys.stderr,
        )
        return 2
    from clew.cli._app import run

    return run(list(sys.argv[1:] if args is None else args))
