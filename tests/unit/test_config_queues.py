"""The limits of fan-out queues: tables inside [kestrel], inherited key by key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from journeyman.config import Configuration, load, show
from journeyman.engines.kestrel.queue import KestrelOptions
from journeyman.errors import UsageError
from journeyman.formats.kestrel import SEAL_BYTES
from journeyman.servers.kestrel.service import ITEM_OVERHEAD_BYTES, queue_settings

FILE = """\
[kestrel]
queue_path = "journals"
window_items = 7

[kestrel.default]
max_items = 100
max_open = 3
max_queue_age_ms = 60_000
errors_to = "dead"

[kestrel.queue.orders]
max_bytes = 5_000
max_item_bytes = 50
errors_to = ""

[kestrel.queue.orders.reader.billing]
max_items = 0
drops_oldest = true
max_errors = 4

[kestrel.queue."a:b"]
max_queue_age_ms = 0
"""

Loads = Callable[..., Configuration]


@pytest.fixture
def loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loads:
    monkeypatch.chdir(tmp_path)

    def load_text(text: str, **options: str) -> Configuration:
        Path("c.toml").write_text(text)
        given = {name.replace("__", "."): value for name, value in options.items()}
        return load("c.toml", environ={}, options=given)

    return load_text


def queues(configuration: Configuration) -> KestrelOptions:
    return queue_settings(configuration.settings)


def test_a_reader_inherits_from_its_queue_and_that_from_the_default(loads: Loads):
    settings = queues(loads(FILE))
    other = settings.of_queue("other").of_reader("x")
    assert (other.max_items, other.max_bytes, other.max_open) == (100, None, 3)
    assert other.errors_to == "dead"
    orders = settings.of_queue("orders")
    assert (orders.max_item_bytes, orders.max_age_ms) == (50, 60_000)
    plain = orders.of_reader("")
    assert (plain.max_items, plain.max_bytes, plain.max_open) == (100, 5000, 3)
    assert not plain.drops_oldest
    billing = orders.of_reader("billing")
    assert (billing.max_bytes, billing.max_open, billing.max_errors) == (5000, 3, 4)
    assert billing.drops_oldest


def test_zero_and_the_empty_name_lift_what_would_be_inherited(loads: Loads):
    settings = queues(loads(FILE))
    assert settings.of_queue("orders").of_reader("billing").max_items is None
    assert settings.of_queue("orders").of_reader("").errors_to is None
    assert settings.of_queue("a:b").max_age_ms is None


def test_without_tables_nothing_is_limited(loads: Loads):
    fits_a_segment = 16 * 1024 * 1024 - ITEM_OVERHEAD_BYTES - 3 * SEAL_BYTES
    assert queues(loads("")) == KestrelOptions(max_item_bytes=fits_a_segment)


def test_the_rest_of_the_section_is_taken_over(loads: Loads):
    assert queues(loads(FILE)).window_items == 7


def test_what_is_shown_can_be_loaded_again(loads: Loads):
    first = loads(FILE)
    again = loads(show(first))
    assert again.settings == first.settings
    assert again.notes == ()


def test_a_file_that_is_not_quite_toml_says_the_same(loads: Loads):
    first, again = loads(FILE), loads(FILE.replace('"journals"', "journals"))
    assert again.settings == first.settings
    assert "read line by line" in again.notes[0]


def test_the_command_line_gives_tables_in_one_line(loads: Loads):
    tables = "{orders = {max_items = 5, reader = {billing = {max_open = 9}}}}"
    settings = queues(loads("", kestrel__queue=tables, kestrel__default="{max_errors = 2}"))
    assert settings.of_queue("orders").of_reader("billing").max_open == 9
    assert settings.of_queue("orders").of_reader("").max_items == 5
    assert settings.of_queue("orders").of_reader("billing").max_errors == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[kestrel.default]\n\nmax_items = -1\n",
            "c.toml:3: kestrel.default.max_items = -1: expected a whole number from 0 to ",
        ),
        (
            '[kestrel.queue.orders]\nexpire_to = "a/b"\n',
            "c.toml:2: kestrel.queue.orders.expire_to = 'a/b': expected the name of a queue",
        ),
        (
            "[kestrel.queue.orders]\nmax_itms = 1\n",
            "c.toml:2: kestrel.queue.orders.max_itms = 1: unknown key; allowed are max_item_bytes",
        ),
        (
            "[kestrel.queue.orders.reader.billing]\nmax_item_bytes = 1\n",
            "c.toml:2: kestrel.queue.orders.reader.billing.max_item_bytes = 1: unknown key",
        ),
        (
            "[kestrel.default.reader.x]\nmax_items = 1\n",
            "c.toml: kestrel.default.reader = ",
        ),
        (
            '\n[kestrel.queue."a/b"]\nmax_items = 1\n',
            "c.toml:2: kestrel.queue.a/b = {'max_items': 1}: invalid name",
        ),
        (
            "[kestrel]\nqueue = 5\n",
            "c.toml:2: kestrel.queue = 5: expected a table",
        ),
        (
            "[kestrel.queue]\norders = true\n",
            "c.toml:2: kestrel.queue.orders = true: expected a table",
        ),
        (
            '[kestrel]\nlisten = x\n[kestrel.queue."a:b"]\nmax_open = 0\n',
            "c.toml:2: kestrel.listen = 'x': expected host:port",
        ),
        (
            '[kestrel]\nqueue_path = x\n[kestrel.queue."a:b"]\nmax_open = 0\n',
            "c.toml:4: kestrel.queue.a:b.max_open = 0: expected a whole number from 1 to ",
        ),
    ],
)
def test_a_refusal_names_the_place_the_key_and_what_is_allowed(loads: Loads, text: str, said: str):
    with pytest.raises(UsageError) as found:
        loads(text)
    assert str(found.value).startswith(said)
    assert "\n" not in str(found.value)


def test_the_command_line_is_refused_in_one_line_too(loads: Loads):
    with pytest.raises(UsageError, match=r"^command line: kestrel.queue.q.max_open = 0: expected"):
        loads("", kestrel__queue="{q = {max_open = 0}}")
    with pytest.raises(UsageError, match=r"^command line: kestrel.default = '5x': expected a tab"):
        loads("", kestrel__default="5x")
