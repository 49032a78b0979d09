"""The reference page of the ``clew`` command, made from the command itself."""

from __future__ import annotations

import inspect

import click

from clew.cli import _errors as codes
from clew.cli._app import app

EXIT_CODES = {
    0: "Done.",
    codes.LINT_FINDINGS: "`lint`: there are findings.",
    2: "Wrong usage, or an argument that cannot be right.",
    3: "A server does not know the caller, or does not let it do that.",
    4: "No such store, namespace, workflow or run.",
    5: "The workflow id is taken.",
    6: "Not in the state the run is in.",
    7: "A limit is reached.",
    8: "The query's handler raised, or there is no such query.",
    9: "Unavailable: another process owns the store, no worker, or the time given is over.",
    10: "A bug in Clew, or a damaged store.",
    codes.FAILED: "`workflow result`: the workflow failed.",
    codes.CANCELLED: "`workflow result`: it was cancelled.",
    codes.TERMINATED: "`workflow result`: it was terminated.",
    codes.TIMED_OUT: "`workflow result`: it timed out.",
    codes.CONTINUED: "`workflow result --no-follow-runs`: it continued as new.",
    codes.PARTLY_DONE: "A command on many runs did not succeed on each of them.",
    codes.DOES_NOT_FIT: "`replay`, `deploy check`: a history does not fit the code.",
    130: "Interrupted.",
    141: "The reader of its output had enough.",
}

INTRODUCTION = """\
Results go to stdout, messages to stderr. With `--output json` stdout holds exactly one JSON document, also when the
command fails (`{"error": {"code": …, "message": …, "exit_code": …}}`); with `jsonl` one document a line. Colour is
used on a terminal only, and never when `NO_COLOR` is set.

Commands that only read (`list`, `count`, `show`, `describe`, `result`, `stack`, `debug`, `replay`, `deploy check`)
work while another process owns the store, without asking it. All others join that process, or own the store for
their time.

`--store` (or `--address`, which is the same) takes the connection string of a store, or `host:port` of a server,
where all commands work alike. Each of `--store`, `--namespace`, `--api-key` and `--output` comes from the flag; else
from `CLEW_ADDRESS`, `CLEW_NAMESPACE`, `CLEW_API_KEY`, `CLEW_OUTPUT`; else from a profile: a table of
`clew/clew.toml` in the user's configuration directory (or of the file that `CLEW_CONFIG_FILE` names), chosen by
`--profile` or `CLEW_PROFILE`, or the one named `default`:

```toml
[profile.prod]
address = "clew.example.com:7233"
namespace = "claims"
api_key_file = "~/.clew-key"

[profile.prod.tls]
server_root_ca_file = "ca.pem"
```

`eval "$(_CLEW_COMPLETE=bash_source clew)"` completes commands in bash; `zsh_source` and `fish_source` do it for
those."""


def cli_lines() -> list[str]:
    """The page, line by line."""
    lines = [
        "# The `clew` command",
        "",
        "Install it with `pip install 'clew[cli]'`.",
        "",
        *INTRODUCTION.splitlines(),
        "",
    ]
    lines += ["| exit code | means |", "|---|---|"]
    lines += [f"| {code} | {text} |" for code, text in EXIT_CODES.items()]
    lines += _commands("clew", app)
    return lines


def _commands(path: str, command: click.Command) -> list[str]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        found = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
        return [line for name, one in found if one is not None for line in _commands(f"{path} {name}", one)]
    arguments = [_argument(p) for p in command.params if isinstance(p, click.Argument)]
    lines = ["", f"## `{' '.join([path, *arguments])}`", "", *inspect.cleandoc(command.help or "").splitlines()]
    options = [p for p in command.params if isinstance(p, click.Option)]
    if options:
        lines += ["", "| option | value | default | |", "|---|---|---|---|"]
        lines += [_option_row(option) for option in options]
    return lines


def _argument(argument: click.Argument) -> str:
    name = argument.metavar or (argument.name or "").upper()
    return name if argument.required else f"[{name}]"


def _option_row(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in sorted([*option.opts, *option.secondary_opts], key=len, reverse=True))
    value = "" if option.is_flag else option.metavar or _type_name(option.type)
    is_plain = isinstance(option.default, (str, int, float)) and not isinstance(option.default, bool)
    default = f"`{option.default}`" if is_plain and option.default != "" else ""
    text = (option.help or "") + (" Required." if option.required else "")
    return f"| {names} | {value} | {default} | {text.strip()} |"


def _type_name(kind: click.ParamType) -> str:
    if isinstance(kind, click.Choice):
        return " ".join(f"`{choice}`" for choice in kind.choices)
    return kind.name.upper().replace(" RANGE", "")
