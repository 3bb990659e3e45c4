"""The process of the store: pages that are too large are made smaller; what cannot be read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from uuid import UUID

import pytest

from journeyman.formats.keyspace.values import JobRecord
from journeyman.servers.core.following import Refusal
from journeyman.servers.index import child
from journeyman.servers.index.views import StoredPage
from journeyman.storage import Storage, Upsert

NOW_NS = 1_700_000_000_000_000_000


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    with Storage.open("memory", "") as storage:
        monkeypatch.setattr(child._store, "storage", storage, raising=False)
        yield storage


def record(number: int, size: int = 2, extra: tuple[tuple[str, str], ...] = ()) -> JobRecord:
    uuid = UUID(int=number)
    text = json.dumps("x" * (size - 2))
    times = NOW_NS + number, NOW_NS
    return JobRecord(uuid, f"mail:{uuid}", "mail", "waiting", *times, payload=text, extra=extra)


def page_of(queue: str | None, size: int, after: str | None = None) -> StoredPage:
    page = child.list_jobs(queue, "waiting", size, after, None)
    assert isinstance(page, StoredPage)
    return page


@pytest.mark.parametrize("queue", ["mail", None])
def test_a_page_that_is_too_large_is_made_smaller(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, queue: str | None
):
    monkeypatch.setattr(child, "PAGE_BYTES", 2500)
    storage.apply([Upsert(record(number, 1000)) for number in range(9)])
    sizes, ids, after = [], [], None
    while True:
        page = page_of(queue, 8, after)
        sizes.append(len(page.jobs))
        ids += [job.job_id for job in page.jobs]
        if page.next is None:
            break
        after = page.next
    assert sizes == [2, 2, 2, 2, 1]
    assert ids == [UUID(int=number).bytes for number in range(9)]
    numbered = child.list_jobs("mail", "waiting", 8, None, 1)
    assert numbered == Refusal(
        "these jobs are too large for one page; use a smaller limit", is_usage=True
    )


def test_what_the_work_queue_cannot_read_is_named(storage: Storage):
    storage.apply(
        [Upsert(record(1)), Upsert(record(2, 3, extra=(("workq", '{"encoding":"base64"}'),)))]
    )
    page = page_of("mail", 10)
    assert [job.job_id for job in page.jobs] == [UUID(int=1).bytes]
    (row,) = page.unreadable
    assert (row.key, row.reason) == (str(UUID(int=2)), "invalid base64")
    assert child.get_job(UUID(int=9)) is None
    assert isinstance(child.get_job(UUID(int=2)), Refusal)
