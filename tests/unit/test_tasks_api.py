"""Declaring tasks and making jobs of calls: options, names, envelopes; nothing here connects."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import journeyman as jm
from journeyman.cli.worker import one_process
from journeyman.client import CannotConnect, ClientError, ConnectionFailed, InvalidRequest, TimedOut
from journeyman.errors import UsageError
from journeyman.protocols.workq.salts import stable_id
from journeyman.tasks.envelope import MAX_CALLS, Envelope, Failure, UnreadableJob
from journeyman.tasks.options import Rate
from journeyman.tasks.outcomes import Dead
from journeyman.tasks.running import Delivery, failed, prepare
from journeyman.tasks.server import ServerBroker
from journeyman.tasks.worker import QueueShare, Worker
from journeyman.tasks.worker.program import load_app

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)  # fmt: skip


@dataclass
class Address:
    name: str


def app_with_tasks() -> jm.App:
    app = jm.App("journeyman://nowhere.invalid")

    @app.task(queue="mail", retries=5, unique="{to}", name="send_mail")
    def send_mail(to: str, subject: str = "hi") -> str:
        return f"{subject} to {to}"

    return app


def test_a_task_is_still_its_function():
    task = app_with_tasks().tasks["send_mail"]

    assert task("a", subject="b") == "b to a"
    assert getattr(task, "__name__") == "send_mail"  # noqa: B009


def test_nothing_connects_when_an_app_is_made_or_its_module_imported():
    code = (
        "import socket, sys\n"
        "socket.socket.connect = lambda *_: sys.exit('connected')\n"
        "import journeyman as jm\n"
        "app = jm.App('journeyman://192.0.2.1')\n"
        "@app.task\ndef f() -> None: ...\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_url_comes_from_the_environment_when_it_is_needed(monkeypatch):
    app = jm.App()
    monkeypatch.setenv("JOURNEYMAN_URL", "journeyman://queue.internal:1234")

    assert app.url == "journeyman://queue.internal:1234"
    assert isinstance(app.broker, ServerBroker)


def test_what_is_wrong_is_said_where_it_is_written():
    with pytest.raises(ClientError, match="redis"):
        jm.App("redis://localhost")
    with pytest.raises(UsageError, match=r"interval must be whole seconds: 0\.5"):
        jm.App().every(0.5)
    with pytest.raises(UsageError, match=r"jitter must be whole seconds: 1\.5"):
        jm.App().every(60, jitter=1.5)


def test_a_server_that_restarts_is_waited_for_as_long_as_the_patience(monkeypatch):
    monkeypatch.setattr("journeyman.tasks.server.AGAIN_S", 0.0)
    away, broken = CannotConnect("away"), ConnectionFailed("away: reset")
    replies: list[ConnectionFailed | None] = []

    def answer(*_args: object, **_more: object) -> None:
        if (reply := replies.pop(0)) is not None:
            raise reply

    async def later(*_args: object, **_more: object) -> None:
        answer()

    for patience in (0, 60):
        app = jm.App("journeyman://127.0.0.1:1", patience=patience)
        task = app.task(name="t")(lambda: None)
        broker: Any = app.broker
        monkeypatch.setattr(broker._gathering, "add", answer)
        monkeypatch.setattr(broker._async_queue, "add", later)
        for send in (task.send, lambda task=task: asyncio.run(task.asend())):
            replies[:] = [broken, away, None]
            if patience:
                assert send().is_new
                assert replies == []
                replies[:] = [TimedOut("slow")]
                with pytest.raises(TimedOut):
                    send()
            else:
                with pytest.raises(ConnectionFailed, match="away"):
                    send()
                assert len(replies) == 2


def test_two_apps_know_nothing_of_each_other():
    one, other = app_with_tasks(), app_with_tasks()

    assert one.tasks["send_mail"] is not other.tasks["send_mail"]
    assert jm.App().tasks == {}


def test_a_name_can_be_taken_once():
    app = app_with_tasks()
    with pytest.raises(UsageError, match="two tasks are called 'send_mail'"):
        app.task(name="send_mail")(lambda: None)


def test_a_wrong_call_is_refused_before_anything_is_sent():
    task: Any = app_with_tasks().tasks["send_mail"]
    with pytest.raises(TypeError, match="send_mail: missing a required argument: 'to'"):
        task.send()
    with pytest.raises(UsageError, match="cannot encode the arguments of send_mail"):
        task.call({1, 2}).order()
    with pytest.raises(UsageError, match=r"Address has no form in JSON \(annotate the param"):
        task.call(Address("Ann")).order()
    for when in (10, "tomorrow"):
        with pytest.raises(UsageError, match="give a timedelta from now, or a datetime"):
            task.at(when).call("a").order()
    with pytest.raises(AttributeError, match=r"no attribute 'delay'; a job is sent with .send"):
        task.delay("a")
    assert not hasattr(task, "colour")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"queue": "a b"}, "queue must be 1 to 255 of"),
        ({"retries": -1}, "retries must be a whole number from 0 to 200"),
        ({"retries": True}, "retries must be"),
        ({"timeout": 0}, "timeout must be a positive number of seconds"),
        ({"rate": "fast"}, "not a rate: 'fast'; write for example '10/m'"),
        ({"key_rate": "1/s"}, "key_rate needs a key, such as key='{customer}'"),
        ({"fair": "{a}", "key": "{b}"}, "must be the same: a job has one key"),
        ({"weights": {"gold": 2}}, "weights need fair, such as fair="),
        ({"fair": "{a}", "weights": {"gold": 0}}, "weights must be a whole number from 1 to 1000"),
        ({"fair": "{a}", "weights": {"": 1}}, "a key must be a text"),
        ({"fair": "{a}", "weights": {str(n): 1 for n in range(101)}}, "at most 100 keys, not 101"),
        ({"concurrency": 0}, "concurrency must be a whole number from 1"),
        ({"ttl": timedelta(days=31)}, "ttl must be from 1 second to 30 days: 31 days$"),
        ({"unique": ""}, "unique must be a text"),
        ({"unique_for": 0}, "unique_for must be a positive number"),
        ({"unique_for": 60, "ttl": 30}, r"unique_for \(60 s\) must not be longer than ttl"),
        ({"debounce": 0}, "debounce must be a positive number"),
        ({"debounce": 5, "unique_for": 5}, "debounce and unique_for exclude each other"),
        ({"backoff": "10"}, "backoff must be a positive number of seconds or a timedelta"),
        ({"retry_on": "OSError"}, "retry_on must be an exception class, or a tuple of them"),
        ({"rate": 10}, "not a rate: 10"),
        ({"colour": "red"}, "unknown task option 'colour'; the options are queue"),
    ],
)
def test_wrong_options_are_refused_where_they_are_written(options, words):
    with pytest.raises(UsageError, match=words):
        jm.App().task(**options)


def test_options_that_only_a_worker_reads_cannot_be_set_for_one_job():
    task: Any = app_with_tasks().tasks["send_mail"]
    with pytest.raises(UsageError, match="timeout is an option of the task; for one job there are"):
        task.options(timeout=5)
    with pytest.raises(UsageError, match="backoff is an option of the task"):
        task.at(timedelta(1)).options(backoff=5)


def test_options_of_one_job_leave_the_task_as_it_is():
    task = app_with_tasks().tasks["send_mail"]
    order = task.options(priority=9, queue="urgent").call("a").order()

    assert (order.options.priority, order.options.queue) == (9, "urgent")
    assert task.call("a").order().options.queue == "mail"


def test_a_unique_job_has_an_id_of_its_key_and_others_have_not():
    app = app_with_tasks()
    task = app.tasks["send_mail"]

    first, second = (task.call("a", subject=s).order().job_id for s in "xy")
    assert first == second
    assert first.version == 4
    assert task.call("b").order().job_id != first
    free = app.task(name="free")(lambda: None)
    assert free.call().order().job_id != free.call().order().job_id


def test_a_key_that_cannot_be_filled_names_the_arguments():
    task = jm.App().task(unique="{customer}", name="f")(lambda to: None)
    with pytest.raises(UsageError, match=r"f: cannot fill the key '\{customer\}' .*arguments: to"):
        task.call(1).order()


def test_a_time_needs_a_zone_and_a_delay_is_counted_from_now():
    task = app_with_tasks().tasks["send_mail"]
    with pytest.raises(UsageError, match="has no time zone"):
        task.at(datetime(2026, 1, 1)).call("a").order()  # noqa: DTZ001
    at = task.at(timedelta(minutes=5)).call("a").order().at
    assert at is not None
    assert timedelta(minutes=4) < at - datetime.now(UTC) <= timedelta(minutes=5)


@given(st.integers(1, 200), st.floats(0, 1), st.floats(0, 1000), st.floats(1, 10))
def test_delays_grow_up_to_the_limit_and_jitter_stays_in_bounds(failures, chance, first, factor):
    backoff = jm.Backoff(first, factor=factor, max=3600, jitter=0.1)
    plain = jm.Backoff(first, factor=factor, max=3600, jitter=0)

    assert plain.delay_s(failures, chance) <= plain.delay_s(failures + 1, chance) <= 3600
    exact = plain.delay_s(failures, 0.5)
    assert exact * 0.9 <= backoff.delay_s(failures, chance) * 1.000001
    assert backoff.delay_s(failures, chance) <= exact * 1.100001


@given(st.lists(JSON_VALUES), st.dictionaries(st.text(), JSON_VALUES))
def test_an_envelope_is_read_as_it_was_written(args, kwargs):
    codec = jm.JsonCodec()
    sent = Envelope("shop.send_mail", tuple(args), kwargs, {"traceparent": "00"})

    assert Envelope.decode(sent.encode(codec), codec) == sent


_MOMENT = datetime(2026, 3, 29, 2, 30, 0, 7, timezone(timedelta(hours=1)))


@pytest.mark.parametrize(
    "value",
    [
        _MOMENT,
        _MOMENT.replace(tzinfo=None),
        _MOMENT.date(),
        _MOMENT.timetz(),
        -timedelta(days=1, microseconds=1),
        Decimal("1.10"),
        stable_id("a"),
        Path("/tmp/a"),
        b"\x00\xff",
        {"deep": [{"when": _MOMENT}, None]},
        {"$type": "datetime", "value": "2026-03-29", "more": 1},
        {"$type": "unknown", "value": "1"},
        {"$type": ["datetime"], "value": "1"},
        {"$type": "date", "value": "tomorrow"},
        {"value": {"$type": "uuid", "value": _MOMENT}, "$type": "date"},
        {"$type": "dict", "value": [["$type", "date"], ["value", "2026-03-29"]]},
    ],
    ids=repr,
)
def test_values_that_json_lacks_come_back_as_they_were(value):
    codec = jm.JsonCodec()
    found = codec.loads(codec.dumps([value]))
    assert found == [value]
    assert repr(found) == repr([value])
    sent = Envelope("t", (value,), {"value": value}).encode(codec)
    assert Envelope.decode(sent, codec) == Envelope("t", (value,), {"value": value})


@pytest.mark.parametrize("kind", ["datetime", "date", "time", "timedelta_us", "decimal", "uuid"])
def test_a_value_of_no_such_type_is_unreadable(kind):
    for text in ("x", "9" * 30, ""):
        members = {"v": 1, "task": "t", "args": [{"$type": kind, "value": text}], "kwargs": {}}
        if kind == "decimal" and text.isdecimal():
            continue
        with pytest.raises(UnreadableJob):
            Envelope.decode(json.dumps(members).encode(), jm.JsonCodec())


@pytest.mark.parametrize("text", ["*", "YQ", "YQ==*", "Y Q = =", "YWJj\n", "é"])
def test_bytes_from_a_text_that_is_not_base64_are_unreadable(text):
    members = {"v": 1, "task": "t", "args": [{"$type": "bytes", "value": text}], "kwargs": {}}
    with pytest.raises(UnreadableJob):
        Envelope.decode(json.dumps(members).encode(), jm.JsonCodec())


@pytest.mark.parametrize(
    "items", ["x", [1, 2], [[1], [2]], [["a", 1], ["value", 2]], [[[], 1], []]]
)
def test_a_dict_that_another_language_calls_so_is_left_as_it_is(items):
    sent = {"$type": "dict", "value": items}
    assert jm.JsonCodec().loads(json.dumps(sent).encode()) == sent


@pytest.mark.parametrize(
    "version", [{"$type": "decimal", "value": "sNaN"}, "1", None, 2, True, 1.0]
)
def test_a_version_that_this_worker_does_not_know_is_unreadable(version):
    members = {"v": version, "task": "t", "args": [], "kwargs": {}}
    with pytest.raises(UnreadableJob):
        Envelope.decode(json.dumps(members).encode(), jm.JsonCodec())


def test_an_unreadable_job_says_so_in_few_words_and_few_results_are_fetched_for_it():
    members: dict[str, Any] = {"v": 1, "task": "t", "kwargs": {}}
    long = {"args": [{"$type": "datetime", "value": "x" * 100_000}]}
    many = {"args": [], "gather": [str(stable_id("a"))] * (MAX_CALLS + 1)}
    for each in (long, many):
        with pytest.raises(UnreadableJob) as caught:
            Envelope.decode(json.dumps(members | each).encode(), jm.JsonCodec())
        assert len(str(caught.value)) < 300


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_an_exception_without_a_text_fails_its_job():
    """Without an outcome its worker would renew the lease for ever."""
    prepared = prepare(jm.App(), Delivery(str(stable_id("a")), "q", b"{}"))
    outcome = failed(prepared, Unprintable())
    assert isinstance(outcome, Dead)
    assert outcome.failure.error == "Unprintable"


def test_a_stop_iteration_out_of_a_thread_fails_its_job():
    """A future refuses it: the job would never end."""

    async def run() -> None:
        worker = Worker.__new__(Worker)
        worker._loop = asyncio.get_running_loop()
        worker._run_in_thread = lambda held_job, ended: ended(None, StopIteration("empty"))  # type: ignore[method-assign]
        with pytest.raises(RuntimeError, match="StopIteration"):
            await asyncio.wait_for(worker._in_thread(None), 60)  # type: ignore[arg-type]

    asyncio.run(run())


@pytest.mark.parametrize("result", [b"[" * 100_000, b'{"error": 5, "message": []}', b"\xff"])
def test_a_failure_that_another_worker_wrote_is_shown_as_it_is(result: bytes):
    assert Failure.decode(result) == Failure("Failed", result.decode("utf-8", "replace"))


def test_no_retry_is_asked_for_that_the_server_would_refuse():
    assert jm.Retry(after=timedelta(days=1)).after_s == 86_400
    with pytest.raises(UsageError, match="at most 86400 s"):
        jm.Retry(after=timedelta(days=2))


@pytest.mark.parametrize(
    ("job_id", "hint"),
    [
        (stable_id("shop.gone"), r"app\? If it was removed: journeyman timetable rm shop.gone$"),
        (stable_id("any"), r"app\? It knows 'store.gone': import it by the same name"),
    ],
)
def test_a_task_that_is_not_known_is_named_with_what_may_be_meant(job_id, hint):
    payload = Envelope("shop.gone").encode(jm.JsonCodec())
    app = app_with_tasks()
    if "It knows" in hint:
        app.task(name="store.gone")(lambda: None)
    prepared = prepare(app, Delivery(str(job_id), "q", payload))
    with pytest.raises(UnreadableJob, match=hint):
        raise prepared.problem or AssertionError


def test_the_envelope_is_documented_json():
    task = app_with_tasks().tasks["send_mail"]

    members = json.loads(task.call("a", subject="b").order().payload)
    assert len(members.pop("send")) == 16  # it is unique
    assert members == {
        "v": 1,
        "task": "send_mail",
        "args": ["a"],
        "kwargs": {"subject": "b"},
    }


def test_two_sends_of_a_unique_job_differ_in_their_payload():
    task = jm.App().task(name="t", unique="args")(lambda: None)
    one, other = (task.call().order() for _ in range(2))
    assert one.job_id == other.job_id
    assert one.payload != other.payload


@pytest.mark.parametrize(
    "payload",
    [b"", b"hello", b"[]", b"{}", b'{"v":2,"task":"t","args":[],"kwargs":{}}', b"[" * 5000,
     b'{"v":1,"task":7,"args":[],"kwargs":{}}', b'{"v":1,"task":"t","args":1,"kwargs":{}}',
     b'{"v":1,"task":"t","args":[],"kwargs":[]}', b"\xff"],
)  # fmt: skip
def test_whatever_else_is_in_a_payload_is_unreadable_and_nothing_worse(payload):
    with pytest.raises(UnreadableJob):
        Envelope.decode(payload, jm.JsonCodec())


def test_arguments_over_the_limit_are_refused_with_advice():
    task = app_with_tasks().tasks["send_mail"]
    with pytest.raises(UsageError, match="store them elsewhere and pass a reference"):
        task.call("x" * 1_100_000).order()


def test_rates_and_queue_shares_are_read_as_people_write_them():
    assert Rate.parse("10/m") == Rate(10, 60_000)
    assert Rate.parse("1/30s") == Rate(1, 30_000)
    assert QueueShare.parse("mail:3") == ("mail", 3)
    for wrong in ("mail:0", "two words", "", "a\r\nb"):
        with pytest.raises(UsageError, match="write NAME or NAME:WEIGHT"):
            QueueShare.parse(wrong)


def test_id_that_is_none_is_told_in_one_line():
    with pytest.raises(InvalidRequest, match="job_id must be a UUID, not 'zz'"):
        jm.App().job("zz")


def test_ids_of_keys_depend_on_where_the_parts_end():
    assert stable_id("ab", "c") != stable_id("a", "bc")


def test_an_app_is_found_by_its_module(tmp_path, monkeypatch):
    (tmp_path / "my_shop.py").write_text("import journeyman as jm\njobs = jm.App()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(os.fspath(tmp_path))

    assert isinstance(load_app("my_shop:jobs"), jm.App)
    with pytest.raises(UsageError, match="did you mean my_shop:jobs"):
        load_app("my_shop")
    with pytest.raises(UsageError, match="no module 'my_shap'"):
        load_app("my_shap:app")
    with pytest.raises(UsageError, match=r"no module 'my_shop.py' .*; write my_shop:app$"):
        load_app("my_shop.py")
    with pytest.raises(UsageError, match=r"no module 'my_shop.jobs' .*; write my_shop:jobs$"):
        load_app("my_shop.jobs")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("app = (\n", r"SyntaxError: .*\(broken_shop.py, line 1\)$"),
        ("\napp = Nothing()\n", r"NameError: .*broken_shop.py, line 2\)$"),
        ("import no_such_library\n", r"'no_such_library' \(.*broken_shop.py, line 1\)$"),
    ],
)
def test_a_module_that_cannot_be_imported_is_named_with_the_line(
    tmp_path, monkeypatch, source, said
):
    (tmp_path / "broken_shop.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(os.fspath(tmp_path))
    with pytest.raises(UsageError, match=f"cannot import broken_shop: .*{said}"):
        load_app("broken_shop:app")


@pytest.mark.parametrize(
    ("program", "words", "expected"),
    [
        (
            "/x/journeyman/__main__.py",
            "worker a:b --processes 4 -c 2",
            "-m journeyman worker a:b -c 2",
        ),
        ("/bin/journeyman", "worker a:b --reload --processes=4", "/bin/journeyman worker a:b"),
        (
            "manage.py",
            "journeyman_worker --processes 2 --burst",
            "manage.py journeyman_worker --burst",
        ),
    ],
)
def test_a_worker_process_is_the_same_command_for_one_process(program, words, expected):
    assert one_process(program, words.split())[1:] == expected.split()


def test_outside_of_a_worker_a_job_does_nothing():
    current = jm.job()
    current.heartbeat()
    current.log("nothing happens")

    assert (current.id, current.attempt) == ("", 1)
