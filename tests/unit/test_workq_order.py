"""The sorted list in chunks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journeyman.engines import sorted_set
from journeyman.engines.sorted_set import SortedSet


@pytest.fixture(params=[1, 2, 512])
def chunk(request, monkeypatch):
    monkeypatch.setattr(sorted_set, "CHUNK", request.param)


@pytest.mark.usefixtures("chunk")
def test_what_goes_in_comes_out_sorted():
    order: SortedSet[int] = SortedSet()
    for number in (5, 1, 9, 3, 7, 2, 8, 0, 6, 4):
        order.add(number)
    assert list(order) == list(range(10))
    assert len(order) == 10
    assert order.first() == 0


@pytest.mark.usefixtures("chunk")
def test_an_order_is_made_of_sorted_things():
    order = SortedSet(range(1500))
    order.add(-1)
    order.remove(700)
    assert list(order) == [n for n in range(-1, 1500) if n != 700]


@pytest.mark.usefixtures("chunk")
def test_pages_begin_at_any_offset():
    order = SortedSet(range(1500))
    assert order.page(0, 3) == [0, 1, 2]
    assert order.page(510, 5) == [510, 511, 512, 513, 514]
    assert order.page(1498, 10) == [1498, 1499]
    assert order.page(1500, 10) == []


def test_first_from_a_bound_on():
    order: SortedSet[int] = SortedSet()
    assert order.first_from(0) is None
    for number in range(0, 5000, 2):
        order.add(number)
    for number in (*range(1000, 1600), 4998):
        if number % 2 == 0:
            order.remove(number)
    left = list(order)
    for bound in (-1, 0, 1, 998, 999, 1000, 1023, 1300, 1599, 1600, 3001, 4996, 4997, 9999):
        expected = next((number for number in left if number >= bound), None)
        assert order.first_from(bound) == expected


def test_the_first_of_nothing_is_an_error():
    with pytest.raises(IndexError):
        SortedSet().first()


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20))), st.sampled_from((1, 2, 3)))
def test_an_order_is_a_sorted_set(steps, chunk):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_set, "CHUNK", chunk)
        order: SortedSet[int] = SortedSet()
        model: set[int] = set()
        for adds, number in steps:
            if adds and number not in model:
                order.add(number)
                model.add(number)
            elif not adds and number in model:
                order.remove(number)
                model.remove(number)
            assert list(order) == sorted(model)
            assert len(order) == len(model)
            assert order.page(1, 3) == sorted(model)[1:4]
