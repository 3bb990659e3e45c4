"""One runner for each kind of runner record, with one ``run`` for all.

    request.runner    Shell Direct Awf      Http        Amqp  Redis      Queue        Journal
                            |                |            |     |          |             |
                        Programs        ClientSession    (nothing    the work queue, the fan-out
                     (one guardian)      (one pool)     is shared)    queues of this process

    async with RunnerSet(settings) as runners:
        result = await runners.run(RunRequest(job_id, execution_ns, rule.runner))

It does not decide how many run at once, or when: its owner does. It is the last net: a
defect in a runner, or in a library below it, becomes a failed run with the traceback as its
output, not a server that stops.

The libraries of the network runners take longer to import than all the rest of a server, and few
servers have rules for them. So each is imported with the first rule for it (``prepare``), or at its
first run, in a thread: the loop goes on.

The runners of this server's own queues are here too:

    queue <name> [-flag=value]...   the due job becomes a job of the work queue
    journal <queue>                 its id is put on a fan-out queue
"""

from __future__ import annotations

import asyncio
import importlib
import traceback
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeAlias

from journeyman.config import Settings
from journeyman.formats import ztick
from journeyman.formats.ztick import FanOutRunner, WorkQueueRunner
from journeyman.formats.ztick import Runner as RunnerRecord
from journeyman.formats.ztick.codec import runner_word
from journeyman.protocols.kestrel.parser import is_queue_name
from journeyman.protocols.workq.commands import Add
from journeyman.protocols.ztick.grammar import queue_job
from journeyman.runners.contract import BoundedOutput, Runner, RunRequest, RunResult, failed_run
from journeyman.runners.programs import AwfRunner, DirectRunner, Programs, ShellRunner
from journeyman.runners.reach import Reach, Tenants
from journeyman.runners.signing import signature_headers

# Module and class of the runners that are imported at their first run.
_NETWORK_RUNNERS: dict[type[RunnerRecord], tuple[str, str]] = {
    ztick.Http: ("journeyman.runners.http", "HttpRunner"),
    ztick.Amqp: ("journeyman.runners.amqp", "AmqpRunner"),
    ztick.Redis: ("journeyman.runners.redis", "RedisRunner"),
    ztick.Mail: ("journeyman.runners.mail", "MailRunner"),
}

# Takes the job and the namespace of the rule; returns why the job could not be added, or "".
AddsWork: TypeAlias = Callable[[Add, str], Awaitable[str]]
# Takes the queue and the item; returns why the item could not be put, or "".
PutsItems: TypeAlias = Callable[[str, bytes], Awaitable[str]]


class QueueRunner:
    """A due job becomes a job of the work queue, recorded as durably as its policy says.

    The job has an id made of the scheduled job's id and time. If the work queue has that id
    already, an earlier run has added it and could not be noted: this one has succeeded too.
    The id of a rule in a namespace is salted, so that no other namespace can have it.
    """

    def __init__(self, add: AddsWork | None, tenants: Tenants | None = None) -> None:
        """``add`` None: no work queue is served. ``tenants`` None: there are no tokens."""
        self._add = add
        self._tenants = tenants

    async def run(self, request: RunRequest[WorkQueueRunner]) -> RunResult:
        if self._add is None:
            return failed_run("no work queue is served: workq.enabled is false")
        namespace, salt = "", b""
        if self._tenants is not None:
            # A rule that puts jobs outside its namespace is one of a token of all namespaces.
            namespace = self._tenants.namespace_of(request.rule, request.runner.name)
            salt = self._tenants.salt_of(namespace)
        job_id, message = request.job_id, request.message().decode()
        job = queue_job(request.runner, job_id, request.execution_ns, salt, message)
        if isinstance(job, str):
            return failed_run(job)
        reason = await self._add(job, namespace)
        return failed_run(reason) if reason else RunResult(True)

    async def close(self) -> None:
        """Runs share nothing."""


class JournalRunner:
    """The id of a due job becomes an item of a fan-out queue, as durable as kestrel.sync says.

    Every reader of the queue gets it. A run that is repeated, because the server stopped before its
    end could be noted, puts the id again: readers see it at least once.
    """

    def __init__(self, put: PutsItems | None) -> None:
        """``put`` None: no fan-out queues are served."""
        self._put = put

    async def run(self, request: RunRequest[FanOutRunner]) -> RunResult:
        if self._put is None:
            return failed_run("no fan-out queues are served: kestrel.enabled is false")
        queue = request.runner.queue
        if not is_queue_name(queue):  # a log may hold unchecked rules
            return failed_run("the rule names no queue that could exist")
        reason = await self._put(queue, request.item())
        return failed_run(reason) if reason else RunResult(True)

    async def close(self) -> None:
        """Runs share nothing."""


class RunnerSet:
    """Runs any request. Belongs to one event loop."""

    def __init__(
        self,
        settings: Settings | None = None,
        add_work: AddsWork | None = None,
        put_item: PutsItems | None = None,
        tenants: Tenants | None = None,
    ) -> None:
        """``add_work`` adds to the work queue, ``put_item`` to fan-out queues, where served;
        ``tenants`` bind the runs of rules, if there are tokens."""
        settings = settings or Settings()
        self._settings = settings.runners
        self._reach = Reach(settings.runners, tenants)
        self._programs = Programs(settings.runners)
        self._more: dict[type[RunnerRecord], tuple[Any, ...]] = {  # that some network runners need
            ztick.Http: (partial(signature_headers, settings.notices.signing_key_file, tenants),),
            ztick.Mail: (settings.notices,),
        }
        self._runners: dict[type[RunnerRecord], Runner[Any]] = {
            ztick.Shell: ShellRunner(self._programs, settings.shell),
            ztick.Direct: DirectRunner(self._programs),
            ztick.Awf: AwfRunner(self._programs),
            ztick.WorkQueueRunner: QueueRunner(add_work, tenants),
            ztick.FanOutRunner: JournalRunner(put_item),
        }
        self._preparing: set[asyncio.Task[Runner[Any]]] = set()

    async def run(self, request: RunRequest[RunnerRecord]) -> RunResult:
        """Do it, and say how it went. Raises nothing but CancelledError."""
        try:
            runner = await self._runner_of(type(request.runner))
            return await runner.run(request)
        except Exception as error:  # noqa: BLE001 - the last net; nothing is hidden by it
            output = BoundedOutput(self._settings.output_bytes)
            output.feed("".join(traceback.format_exception(error)).encode(errors="replace"))
            name = runner_word(request.runner)
            reason = f"the {name} runner broke: {type(error).__name__}: {error}"
            return failed_run(reason, output.text())

    def prepare(self, kinds: Iterable[type]) -> None:
        """Rules name runners of these kinds: the first run shall not wait for the import."""
        for kind in _NETWORK_RUNNERS.keys() & set(kinds) - self._runners.keys():
            task = asyncio.get_running_loop().create_task(self._runner_of(kind))
            self._preparing.add(task)
            task.add_done_callback(self._prepared)

    def _prepared(self, task: asyncio.Task[Runner[Any]]) -> None:
        self._preparing.discard(task)
        if not task.cancelled():
            task.exception()  # the first run says what is wrong

    async def _runner_of(self, kind: type[RunnerRecord]) -> Runner[Any]:
        if kind not in self._runners:
            module_name, class_name = _NETWORK_RUNNERS[kind]
            module = await asyncio.to_thread(importlib.import_module, module_name)
            if kind not in self._runners:  # another run may have waited for the same import
                more = self._more.get(kind, ())
                make = getattr(module, class_name)
                self._runners[kind] = make(self._settings, self._reach, *more)
        return self._runners[kind]

    async def close(self) -> None:
        """Give back what runs share. Runs still under way must be cancelled and awaited before."""
        if self._preparing:
            await asyncio.wait(self._preparing)
        for runner in self._runners.values():
            await runner.close()
        await self._programs.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
