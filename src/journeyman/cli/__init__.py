r"""The command line: ``journeyman COMMAND``, one module a command.

    journeyman serve | worker | status | top | ping | add | result | jobs | queues | rules | fan-out
               timetable | tail | token | completion
               dump | verify | repair | compact | clean | generate | import-kestrel
               workq-server | config | doctor | backup | restore | pipeline | storage

    argv --click--> one command module --> formats, folds, logs on a real disk
                                       \-> stdout: the answer; stderr: warnings, progress, errors

A command's module is imported when the command is asked for, so that ``--version`` and ``--help``
of one command do not pay for the others. What every command promises:

- stdout holds only the answer, as text or as JSON lines; everything else goes to stderr.
- an error is one line ``journeyman: error: what, where, what to do``, never a traceback (unless
  ``--debug`` or JOURNEYMAN_DEBUG=1 asks for it).
- exit codes: 0 done, 1 failed or damaged, 2 the command line asks for something impossible.

docs/cli.md describes each command; a command or option that is missing there fails the tests.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Sequence
from typing import Any

import click

from journeyman import __version__
from journeyman.cli.errors import debug_asked, exit_code_for, quiet_endings

__all__ = ["journeyman", "main"]

GC_THRESHOLD = 500_000  # new objects between two looks for cycles

# command name -> module and attribute that hold it
COMMANDS = {
    "add": "journeyman.cli.server.jobs:add",
    "backup": "journeyman.cli.backup:backup",
    "clean": "journeyman.cli.compact:clean",
    "compact": "journeyman.cli.compact:compact",
    "completion": "journeyman.cli.completion:completion",
    "config": "journeyman.cli.config:config",
    "doctor": "journeyman.cli.doctor:doctor",
    "dump": "journeyman.cli.dump:dump",
    "fan-out": "journeyman.cli.server.queues:fan_out",
    "generate": "journeyman.cli.generate:generate",
    "import-kestrel": "journeyman.cli.import_kestrel:import_kestrel",
    "jobs": "journeyman.cli.server.jobs:jobs",
    "ping": "journeyman.cli.server.status:ping",
    "pipeline": "journeyman.cli.pipeline:pipeline",
    "queues": "journeyman.cli.server.queues:queues",
    "repair": "journeyman.cli.repair:repair",
    "restore": "journeyman.cli.backup:restore_command",
    "result": "journeyman.cli.server.jobs:result",
    "rules": "journeyman.cli.server.rules:rules",
    "serve": "journeyman.cli.serve:serve",
    "status": "journeyman.cli.server.status:status",
    "storage": "journeyman.cli.storage:storage",
    "timetable": "journeyman.cli.server.timetables:timetable",
    "tail": "journeyman.cli.server.tail:tail",
    "token": "journeyman.cli.token:token",
    "top": "journeyman.cli.server.status:top",
    "verify": "journeyman.cli.verify:verify",
    "worker": "journeyman.cli.worker:worker",
    "workq-server": "journeyman.cli.serve:workq_server",
}


class LazyGroup(click.Group):
    """A group that imports a command when it is asked for, and words every failure alike."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click asks so
        return sorted(COMMANDS)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002 - click asks so
        cmd_name: str,
    ) -> click.Command | None:
        where = COMMANDS.get(cmd_name)
        if where is None:
            return None
        module, _, attribute = where.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        return quiet_endings(lambda: super(LazyGroup, self).invoke(ctx))

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        """Run, and turn whatever goes wrong into one line and an exit code."""
        words = sys.argv[1:] if args is None else args
        extra["standalone_mode"] = False
        code = exit_code_for(
            lambda: super(LazyGroup, self).main(words, *rest, **extra), debug=debug_asked(words)
        )
        raise SystemExit(code)


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="journeyman", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def journeyman(
    ctx: click.Context,
    debug: bool,  # noqa: ARG001 - errors.debug_asked has seen it
) -> None:
    """A durable scheduler and job queue.

    `serve` runs the server, `worker` the jobs of an application. Commands like `status`, `add` and
    `jobs` talk to a server (--server URL or $JOURNEYMAN_URL); those with a PATH work on logs.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main() -> None:
    """What the ``journeyman`` script calls."""
    # Records and states hold no cycles, and there are millions of them: with the default
    # thresholds the collector walks them again and again, for a quarter of the whole time.
    gc.set_threshold(GC_THRESHOLD)
    journeyman.main(prog_name="journeyman")
