"""The root of the command line: nouns, errors, exit codes.

Owns: how a run of the command ends, whatever happened inside. Never: what a command does (one file a noun).

How it works: click only parses. Every error ends here, as one message on stderr and one exit code; with
``--output json`` also as one JSON document on stdout, so that a script always finds valid JSON there.
"""

from __future__ import annotations

import os
import sys
from typing import Final

import click

from clew.cli._errors import Problem, ReaderGone, problem_of
from clew.cli._groups import NounGroup
from clew.cli._output import print_json

INTERRUPTED: Final = 130
"""128 + SIGINT, as shells have it."""

BROKEN_PIPE: Final = 141
"""128 + SIGPIPE: the reader (``head``, ``less``) had enough."""


_NOUNS: Final = (
    "activity", "db", "deploy", "dev", "key", "lint", "namespace", "queue", "replay", "server", "worker", "workflow",
)  # fmt: skip
"""Each is the object of its name in the module of its name."""


@click.group(
    cls=NounGroup,
    later={noun: f"clew.cli.{noun}:{noun}" for noun in _NOUNS},
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 done, 2 wrong usage, 3 not allowed, 4 not found, 5 exists, 6 not now, 7 limit, "
    "8 query failed, 9 unavailable, 10 internal; `workflow result`, `update`: 11 failed, 12 cancelled, "
    "13 terminated, 14 timed out, 15 went on; `replay`, `deploy check`: 17 does not fit; `lint`: 1 findings.",
)
@click.version_option(package_name="clew", message="clew %(version)s")
def app() -> None:
    """Durable workflows: look at them, start them, talk to them."""


def run(args: list[str]) -> int:
    """Run one command and give its exit code; prints every error."""
    try:
        code = app.main(args=args, prog_name="clew", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except (ReaderGone, BrokenPipeError):
        _silence_stdout()
        return BROKEN_PIPE
    except (KeyboardInterrupt, click.Abort):
        print("Interrupted.", file=sys.stderr)
        return INTERRUPTED
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - the boundary: every error becomes a message and an exit code
        return _report(problem_of(error), is_json=_wants_json(args))


def _report(problem: Problem, *, is_json: bool) -> int:
    try:
        if is_json:
            print_json({"error": problem.facts})
            sys.stdout.flush()
    except BrokenPipeError:
        _silence_stdout()
    print(f"Error: {problem.message}", file=sys.stderr)
    return problem.exit_code


def _wants_json(args: list[str]) -> bool:
    """Whether JSON was asked for, also when the command line as a whole could not be parsed."""
    for at, arg in enumerate(args):
        if arg in ("--output", "-o"):
            return args[at + 1 : at + 2] in (["json"], ["jsonl"])
        if arg in ("--output=json", "--output=jsonl", "-ojson", "-ojsonl"):
            return True
    return os.environ.get("CLEW_OUTPUT", "") in ("json", "jsonl")


def _silence_stdout() -> None:
    """Keep the interpreter from complaining when it flushes a pipe that nobody reads."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


__all__ = ["app", "run"]
