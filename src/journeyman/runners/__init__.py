"""Runners do what a rule says when a job is due: the only effects the schedule has on the world.

    contract.py    a request in, a result out: what every runner promises
    runner_set.py  the right runner for a request; what runs share, and its end

    shell.py       a command, by a shell       \\
    direct.py      a program, without one       >  process.py   start, limit, end, whole groups
    awf.py         a workflow, by `awf`        /   child.py     one of them, as events of the loop
                                                   guardian.py  ends those of a killed server
                                                   process_wording.py  environment, exit in words
    http.py        a request                       \\
    amqp.py        a message, confirmed             >  network.py  what went wrong, in words
    redis.py       a command                       /   dsn.py      addresses of brokers

    queue.py       a job of the work queue, and
    journal.py     an item of a fan-out queue: of this server itself

    output.py      head and tail of what a run said
    redaction.py   no credentials in any text

Runners know no job, no schedule and no clock. docs/runners.md says what each one does and promises.
"""

from __future__ import annotations

from journeyman.runners.contract import Runner, RunRequest, RunResult
from journeyman.runners.network import redact
from journeyman.runners.runner_set import RunnerSet

__all__ = ["RunRequest", "RunResult", "Runner", "RunnerSet", "redact"]
