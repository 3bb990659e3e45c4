"""Values that are made by the million."""

from __future__ import annotations

from dataclasses import replace

import pytest

from journeyman.values import value


@value
class Point:
    x: int
    y: int = 0


def test_values_are_equal_and_hashed_by_their_fields():
    assert Point(1) == Point(1, 0)
    assert Point(1) != Point(2)
    assert len({Point(1), Point(1, 0), Point(1, 1)}) == 2


def test_a_value_has_no_room_for_more_than_its_fields():
    with pytest.raises(AttributeError):
        Point(1).z = 3  # type: ignore[attr-defined]


def test_a_changed_copy_of_a_value():
    assert replace(Point(1, 2), y=5) == Point(1, 5)
