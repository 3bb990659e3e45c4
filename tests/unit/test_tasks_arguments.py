"""Arguments by their annotations: what travels, what arrives, what is refused where it is sent."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import attrs
import hypothesis.strategies as st
import pydantic
import pytest
from hypothesis import given

import journeyman as jm
from journeyman.tasks.arguments import Arguments
from journeyman.tasks.running import Delivery, prepare
from journeyman.testing import InMemory


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


@dataclass(frozen=True)
class Line:
    name: str
    count: int = 1


@dataclass
class Order:
    number: int
    lines: list[Line] = field(default_factory=list)
    color: Color = Color.RED
    due: datetime | None = None


@attrs.define
class Place:
    street: str
    tags: set[str] = attrs.field(factory=set)


class Customer(pydantic.BaseModel):
    name: str = pydantic.Field(min_length=2)
    since: datetime | None = None


class Point(NamedTuple):
    x: int
    y: int


VALUES: list[tuple[Any, Any]] = [
    (Order, Order(7, [Line("a", 2)], Color.BLUE, datetime(2026, 1, 2, tzinfo=UTC))),
    (Color, Color.BLUE),
    (Size, Size.LARGE),
    (set[int], {3, 1, 2}),
    (frozenset[Color], frozenset({Color.RED})),
    (dict[str, Line], {"one": Line("a")}),
    (list[Order] | None, [Order(1), Order(2)]),
    (Order | None, None),
    (Place, Place("Main Street", {"b", "a"})),
    (Customer, Customer(name="Ada", since=datetime(2026, 1, 2, tzinfo=UTC))),
    (list[Customer], [Customer(name="Ada")]),
    (Point, Point(1, 2)),
    (tuple[Color, Path], (Color.RED, Path("a/b"))),
]


def function(kind: Any) -> Any:
    def called(value: Any) -> Any: ...

    called.__annotations__ = {"value": kind, "return": kind}
    return called


@pytest.mark.parametrize(("kind", "value"), VALUES, ids=lambda each: str(each)[:30])
def test_what_is_packed_is_json_and_comes_back_the_same(kind, value):
    arguments = Arguments("task", function(kind))
    packed, _ = arguments.pack((value,), {})
    packed = json.loads(json.dumps(packed))
    assert arguments.pack(packed, {})[0] == tuple(packed)  # once more changes nothing
    assert arguments.unpack(packed, {}) == ((value,), {})
    assert arguments.unpack((), arguments.pack((), {"value": value})[1])[1] == {"value": value}
    assert arguments.unpack_result(arguments.pack_result(value)) == value


@pytest.mark.parametrize(
    "value", [1, "text", [], datetime(2026, 1, 2, tzinfo=UTC), UUID(int=1), Decimal("1.5"), None]
)
@pytest.mark.parametrize("kind", [Any, int, str, dict[str, Any], list[int], datetime])
def test_other_annotations_change_nothing(kind, value):
    arguments = Arguments("task", function(kind))
    assert arguments.pack((value,), {"value": value}) == ((value,), {"value": value})
    assert arguments.unpack((value,), {"value": value}) == ((value,), {"value": value})


app = jm.App()


@app.task(name="ship")
def ship(
    order: Order, *colors: Color, place: Place | None = None, **points: Point
) -> tuple[Order, set[Color]]:
    assert isinstance(order, Order)
    assert place is None or isinstance(place, Place)
    assert all(isinstance(point, Point) for point in points.values())
    return order, set(colors)


@app.task(name="count")
def count(shipped: tuple[Order, set[Color]], customer: Customer) -> str:
    order, colors = shipped
    assert isinstance(order, Order)
    return f"{customer.name} {order.number} {len(colors)}"


@app.task(name="once", unique="{order.number}", key="{order.color.value}")
def once(order: Order) -> None: ...


@app.task(name="args", unique="args")
def by_arguments(tags: set[str]) -> None: ...


@app.task(name="outcomes")
def outcomes(ended: list[jm.Ended[Any]], color: Color) -> list[bool]:
    assert isinstance(color, Color)
    return [each.succeeded for each in ended]


def test_a_task_gets_and_returns_objects():
    order = Order(7, [Line("a")])
    with InMemory(app) as queue:
        job = ship.send(order, Color.RED, Color.BLUE, place=Place("x"), here=Point(1, 2))
        queue.run_all()
        assert job.result(timeout=1) == (order, {Color.RED, Color.BLUE})
        assert queue.jobs[0].args[0] == {
            "number": 7, "lines": [{"name": "a", "count": 1}], "color": "red", "due": None,
        }  # fmt: skip


def test_objects_pass_through_chains_groups_and_flows():
    customer = Customer(name="Ada")
    with InMemory(app) as queue:
        chain = ship.call(Order(1), Color.RED).then(count, customer).send()
        flow = ship.call(Order(2)).then(jm.group([count.after(customer)])).send()
        ended = jm.group([ship.call(Order(3))]).always(outcomes, Color.RED).send()
        queue.run_all()
        assert chain.result(timeout=1) == "Ada 1 1"
        assert flow.results(timeout=1) == ["Ada 2 0"]
        assert ended.result(timeout=1) == [True]


def test_keys_are_templates_over_objects():
    with InMemory(app) as queue:
        assert once.send(Order(7)).is_new
        assert not once.send(Order(7, color=Color.BLUE)).is_new
        assert once.send(Order(8)).is_new
        assert by_arguments.send({"b", "a", "c"}).is_new
        assert not by_arguments.send({"c", "b", "a"}).is_new
        queue.run_all()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((7,), "ship: argument 'order': Expected `object`, got `int`"),
        (({"number": "x"},), "ship: argument 'order': Expected `int`, got `str` - at `$.number`"),
        ((Order(1), "green"), "ship: argument 'colors': Invalid enum value 'green'"),
        ((Order("x"),), "ship: argument 'order': Expected `int`, got `str` - at `$.number`"),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments_are_refused_where_they_are_sent(args, said):
    with InMemory(app) as queue, pytest.raises(TypeError) as raised:
        ship.send(*args)
    assert str(raised.value) == said
    queue.assert_nothing_sent()


def test_models_check_themselves_where_they_are_sent():
    wrong: Any = {"name": "A"}
    with InMemory(app), pytest.raises(TypeError, match=r"argument 'customer': .*at least 2 char"):
        ship.call(Order(1)).then(count, wrong).send()


def test_an_argument_that_the_worker_cannot_read_fails_the_attempt():
    payload = b'{"v":1,"task":"ship","args":[{"number":"x"}],"kwargs":{}}'
    prepared = prepare(app, Delivery("id", "q", payload))
    assert prepared.task is None
    assert "argument 'order': Expected `int`, got `str`" in str(prepared.problem)


def test_annotations_that_cannot_be_read_change_nothing():
    def later(value: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert Arguments("task", later).pack(({1},), {}) == (({1},), {})


@given(st.builds(Order, st.integers(-(2**63), 2**63 - 1), st.lists(st.builds(Line))))
def test_any_order_comes_back_the_same(order):
    arguments = Arguments("task", function(Order))
    packed = json.loads(json.dumps(arguments.pack((order,), {})[0]))
    assert arguments.unpack(packed, {})[0] == (order,)
