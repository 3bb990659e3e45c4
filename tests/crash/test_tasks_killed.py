"""kill -9 of workers and server while jobs run: all are done, none after its acknowledgement."""

from __future__ import annotations

from tests.support.crash.task_cycles import TaskCycles


def test_every_job_is_done_and_none_after_it_was_acknowledged(tmp_path):
    world = TaskCycles(tmp_path, seed=3)
    world.run(cycles=6, jobs_per_cycle=20)

    assert world.kills["server"] > 0
    assert world.kills["worker"] > 0
    assert len(world.acknowledged) == 120
