"""Arguments given on the command line, as JSON.

Owns: reading them from options, files and stdin, and refusing what is not JSON.
Never: converts them to types (the worker that has the types does).

How it works: the texts are passed on as they are, as payloads of strict JSON, so that a number of any size arrives
digit for digit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from clew.cli._errors import CommandError
from clew.common import Payload, RawValue
from clew.model.payload import ENCODING_KEY, JSON_PLAIN

F = TypeVar("F", bound=Callable[..., Any])


def input_options(function: F) -> F:
    """Add ``--input`` and ``--input-file`` to a command."""
    function = click.option(
        "--input-file",
        "input_files",
        multiple=True,
        metavar="FILE",
        help="An argument as JSON in a file; '-' reads stdin. Repeat for several.",
    )(function)
    return click.option(
        "--input", "-i", "inputs", multiple=True, metavar="JSON", help="An argument as JSON. Repeat for several."
    )(function)


def read_arguments(inputs: Sequence[str], input_files: Sequence[str]) -> list[RawValue]:
    """Give the arguments, those of ``--input`` before those of ``--input-file``.

    Raises:
        CommandError: One is not JSON, or a file cannot be read.
    """
    texts = [(f"--input number {at}", text.encode("utf-8", "surrogateescape")) for at, text in enumerate(inputs, 1)]
    texts += [(f"--input-file {name}", _read_file(name)) for name in input_files]
    return [_json_argument(source, data) for source, data in texts]


def _read_file(name: str) -> bytes:
    if name == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise CommandError(f"Cannot read --input-file {name}: {error.strerror}.") from error


def _json_argument(source: str, data: bytes) -> RawValue:
    stripped = data.strip()
    try:
        stripped.decode()
        msgspec.json.decode(stripped, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        hint = ""
        text = stripped.decode("utf-8", "replace")
        if stripped and "\n" not in text and '"' not in text:
            hint = f" If it is a text, quote it for JSON: '\"{text}\"'."
        raise CommandError(f"{source} is not JSON: {error}.{hint}") from error
    return RawValue(Payload({ENCODING_KEY: JSON_PLAIN}, stripped))
