"""The fan-out engine: limits, age, errors, gaps, and memory, case by case."""

from __future__ import annotations

from typing import TypeVar

import pytest

from journeyman.engines.kestrel import state
from journeyman.engines.kestrel.engine import KestrelEngine
from journeyman.engines.kestrel.messages import (
    Append,
    Checkpoint,
    EraseQueue,
    Fetch,
    Fetched,
    KestrelAnswer,
    KestrelDue,
    SaveCheckpoint,
    StopServer,
    StopWaiting,
)
from journeyman.engines.kestrel.queue import (
    Intervals,
    KestrelOptions,
    QueueSettings,
    ReaderSettings,
)
from journeyman.engines.kestrel.state import LoadedReader
from journeyman.folds.kestrel import Reader
from journeyman.formats.kestrel import ItemPut
from journeyman.protocols.kestrel.commands import (
    DeleteQueue,
    FlushAll,
    FlushAllExpired,
    FlushExpired,
    GetItem,
    Key,
    Monitor,
    Put,
    PutTooLarge,
    Shutdown,
)
from journeyman.protocols.kestrel.replies import (
    FORBIDDEN,
    NOT_STORED,
    STORED,
    ItemFound,
    reply_bytes,
)

T = TypeVar("T")
S = 1_000_000_000
NOW = 1_700_000_000 * S
Q = Key("q")
END = b"END\r\n"


class World:
    """An engine whose batches hold one command each."""

    def __init__(self, *, max_queues: int = 10, shutdown: bool = False, **queues: QueueSettings):
        self.engine = KestrelEngine(
            KestrelOptions(
                queues=queues, max_queues=max_queues, window_items=4, shutdown_allowed=shutdown
            )
        )
        self.now_ns = NOW

    def __call__(self, command, client=1):
        self.engine.begin_batch()
        self.outcome = self.engine.decide(command, self.now_ns, client)
        self.engine.commit_batch()
        return None if self.outcome.reply is None else reply_bytes(self.outcome.reply)

    def effects(self, kind: type[T]) -> list[T]:
        return [effect for effect in self.outcome.effects if isinstance(effect, kind)]

    def put(self, *items: bytes, queue: str = "q", expiry: int = 0) -> list[bytes | None]:
        return [self(Put(queue, expiry, item)) for item in items]

    def get(self, key: Key = Q, **options) -> bytes:
        reply = self(GetItem(key, **options))
        if reply is None or reply == END:
            return b""
        return bytes(reply.split(b"\r\n")[1])

    def items(self, key: Key = Q) -> int:
        return self.engine.queues[key.queue].readers[key.reader].items


def of_reader(**settings) -> QueueSettings:
    return QueueSettings(ReaderSettings(**settings))


def test_a_full_queue_refuses_and_takes_again_when_there_is_room():
    world = World(q=of_reader(max_items=2))
    assert world.put(b"1", b"2", b"3") == [b"STORED\r\n", b"STORED\r\n", b"NOT_STORED\r\n"]
    assert world.get() == b"1"
    assert world.put(b"4") == [b"STORED\r\n"]
    assert [world.get(), world.get(), world.get()] == [b"2", b"4", b""]


def test_bytes_are_looked_at_before_the_put_so_one_item_may_overshoot():
    world = World(q=of_reader(max_bytes=10))
    assert world.put(b"123456", b"123456", b"7")[-2:] == [b"STORED\r\n", b"NOT_STORED\r\n"]


def test_open_reads_count_against_the_limit_that_refuses():
    world = World(q=of_reader(max_items=1))
    world.put(b"1")
    assert world.get(open=True) == b"1"
    assert world.put(b"2") == [b"NOT_STORED\r\n"]


def test_any_full_reader_refuses_the_put_for_all():
    settings = QueueSettings(readers={"small": ReaderSettings(max_items=1)})
    world = World(q=settings)
    world.get(Key("q", "big"))
    world.get(Key("q", "small"))
    assert world.put(b"1", b"2") == [b"STORED\r\n", b"NOT_STORED\r\n"]


def test_a_full_queue_may_drop_its_oldest_item_but_never_the_new_one():
    world = World(q=of_reader(max_items=2, drops_oldest=True, max_open=5))
    world.put(b"1", b"2", b"3")
    assert [world.get(open=True), world.get(open=True)] == [b"2", b"3"]
    world.put(b"4", b"5")
    assert [world.get(open=True), world.get(open=True)] == [b"4", b"5"]
    assert world.engine.queues["q"].readers[""].tally.discarded == 1


def test_an_item_over_the_size_limit_of_its_queue_or_of_the_format_is_refused():
    world = World(q=QueueSettings(max_item_bytes=3))
    assert world.put(b"1234", b"123") == [b"NOT_STORED\r\n", b"STORED\r\n"]
    assert world(PutTooLarge("q", 2**30)) == b"NOT_STORED\r\n"


def test_expired_items_are_passed_over_at_the_moment_itself():
    world = World()
    world.put(b"soon", expiry=5)
    world.put(b"later")
    world.now_ns += 5 * S
    assert world.get() == b"later"


def test_an_expiry_is_relative_when_small_absolute_when_large_and_over_when_negative():
    world = World()
    world.put(b"gone", expiry=-1)
    world.put(b"absolute", expiry=1_700_000_010)
    assert world.get() == b"absolute"
    world.put(b"absolute", expiry=1_700_000_010)
    world.now_ns += 10 * S
    assert world.get() == b""


def test_items_that_are_too_old_go_to_another_queue_without_an_expiry():
    world = World(q=of_reader(max_age_ms=1000, expire_to="old"))
    world.put(b"x", expiry=50)
    world.now_ns += S
    assert world.get() == b""
    (moved,) = [write for write in world.outcome.records if isinstance(write, Append)]
    assert moved.queue == "old"
    assert (moved.item.data, moved.item.expire_time_ms) == (b"x", None)
    assert world.get(Key("old")) == b"x"


def test_the_sweep_finds_what_is_too_old_without_anybody_asking():
    world = World(q=of_reader(expire_to="old"))
    world.put(b"1", b"2", expiry=1)
    world.put(b"3")
    world.now_ns = max(world.engine.next_due_ns() or 0, world.now_ns + 2 * S)
    world(KestrelDue())
    assert (world.items(), world.items(Key("old"))) == (1, 2)


def test_flush_expired_says_how_many_and_keeps_to_its_limit():
    world = World(q=of_reader(max_expire_sweep=2))
    world.put(b"1", b"2", b"3", expiry=1)
    world.put(b"4", queue="r", expiry=1)
    world.now_ns += 2 * S
    assert world(FlushExpired(Q)) == b"2\r\n"
    assert world(FlushAllExpired()) == b"2\r\n"
    assert world(FlushExpired(Key("unknown"))) == b"0\r\n"


def test_an_item_that_fails_too_often_goes_to_the_queue_for_errors():
    world = World(q=of_reader(max_errors=2, errors_to="dead"))
    world.put(b"x")
    for _ in range(2):
        assert world.get(open=True) == b"x"
        world(GetItem(Q, abort=True))
    (moved,) = [write for write in world.outcome.records if isinstance(write, Append)]
    assert (moved.queue, moved.item.error_count) == ("dead", 2)
    assert world.get() == b""
    assert world.get(Key("dead")) == b"x"


def test_a_dead_letter_wakes_who_waits_there():
    world = World(q=of_reader(max_errors=1, errors_to="dead"))
    world.put(b"x")
    world.get(open=True)
    assert world(GetItem(Key("dead"), 1000), 2) is None
    world(GetItem(Q, abort=True))
    assert [e.client for e in world.outcome.effects if isinstance(e, KestrelAnswer)] == [2]


def test_a_queue_that_is_old_and_empty_goes():
    world = World(q=QueueSettings(max_age_ms=5000))
    world.put(b"x")
    world.now_ns += 6 * S
    world(KestrelDue())
    assert "q" in world.engine.queues
    world.get()
    world.now_ns += 6 * S
    world(KestrelDue())
    assert "q" not in world.engine.queues
    assert EraseQueue("q") in world.outcome.records


def test_there_is_an_end_to_the_number_of_queues():
    world = World(max_queues=2)
    world.put(b"1", queue="a")
    world.get(Key("b"))
    assert world(Put("c", 0, b"x")).startswith(b"SERVER_ERROR")
    assert world(GetItem(Key("c"))).startswith(b"SERVER_ERROR")
    assert world.put(b"2", queue="a") == [b"STORED\r\n"]


def test_flush_with_an_open_read_ends_and_leaves_it_open():
    world = World(q=of_reader(max_open=5))
    world.put(b"1", b"2", b"3")
    world.get(open=True)
    assert world(FlushAll()) == b"Flushed all queues.\r\n"
    assert world.get(open=True) == b""
    world(GetItem(Q, abort=True))
    assert world.get() == b"1"


def test_ids_that_do_not_exist_are_stepped_over_and_the_head_passes_them():
    world = World()
    place = Reader(1)
    world.engine.load("q", next_id=50, created_ms=0, readers=[LoadedReader("", place, 2, 2)])
    assert world(GetItem(Q, open=True)) is None
    (fetch,) = world.effects(Fetch)
    assert fetch == Fetch("q", "", 1)
    items = (ItemPut(10, 0, None, 0, b"a"), ItemPut(20, 0, None, 0, b"b"))
    world(Fetched(fetch, items), None)
    assert world.get(close=True, open=True) == b"b"
    world(GetItem(Q, close=True))
    world(Checkpoint())
    (saved,) = [e for e in world.outcome.effects if isinstance(e, SaveCheckpoint)]
    assert saved.state.head >= 20
    assert saved.state.done == set()


def test_what_was_confirmed_before_a_restart_is_not_delivered_again():
    world = World()
    place = Reader(1, {3, 4})
    world.engine.load("q", next_id=6, created_ms=0, readers=[LoadedReader("", place, 2, 2)])
    world(GetItem(Q, open=True))
    items = tuple(ItemPut(number, 0, None, 0, b"%d" % number) for number in range(2, 6))
    world(Fetched(Fetch("q", "", 1), items), None)
    (answer,) = [e for e in world.outcome.effects if isinstance(e, KestrelAnswer)]
    assert b"\r\n2\r\n" in reply_bytes(answer.reply)
    assert world.get(close=True, open=True) == b"5"


def test_a_stale_answer_from_the_disk_changes_nothing():
    world = World()
    world.put(b"1")
    world(Fetched(Fetch("q", "", 7, 1), (ItemPut(9, 0, None, 0, b"no"),)), None)
    world(Fetched(Fetch("unknown", "", 0), ()), None)
    assert world.get() == b"1"
    assert world.get() == b""


def test_items_read_for_a_reader_that_is_gone_are_not_those_of_another_of_its_name():
    world = World()
    fetches: list[Fetch] = []
    for life in (b"old", b"new"):
        world.put(*(b"%b %d" % (life, number) for number in range(9)))
        assert world(GetItem(Q, open=True)) is None
        fetches += world.effects(Fetch)
        if life == b"old":
            world(DeleteQueue(Q))
    assert fetches[0][:3] == fetches[1][:3]
    world(Fetched(fetches[0], ()), None)
    assert not world.effects(KestrelAnswer)
    world(Fetched(fetches[1], (ItemPut(1, 0, None, 0, b"new 0"),)), None)
    (answer,) = world.effects(KestrelAnswer)
    assert b"new 0" in reply_bytes(answer.reply)


def test_a_batch_taken_back_leaves_the_limits_as_they_were():
    limited = QueueSettings(readers={"a": ReaderSettings(max_items=1)})
    world = World(q=limited)
    world.put(b"0")
    queue = world.engine.queues["q"]
    world.engine.begin_batch()
    world.engine.decide(GetItem(Q, peek=True), NOW, 1)
    world.engine.decide(GetItem(Key("q", "a"), peek=True), NOW, 1)
    assert (queue.is_limited, list(queue.readers)) == (True, ["a"])
    world.engine.undo_batch()
    assert (queue.is_limited, list(queue.readers)) == (False, [""])
    assert queue.readers[""].name == ""
    assert world.put(b"1") == [b"STORED\r\n"]


def test_a_reader_that_takes_over_while_items_are_read_asks_for_them_itself():
    world = World()
    world.put(*(b"%d" % number for number in range(9)))
    assert world(GetItem(Q)) is None
    (in_vain,) = world.effects(Fetch)
    assert world(GetItem(Key("q", "a")), client=2) is None
    (fetch,) = world.effects(Fetch)
    items = (ItemPut(1, 0, None, 0, b"0"),)
    world(Fetched(in_vain, items), None)
    assert not world.effects(KestrelAnswer)
    world(Fetched(fetch, items), None)
    (answer,) = world.effects(KestrelAnswer)
    assert (answer.client, b"\r\n0\r\n" in reply_bytes(answer.reply)) == (2, True)


def test_one_stuck_item_does_not_make_the_memory_grow():
    world = World(q=of_reader(max_open=10))
    world.put(b"stuck")
    world(GetItem(Q, open=True), 2)
    for _ in range(500):
        world.put(b"x")
        assert world.get() == b"x"
    reader = world.engine.queues["q"].readers[""]
    assert reader.done.ranges() == [(2, 501)]
    assert reader.head == 0


def test_shutdown_is_off_unless_it_is_switched_on():
    assert World()(Shutdown()).startswith(b"SERVER_ERROR")
    world = World(shutdown=True)
    world(Shutdown())
    assert world.outcome.effects == (StopServer(),)


def test_intervals_join_when_they_touch():
    ids = Intervals([1, 2, 5, 9])
    assert ids.ranges() == [(1, 2), (5, 5), (9, 9)]
    ids.add(3, 4)
    assert ids.ranges() == [(1, 5), (9, 9)]
    ids.add(4, 8)
    assert ids.ranges() == [(1, 9)]
    ids.drop_through(4)
    assert ids.ranges() == [(5, 9)]
    assert 4 not in ids
    assert 9 in ids
    assert ids.end_of_run(5) == 9
    assert ids.end_of_run(20) == 19


# -- waiting --


def test_a_wait_that_is_cut_short_is_answered_as_one_whose_time_is_over():
    world = World()
    assert world(GetItem(Q, 60_000), client=7) is None
    assert world(StopWaiting(7), client=None) is None
    (answer,) = world.outcome.effects
    assert isinstance(answer, KestrelAnswer)
    assert (answer.client, reply_bytes(answer.reply), answer.final) == (7, END, True)
    assert world.engine.next_due_ns() is None or world.engine.stats().waiting == 0
    assert world.engine.counts.misses == 1
    world(StopWaiting(7), client=None)  # there is nothing any more
    assert world.outcome.effects == ()


def test_a_wait_for_the_disk_is_not_cut_short():
    world = World()
    world.put(*(b"%d" % number for number in range(9)))  # the window holds four of them
    assert world(GetItem(Q, 60_000), client=7) is None
    (fetch,) = world.outcome.effects
    assert isinstance(fetch, Fetch)
    world(StopWaiting(7), client=None)
    assert not world.outcome.effects
    world(Fetched(fetch, (ItemPut(1, 0, None, 0, b"0"),)), client=None)
    assert KestrelAnswer(7, ItemFound(Key("q"), b"0")) in world.outcome.effects


def test_abort_and_close_make_no_queue():
    world = World()
    assert world(GetItem(Q, abort=True)) == END
    assert world(GetItem(Q, close=True)) == END
    assert world.engine.queues == {}


def test_counts_of_a_batch_that_is_taken_back_are_taken_back():
    world = World()
    world.engine.begin_batch()
    world.engine.decide(GetItem(Q), NOW, 1)
    assert (world.engine.counts.queues_made, world.engine.counts.misses) == (1, 1)
    world.engine.undo_batch()
    assert (world.engine.counts.queues_made, world.engine.counts.misses) == (0, 0)


def test_number_of_readers_is_bounded():
    world = World()
    world.engine._state.settings = KestrelOptions(max_readers=2)
    assert world(GetItem(Key("q", "a"))) == END
    assert world(GetItem(Key("q", "b"))) == END
    assert world(GetItem(Key("q", "c"))) == b"SERVER_ERROR the queue has too many readers\r\n"
    assert set(world.engine.queues["q"].readers) == {"a", "b"}


def test_monitor_ends_when_it_was_given_much_whether_it_is_fetched_or_not():
    reader = ReaderSettings(max_open=1000)
    world = World(q=QueueSettings(reader))
    data = bytes(3 * 1024 * 1024)
    assert world(Monitor(Q, 60_000, None), client=7) is None
    answers = []
    for _ in range(5):
        world.put(data)
        answers += [effect for effect in world.outcome.effects if isinstance(effect, KestrelAnswer)]
    assert [answer.final for answer in answers] == [False, False, False, True]
    assert reply_bytes(answers[-1].reply) == END
    assert world.engine.stats().open_reads == 3
    assert world.engine.stats().waiting == 0


def test_monitor_of_a_batch_that_is_taken_back_may_have_as_much_as_before():
    world = World(q=QueueSettings(ReaderSettings(max_open=1000)))
    world(Monitor(Q, 60_000, 2), client=7)
    world.engine.begin_batch()
    world.engine.decide(Put("q", 0, b"x"), NOW, 1)
    world.engine.undo_batch()
    world.put(b"a", b"b", b"c")
    assert world.engine.stats().open_reads == 2
    assert world.get() == b"c"


def test_windows_of_very_many_queues_are_smaller(monkeypatch):
    monkeypatch.setattr(state, "ALL_WINDOWS_BYTES", 1000)
    monkeypatch.setattr(state, "LEAST_WINDOW_BYTES", 100)
    world = World(max_queues=1000)
    world.engine._state.settings = KestrelOptions(window_items=1000, window_bytes=500)
    names = [f"q{number}" for number in range(20)]
    for name in names[:2]:
        world.put(*[b"x" * 50] * 20, queue=name)
    assert [world.engine.queues[name].window_bytes for name in names[:2]] == [500, 500]
    for name in names:
        world.put(*[b"x" * 50] * 20, queue=name)
    sizes = {world.engine.queues[name].window_bytes for name in names[-5:]}
    assert sizes == {100}


def many_open() -> World:
    return World(q=of_reader(max_open=100))


@pytest.mark.parametrize("look", ["peek", "sweep", "flush_expired"])
def test_looking_at_the_next_item_does_not_put_it_before_one_that_comes_back(look):
    world = many_open()
    world.put(b"1", b"2", b"3", expiry=500)
    assert world.get(open=True) == b"1"
    if look == "peek":
        assert world.get(peek=True) == b"2"
    elif look == "sweep":
        world.now_ns += 2 * S
        world(KestrelDue())
    else:
        assert world(FlushExpired(Q)) == b"0\r\n"
    world.get(abort=True)
    assert [world.get(), world.get(), world.get(), world.get()] == [b"1", b"2", b"3", b""]


def test_looking_at_an_item_that_came_back_leaves_it_first():
    world = many_open()
    world.put(b"1", b"2", b"3")
    world.get(open=True)
    world.get(open=True)
    world.get(abort=True)
    assert world.get(peek=True) == b"1"
    world.get(abort=True)
    assert [world.get(), world.get(), world.get()] == [b"1", b"2", b"3"]


def test_peek_at_an_item_from_disk_leaves_it_before_the_rest():
    world = many_open()
    world.put(*(b"%d" % number for number in range(1, 9)))  # the window holds the last four
    stored = tuple(ItemPut(n, 0, None, 0, b"%d" % n) for n in range(1, 9))
    assert world(GetItem(Q, open=True)) is None
    (fetch,) = world.effects(Fetch)
    world(Fetched(fetch, stored[:3]), None)
    assert world.get(peek=True) == b"2"
    world.get(abort=True)
    assert [world.get() for _ in range(3)] == [b"1", b"2", b"3"]


def test_monitors_and_gets_of_one_key_take_turns():
    world = many_open()
    for client in (1, 2):
        assert world(Monitor(Q, 10_000, 50), client) is None
    assert world(GetItem(Q, wait_ms=10_000), 3) is None
    given = []
    for number in range(5):
        world.put(b"%d" % number)
        given += [answer.client for answer in world.effects(KestrelAnswer)]
    assert given == [1, 2, 3, 1, 2]


def test_turns_of_a_batch_that_is_taken_back_are_taken_back():
    world = many_open()
    for client in (1, 2):
        world(Monitor(Q, 10_000, 50), client)
    world.engine.begin_batch()
    world.engine.decide(Put("q", 0, b"lost"), NOW)
    world.engine.undo_batch()
    world.put(b"kept")
    assert [answer.client for answer in world.effects(KestrelAnswer)] == [1]


def test_a_confirmation_of_a_batch_that_is_taken_back_is_not_kept():
    world = World()
    world.put(b"0", b"1")
    for client in (1, 2):
        world(GetItem(Q, open=True), client)
    reader = world.engine.queues["q"].readers[""]
    world.engine.begin_batch()
    world.engine.decide(GetItem(Q, close=True), NOW, 2)
    assert reader.place() == Reader(0, {2})
    world.engine.undo_batch()
    assert reader.place() == Reader(0, set())


def test_puts_are_counted_though_their_queue_goes():
    world = World()
    world.put(b"1", b"2")
    world.put(b"3", queue="other")
    world(DeleteQueue(Q))
    assert world.engine.counts.puts == 3
    world.engine.begin_batch()
    world.engine.decide(Put("q", 0, b"lost"), NOW)
    world.engine.undo_batch()
    assert world.engine.counts.puts == 3


def test_while_no_items_are_given_out_open_reads_can_be_closed_and_aborted():
    world = many_open()
    world.put(b"1", b"2", b"3", b"4")
    for _ in range(3):
        world.get(open=True)
    world.engine.gives_items = False
    assert world(GetItem(Q, close=True)) == END
    assert world(GetItem(Q, abort=True)) == END
    for refused in (GetItem(Q), GetItem(Q, peek=True), GetItem(Q, open=True), Monitor(Q, 0, None)):
        assert world(refused) == b"SERVER_ERROR\r\n"
        assert world.outcome.reply == FORBIDDEN
    assert world(GetItem(Q, close=True, open=True)) == b"SERVER_ERROR\r\n"  # but it is closed
    assert world.engine.queues["q"].readers[""].open_items == 0
    world.engine.gives_items = True
    assert [world.get(), world.get(), world.get()] == [b"2", b"4", b""]


def test_an_item_that_fits_no_segment_of_the_original_is_refused():
    engine = KestrelEngine(KestrelOptions(max_item_bytes=10))
    engine.begin_batch()
    assert engine.decide(Put("q", 0, bytes(10)), NOW).reply is STORED
    assert engine.decide(Put("q", 0, bytes(11)), NOW).reply is NOT_STORED
    engine.commit_batch()


def test_an_item_that_fails_too_often_stays_if_the_queue_for_errors_cannot_be_made():
    world = World(max_queues=1, q=of_reader(max_errors=1, errors_to="dead"))
    world.put(b"1")
    world.get(open=True)
    world.get(abort=True)
    assert world.get() == b"1"


def test_a_queue_with_journals_of_an_older_kestrel_is_not_made():
    world = World()
    world.engine.hold_off(["q"])
    refusal = (
        b"SERVER_ERROR the queue has journals of kestrel 1.x or 2.x, which are not read here\r\n"
    )
    assert world.put(b"1") == [refusal]
    assert [world(GetItem(Q)), world(GetItem(Key("q", "r"))), world(Monitor(Q, 0, None))] == [
        refusal
    ] * 3
    assert world.put(b"1", queue="other") == [b"STORED\r\n"]


def test_queues_that_are_too_old_go_a_few_at_a_time():
    settings = QueueSettings(max_age_ms=1000)
    engine = KestrelEngine(KestrelOptions(default=settings, max_queues=200))
    for number in range(100):
        engine.load(
            f"q{number}", next_id=1, created_ms=0, readers=[LoadedReader("", Reader(), 0, 0)]
        )
    engine.begin_batch()
    engine.decide(Put("q", 0, b"x"), NOW)
    engine.commit_batch()
    now_ns, rounds = NOW + 2 * S, 0
    while len(engine.queues) > 1:
        engine.begin_batch()
        erased = [
            w for w in engine.decide(KestrelDue(), now_ns).records if isinstance(w, EraseQueue)
        ]
        engine.commit_batch()
        assert len(erased) <= 10
        rounds += 1
        assert rounds < 50


def test_a_batch_that_is_taken_back_leaves_the_queues_where_others_look_for_them():
    world = World()
    queues = world.engine.queues
    world.engine.begin_batch()
    world.engine.decide(Put("q", 0, b"x"), NOW)
    world.engine.undo_batch()
    world(Put("r", 0, b"x"))
    assert list(queues) == ["r"]
