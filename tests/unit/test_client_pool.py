"""Connections of a client: shared by threads and tasks, bounded, never used after a failure."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from journeyman.client import AsyncWorkQueue, KestrelClient, WorkQueue, errors


class Peer:
    """Answers ``pause`` at once, and any other line once ``answer`` is set. Counts connections."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self.answer = threading.Event()
        self.accepted = 0
        self.asked = threading.Semaphore(0)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            self.accepted += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            for line in lines:
                self.asked.release()
                if not line.startswith(b"pause"):
                    self.answer.wait(60)
                connection.sendall(b"+OK\r\n" if b"lease" not in line else b"-TIMEOUT\r\n")

    def close(self) -> None:
        self.answer.set()
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


@contextmanager
def threads(count: int) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(count) as pool:
        yield pool


def test_threads_share_a_client_and_its_connections_are_used_again(peer: Peer):
    with WorkQueue(port=peer.port, timeout_s=30.0, connections=3) as client, threads(3) as pool:
        leases = [pool.submit(client.lease, "q", wait_ms=1) for _ in range(3)]
        for _ in leases:
            assert peer.asked.acquire(timeout=30)
        peer.answer.set()
        assert [lease.result(30) for lease in leases] == [None] * 3
        for _ in range(20):
            client.pause("q")
        assert peer.accepted == 3


def test_call_waits_for_a_free_connection_and_then_says_what_to_do(peer: Peer):
    with WorkQueue(port=peer.port, timeout_s=0.2, connections=1) as client, threads(1) as pool:
        lease = pool.submit(client.lease, "q", wait_ms=30_000)
        assert peer.asked.acquire(timeout=30)
        with pytest.raises(errors.CannotConnect, match=r"all 1 connections .* give it more"):
            client.pause("q")
        peer.answer.set()
        assert lease.result(30) is None
        assert peer.accepted == 1


def test_connections_borrowed_during_close_are_closed_when_they_come_back(peer: Peer):
    with WorkQueue(port=peer.port, timeout_s=30.0) as client, threads(1) as pool:
        lease = pool.submit(client.lease, "q", wait_ms=1)
        assert peer.asked.acquire(timeout=30)
        client.close()
        peer.answer.set()
        assert lease.result(30) is None
        client.pause("q")
        assert peer.accepted == 2


def test_forked_child_uses_connections_of_its_own(peer: Peer):
    with WorkQueue(port=peer.port, timeout_s=30.0) as client:
        client.pause("q")
        child = os.fork()
        if child == 0:
            try:
                client.pause("q")
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        client.pause("q")
        assert peer.accepted == 2


def test_reads_are_opened_on_a_connection_that_is_kept_for_them():
    client = KestrelClient(port=1, connections=4)
    assert client._kept is not client._pool
    assert client._pool._size == 3
    assert KestrelClient(port=1)._kept is not None
    single = KestrelClient(port=1)
    assert single._kept is single._pool


def test_tasks_share_a_client(peer: Peer):
    async def main() -> None:
        async with AsyncWorkQueue(port=peer.port, timeout_s=30.0, connections=3) as client:
            leases = [asyncio.create_task(client.lease("q", wait_ms=1)) for _ in range(3)]
            for _ in leases:
                assert await asyncio.to_thread(peer.asked.acquire, timeout=30)
            peer.answer.set()
            assert await asyncio.gather(*leases) == [None] * 3
            await asyncio.gather(*(client.pause("q") for _ in range(20)))
            assert peer.accepted == 3

    asyncio.run(main())


def test_cancelled_call_takes_its_connection_with_it(peer: Peer):
    async def main() -> None:
        async with AsyncWorkQueue(port=peer.port, timeout_s=30.0, connections=1) as client:
            lease = asyncio.create_task(client.lease("q", wait_ms=1))
            assert await asyncio.to_thread(peer.asked.acquire, timeout=30)
            lease.cancel()
            with pytest.raises(asyncio.CancelledError):
                await lease
            await client.pause("q")  # the reply to the lease must not be taken for this one's
            assert peer.accepted == 2

    asyncio.run(main())


def test_tasks_wait_for_a_free_connection_and_then_are_told_what_to_do(peer: Peer):
    async def main() -> None:
        async with AsyncWorkQueue(port=peer.port, timeout_s=0.2, connections=1) as client:
            lease = asyncio.create_task(client.lease("q", wait_ms=30_000))
            assert await asyncio.to_thread(peer.asked.acquire, timeout=30)
            with pytest.raises(errors.CannotConnect, match=r"all 1 connections .* give it more"):
                await client.pause("q")
            peer.answer.set()
            assert await lease is None

    asyncio.run(main())


def test_client_of_a_finished_event_loop_begins_with_new_connections(peer: Peer):
    client = AsyncWorkQueue(port=peer.port, timeout_s=30.0)

    async def use() -> None:
        await client.pause("q")
        await client.close()

    asyncio.run(use())
    asyncio.run(use())
    assert peer.accepted == 2
