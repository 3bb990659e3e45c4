"""The store, led through the steps of the original: the keys are its own, but for what is ours."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from journeyman.formats.keyspace.keys import (
    JOBS,
    LISTINGS,
    QUEUES,
    JobKey,
    QueueKey,
    QueueTimeKey,
    decode_key,
    encode_key,
)
from journeyman.formats.keyspace.values import JobRecord, QueueRecord, decode_value
from journeyman.storage import Storage, Upsert
from journeyman.storage.checking import find_problems, rebuild
from journeyman.storage.facade import SCHEMA_KEY
from tests.support.golden_logs import STEPS

OURS = (LISTINGS, SCHEMA_KEY)


def expected(step: dict[str, Any]) -> dict[bytes, bytes]:
    """The keys of a step, with queue-time keys in the version that we write."""
    found = {}
    for entry in step["kv"]:
        key = bytes.fromhex(entry["key_hex"])
        decoded = decode_key(key)
        if isinstance(decoded, QueueTimeKey):
            key = encode_key(decoded.newest())
        is_text = key.startswith((QUEUES, JOBS, b"v1:status:"))
        found[key] = entry["value"].encode() if is_text else bytes.fromhex(entry["value"])
    return found


def stored(storage: Storage) -> dict[bytes, bytes]:
    with storage.backend.view() as view:
        return {k: v for k, v in view.scan(b"\0", b"\xff") if not k.startswith(OURS)}


def records(entries: dict[bytes, bytes]) -> tuple[list[QueueRecord], dict[UUID, JobRecord]]:
    queues, jobs = [], {}
    for key, value in entries.items():
        decoded = decode_key(key)
        if isinstance(decoded, QueueKey | JobKey):
            record = decode_value(decoded, value)
            if isinstance(record, QueueRecord):
                queues.append(record)
            elif isinstance(record, JobRecord):
                jobs[record.job_uuid] = record
    return queues, jobs


@pytest.mark.parametrize("engine", ["rocksdb", "sqlite", "memory"])
def test_every_step_of_the_original_leaves_its_keys(engine, tmp_path):
    with Storage.open(engine, str(tmp_path)) as storage:
        before: dict[UUID, JobRecord] = {}
        for step in STEPS:
            wanted = expected(step)
            queues, jobs = records(wanted)
            storage.replace_queues(queues)
            for uuid in before.keys() - jobs.keys():
                assert storage.remove_job_record(uuid)
            for uuid, record in jobs.items():
                old = before.get(uuid)
                if old is not None and replace(old, status=record.status) == record:
                    assert storage.set_job_status(uuid, record.status)
                else:
                    storage.upsert_job_record(record)
            assert stored(storage) == wanted, step["step"]
            with storage.backend.view() as view:
                assert list(find_problems(view)) == []
            before = jobs


@pytest.mark.parametrize("step", STEPS, ids=lambda step: str(step["step"])[:30])
def test_a_store_of_the_original_is_taken_over(step, tmp_path):
    """With queue-time keys in its own version, and without what it does not know."""
    with Storage.open("sqlite", str(tmp_path)) as storage:
        raw = {
            bytes.fromhex(entry["key_hex"]): value
            for entry, value in zip(step["kv"], expected(step).values(), strict=True)
        }
        storage.backend.write({**raw, SCHEMA_KEY: None})
        rebuild(storage.backend)
        assert stored(storage) == expected(step)
        _, jobs = records(expected(step))
        storage.apply([Upsert(record) for record in jobs.values()])
        assert stored(storage) == expected(step)
