"""Nothing that was stored is lost to any reader, nothing comes again once it was checkpointed.

Six kills here; ``python -m tests.kills.server --service kestrel --cycles 200`` is the same loop for
longer. The rest shows that the book itself tells what it is there to tell.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from journeyman.folds.kestrel import fold_reader
from journeyman.formats.framing import scan
from journeyman.formats.kestrel import READER, ReadDone, ReadHead
from tests.support.crash.fanout_ledger import FanBook
from tests.support.crash.fanout_ledger_cycles import KILLS, FanCycles
from tests.support.crash.fanout_ledger_load import FanReaderThread
from tests.support.servers.fanout_process import FanOutProcess


@pytest.mark.slow
def test_kills_at_random_moments_lose_nothing_and_bring_nothing_back(tmp_path):
    tally = FanCycles(tmp_path, seed=1).run(6)
    assert tally.kills.total() == 6
    assert set(tally.kills) == set(KILLS)
    assert tally.stored > 500
    assert tally.confirmed >= tally.stored
    assert len(tally.segments) > 5


class LostCheckpoint(FanCycles):
    """Between a kill and the start behind it, a checkpoint is set back to the beginning."""

    segment_bytes = 100_000_000  # all items stay, so what was checkpointed can come again

    def _wait_for_load(self, answered: Callable[[], int], enough: int | None = None) -> None:
        super()._wait_for_load(answered, enough)
        self._server.wait_until(self._has_checkpoint, "a has finished something, and it is saved")

    def _has_checkpoint(self) -> bool:
        data = (self.directory / "queues" / "fan.read.a").read_bytes()
        return fold_reader(entry.record for entry in scan(READER, data)[0]).is_past(1)

    def _start(self) -> FanOutProcess:
        for path in (self.directory / "queues").glob("fan.read.a"):
            path.write_bytes(
                READER.header + READER.encode(ReadHead(0)) + READER.encode(ReadDone(()))
            )
        return super()._start()


class CutSegment(FanCycles):
    """Between a kill and the look at the files, the segments lose all their items. One reader has
    confirmed none of them."""

    def _readers(self, count: int, queue: str) -> list[FanReaderThread]:
        readers = super()._readers(count, queue)
        for idle in readers:
            if idle.reader == "c":
                idle.client.close()
        return [reader for reader in readers if reader.reader != "c"]

    def _wait_for_load(self, answered: Callable[[], int], enough: int | None = None) -> None:
        super()._wait_for_load(answered, enough)
        self._server.wait_until(lambda: self._books["fan"].stored > 0, "an item is stored")

    def _look(self) -> None:
        for path in (self.directory / "queues").glob("fan.[0-9]*"):
            path.write_bytes(path.read_bytes()[:4])
        super()._look()


@pytest.mark.parametrize(
    ("spoiled", "complaint"), [(LostCheckpoint, "came (again|back)"), (CutSegment, "lost")]
)
def test_loop_notices_when_something_is_lost_or_forgotten(tmp_path, spoiled, complaint):
    with pytest.raises(AssertionError, match=complaint):
        spoiled(tmp_path, seed=1).run(4)


# -- the book -------------------------------------------------------------------------------------


def book_of(*items: str) -> FanBook:
    book = FanBook(["a", "b"])
    for item in items:
        book.put_sent(item)
        book.put_answered(item)
    return book


def test_what_was_stored_must_be_left_for_whoever_has_not_confirmed_it():
    book_of("x").settle({"a": {"x"}, "b": {"x"}})
    with pytest.raises(AssertionError, match="lost: x, which b"):
        book_of("x").settle({"a": {"x"}, "b": set()})


def test_what_was_confirmed_may_be_left_or_not():
    for left in ({"x"}, set()):
        book = book_of("x")
        book.delivered("a", "x")
        book.confirm_sent("a", ["x"])
        book.settle({"a": left, "b": {"x"}})
        assert book.wrong == []


def test_a_reader_must_not_be_forgotten():
    with pytest.raises(AssertionError, match="lost: the reader b"):
        book_of().settle({"a": set()})


def test_what_was_not_put_must_not_be_there():
    with pytest.raises(AssertionError, match="invented"):
        book_of("x").settle({"a": {"x", "y"}, "b": {"x"}})
    book = book_of()
    book.delivered("a", "x")
    assert "invented" in book.wrong[0]


def test_an_open_item_is_given_to_nobody_else_until_it_is_given_back():
    book = book_of("x")
    book.delivered("a", "x")
    book.delivered("b", "x")  # another reader
    book.given_back("a", ["x"])
    book.delivered("a", "x")
    assert book.wrong == []
    book.delivered("a", "x")
    assert "given out twice" in book.wrong[0]


def test_what_was_confirmed_does_not_come_again_in_this_life_and_may_in_the_next():
    book = book_of("x")
    book.delivered("a", "x")
    book.confirm_sent("a", ["x"])
    book.confirm_answered("a", ["x"])
    book.settle({"a": {"x"}, "b": {"x"}})
    book.delivered("a", "x")
    assert (book.wrong, book.redelivered) == ([], 1)
    book.confirm_answered("a", ["x"])
    book.delivered("a", "x")
    assert "in this life" in book.wrong[0]


def test_what_a_checkpoint_says_is_finished_never_comes_again():
    book = book_of("x")
    book.delivered("a", "x")
    book.confirm_sent("a", ["x"])
    book.settle({"a": set(), "b": {"x"}})
    with pytest.raises(AssertionError, match="came back"):
        book.settle({"a": {"x"}, "b": {"x"}})
    book.delivered("a", "x")
    assert "a checkpoint of a" in book.wrong[0]


def test_in_the_end_everything_was_given_to_everyone():
    book = book_of("x")
    book.delivered("a", "x")
    with pytest.raises(AssertionError, match="never given to b"):
        book.close()
    book.delivered("b", "x")
    book.close()
