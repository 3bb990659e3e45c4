"""The kestrel protocol machine: what lines mean, and what is said back."""

from __future__ import annotations

import pytest

from journeyman.formats.kestrel import MAX_DATA_BYTES
from journeyman.protocols.kestrel import replies
from journeyman.protocols.kestrel.commands import (
    MAX_WAIT_MS,
    Confirm,
    DeleteQueue,
    DumpStats,
    Flush,
    FlushAll,
    FlushAllExpired,
    FlushExpired,
    GetItem,
    HangUp,
    Key,
    Monitor,
    Put,
    PutTooLarge,
    RefusedRequest,
    Reload,
    ServerStatus,
    ShowStats,
    Shutdown,
    Version,
)
from journeyman.protocols.kestrel.parser import LINE_LIMIT_BYTES, KestrelParser

JOBS = Key("jobs")


def events(*lines: bytes) -> list[object]:
    return list(KestrelParser().feed(b"".join(line + b"\r\n" for line in lines)))


@pytest.mark.parametrize(
    ("line", "event"),
    [
        (b"get jobs", GetItem(JOBS)),
        (b"GET jobs", GetItem(JOBS)),
        (b"gets jobs", GetItem(JOBS)),
        (b"get jobs ignored words", GetItem(JOBS)),
        (b"get jobs+indexer", GetItem(Key("jobs", "indexer"))),
        (b"get jobs+a.b+c@d#1/peek", GetItem(Key("jobs", "a.b+c@d#1"), peek=True)),
        (b"get jobs/t=500", GetItem(JOBS, 500)),
        (b"get jobs/t=500/open", GetItem(JOBS, 500, open=True)),
        (b"get jobs/close/open", GetItem(JOBS, open=True, close=True)),
        (b"get jobs/abort", GetItem(JOBS, abort=True)),
        (b"get jobs/peek/t=9", GetItem(JOBS, 9, peek=True)),
        (b"get jobs/unheard-of", GetItem(JOBS)),
        (b"get jobs/t=99999999999999", GetItem(JOBS, MAX_WAIT_MS)),
        (b"get jobs/t=-1", GetItem(JOBS, 0)),
        (b"monitor jobs 2", Monitor(JOBS, 2000, None)),
        (b"monitor jobs+a 2 7", Monitor(Key("jobs", "a"), 2000, 7)),
        (b"confirm jobs 3", Confirm(JOBS, 3)),
        (b"delete jobs", DeleteQueue(JOBS)),
        (b"delete jobs+a", DeleteQueue(Key("jobs", "a"))),
        (b"flush jobs", Flush(JOBS)),
        (b"flush_expired jobs", FlushExpired(JOBS)),
        (b"flush_all", FlushAll()),
        (b"flush_all ", FlushAll(is_memcached=True)),
        (b"flush_all 5", FlushAll(is_memcached=True)),
        (b"flush_all_expired", FlushAllExpired()),
        (b"stats", ShowStats()),
        (b"dump_stats", DumpStats(())),
        (b"dump_stats a b", DumpStats(("a", "b"))),
        (b"version", Version()),
        (b"status", ServerStatus(None)),
        (b"status readonly", ServerStatus("READONLY")),
        (b"reload", Reload()),
        (b"shutdown", Shutdown()),
    ],
)
def test_a_line_is_read_as_its_command(line, event):
    assert events(line) == [event]


def test_a_line_may_end_in_a_bare_lf():
    assert KestrelParser().feed(b"version\nstats\r\n") == [Version(), ShowStats()]


def test_an_item_is_binary_and_the_two_bytes_behind_it_are_not_looked_at():
    item = b"\r\nget x\r\n\x00\xff"
    got = KestrelParser().feed(b"set jobs 0 60 %d\r\n%b??get jobs\r\n" % (len(item), item))
    assert got == [Put("jobs", 60, item), GetItem(JOBS)]


def test_an_empty_item_and_a_negative_expiry_are_taken():
    assert events(b"set jobs 0 -1 0", b"") == [Put("jobs", -1, b"")]


def test_an_item_beyond_the_format_is_passed_over_and_never_kept():
    parser = KestrelParser()
    size = MAX_DATA_BYTES + 1
    assert parser.feed(b"set jobs 0 0 %d\r\n" % size) == []
    for _ in range(size // 65_536):
        assert parser.feed(bytes(65_536)) == []
        assert parser.kept_bytes == 0
    rest = size % 65_536
    assert parser.feed(bytes(rest) + b"\r\nversion\r\n") == [PutTooLarge("jobs", size), Version()]


@pytest.mark.parametrize(
    "line",
    [
        b"get",
        b"confirm jobs",
        b"confirm jobs x",
        b"monitor jobs",
        b"monitor jobs x",
        b"monitor jobs 1 x",
        b"get jobs/t=x",
        b"get ../etc/passwd",
        b"get a~b",
        b"get jobs+",
        b"get jobs+a~b",
        b"get jobs+a\x01",
        b"get jobs+\xe9",
        b"get " + b"q" * 201,
        b"get " + b"q" * 100 + b"+" + b"r" * 101,
        b"delete a.b",
        b"flush",
    ],
)
def test_what_is_wrong_is_told_and_the_connection_goes_on(line):
    first, second = events(line, b"version")
    assert isinstance(first, RefusedRequest)
    assert not first.hangup
    assert second == Version()


@pytest.mark.parametrize(
    "line", [b"", b"nonsense", b"get /open", b"get jobs/peek/abort", b"get jobs/peek/open"]
)
def test_some_refusals_end_the_connection_as_in_the_original(line):
    parser = KestrelParser()
    (refused,) = parser.feed(line + b"\r\nversion\r\n")
    assert isinstance(refused, RefusedRequest)
    assert refused.hangup
    assert parser.closed
    assert parser.feed(b"version\r\n") == []


@pytest.mark.parametrize("line", [b"set a.b 0 0 9", b"set q x 0 9", b"set q 0 y 9"])
def test_a_refused_set_consumes_its_item(line):
    refused, after = events(line, b"get jobs/", b"version")[:2]
    assert isinstance(refused, RefusedRequest)
    assert after == Version()


def test_other_storage_commands_are_unknown_but_their_item_is_no_command():
    parser = KestrelParser()
    (refused,) = parser.feed(b"append q 0 0 8\r\nshutdown\r\n")
    assert isinstance(refused, RefusedRequest)
    assert parser.closed


@pytest.mark.parametrize("line", [b"set q 0 0", b"set", b"set q 0 0 -5", b"set q 0 0 x"])
def test_without_a_size_the_item_could_be_taken_for_commands_so_the_connection_ends(line):
    parser = KestrelParser()
    (refused,) = parser.feed(line + b"\r\nflush_all\r\n")
    assert isinstance(refused, RefusedRequest)
    assert parser.closed


def test_quit_ends_the_connection_behind_what_was_asked():
    parser = KestrelParser()
    assert parser.feed(b"version\r\nquit\r\nversion\r\n") == [Version(), HangUp()]
    assert parser.closed


def test_a_line_without_an_end_is_not_kept_for_ever():
    parser = KestrelParser()
    assert parser.feed(b"x" * (LINE_LIMIT_BYTES - 1)) == []
    (refused,) = parser.feed(b"xx")
    assert isinstance(refused, RefusedRequest)
    assert parser.closed
    assert parser.kept_bytes == 0


def test_replies_are_those_of_the_original():
    say = replies.reply_bytes
    assert say(replies.ItemFound(JOBS, b"a\r\nb")) == b"VALUE jobs 0 4\r\na\r\nb\r\nEND\r\n"
    assert say(replies.ItemFound(Key("q", "r"), b"")) == b"VALUE q+r 0 0\r\n\r\nEND\r\n"
    assert say(replies.Count(3)) == b"3\r\n"
    assert say(replies.line("VERSION 2.4.8")) == b"VERSION 2.4.8\r\n"
    assert say(replies.stat_lines([("items", 2)])) == b"STAT items 2\r\nEND\r\n"
    dumped = say(replies.queue_dump({"q": [("items", 2)]}))
    assert dumped == b"queue 'q' {\r\n  items=2\r\n}\r\nEND\r\n"
    assert say(replies.ServerError("why")) == b"SERVER_ERROR why\r\n"
