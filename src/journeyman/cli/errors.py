"""How a command says that something went wrong: one line on stderr and an exit code.

    exit 0    done                       (also a closed pipe: the reader has seen enough)
    exit 1    failed, or damage found    OSError, LogError, FormatError, anything unexpected
    exit 2    asked wrongly              a bad option, a setting that cannot be, UsageError
    exit 3    to be decided first        handover: the original would not do what was promised
    exit 130  interrupted from the keyboard

This is the one place where an exception of any kind ends; everywhere else an exception that is
not expected passes through.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable, Sequence

import click

from journeyman.errors import JourneymanError, LogLocked, UsageError

OK = 0
FAILED = 1
DAMAGED = 1
WRONG_USE = 2
UNDECIDED = 3
INTERRUPTED = 130  # as a shell reports a process ended by SIGINT

_MEANT_AS_LISTEN = ("--port", "--host", "--bind", "--address", "--addr")

DEBUG_VARIABLE = "JOURNEYMAN_DEBUG"

_NO_COMMAND = re.compile(r"No such command '(\S+)'")
_LINE_BREAKS = re.compile(r"\s*[\r\n]\s*")


def exit_code_for(run: Callable[[], object], *, debug: bool) -> int:
    """Run a command; print one line if it fails; answer with the exit code."""
    try:
        result = run()
    except click.Abort:
        return INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:  # a group alone: the message is its help
        click.echo(error.format_message())
        return OK
    except click.UsageError as error:
        return _complain(_hint(error), error, WRONG_USE, debug)
    except click.ClickException as error:
        return _complain(error.format_message(), error, FAILED, debug)
    except UsageError as error:
        return _complain(sentence(error), error, WRONG_USE, debug)
    except Exception as error:  # noqa: BLE001 - the edge of the program: said in one line, exit 1
        return _complain(sentence(error), error, FAILED, debug)
    # The result of click is the exit code if --help or ctx.exit ended the command.
    return result if isinstance(result, int) else OK


def quiet_endings(run: Callable[[], object]) -> object:
    """Run a command; a closed pipe and Ctrl-C end it without a word."""
    try:
        result = run()
        sys.stdout.flush()
    except BrokenPipeError:
        forget_stdout()
        raise click.exceptions.Exit(OK) from None
    except KeyboardInterrupt:
        raise click.exceptions.Exit(INTERRUPTED) from None
    return result


def debug_asked(args: Sequence[str]) -> bool:
    """Return whether tracebacks are wanted: by option or by environment.

    The words of the command line are looked at because a bad one never becomes parsed options.
    """
    return "--debug" in args or os.environ.get(DEBUG_VARIABLE, "") not in ("", "0")


def sentence(error: BaseException) -> str:
    """Return what went wrong, for a person: what, where, what to do."""
    if isinstance(error, LogLocked):
        return f"{error}; stop the process that uses it and try again"
    if isinstance(error, JourneymanError):
        return _one_line(str(error))
    if isinstance(error, OSError):
        return _one_line(_os_sentence(error))
    said = _one_line(str(error))
    kind = type(error).__name__
    return f"unexpected {kind}: {said}; run `journeyman --debug ...` to see where"


def warn(text: str) -> None:
    """One warning on stderr, worded as the original of ztick words its own."""
    click.echo(f"warning: {_one_line(text)}", err=True)


def _os_sentence(error: OSError) -> str:
    where = error.filename if error.filename is not None else ""
    if isinstance(where, bytes):
        where = os.fsdecode(where)
    if isinstance(error, FileNotFoundError):
        return f"file not found: {where}"
    if isinstance(error, PermissionError):
        return f"permission denied: {where}"
    if isinstance(error, IsADirectoryError):
        return f"a directory, where a file is needed: {where}"
    if isinstance(error, NotADirectoryError):
        return f"a file, where a directory is needed: {where}"
    reason = error.strerror or str(error)
    return f"{reason}: {where}" if where else reason


def _hint(error: click.UsageError) -> str:
    command = error.ctx.command_path if error.ctx is not None else "journeyman"
    said = error.format_message().rstrip(".")
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        known = {name for each in error.ctx.command.params for name in each.opts}
        if error.option_name in _MEANT_AS_LISTEN and "--listen" in known:
            return f"{said}: use --listen HOST:PORT; see `{command} --help`"
    if (meant := _meant_command(error)) is not None:
        return f"{said}; did you mean `{command} {meant}`?"
    return f"{said}; see `{command} --help`"


def _meant_command(error: click.UsageError) -> str | None:
    """The command that is nearest to a word that is none, if one is near."""
    ctx = error.ctx
    wrong = _NO_COMMAND.search(error.format_message())
    if ctx is None or wrong is None or not isinstance(ctx.command, click.Group):
        return None
    known = ctx.command.list_commands(ctx)
    for name in known:  # `journeyman sql` is meant as `journeyman pipeline sql`
        group = ctx.command.get_command(ctx, name)
        if isinstance(group, click.Group) and wrong[1] in group.list_commands(ctx):
            return f"{name} {wrong[1]}"
    from difflib import get_close_matches

    return next(iter(get_close_matches(wrong[1], known, 1, 0.7)), None)


def _complain(line: str, error: BaseException, code: int, debug: bool) -> int:
    if debug:
        import traceback

        click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    click.echo(f"journeyman: error: {_one_line(line)}", err=True)
    return code


def _one_line(text: str) -> str:
    return _LINE_BREAKS.sub(" ", text.strip())


def forget_stdout() -> None:
    """Stdout is not read any more: keep the interpreter's last flush from complaining."""
    try:
        number = sys.stdout.fileno()
    except (io.UnsupportedOperation, ValueError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)
