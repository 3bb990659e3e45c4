r"""The command line: ``journeyman COMMAND``. The table COMMANDS says in which module each one is.

    journeyman serve | worker | status | top | ping | add | result | jobs | queues | rules | fan-out
               timetable | set | get | ls | rm | runs | tail | token | completion
               dump | verify | repair | compact | clean | handover | generate
               workq-server | config | demo | deploy | doctor | backup | restore | soak
               mcp | pipeline | storage

    argv --click--> one command module --> formats, folds, logs on a real disk
                                       \-> stdout: the answer; stderr: warnings, progress, errors

A command's module is imported when the command is asked for, so that ``--help`` and each
command do not pay for the others. What every command promises:

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
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import click

from journeyman import __version__
from journeyman.cli.errors import debug_asked, exit_code_for, quiet_endings

__all__ = ["journeyman", "main"]

GC_THRESHOLD = 500_000  # new objects between two looks for cycles

# For each command: its place below this package and its line in --help, which imports no command.
COMMANDS = {
    "add": ("server.jobs:add", "Add a job to QUEUE and print its id."),
    "backup": ("backup:backup", "Back up a data directory, while the server runs."),
    "clean": ("compact:clean", "Drop records of expired and deleted jobs from a workq log."),
    "compact": ("compact:compact", "Shrink the log at PATH."),
    "completion": (":completion", "Print a shell completion script."),
    "config": ("config:config", "Check the configuration and show the settings in effect."),
    "demo": ("demo:demo", "Make a data directory with two days of a shop, and serve it."),
    "deploy": (
        "deploy:deploy",
        "Print files for systemd, compose, Kubernetes or Helm, filled in.",
    ),
    "doctor": ("doctor:doctor", "Check settings, machine and data directory."),
    "dump": ("dump:dump", "Print the records of the logs at PATH, one per line."),
    "fan-out": ("server.queues:fan_out", "List fan-out queues."),
    "generate": ("generate:generate", "Write a realistic log of DIALECT to PATH."),
    "get": ("server.runs:get_job", "Show the status and time of a job of the schedule."),
    "handover": ("handover:handover", "Prepare logs for the original program."),
    "emit": ("server.jobs:emit", "Let EVENT happen, for the jobs that wait for it."),
    "jobs": ("server.jobs:jobs", "List, show, fork, cancel, requeue and remove jobs."),
    "ls": ("server.runs:list_scheduled", "List jobs of the schedule."),
    "mcp": ("mcp:mcp", "Serve tools for agents: status, search, failures, the past."),
    "ping": ("server.status:ping", "Check that the server answers."),
    "pipeline": ("pipeline:pipeline", "Replay, shrink, convert, audit and query logs on Spark."),
    "queues": ("server.queues:queues", "List, pause, resume and limit queues of the work queue."),
    "replay-failures": (
        "server.replay_failures:replay_failures",
        "Run failed jobs against the code of today, in memory.",
    ),
    "repair": ("repair:repair", "Repair the log at PATH."),
    "restore": ("backup:restore_command", "Restore a backup into a new data directory."),
    "result": ("server.jobs:result", "Print the result of a job."),
    "rm": ("server.runs:remove_scheduled", "Remove jobs from the schedule."),
    "rules": ("server.schedule:rules", "List, add and remove rules of the schedule."),
    "runs": ("server.runs:runs", "List and show runs of the schedule."),
    "serve": ("serve:serve", "Run the schedule, the work queue and the fan-out queues."),
    "set": ("server.runs:set_job", "Plan JOB for TIME, or plan it again."),
    "soak": ("soak:soak", "Load a server of its own for hours, kill it, and check every answer."),
    "status": ("server.status:status", "Show the state of each service."),
    "storage": ("storage:storage", "Follow, check, rebuild, list, import and export the store."),
    "tail": ("server.status:tail", "Print records as they become durable, until Ctrl-C."),
    "timetable": (
        "server.schedule:timetable",
        "Add and manage recurring jobs.",
    ),
    "token": ("config:token", "Create tokens for a server's auth file."),
    "top": ("server.status:top", "Show the queues repeatedly, until Ctrl-C."),
    "verify": ("verify:verify", "Check the log at PATH."),
    "worker": ("worker:worker", "Run the jobs of an app until SIGTERM."),
    "workers": ("server.workers:workers", "List the workers that the server knows."),
    "workq-server": ("serve:workq_server", "Run only the work queue, with workq's flags."),
}


class LazyGroup(click.Group):
    """A group that imports a command when it is asked for, and for its help none."""

    package: ClassVar[str] = __name__
    table: ClassVar[Mapping[str, tuple[str, str]]] = COMMANDS

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click asks so
        return list(self.table)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002 - click asks so
        cmd_name: str,
    ) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        place, _, attribute = self.table[cmd_name][0].partition(":")
        module = importlib.import_module(f"{self.package}.{place}".rstrip("."))
        command = getattr(module, attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002 - click asks so
        formatter: click.HelpFormatter,
    ) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in self.table.items()])


class RootGroup(LazyGroup):
    """Words every failure alike."""

    def invoke(self, ctx: click.Context) -> Any:
        return quiet_endings(lambda: super(RootGroup, self).invoke(ctx))

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        """Run, and turn whatever goes wrong into one line and an exit code."""
        words = sys.argv[1:] if args is None else args
        extra["standalone_mode"] = False
        code = exit_code_for(
            lambda: super(RootGroup, self).main(words, *rest, **extra), debug=debug_asked(words)
        )
        raise SystemExit(code)


@click.group(
    cls=RootGroup,
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


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a shell completion script.

    For bash: journeyman completion bash > ~/.local/share/bash-completion/completions/journeyman
    """
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    assert made is not None
    root = ctx.find_root().command
    click.echo(made(root, {}, "journeyman", "_JOURNEYMAN_COMPLETE").source())


def main() -> None:
    """Run the command line: the entry point of the ``journeyman`` script."""
    # Records and states hold no cycles, and there are millions of them: with the default
    # thresholds the collector walks them again and again, for a quarter of the whole time.
    gc.set_threshold(GC_THRESHOLD)
    journeyman.main(prog_name="journeyman")
