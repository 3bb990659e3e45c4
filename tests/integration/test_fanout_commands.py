"""The fan-out queues over a real socket: every command, and what it is answered with."""

from __future__ import annotations

import itertools
import subprocess
import time
from collections.abc import Iterator

import pytest

from journeyman.formats.kestrel import MAX_DATA_BYTES, SEAL_BYTES
from journeyman.servers.kestrel.metrics import VERSION
from journeyman.servers.kestrel.service import ITEM_OVERHEAD_BYTES
from tests.support.servers.fanout_process import FanOutClient, FanOutProcess

CONFIG = """
[kestrel]
sweep_interval_ms = 20
max_readers = 3
[kestrel.queue.many]
max_open = 3
[kestrel.queue.small]
max_item_bytes = 4
max_items = 2
[kestrel.queue.old]
expire_to = "attic"
[kestrel.queue.poison]
max_errors = 2
errors_to = "dead"
"""
QUEUE_FIGURES = [
    *("items", "bytes", "total_items", "logsize", "expired_items", "mem_items", "mem_bytes"),
    *("age", "discarded", "waiters", "open_transactions", "transactions"),
    *("canceled_transactions", "total_flushes", "journal_rewrites", "journal_rotations"),
    "create_time",
]
SERVER_FIGURES = [
    *("uptime", "time", "version", "curr_items", "total_items", "bytes", "reserved_memory_ratio"),
    *("curr_connections", "total_connections", "cmd_get", "cmd_set", "cmd_peek", "get_hits"),
    *("get_misses", "bytes_read", "bytes_written", "queue_creates", "queue_deletes"),
    "queue_expires",
]

_numbers = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FanOutProcess]:
    with FanOutProcess(tmp_path_factory.mktemp("fanout"), config=CONFIG) as running:
        yield running
        assert running.stop() == 0


@pytest.fixture
def client(server: FanOutProcess) -> Iterator[FanOutClient]:
    with server.reader() as connected:
        yield connected


@pytest.fixture
def queue() -> str:
    """A name that no other test uses."""
    return f"queue-{next(_numbers)}"


def test_put_and_get(client: FanOutClient):
    assert client.put("plain", b"hello") == "STORED"
    client.send(b"get plain\r\n")
    assert client.read_exactly(29) == b"VALUE plain 0 5\r\nhello\r\nEND\r\n"
    client.send(b"get plain\r\n")
    assert client.read_exactly(5) == b"END\r\n"


def test_items_are_binary_and_may_be_empty(client: FanOutClient, queue: str):
    for data in (bytes(range(256)) + b"\r\nEND\r\nset x 0 0 1\r\n", b""):
        assert client.put(queue, data) == "STORED"
        assert client.get(queue) == data


def test_lines_may_end_in_lf_and_commands_in_any_case(client: FanOutClient, queue: str):
    client.send(f"SET {queue} 0 0 2\nhi\r\nGeT {queue}\nVERSION\n")
    assert client.read_line() == "STORED"
    assert client.read_item() == b"hi"
    assert client.read_line() == f"VERSION {VERSION}"


def test_gets_is_get_and_more_words_are_ignored(client: FanOutClient, queue: str):
    client.send(f"set {queue} 0 0 1 noreply\r\nx\r\ngets {queue} other\r\n")
    assert client.read_line() == "STORED"
    assert client.read_item() == b"x"


def test_item_that_is_too_large_for_its_queue_is_not_stored(client: FanOutClient):
    assert client.put("small", b"12345") == "NOT_STORED"
    assert client.get("small") is None


def test_full_queue_refuses_puts(client: FanOutClient):
    assert [client.put("small", b"1") for _ in range(3)] == ["STORED", "STORED", "NOT_STORED"]
    assert client.get("small") == b"1"
    assert client.put("small", b"2") == "STORED"
    assert client.ask("flush small") == "END"


# -- open reads --


def test_open_read_comes_back_when_the_connection_ends(server: FanOutProcess, queue: str):
    with server.reader() as first:
        first.put(queue, b"a")
        assert first.get(f"{queue}/open") == b"a"
    with server.reader() as second:
        assert second.get(f"{queue}/t=10000") == b"a"


def test_close_confirms_and_fetches_nothing(server: FanOutProcess, queue: str):
    with server.reader() as first:
        first.put(queue, b"a")
        first.put(queue, b"b")
        assert first.get(f"{queue}/open") == b"a"
        assert first.get(f"{queue}/close") is None
        assert first.get(f"{queue}/close/open") == b"b"  # nothing was open: close is ignored
    with server.reader() as second:
        assert second.get(f"{queue}/t=10000") == b"b"
        assert second.get(queue) is None


def test_abort_puts_it_in_front(client: FanOutClient, queue: str):
    for data in (b"a", b"b"):
        client.put(queue, data)
    assert client.get(f"{queue}/open") == b"a"
    assert client.get(f"{queue}/abort") is None
    assert client.get(f"{queue}/abort") is None  # nothing is open
    assert client.get(queue) == b"a"
    assert client.get(queue) == b"b"


def test_close_and_open_in_one_step(client: FanOutClient, queue: str):
    for data in (b"a", b"b"):
        client.put(queue, data)
    assert client.get(f"{queue}/open") == b"a"
    assert client.get(f"{queue}/close/open") == b"b"
    assert client.ask(f"confirm {queue} 1") == "END"
    assert client.get(queue) is None


def test_confirm_takes_the_oldest_all_or_none(client: FanOutClient):
    for data in (b"a", b"b", b"c"):
        client.put("many", data)
    assert [client.get("many/open") for _ in range(3)] == [b"a", b"b", b"c"]
    assert client.ask("confirm many 4") == "ERROR"
    assert client.ask("confirm many 0") == "ERROR"
    assert client.ask("confirm many -1") == "ERROR"
    assert client.ask("confirm many 2") == "END"
    assert client.get("many/abort") is None
    assert client.get("many") == b"c"


@pytest.mark.parametrize("option", ["", "/t=100", "/open"])
def test_second_get_while_one_is_open_ends_the_connection(
    client: FanOutClient, queue: str, option: str
):
    client.put(queue, b"a")
    client.put(queue, b"b")
    assert client.get(f"{queue}/open") == b"a"
    client.send(f"get {queue}{option}\r\nversion\r\n")
    assert client.read_to_the_end() == b"ERROR\r\n"


def test_nothing_behind_the_end_of_a_connection_is_taken(server: FanOutProcess, queue: str):
    with server.reader() as one, server.reader() as other:
        other.put(queue, b"a")
        other.put(f"{queue}-2", b"b")
        one.send(f"get {queue}/open\r\nget {queue}\r\nget {queue}-2\r\nflush {queue}-2\r\n")
        assert one.read_item() == b"a"
        assert one.read_to_the_end() == b"ERROR\r\n"
        assert other.get(f"{queue}-2") == b"b"


def test_peek_takes_nothing(client: FanOutClient, queue: str):
    assert client.get(f"{queue}/peek") is None
    client.put(queue, b"a")
    assert client.get(f"{queue}/peek") == b"a"
    assert client.get(f"{queue}/open") == b"a"
    assert client.get(f"{queue}/peek") is None  # allowed while one is open


def test_item_that_fails_too_often_goes_to_the_dead(client: FanOutClient):
    client.put("poison", b"p")
    for _ in range(2):
        assert client.get("poison/open") == b"p"
        assert client.get("poison/abort") is None
    assert client.get("poison") is None
    assert client.get("dead") == b"p"


# -- waiting --


def test_waiting_get_is_given_what_comes(server: FanOutProcess, queue: str):
    with server.reader() as waiting, server.reader() as other:
        waiting.send(f"get {queue}/t=20000\r\nversion\r\n")
        server.wait_until(lambda: other.stats().get(f"queue_{queue}_waiters") == "1")
        assert other.put(queue, b"a") == "STORED"
        assert waiting.read_item() == b"a"
        assert waiting.read_line() == f"VERSION {VERSION}"


def test_wait_has_an_end(client: FanOutClient, queue: str):
    assert client.get(f"{queue}/t=50") is None
    assert client.stats()[f"queue_{queue}_waiters"] == "0"


def test_one_item_goes_to_one_of_those_who_wait_in_their_order(server: FanOutProcess, queue: str):
    with server.reader() as one, server.reader() as two, server.reader() as other:
        for waiting, seen in ((one, {"1"}), (two, {"2"})):
            waiting.send(f"get {queue}/t=20000\r\n")
            server.wait_until(lambda: other.stats().get(f"queue_{queue}_waiters") in seen)  # noqa: B023
        other.put(queue, b"a")
        assert one.read_item() == b"a"
        other.put(queue, b"b")
        assert two.read_item() == b"b"


def test_monitor_gives_whole_blocks_then_an_end(server: FanOutProcess):
    with server.reader() as watcher, server.reader() as other:
        other.put("many", b"a")
        watcher.send("monitor many 20 2\r\nversion\r\n")
        assert watcher.read_item() == b"a"
        other.put("many", b"b")
        assert watcher.read_item() == b"b"
        assert watcher.read_line() == "END"
        assert watcher.read_line() == f"VERSION {VERSION}"
        assert watcher.ask("confirm many 2") == "END"
        assert watcher.ask("monitor many 0") == "END"


def test_monitor_stops_at_the_limit_of_open_reads(client: FanOutClient, queue: str):
    for data in (b"a", b"b"):
        client.put(queue, data)
    client.send(f"monitor {queue} 20 5\r\n")
    assert client.read_item() == b"a"
    assert client.read_line() == "END"


# -- fan-out --


def test_every_reader_gets_every_item(client: FanOutClient, queue: str):
    assert client.get(f"{queue}+a") is None
    assert client.get(f"{queue}+b") is None
    client.put(queue, b"x")
    client.send(f"get {queue}+a\r\n")
    assert client.read_line() == f"VALUE {queue}+a 0 1"
    assert client.read_exactly(8) == b"x\r\nEND\r\n"
    assert client.get(f"{queue}+b") == b"x"
    assert client.get(f"{queue}+b") is None


def test_first_named_reader_takes_over_what_waits(client: FanOutClient, queue: str):
    client.put(queue, b"x")
    assert client.get(f"{queue}+a") == b"x"
    assert client.ask(f"get {queue}").startswith("SERVER_ERROR ")
    assert client.ask(f"delete {queue}+a") == "DELETED"
    assert client.get(queue) is None


def test_reader_cannot_be_put_into(client: FanOutClient, queue: str):
    client.send(f"set {queue}+a 0 0 8\r\nshutdown\r\nversion\r\n")
    assert client.read_line() == "CLIENT_ERROR"
    assert client.read_line() == f"VERSION {VERSION}"


def test_number_of_readers_is_bounded(client: FanOutClient, queue: str):
    for name in "abc":
        assert client.get(f"{queue}+{name}") is None
    assert client.ask(f"get {queue}+d") == "SERVER_ERROR the queue has too many readers"


def test_longest_names_are_names_of_files(client: FanOutClient):
    queue, reader = "q" * 100, "r" * 100
    assert client.get(f"{queue}+{reader}") is None
    assert client.put(queue, b"x") == "STORED"
    assert client.get(f"{queue}+{reader}") == b"x"
    assert client.put("q" * 200, b"y") == "STORED"
    assert client.get("q" * 200) == b"y"
    assert client.ask(f"get {queue}+{reader}r") == "CLIENT_ERROR"


# -- expiry, flush, delete --


def test_expired_item_is_not_given_out(client: FanOutClient, queue: str):
    client.put(queue, b"late", expiry=-1)
    client.put(queue, b"alive", expiry=int(time.time()) + 3600)
    client.put(queue, b"longer", expiry=3600)
    assert client.get(queue) == b"alive"
    assert client.get(queue) == b"longer"
    assert client.get(queue) is None


@pytest.mark.parametrize("expiry", [10**18 - 1, 1 - 10**18])
def test_moments_beyond_all_measure_are_taken_for_the_last_or_first(
    client: FanOutClient, queue: str, expiry: int
):
    assert client.put(queue, b"x", expiry=expiry) == "STORED"
    assert client.get(queue) == (b"x" if expiry > 0 else None)


def test_expired_item_goes_to_the_queue_that_is_set(client: FanOutClient):
    client.put("old", b"x", expiry=-1)
    assert client.get("attic/t=20000") == b"x"


def test_flush_expired_tells_how_many(client: FanOutClient, queue: str):
    assert client.ask(f"flush_expired {queue}") == "0"
    assert client.ask("flush_all_expired").isdecimal()


def test_flush_leaves_nothing_but_what_is_open(server: FanOutProcess, queue: str):
    with server.reader() as one, server.reader() as other:
        for data in (b"a", b"b", b"c"):
            one.put(queue, data)
        assert one.get(f"{queue}/open") == b"a"
        assert other.ask(f"flush {queue}") == "END"
        assert other.get(queue) is None
        assert one.get(f"{queue}/abort") is None
        assert other.get(f"{queue}/t=10000") == b"a"


def test_delete_is_always_said_to_be_done(server: FanOutProcess, client: FanOutClient, queue: str):
    assert client.ask(f"delete {queue}") == "DELETED"
    client.put(queue, b"a")
    assert list(server.queues.glob(f"{queue}.*"))
    assert client.ask(f"delete {queue}") == "DELETED"
    assert not [p for p in server.queues.glob(f"{queue}.*") if p.suffix != ".lock"]
    assert client.get(queue) is None


def test_asking_makes_no_queue(client: FanOutClient, queue: str):
    assert client.get(f"{queue}/abort") is None
    assert client.get(f"{queue}/close") is None
    assert client.ask(f"confirm {queue} 1") == "ERROR"
    assert client.ask(f"flush {queue}") == "END"
    assert client.ask(f"delete {queue}") == "DELETED"
    assert client.ask(f"dump_stats {queue}") == "END"
    assert not any(name.startswith(f"queue_{queue}_") for name in client.stats())


# -- the server --


def test_stats_have_the_names_and_the_order_of_the_original(client: FanOutClient, queue: str):
    client.put(queue, b"abc")
    client.put(queue, b"de")
    assert client.get(f"{queue}/open") == b"abc"
    figures = client.stats()
    assert list(figures)[: len(SERVER_FIGURES)] == SERVER_FIGURES
    prefix = f"queue_{queue}_"
    mine = {name.removeprefix(prefix): figures[name] for name in figures if prefix in name}
    assert list(mine) == QUEUE_FIGURES
    assert (mine["items"], mine["bytes"]) == ("1", "2")  # what is open does not count
    assert (mine["open_transactions"], mine["transactions"]) == ("1", "1")
    assert (mine["total_items"], mine["mem_items"], mine["logsize"]) == ("2", "2", "55")
    assert figures["version"] == VERSION


def test_stats_count_what_happens(client: FanOutClient, queue: str):
    before = client.stats()
    client.put(queue, b"a")
    client.get(f"{queue}/peek")
    client.get(f"{queue}/open")
    client.get(f"{queue}/abort")
    client.get(queue)
    client.get(queue)
    after = client.stats()
    grown = {name: int(after[name]) - int(before[name]) for name in SERVER_FIGURES[9:14]}
    assert grown == {"cmd_get": 4, "cmd_set": 1, "cmd_peek": 1, "get_hits": 3, "get_misses": 1}
    assert int(after["queue_creates"]) == int(before["queue_creates"]) + 1
    assert after[f"queue_{queue}_canceled_transactions"] == "1"


def test_dump_stats(client: FanOutClient, queue: str):
    client.put(queue, b"abc")
    client.send(f"dump_stats {queue}\r\n")
    lines = [client.read_line() for _ in range(len(QUEUE_FIGURES) + 3)]
    assert lines[0] == f"queue '{queue}' {{"
    assert lines[1] == "  items=1"
    assert [line.strip().partition("=")[0] for line in lines[1:-2]] == QUEUE_FIGURES
    assert lines[-2:] == ["}", "END"]


def test_reload_and_shutdown_are_refused(client: FanOutClient):
    assert client.ask("reload").startswith("SERVER_ERROR ")
    assert client.ask("shutdown") == "SERVER_ERROR shutdown by clients is switched off"
    assert client.ask("version") == f"VERSION {VERSION}"


def test_quit_closes_without_a_word(client: FanOutClient):
    client.send("version\r\nquit\r\nversion\r\n")
    assert client.read_to_the_end() == f"VERSION {VERSION}\r\n".encode()


@pytest.mark.parametrize(
    "line", ["", "nonsense", "get /open", "get q/peek/open", "get q/abort/close", "set q 0 0"]
)
def test_some_refusals_end_the_connection(client: FanOutClient, line: str):
    client.send(line + "\r\nversion\r\n")
    said = client.read_to_the_end()
    assert said == b"CLIENT_ERROR\r\n"
    assert said.count(b"\r\n") == 1


@pytest.mark.parametrize(
    "line", ["get", "confirm q", "confirm q x", "get q/t=x", "get a~b", "flush"]
)
def test_others_do_not(client: FanOutClient, line: str):
    assert client.ask(line) == "CLIENT_ERROR"
    assert client.ask("version") == f"VERSION {VERSION}"


def test_statuses(server: FanOutProcess, queue: str):
    with server.reader() as keeper:
        try:
            keeper.put(queue, b"a")
            assert keeper.ask("status") == "UP"
            assert keeper.ask("status readonly") == "END"
            assert keeper.ask("status") == "READONLY"
            assert keeper.get(f"{queue}/open") == b"a"
            with server.reader() as other:
                assert other.put(queue, b"b") == "SERVER_ERROR"
                assert other.read_to_the_end() == b""
            assert server.ask("1 RULE SET r due. journal due") == "1 OK"
            assert server.ask("2 SET due.1 1") == "2 OK"
            server.wait_for_status("due.1", "failed")
            assert keeper.ask("status quiescent") == "END"
            assert keeper.ask(f"confirm {queue} 1") == "END"
            with server.reader() as other:
                assert other.ask(f"get {queue}") == "SERVER_ERROR"
                assert other.read_to_the_end() == b""
            assert keeper.ask("status writeavoid") == "END"
            assert keeper.put(queue, b"c") == "STORED"
        finally:
            assert keeper.ask("status up") == "END"
        keeper.send("status sideways\r\n")
        assert keeper.read_to_the_end() == b"CLIENT_ERROR\r\n"


def test_open_reads_end_well_while_the_server_is_quiescent(server: FanOutProcess):
    with server.reader() as keeper:
        for item in (b"closed", b"aborted", b"closed too"):
            keeper.put("many", item)
        for _ in range(3):
            keeper.get("many/open")
        try:
            assert keeper.ask("status quiescent") == "END"
            assert keeper.ask("get many/close") == "END"
            assert keeper.ask("get many/abort") == "END"
            assert keeper.ask("get many/close/open") == "SERVER_ERROR"  # what is open is closed
            assert keeper.read_to_the_end() == b""
        finally:
            with server.reader() as other:
                assert other.ask("status up") == "END"
    with server.reader() as other:
        assert [other.get("many"), other.get("many")] == [b"aborted", None]


def test_figures_that_count_everything_do_not_fall(client: FanOutClient, queue: str):
    client.put(queue, b"a")
    before = int(client.stats()["total_items"])
    client.ask(f"delete {queue}")
    assert int(client.stats()["total_items"]) == before


def test_age_of_an_empty_queue_is_nothing(client: FanOutClient, queue: str):
    client.put(queue, b"a")
    client.put(queue, b"b")
    time.sleep(0.01)
    client.get(queue)
    assert int(client.stats()[f"queue_{queue}_age"]) >= 10
    client.get(queue)
    assert client.stats()[f"queue_{queue}_age"] == "0"


def test_largest_item_makes_a_segment_that_the_original_can_open(tmp_path):
    with FanOutProcess(tmp_path) as server, server.reader() as client:
        assert client.put("q", bytes(MAX_DATA_BYTES)) == "NOT_STORED"
        overhead = ITEM_OVERHEAD_BYTES + 3 * SEAL_BYTES
        assert client.put("q", bytes(MAX_DATA_BYTES - overhead + 1), expiry=1000) == "NOT_STORED"
        assert client.put("q", bytes(MAX_DATA_BYTES - overhead), expiry=1000) == "STORED"
        client.close()
        server.stop()
        (segment,) = server.queues.glob("q.[0-9]*")
        assert segment.stat().st_size == 16 * 1024 * 1024


@pytest.mark.parametrize("program", ["memcping", "memcstat"])
def test_programs_of_libmemcached_take_it_for_a_server(server: FanOutProcess, program: str):
    address = f"--servers=127.0.0.1:{server.fanout_port}"
    done = subprocess.run(
        [program, address], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    if program == "memcstat":
        assert f"version: {VERSION}" in done.stdout


@pytest.mark.parametrize("options", [[], ["--expire=5"]])
def test_memcflush_flushes_all_queues_and_says_nothing(tmp_path, options: list[str]):
    with FanOutProcess(tmp_path) as server, server.reader() as client:
        client.put("q", b"a")
        words = ["memcflush", f"--servers=127.0.0.1:{server.fanout_port}", *options]
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert client.get("q") is None
        assert client.ask("flush_all") == "Flushed all queues."


# -- the whole server --


def test_shutdown_stops_the_server_where_it_is_allowed(tmp_path):
    with FanOutProcess(tmp_path, kestrel__allow_shutdown="true") as server:
        with server.reader() as client:
            client.put("q", b"a")
            client.send("shutdown\r\n")
            assert client.read_to_the_end() == b""
        assert server.wait() == 0
    with FanOutProcess(tmp_path) as server, server.reader() as client:
        assert client.get("q") == b"a"


def test_number_of_queues_is_bounded(tmp_path):
    with FanOutProcess(tmp_path, kestrel__max_queues=2) as server, server.reader() as client:
        assert client.put("a", b"1") == "STORED"
        assert client.get("b") is None
        assert client.put("c", b"1") == "SERVER_ERROR there are too many queues"
        assert client.ask("get d") == "SERVER_ERROR there are too many queues"
        assert client.ask("delete b") == "DELETED"
        assert client.put("c", b"1") == "STORED"


@pytest.mark.parametrize("sync", ["always", "interval", "os"])
def test_what_was_put_is_there_after_a_restart(tmp_path, sync: str):
    settings = {"kestrel.sync": sync, "kestrel.segment_bytes": 1024}
    with FanOutProcess(tmp_path, settings=settings) as server:
        with server.reader() as client:
            assert client.get("q+a") is None
            assert client.get("q+b") is None
            for number in range(100):
                assert client.put("q", b"item %d" % number) == "STORED"
            for number in range(60):
                assert client.get("q+a") == b"item %d" % number
        assert server.stop() == 0
    with FanOutProcess(tmp_path, settings=settings) as server, server.reader() as client:
        assert [client.get("q+a") for _ in range(41)][::40] == [b"item 60", None]
        assert client.get("q+b") == b"item 0"


def test_two_servers_do_not_share_a_folder(tmp_path):
    with FanOutProcess(tmp_path) as first, first.reader() as client:
        client.put("q", b"a")
        second = FanOutProcess(tmp_path)
        second.start(wait=False)
        assert second.wait() == 1
        second.wait_for_line("another process has queue q open")
        assert client.get("q") == b"a"
