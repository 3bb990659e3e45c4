"""The fan-out engine against a plain model: lists of items, one a reader.

The model knows nothing of windows, disks, intervals or batches. The engine keeps three items of a
queue in memory, so nearly everything passes through Fetch; what it writes goes to a list that
stands for the journal, and what it reads comes from there.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from journeyman.engines.kestrel.bulk import KINDS
from journeyman.engines.kestrel.engine import KestrelEngine
from journeyman.engines.kestrel.messages import (
    AddReader,
    Append,
    Checkpoint,
    EraseQueue,
    Fetch,
    Fetched,
    KestrelAnswer,
    KestrelDue,
    KestrelGone,
    KestrelOutcome,
    RemoveReader,
    SaveCheckpoint,
)
from journeyman.engines.kestrel.queue import KestrelOptions, QueueSettings, ReaderSettings
from journeyman.engines.kestrel.state import LoadedReader
from journeyman.folds.kestrel import Reader
from journeyman.formats.kestrel import ItemPut
from journeyman.protocols.kestrel.commands import (
    Confirm,
    DeleteQueue,
    Flush,
    GetItem,
    Key,
    Monitor,
    Put,
)
from journeyman.protocols.kestrel.replies import reply_bytes
from tests.support.effort import cases

MS = 1_000_000
MAX_OPEN = 3
CLIENTS = st.integers(min_value=1, max_value=4)
QUEUES = st.sampled_from(["q", "r"])
READERS = st.sampled_from(["", "a", "b"])


def value(key: Key, data: bytes) -> bytes:
    return b"VALUE %b 0 %d\r\n%b\r\nEND\r\n" % (str(key).encode(), len(data), data)


class FanOutMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        reader = ReaderSettings(max_open=MAX_OPEN)
        self.settings = KestrelOptions(QueueSettings(reader), window_items=3, window_bytes=40)
        self.engine = KestrelEngine(self.settings)
        self.disk: dict[str, list[ItemPut]] = {}
        self.checkpoints: dict[tuple[str, str], Reader] = {}
        self.returned: dict[Key, list[bytes]] = {}
        self.pending: dict[Key, list[bytes]] = {}
        self.waiting: dict[int, tuple[Key, str]] = {}
        self.line: dict[Key, list[int]] = {}
        self.open: dict[tuple[int, Key], list[bytes]] = {}
        self.now_ns = 10**18
        self.number = 0

    # -- the engine and the world around it --

    def decide(self, command, client=None) -> tuple[bytes | None, list[tuple[int, bytes]]]:
        """The reply, and what others hear, once all that is to be read from disk was read."""
        self.engine.begin_batch()
        outcome = self.engine.decide(command, self.now_ns, client)
        self.engine.undo_batch()  # as if it could not be written; then once more
        self.engine.begin_batch()
        again = self.engine.decide(command, self.now_ns, client)
        assert again == outcome, "a batch that was taken back has left something behind"
        self.engine.commit_batch()
        self.write(outcome)
        heard: list[tuple[int, bytes]] = []
        effects: list[object] = list(outcome.effects)
        while effects:
            effect = effects.pop(0)
            if isinstance(effect, KestrelAnswer):
                assert isinstance(effect.client, int)
                heard.append((effect.client, reply_bytes(effect.reply)))
            elif isinstance(effect, SaveCheckpoint):
                self.checkpoints[effect.queue, effect.reader] = effect.state
            elif isinstance(effect, Fetch):
                effects += self.read(effect)
        return (None if outcome.reply is None else reply_bytes(outcome.reply)), heard

    def write(self, outcome: KestrelOutcome) -> None:
        for write in outcome.records:
            if isinstance(write, Append):
                self.disk.setdefault(write.queue, []).append(write.item)
            elif isinstance(write, EraseQueue):
                self.disk.pop(write.queue, None)
                for key in [key for key in self.checkpoints if key[0] == write.queue]:
                    del self.checkpoints[key]
            elif isinstance(write, AddReader):
                place = Reader(write.head)
                if write.takes_over:
                    place = self.checkpoints.pop((write.queue, ""))
                self.checkpoints[write.queue, write.reader] = place
            elif isinstance(write, RemoveReader):
                del self.checkpoints[write.queue, write.reader]

    def read(self, fetch: Fetch) -> list[object]:
        items = [item for item in self.disk.get(fetch.queue, []) if item.item_id > fetch.after]
        self.engine.begin_batch()
        fetched = Fetched(fetch, tuple(items[:2]))
        outcome = self.engine.decide(fetched, self.now_ns)
        self.engine.commit_batch()
        self.write(outcome)
        return list(outcome.effects)

    # -- the model --

    def readers_of(self, queue: str) -> list[str]:
        return [key.reader for key in self.pending if key.queue == queue]

    def make(self, key: Key) -> bool:
        """The reader is there afterwards; False: the queue has named ones only."""
        if key in self.pending:
            return True
        names = self.readers_of(key.queue)
        if key.reader == "" and names:
            return False
        default = Key(key.queue)
        if "" in names:
            self.pending[key] = self.pending.pop(default)
            self.returned[key] = self.returned.pop(default)
            for client in self.line.pop(default):
                del self.waiting[client]
            for client, opened in list(self.open):
                if opened == default:
                    self.open[client, key] = self.open.pop((client, opened))
        else:
            self.pending[key], self.returned[key] = [], []
        self.line[key] = []
        return True

    def next_of(self, key: Key) -> bytes | None:
        for items in (self.returned[key], self.pending[key]):
            if items:
                return items.pop(0)
        return None

    def serve(self, key: Key) -> list[tuple[int, bytes]]:
        heard = []
        while self.line[key] and (data := self.next_of(key)) is not None:
            client = self.line[key][0]
            wanted = self.waiting[client][1]
            heard.append((client, value(key, data)))
            if wanted != "get":
                self.open.setdefault((client, key), []).append(data)
            if wanted == "monitor":
                if len(self.open[client, key]) < MAX_OPEN:
                    continue
                heard.append((client, b"END\r\n"))
            self.line[key].pop(0)
            del self.waiting[client]
        return heard

    def waiting_on_default(self, queue: str) -> list[tuple[int, bytes]]:
        return [(client, b"END\r\n") for client in self.line.get(Key(queue), [])]

    # -- what happens --

    @rule(queue=QUEUES)
    def put(self, queue):
        self.number += 1
        data = b"%d" % self.number
        if not self.readers_of(queue):
            self.make(Key(queue))
        expected = []
        for name in self.readers_of(queue):
            self.pending[Key(queue, name)].append(data)
        for key in [key for key in self.pending if key.queue == queue]:
            expected += self.serve(key)
        reply, heard = self.decide(Put(queue, 0, data), 9)
        assert reply == b"STORED\r\n"
        assert sorted(heard) == sorted(expected)

    @rule(client=CLIENTS, queue=QUEUES, reader=READERS, waits=st.booleans(), opens=st.booleans())
    def get(self, client, queue, reader, waits, opens):
        if client in self.waiting:
            return
        key = Key(queue, reader)
        takes_over = reader != "" and "" in self.readers_of(queue)
        expected_heard = self.waiting_on_default(queue) if takes_over else []
        made = self.make(key)
        command = GetItem(key, 1000 if waits else 0, open=opens)
        opened = len(self.open.get((client, key), []))
        expected: bytes | None
        if not made:
            expected = b"SERVER_ERROR the queue has named readers: ask for queue+reader\r\n"
        elif (opened and not opens) or opened >= MAX_OPEN:
            expected = b"ERROR\r\n"
        else:
            expected = self._expected_get(client, key, waits, opens)
        reply, heard = self.decide(command, client)
        if reply is None and expected is not None:  # it was read from disk
            assert (client, expected) in heard
            heard.remove((client, expected))
        else:
            assert reply == expected
        assert heard == expected_heard

    def _expected_get(self, client, key, waits, opens) -> bytes | None:
        data = None if self.line[key] else self.next_of(key)
        if data is not None:
            if opens:
                self.open.setdefault((client, key), []).append(data)
            return value(key, data)
        if not waits:
            return b"END\r\n"
        self.waiting[client] = (key, "open" if opens else "get")
        self.line[key].append(client)
        return None

    @rule(client=CLIENTS, queue=QUEUES, reader=READERS)
    def peek(self, client, queue, reader):
        key = Key(queue, reader)
        if client in self.waiting or key not in self.pending or self.line[key]:
            return
        first = (self.returned[key] + self.pending[key])[:1]
        reply, heard = self.decide(GetItem(key, peek=True), client)
        assert (reply or heard.pop()[1]) == (value(key, first[0]) if first else b"END\r\n")
        assert heard == []

    @rule(client=CLIENTS, queue=QUEUES, reader=READERS)
    def monitor(self, client, queue, reader):
        key = Key(queue, reader)
        full = len(self.open.get((client, key), [])) >= MAX_OPEN
        if client in self.waiting or key not in self.pending or full:
            return
        self.waiting[client] = (key, "monitor")
        self.line[key].append(client)
        expected = self.serve(key)
        reply, heard = self.decide(Monitor(key, 1000, None), client)
        assert reply is None
        assert heard == expected

    @rule(client=CLIENTS, queue=QUEUES, reader=READERS, count=st.integers(0, 4))
    def confirm(self, client, queue, reader, count):
        key = Key(queue, reader)
        if client in self.waiting:
            return
        opened = self.open.get((client, key), [])
        expected = b"END\r\n" if 0 < count <= len(opened) else b"ERROR\r\n"
        if expected == b"END\r\n":
            del opened[:count]
            if not opened:
                del self.open[client, key]
        assert self.decide(Confirm(key, count), client) == (expected, [])

    @rule(client=CLIENTS, queue=QUEUES, reader=READERS)
    def abort(self, client, queue, reader):
        key = Key(queue, reader)
        if client in self.waiting or key not in self.pending:
            return
        expected = []
        if (client, key) in self.open:
            self.returned[key].append(self.open[client, key].pop(0))
            if not self.open[client, key]:
                del self.open[client, key]
            expected = self.serve(key)
        assert self.decide(GetItem(key, abort=True), client) == (b"END\r\n", expected)

    @rule(client=CLIENTS)
    def goes_away(self, client):
        if client in self.waiting:
            self.line[self.waiting.pop(client)[0]].remove(client)
        expected = []
        for key in [key for owner, key in self.open if owner == client]:
            self.returned[key] += self.open.pop((client, key))
            expected += self.serve(key)
        reply, heard = self.decide(KestrelGone(client))
        assert reply is None
        assert sorted(heard) == sorted(expected)

    @rule(queue=QUEUES, reader=READERS)
    def flush(self, queue, reader):
        for key in self.pending:
            if key.queue == queue and reader in ("", key.reader):
                self.pending[key].clear()
                self.returned[key].clear()
        assert self.decide(Flush(Key(queue, reader)), 9) == (b"END\r\n", [])

    @rule(queue=QUEUES, reader=READERS)
    def delete(self, queue, reader):
        expected = []
        for key in list(self.pending):
            if key.queue != queue or reader not in ("", key.reader):
                continue
            expected += [(client, b"END\r\n") for client in self.line.pop(key)]
            for client in [c for c, (waited, _) in self.waiting.items() if waited == key]:
                del self.waiting[client]
            del self.pending[key], self.returned[key]
            for owner, opened in list(self.open):
                if opened == key:
                    del self.open[owner, opened]
        reply, heard = self.decide(DeleteQueue(Key(queue, reader)), 9)
        assert reply == b"DELETED\r\n"
        assert sorted(heard) == sorted(expected)

    @rule()
    def time_passes(self):
        self.now_ns += 2000 * MS
        expected = [(client, b"END\r\n") for client in self.waiting]
        self.waiting.clear()
        for line in self.line.values():
            line.clear()
        heard = []
        while (due_ns := self.engine.next_due_ns()) is not None and due_ns <= self.now_ns:
            reply, some = self.decide(KestrelDue(2))
            assert reply is None
            heard += some
        assert sorted(heard) == sorted(expected)

    @rule()
    def checkpoint(self):
        self.decide(Checkpoint())

    @precondition(lambda self: self.pending)
    @rule()
    def restarts(self):
        """Clients are gone; open reads and what was confirmed since the checkpoint come again."""
        self.decide(Checkpoint())
        self.engine = KestrelEngine(self.settings)
        self.waiting.clear()
        self.open.clear()
        for key in self.line:
            self.line[key] = []
        for queue in {key.queue for key in self.pending}:
            items = self.disk.get(queue, [])
            readers = []
            for name in self.readers_of(queue):
                place = self.checkpoints[queue, name]
                left = [item for item in items if not place.is_past(item.item_id)]
                size = sum(len(item.data) for item in left)
                readers.append(LoadedReader(name, place, len(left), size))
                self.returned[Key(queue, name)] = []
                self.pending[Key(queue, name)] = [item.data for item in left]
            heads = [place.head for (of, _), place in self.checkpoints.items() if of == queue]
            tail = max([item.item_id for item in items] + heads, default=0)
            self.engine.load(queue, next_id=tail + 1, created_ms=0, readers=readers)

    @invariant()
    def every_reader_has_what_the_model_says(self):
        known = {
            Key(queue.name, name): (reader.items, reader.open_items)
            for queue in self.engine.queues.values()
            for name, reader in queue.readers.items()
        }
        opened: dict[Key, int] = {}
        for (_, key), items in self.open.items():
            opened[key] = opened.get(key, 0) + len(items)
        assert known == {
            key: (len(self.pending[key]) + len(self.returned[key]), opened.get(key, 0))
            for key in self.pending
        }

    @invariant()
    def little_is_kept_in_memory(self):
        for queue in self.engine.queues.values():
            assert len(queue.window) <= 3


FanOutMachine.TestCase.settings = settings(
    max_examples=cases(60), stateful_step_count=40, deadline=None
)
TestFanOut = FanOutMachine.TestCase


# -- the fast path --

_KEYS = st.builds(Key, st.sampled_from(["q", "full"]), READERS)
_GETS = st.builds(
    GetItem,
    _KEYS,
    st.sampled_from([0, 0, 5]),
    open=st.sampled_from([True, True, True, False]),
    close=st.sampled_from([False, False, False, True]),
    peek=st.sampled_from([False, False, False, True]),
)
_RUN = st.one_of(
    st.lists(
        st.builds(
            Put,
            st.sampled_from(["q", "q", "q", "full"]),
            st.sampled_from([0, 0, 0, 0, 1, 2_000_000_000]),
            st.sampled_from([b"", b"item", b"x" * 9]),
        ),
        min_size=1,
        max_size=6,
    ),
    st.tuples(_GETS, st.integers(1, 6)).map(lambda run: [run[0]] * run[1]),
    st.tuples(st.builds(Confirm, _KEYS, st.integers(0, 2)), st.integers(1, 6)).map(
        lambda run: [run[0]] * run[1]
    ),
    st.lists(_GETS, min_size=1, max_size=3),
    st.builds(Flush, _KEYS).map(lambda each: [each]),
)


def _options() -> KestrelOptions:
    reader = ReaderSettings(max_open=4)
    full = QueueSettings(ReaderSettings(max_open=4, max_items=5, drops_oldest=True))
    small = QueueSettings(reader, max_item_bytes=8)
    return KestrelOptions(small, {"full": full}, window_items=8)


@settings(max_examples=cases(150), deadline=None)
@given(st.lists(st.tuples(_RUN, CLIENTS, st.integers(0, 2), st.booleans()), max_size=14))
def test_the_fast_path_decides_as_the_engine_does_one_by_one(
    runs: list[tuple[list[Any], int, int, bool]],
):
    law, fast = KestrelEngine(_options()), KestrelEngine(_options())
    now_ns, waiting = 10**18, set[int]()
    for commands, client, later_s, is_kept in runs:
        now_ns += later_s * 1000 * MS
        if client in waiting:
            continue
        found: list[list[Any]] = [[], []]
        law.begin_batch()
        fast.begin_batch()
        for command in commands:
            found[0].append(law.decide(command, now_ns, client))
            if found[0][-1].reply is None:
                break
        left = list(commands)
        while left:
            writes, replies = (
                fast.decide_run(left, now_ns, client, 10**9)
                if (type(left[0]) in KINDS)
                else ([], [])
            )
            assert len(writes) in (0, len(replies))
            for place, reply in enumerate(replies):
                found[1].append(KestrelOutcome(tuple(writes[place : place + 1]), reply, ()))
            del left[: len(replies)]
            if left and not replies:
                found[1].append(fast.decide(left.pop(0), now_ns, client))
                if found[1][-1].reply is None:
                    break
        assert found[0] == found[1]
        if is_kept:
            law.commit_batch()
            fast.commit_batch()
            waiting |= {client} if found[0][-1].reply is None else set()
        else:
            law.undo_batch()
            fast.undo_batch()
        assert (law.stats(), law.counts) == (fast.stats(), fast.counts)
        assert _places(law) == _places(fast)


def _places(engine: KestrelEngine) -> list[Any]:
    return [
        (queue.name, queue.save()[:5], reader.save()[:6], repr(reader.tally))
        for queue in engine.queues.values()
        for reader in queue.readers.values()
    ]
