"""Runners do what a rule says when a job is due: the only effects the schedule has on the world.

    contract.py    a request in, a result out: what every runner promises; no credentials in texts
    runner_set.py  the right runner for a request; those that need no library: a job of the work
                   queue, or an item of a fan-out queue, of this server itself

    programs.py    shell, direct and awf: start, limit, end, whole process groups
    guardian.py    ends the programs of a killed server
    http.py        a request                    \\
    amqp.py        a message, confirmed          >  network.py  what went wrong, in words; addresses
    redis.py       a command                    /

Runners know no job, no schedule and no clock. docs/runners.md says what each one does and promises.
"""

from __future__ import annotations

from journeyman.runners.contract import Runner, RunRequest, RunResult, redact
from journeyman.runners.runner_set import RunnerSet

__all__ = ["RunRequest", "RunResult", "Runner", "RunnerSet", "redact"]
