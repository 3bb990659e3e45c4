"""The folds of the kestrel journal and the opening of a queue, rule by rule."""

from __future__ import annotations

import pytest

from journeyman.folds import Anomaly, AnomalyKind, kestrel
from journeyman.folds.kestrel import Contested, FoldedQueue, Reader
from journeyman.formats.kestrel import ItemPut, ReadDone, ReadHead, Record, UnknownCommand

UNKNOWN = UnknownCommand(0xF1, bytes(4), b"")


def put(item_id: int, data: bytes = b"item") -> ItemPut:
    return ItemPut(item_id, 1000, None, 0, data)


def kinds(notes: list[Anomaly]) -> list[AnomalyKind]:
    return [note.kind for note in notes]


def test_an_item_is_what_was_put():
    assert kestrel.fold([put(1)]) == put(1)
    assert kestrel.snapshot(put(1)) == (put(1),)
    assert kestrel.snapshot(None) == ()


def test_the_same_item_twice_is_one_item():
    notes: list[Anomaly] = []
    assert kestrel.fold([put(1), put(1)], notes.append) == put(1)
    assert kinds(notes) == [AnomalyKind.REPEATED_ITEM]
    assert notes[0].records == (put(1),)


def test_different_items_of_one_id_are_all_kept():
    notes: list[Anomaly] = []
    records = [put(1, b"a"), put(1, b"b"), put(1, b"a"), put(1, b"c"), put(1, b"c")]
    state = kestrel.fold(records, notes.append)
    assert isinstance(state, Contested)
    assert kestrel.snapshot(state) == (put(1, b"a"), put(1, b"b"), put(1, b"c"))
    assert kinds(notes) == [
        AnomalyKind.REUSED_ID,
        AnomalyKind.REPEATED_ITEM,
        AnomalyKind.REUSED_ID,
        AnomalyKind.REPEATED_ITEM,
    ]
    assert state != kestrel.fold([put(1, b"b"), put(1, b"a"), put(1, b"c")])


def test_an_id_that_is_not_positive_is_kept_and_reported():
    notes: list[Anomaly] = []
    assert kestrel.fold([put(0)], notes.append) == put(0)
    assert kinds(notes) == [AnomalyKind.UNUSABLE_VALUE]


def test_records_of_readers_do_not_belong_to_items():
    notes: list[Anomaly] = []
    records: list[Record] = [put(1), ReadHead(1), ReadDone((1,)), UNKNOWN]
    assert kestrel.replay(records, notes.append) == {1: put(1)}
    assert kestrel.fold(records) == put(1)
    assert [kestrel.key_of(record) for record in records] == [1, None, None, None]
    assert [(note.kind, note.records) for note in notes] == [
        (AnomalyKind.MISPLACED_RECORD, (ReadHead(1),)),
        (AnomalyKind.MISPLACED_RECORD, (ReadDone((1,)),)),
        (AnomalyKind.UNKNOWN_COMMAND, (UNKNOWN,)),
    ]


def test_the_last_head_wins_and_finished_ids_add_up():
    records: list[Record] = [ReadHead(9), ReadDone((12,)), ReadHead(7), ReadDone((14, 12))]
    assert kestrel.fold_reader(records) == Reader(7, {12, 14})


def test_a_checkpoint_without_records_is_at_the_beginning():
    assert kestrel.fold_reader([]) == Reader(0, set())


def test_a_checkpoint_always_has_both_records_and_its_ids_ascend():
    assert kestrel.snapshot_reader(Reader()) == (ReadHead(0), ReadDone(()))
    assert kestrel.snapshot_reader(Reader(3, {9, 5})) == (ReadHead(3), ReadDone((5, 9)))


def test_items_do_not_belong_to_readers():
    notes: list[Anomaly] = []
    assert kestrel.fold_reader([put(5), UNKNOWN], notes.append, "a") == Reader()
    assert kinds(notes) == [AnomalyKind.MISPLACED_RECORD, AnomalyKind.UNKNOWN_COMMAND]
    assert {note.key for note in notes} == {"a"}
    assert kestrel.apply_reader(None, ReadHead(4)) == Reader(4)


def test_a_reader_is_given_what_it_has_not_finished():
    reader = Reader(8, {11})
    assert list(reader.undelivered([7, 8, 9, 10, 11, 12])) == [9, 10, 12]


def test_gaps_in_the_ids_are_stepped_over():
    view = kestrel.open_queue([1, 2, 10], {"a": Reader(1)})
    assert list(view.readers["a"].undelivered([1, 2, 10])) == [2, 10]
    assert view.next_id == 11


@pytest.mark.parametrize(
    ("reader", "opened", "reported"),
    [
        (Reader(4, {6}), Reader(4, {6}), []),
        (Reader(4, {3, 4, 6}), Reader(4, {6}), []),
        (Reader(9), Reader(2), [AnomalyKind.CHECKPOINT_AHEAD]),
        (Reader(5, {8}), Reader(5), [AnomalyKind.CHECKPOINT_AHEAD]),
        (Reader(2), Reader(2), []),
        (Reader(1, {2, 5}), Reader(2, {5}), [AnomalyKind.CHECKPOINT_BEHIND]),
        (None, Reader(2), [AnomalyKind.CHECKPOINT_DAMAGED]),
    ],
)
def test_a_reader_is_placed_among_the_items_that_are_left(reader, opened, reported):
    notes: list[Anomaly] = []
    view = kestrel.open_queue([3, 4, 5, 6, 7], {"a": reader}, notes.append)
    assert view == FoldedQueue(7, {"a": opened})
    assert kinds(notes) == reported
    assert {note.key for note in notes} <= {"a"}


def test_a_damaged_checkpoint_starts_at_the_oldest_item_and_loses_nothing():
    view = kestrel.open_queue([3, 4, 5], {"": None})
    assert list(view.readers[""].undelivered([3, 4, 5])) == [3, 4, 5]


def test_without_any_reader_a_default_one_starts_at_the_oldest_item():
    notes: list[Anomaly] = []
    view = kestrel.open_queue([2, 3, 4], {}, notes.append)
    assert view == FoldedQueue(4, {"": Reader(1)})
    assert kinds(notes) == [AnomalyKind.DEFAULT_READER_CREATED]


def test_a_new_queue_begins_with_id_1_and_is_nothing_to_report():
    notes: list[Anomaly] = []
    view = kestrel.open_queue([], {}, notes.append)
    assert view == FoldedQueue(0, {"": Reader(0)})
    assert view.next_id == 1
    assert notes == []


def test_the_default_reader_is_dropped_when_named_ones_exist():
    notes: list[Anomaly] = []
    view = kestrel.open_queue([1], {"": Reader(), "a": Reader()}, notes.append)
    assert set(view.readers) == {"a"}
    assert kinds(notes) == [AnomalyKind.DEFAULT_READER_DROPPED]


def test_the_default_reader_stays_when_it_is_alone():
    assert kestrel.open_queue([1], {"": Reader()}).readers == {"": Reader()}


def test_ids_are_not_given_out_again_when_no_item_is_left():
    view = kestrel.open_queue([], {"a": Reader(400, {403}), "b": Reader(380), "c": None})
    assert view.next_id == 404
    assert view.readers == {name: Reader(403) for name in "abc"}


def test_an_item_is_dead_when_every_reader_is_past_it():
    view = kestrel.open_queue(range(1, 6), {"a": Reader(2, {4}), "b": Reader(4)})
    assert [item_id for item_id in range(1, 6) if view.is_dead(item_id)] == [1, 2, 4]


@pytest.mark.parametrize(
    ("heads", "retired"),
    [((2, 6), [1]), ((1, 6), []), ((4, 6), [1, 3]), ((6, 6), [1, 3, 5]), ((7, 7), [1, 3, 5])],
)
def test_segments_go_when_the_next_one_has_all_that_is_needed(heads, retired):
    readers = {str(place): Reader(head) for place, head in enumerate(heads)}
    view = kestrel.open_queue(range(1, 8), readers)
    assert view.retired([1, 3, 5, 7]) == retired


def test_without_segments_nothing_can_go():
    assert kestrel.open_queue([], {}).retired([]) == []


def test_a_reader_that_no_queue_can_have_reached_starts_at_the_oldest_item():
    notes: list[Anomaly] = []
    readers = {"a": Reader(2**60), "b": Reader(4, {2**60})}
    view = kestrel.open_queue([3, 4], readers, notes.append)
    assert view == FoldedQueue(4, {"a": Reader(2), "b": Reader(2)})
    assert kinds(notes) == [AnomalyKind.CHECKPOINT_DAMAGED] * 2
    assert kestrel.open_queue([], {"a": Reader(2**60)}).next_id == 1
    high = 2**60
    assert kestrel.open_queue([high], {"a": Reader(high)}).readers == {"a": Reader(high)}
