"""What every engine of the store does. Subclass StorageContract, name a backend, and run pytest.

class TestMyEngine(StorageContract):
    @pytest.fixture
    def backend(self): ...      # open and empty; closed by its maker
"""

from __future__ import annotations

import threading

import pytest

from journeyman.errors import StorageClosed
from journeyman.formats.keyspace.keys import MAX_KEY_BYTES
from journeyman.storage.contract import Backend

_ALL = (b"\0", b"\xff" * 8)
_LONG_ENOUGH_S = 60.0


class StorageContract:
    """The tests. The fixture ``backend`` comes from the subclass."""

    # --- one key ---

    def test_a_key_that_is_not_there_has_no_value(self, backend: Backend) -> None:
        assert backend.get(b"a") is None

    def test_what_was_put_is_there_until_it_is_deleted(self, backend: Backend) -> None:
        backend.put(b"a", b"1")
        backend.put(b"a", b"2")
        assert backend.get(b"a") == b"2"
        backend.delete(b"a")
        backend.delete(b"a")
        assert backend.get(b"a") is None

    def test_any_bytes_are_keys_and_values(self, backend: Backend) -> None:
        entries = {
            b"\0": b"",
            b"\xff\xfe": b"\0\xff",
            b"k" * MAX_KEY_BYTES: b"v" * 3_000_000,
            "ü:\n'\"\\".encode(): b"'; DROP TABLE",
        }
        backend.write(entries)
        with backend.view() as view:
            assert view.get_many(list(entries)) == list(entries.values())
            assert dict(view.scan(*_ALL)) == entries

    def test_many_values_come_in_the_order_of_their_keys(self, backend: Backend) -> None:
        backend.write({b"%d" % i: b"v%d" % i for i in range(2000)})
        asked = [b"1999", b"none", b"0", b"0", b"7"]
        with backend.view() as view:
            assert view.get_many(asked) == [b"v1999", None, b"v0", b"v0", b"v7"]
            assert view.get_many([]) == []
        with backend.turn() as turn:
            assert turn.get_many(asked) == [b"v1999", None, b"v0", b"v0", b"v7"]

    # --- ranges ---

    @pytest.fixture
    def ordered(self, backend: Backend) -> list[bytes]:
        keys = [b"a", b"a\0", b"a\0\0", b"a\xff", b"b", b"b\x7f", b"b\x80", b"c"]
        backend.write({key: b"v" + key for key in reversed(keys)})
        return keys

    def test_scans_are_in_the_order_of_bytes_both_ways(
        self, backend: Backend, ordered: list[bytes]
    ) -> None:
        with backend.view() as view:
            assert [key for key, _ in view.scan(*_ALL)] == ordered
            assert list(view.scan(*_ALL, reverse=True)) == [(k, b"v" + k) for k in ordered[::-1]]

    def test_a_range_holds_its_start_and_not_its_end(
        self, backend: Backend, ordered: list[bytes]
    ) -> None:
        bounds = [*ordered, b"", b"a\x01", b"bb", b"\xff"]
        with backend.view() as view:
            for start in bounds:
                for end in bounds:
                    expected = [key for key in ordered if start <= key < end]
                    assert [key for key, _ in view.scan(start, end)] == expected
                    back = [key for key, _ in view.scan(start, end, reverse=True)]
                    assert back == expected[::-1]

    def test_a_limit_cuts_a_scan(self, backend: Backend, ordered: list[bytes]) -> None:
        with backend.view() as view:
            for limit in range(len(ordered) + 2):
                assert [k for k, _ in view.scan(*_ALL, limit=limit)] == ordered[:limit]
                back = [k for k, _ in view.scan(*_ALL, limit=limit, reverse=True)]
                assert back == ordered[::-1][:limit]

    def test_a_long_scan_is_whole(self, backend: Backend) -> None:
        keys = [b"%06d" % i for i in range(2500)]
        backend.write(dict.fromkeys(keys, b"x"))
        backend.write(dict.fromkeys(keys[500:1500]))
        left = keys[:500] + keys[1500:]
        with backend.view() as view:
            assert [key for key, _ in view.scan(*_ALL)] == left
            assert [key for key, _ in view.scan(*_ALL, reverse=True)] == left[::-1]
            assert [key for key, _ in view.scan(*_ALL, limit=1700)] == left

    def test_scans_can_be_read_in_turns(self, backend: Backend, ordered: list[bytes]) -> None:
        with backend.view() as view:
            forward, back = view.scan(*_ALL), view.scan(*_ALL, reverse=True)
            seen = []
            for (first, _), (second, _) in zip(forward, back, strict=True):
                assert view.get(first) == b"v" + first
                seen.append((first, second))
        assert seen == list(zip(ordered, ordered[::-1], strict=True))

    # --- moments and turns ---

    def test_a_view_is_a_moment(self, backend: Backend) -> None:
        backend.write({b"a": b"1", b"b": b"1"})
        with backend.view() as view:
            backend.write({b"a": b"2", b"b": None, b"c": b"2"})
            assert (view.get(b"a"), view.get(b"c")) == (b"1", None)
            assert list(view.scan(*_ALL)) == [(b"a", b"1"), (b"b", b"1")]
        with backend.view() as view:
            assert list(view.scan(*_ALL)) == [(b"a", b"2"), (b"c", b"2")]

    def test_a_batch_is_all_or_nothing(self, backend: Backend) -> None:
        backend.put(b"a", b"1")
        with pytest.raises(RuntimeError), backend.turn() as turn:  # noqa: PT012
            turn.commit({b"a": None, b"b": b"2"})
            raise RuntimeError
        with backend.view() as view:
            assert list(view.scan(*_ALL)) == [(b"a", b"1")]

    def test_a_turn_without_a_commit_changes_nothing(self, backend: Backend) -> None:
        with backend.turn() as turn:
            assert turn.get(b"a") is None
        backend.write({})
        assert backend.get(b"a") is None

    def test_a_turn_after_a_failed_one_works(self, backend: Backend) -> None:
        with pytest.raises(ZeroDivisionError), backend.turn():
            _ = 1 / 0
        backend.put(b"a", b"1")
        assert backend.get(b"a") == b"1"

    def test_what_is_read_in_a_turn_holds_until_it_ends(self, backend: Backend) -> None:
        """Counting by several threads at once loses nothing."""

        def count() -> None:
            for _ in range(50):
                with backend.turn() as turn:
                    turn.commit({b"n": b"%d" % (int(turn.get(b"n") or 0) + 1)})

        threads = [threading.Thread(target=count) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_LONG_ENOUGH_S)
        assert backend.get(b"n") == b"200"

    # --- the store ---

    def test_it_knows_about_how_many_entries_it_has_or_says_none(self, backend: Backend) -> None:
        backend.put(b"a", b"1")
        backend.flush()
        assert 0 <= backend.entries_about() < 1000

    def test_nothing_works_when_it_is_closed(self, backend: Backend) -> None:
        backend.put(b"a", b"1")
        backend.close()
        backend.close()
        with pytest.raises(StorageClosed):
            backend.get(b"a")
        with pytest.raises(StorageClosed):
            backend.put(b"a", b"2")
        with pytest.raises(StorageClosed):
            backend.flush()
