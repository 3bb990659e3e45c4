"""What every runner promises (journeyman.runners.contract), as tests.

A subclass says how its runner is made to succeed, fail and hang, and how its world sees a run:
processes and HTTP in tests/contract, brokers in tests/integration.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import pytest

from journeyman.formats.ztick import Runner as RunnerRecord
from journeyman.runners import RunnerSet, RunRequest, RunResult
from tests.support.runner_world import POLL_S, WAIT_LIMIT_S, in_loop, settings

PASSWORD = "s3cr3t-Pa55"
EXECUTION_NS = 1_711_612_800_000_000_001
LIMIT_MS = 150

HOSTILE_IDS = {
    "plain": "plain.job",
    "empty": "",
    "spaces": " spaces  ",
    "shell": 'it\'s "quoted" `id` $(id) $HOME ; rm -rf / #',
    "lines": "line\nbreak\r\nand\ttab",
    "backslashes": "\\back\\slash\\n",
    "unicode": "übung-漢字-🙂-\u2028",
    "formats": "%s %d {0} %00",
    "controls": "control \x01\x1b[31m\x7f",
    "long": "x" * 4000,
    "resp": "*3\r\n$3\r\nSET\r\n",
}
NUL_ID = "nul\0inside"


def request(record: RunnerRecord, job_id: str = "backup.daily") -> RunRequest[RunnerRecord]:
    return RunRequest(job_id, EXECUTION_NS, record)


class World(ABC):
    """Where one kind of runner acts."""

    @abstractmethod
    def succeeding(self) -> RunnerRecord: ...

    @abstractmethod
    def failing(self) -> RunnerRecord:
        """Reaches its goal and is refused there. Holds PASSWORD if a record of this kind can."""

    @abstractmethod
    def hanging(self) -> RunnerRecord:
        """Never comes to an end by itself."""

    @abstractmethod
    def impossible(self) -> list[RunnerRecord]:
        """Cannot even be tried."""

    @abstractmethod
    async def received(self, count: int = 1) -> list[bytes]:
        """The job ids that arrived from that many succeeding runs."""

    @abstractmethod
    async def hanging_began(self) -> None:
        """Waits until a hanging run is well under way."""

    @abstractmethod
    async def nothing_left(self) -> None:
        """Waits until no process or connection of a run is left; fails if that does not come."""

    def nul_id_is_refused(self) -> bool:
        return False


async def settled() -> tuple[int, int]:
    """Open descriptors and tasks of this process, after what is ready to end has ended."""
    for _ in range(20):
        await asyncio.sleep(0)
    return len(os.listdir("/dev/fd")), len(asyncio.all_tasks())


def assert_failed(result: RunResult) -> None:
    assert not result.success
    assert result.reason
    assert result.reason.isprintable()
    assert len(result.reason) <= 500
    assert PASSWORD not in result.reason
    assert PASSWORD.encode() not in result.output


class RunnerContract:
    def world(self) -> AbstractAsyncContextManager[World]:
        raise AssertionError("a subclass opens its world here")

    @pytest.fixture(autouse=True)
    def _prepare(self) -> None:
        """Subclasses take their fixtures here."""

    @contextlib.asynccontextmanager
    async def runners(self, **limits: int) -> AsyncIterator[tuple[RunnerSet, World]]:
        async with self.world() as world, RunnerSet(settings(**limits)) as runners:
            yield runners, world

    @in_loop
    async def test_a_success_needs_no_reason(self):
        async with self.runners() as (runners, world):
            result = await runners.run(request(world.succeeding()))
            assert (result.success, result.reason) == (True, "")
            assert await world.received() == [b"backup.daily"]

    @in_loop
    async def test_a_failure_has_a_reason_on_one_line_without_credentials(self):
        async with self.runners() as (runners, world):
            assert_failed(await runners.run(request(world.failing())))

    @in_loop
    async def test_a_failure_does_not_spoil_the_next_run(self):
        async with self.runners() as (runners, world):
            await runners.run(request(world.failing()))
            assert (await runners.run(request(world.succeeding()))).success

    @in_loop
    async def test_what_cannot_be_tried_is_a_failure_and_not_an_exception(self):
        async with self.runners() as (runners, world):
            for record in world.impossible():
                result = await runners.run(request(record))
                assert_failed(result)
                assert "runner broke" not in result.reason

    @in_loop
    async def test_every_run_ends_at_its_time_limit(self):
        limits = {"process_timeout_ms": LIMIT_MS, "network_timeout_ms": LIMIT_MS}
        async with self.runners(**limits, kill_grace_ms=LIMIT_MS) as (runners, world):
            result = await runners.run(request(world.hanging()))
            assert_failed(result)
            assert "0.15 s" in result.reason
            await world.nothing_left()

    @in_loop
    async def test_a_cancelled_run_leaves_nothing_behind(self):
        async with self.runners() as (runners, world):
            run = asyncio.create_task(runners.run(request(world.hanging())))
            await world.hanging_began()
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
            await world.nothing_left()

    @in_loop
    async def test_a_run_can_be_cancelled_at_any_moment(self):
        async with self.runners() as (runners, world):
            for steps in range(25):
                run = asyncio.create_task(runners.run(request(world.hanging())))
                for _ in range(steps):
                    await asyncio.sleep(0)
                run.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await run
            await world.nothing_left()
            assert (await runners.run(request(world.succeeding()))).success

    @in_loop
    async def test_runs_cancelled_on_their_way_leak_nothing(self):
        async with self.runners() as (runners, world):
            record = world.succeeding()
            await runners.run(request(record))  # what is shared is there from now on
            before = await settled()
            started = asyncio.get_running_loop().time()
            await runners.run(request(record))
            duration_s = asyncio.get_running_loop().time() - started
            for moment in range(40):
                run = asyncio.create_task(runners.run(request(record)))
                await asyncio.sleep(duration_s * moment / 35)
                run.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    assert (await run).success
            async with asyncio.timeout(WAIT_LIMIT_S):
                while any(now > then for now, then in zip(await settled(), before, strict=True)):
                    await asyncio.sleep(POLL_S)

    @pytest.mark.parametrize("job_id", HOSTILE_IDS.values(), ids=HOSTILE_IDS.keys())
    @in_loop
    async def test_any_job_id_arrives_as_it_is(self, job_id):
        async with self.runners() as (runners, world):
            result = await runners.run(request(world.succeeding(), job_id))
            assert result.success, result.reason
            assert await world.received() == [job_id.encode()]

    @in_loop
    async def test_a_nul_in_the_job_id_arrives_or_is_refused(self):
        async with self.runners() as (runners, world):
            result = await runners.run(request(world.succeeding(), NUL_ID))
            if world.nul_id_is_refused():
                assert_failed(result)
                assert "NUL" in result.reason
            else:
                assert result.success, result.reason
                assert await world.received() == [NUL_ID.encode()]

    @in_loop
    async def test_many_runs_at_once_do_not_mix(self):
        async with self.runners() as (runners, world):
            ids = [f"job.{number}" for number in range(30)]
            record = world.succeeding()
            results = await asyncio.gather(*(runners.run(request(record, job)) for job in ids))
            assert all(result.success for result in results)
            assert sorted(await world.received(30)) == sorted(job.encode() for job in ids)
            await world.nothing_left()
