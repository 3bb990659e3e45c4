"""Timetables on a real server: over the wire, by clients, from the command line, with tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise

import pytest
from click.testing import Result

from journeyman.client import AsyncSchedule, Schedule, errors
from journeyman.formats.ztick import Shell, Status
from tests.support.cli_commands import assert_one_line_error, rows, run
from tests.support.client_kinds import Waiting
from tests.support.servers.schedule_process import ScheduleProcess

LEDGER = {"ledger.enabled": "true", "ledger.path": "ledger"}
TOKENS = """
[token.all]
secret = "everything"
namespace = "*"
runners = "shell"
[token.mine]
secret = "mine"
namespace = "mine."
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScheduleProcess]:
    with ScheduleProcess(tmp_path_factory.mktemp("server"), settings=LEDGER) as process:
        yield process


@pytest.fixture(params=[Schedule, AsyncSchedule], ids=["blocking", "asyncio"])
def schedule(request, server: ScheduleProcess):
    client = request.param(port=server.port, timeout_s=30.0)
    with Waiting(client) if isinstance(client, AsyncSchedule) else client as called:
        yield called


@pytest.fixture
def ask(server: ScheduleProcess):
    def ask(*words: object) -> Result:
        return run(
            "timetable",
            *words,
            env={"JOURNEYMAN_URL": f"journeyman://127.0.0.1?schedule={server.port}"},
        )

    return ask


def test_it_fires_again_and_again_and_each_job_keeps_its_outcome(server):
    # On a busy machine, too, each second has its run.
    options = "catch_up=all catch_up_limit=1000 overlap=allow"
    command = f'every 1s {options} run shell "echo $JOURNEYMAN_JOB_ID >> ticks"'
    assert server.ask(f"r TIMETABLE SET tick {command}") == "r OK"
    path = server.directory / "ticks"
    server.wait_until(lambda: path.exists() and len(path.read_text().split()) >= 3, "three runs")
    assert server.ask("r TIMETABLE REMOVE tick") == "r OK"
    with Schedule(port=server.port) as schedule:
        server.wait_until(
            lambda: all(job.status is Status.EXECUTED for job in schedule.query("tick@")), "all ran"
        )
    names = sorted(path.read_text().split())
    assert len(set(names)) == len(names)
    moments = [datetime.fromisoformat(name.removeprefix("tick@")) for name in names]
    assert [later - earlier for earlier, later in pairwise(moments)] == [timedelta(seconds=1)] * (
        len(names) - 1
    )
    server.wait_for_status(names[0], "executed")


def test_lines(server):
    tokyo = timezone(timedelta(hours=9))
    hour = (datetime.now(tokyo) + timedelta(hours=12)).hour  # none comes while the test runs
    cron = f'cron "0 {hour} * * *" tz=Asia/Tokyo retries=2'
    with server.client() as client:
        assert client.ask(f"1 TIMETABLE SET n {cron}") == "1 OK"
        shown = client.ask("2 TIMETABLE GET n")
        begin = rf"2 OK active \d+ \S+T{hour:02}:00:00\+09:00 - 0 0 "
        assert re.fullmatch(begin + re.escape(cron), shown)
        client.send("3 TIMETABLE LIST n")
        assert client.read_list("3") == [shown.replace("2 OK", "n", 1)]
        client.send("4 TIMETABLE NEXT n 2")
        assert all(re.fullmatch(r'\S+\+09:00 \S+Z ""', row) for row in client.read_list("4"))
        client.send("5 TIMETABLE BACKFILL n 2019-12-31T14:30:00Z 2020-01-02T14:30:00Z preview")
        days = [datetime(2020, 1, day, hour, tzinfo=tokyo) for day in (1, 2)]
        assert client.read_list("5") == [
            f"n@{each.isoformat()} {int(each.timestamp())}000000000 - run" for each in days
        ]
        assert client.ask("6 TIMETABLE PAUSE n") == "6 OK"
        assert client.ask("7 TIMETABLE GET n").startswith("7 OK paused - - - 0 0 cron")
        assert client.ask("8 TIMETABLE RESUME n") == "8 OK"
        assert client.ask("9 TIMETABLE REMOVE n") == "9 OK"
        assert client.ask("10 TIMETABLE GET n") == (
            '10 ERROR not_found timetable "n" does not exist'
        )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ('SET n cron "0 25 * * *"', "cron: field 2 (hour) is '25': expected 0-23, *, lists"),
        ("SET n every 5x", "every: '5x' is not a duration: expected a duration such as"),
        ("SET n every 5m tz=Berlin", "tz: there is no time zone 'Berlin': expected an IANA name"),
        ("SET n every 5m color=red", "timetable: the word 'color=red' is not known"),
        ("SET n every 5m run magic", "runner: "),
        ("SET n", "timetable: it is empty: expected <kind> <when>"),
        ("SET", "missing required argument: timetable_identifier"),
        ("NEXT n 0", "count: '0' is not possible: expected a whole number from 1 to 100"),
        ("BACKFILL n 2020-01-01", "missing required argument: until"),
        ("BACKFILL n 2020-01-02 2020-01-01", "until: it is not after from"),
    ],
)
def test_what_is_refused_says_why(server, words, text):
    assert server.ask(f"r TIMETABLE {words}").startswith(f"r ERROR invalid_args {text}")


def test_unknown_words_are_silent_as_ever(server):
    with server.client() as client:
        client.send("1 TIMETABLE", "2 TIMETABLE FROB x", "3 GET nothing")
        assert client.read_line().startswith("3 ERROR")


def test_clients(schedule):
    runner = Shell('echo "two words"')
    schedule.set_timetable(
        "c", cron="0 2 * * *", tz="Europe/Berlin", exclude=["12-24"], runner=runner
    )
    found = schedule.timetable("c")
    assert found is not None
    assert (found.state, found.last, found.running) == ("active", None, 0)
    assert found.fields == {
        "cron": "0 2 * * *",
        "tz": "Europe/Berlin",
        "exclude": ["12-24"],
        "runner": ["shell", 'echo "two words"'],
    }
    assert [each.identifier for each in schedule.timetables("c")] == ["c"]
    assert len(schedule.next_firings("c", 7)) == 7
    schedule.pause_timetable("c")
    job = schedule.run_timetable("c")
    assert job.startswith("c@")
    schedule.resume_timetable("c")
    begin = datetime(2020, 1, 1, tzinfo=UTC)
    shown = schedule.backfill("c", begin, begin + timedelta(days=2), preview=True)
    assert [(each.status, each.is_run) for each in shown] == [(None, True)] * 2
    assert schedule.remove_timetable("c")
    assert not schedule.remove_timetable("c")
    assert schedule.timetable("c") is None
    with pytest.raises(errors.NotFound):
        schedule.run_timetable("c")
    with pytest.raises(errors.InvalidRequest, match="field 2"):
        schedule.set_timetable("c", cron="0 99 * * *")


def test_from_the_command_line(ask):
    assert (
        ask(
            "add", "cli", "--cron", "30 2 * * *", "--tz", "Europe/Berlin", "shell", "true"
        ).exit_code
        == 0
    )
    listed = ask("ls", "cli").stdout
    assert "cron 30 2 * * * tz=Europe/Berlin run shell true" in listed
    (shown,) = rows(ask("show", "cli", "--json"))
    assert shown["fields"]["runner"] == ["shell", "true"]
    assert "definition  cron 30 2" in ask("show", "cli").stdout
    assert len(ask("next", "cli", "-n", 3).stdout.splitlines()) == 4
    (job,) = rows(ask("run", "cli", "--json"))
    assert job["job"].startswith("cli@")
    assert ask("pause", "cli").exit_code == ask("resume", "cli").exit_code == 0
    planned = rows(ask("backfill", "cli", "2020-01-01", "2020-01-03", "--preview", "--json"))
    assert [row["runs"] for row in planned] == [True, True]
    assert ask("rm", "cli").exit_code == 0
    assert_one_line_error(ask("rm", "cli"), 1, "no timetable 'cli' on this server")
    assert_one_line_error(ask("show", "cli"), 1, "no timetable 'cli' on this server")
    assert_one_line_error(ask("add", "cli", "--cron", "61 * * * *"), 2, "field 1 (minute)")


def test_next_without_a_server():
    shown = run("timetable", "next", "--at", "2096-03-25T02:30", "--tz", "Europe/Berlin", "--json")
    assert json.loads(shown.stdout) == {
        "local": "2096-03-25T03:00:00+02:00",
        "utc": "2096-03-25T01:00:00Z",
        "warning": None,
    }


def test_tokens_hold_for_timetables(tmp_path):
    (tmp_path / "tokens").write_text(TOKENS)
    settings = LEDGER | {"controller.auth_file": "tokens"}
    with ScheduleProcess(tmp_path, settings=settings) as server:
        with Schedule(port=server.port, token="everything") as every:
            every.set_timetable("other", every="1h")
        with Schedule(port=server.port, token="mine") as mine:
            mine.set_timetable("mine.a", every="1h")
            assert [each.identifier for each in mine.timetables()] == ["mine.a"]
            for refused in (
                lambda: mine.set_timetable("other", every="2h"),
                lambda: mine.timetable("other"),
                lambda: mine.run_timetable("other"),
                lambda: mine.remove_timetable("other"),
                lambda: mine.set_timetable("mine.b", every="1h", runner=Shell("id")),
            ):
                with pytest.raises(errors.AccessDenied):
                    refused()
            assert mine.timetable("mine.b") is None


def test_without_a_ledger_they_are_refused_and_in_memory_they_work(tmp_path):
    with ScheduleProcess(tmp_path) as server:
        answer = server.ask("r TIMETABLE SET n every 1h")
        assert answer == (
            "r ERROR invalid_args timetables need the ledger: set data.directory or ledger.path"
        )
    with ScheduleProcess(tmp_path, database__persistence="memory") as server:
        assert server.ask("r TIMETABLE SET n every 1h") == "r OK"


def test_a_restart_keeps_them_and_catches_up(tmp_path):
    server = ScheduleProcess(tmp_path, settings=LEDGER).start()
    command = 'run shell "echo $JOURNEYMAN_JOB_ID >> ran"'
    server.ask(
        f"r TIMETABLE SET t every 1s catch_up=all catch_up_limit=1000 overlap=allow {command}"
    )
    server.ask("r TIMETABLE SET p every 1s")
    server.ask("r TIMETABLE PAUSE p")
    server.wait_for_text("ran")
    server.kill()
    last = len((tmp_path / "ran").read_text().split())
    with ScheduleProcess(tmp_path, settings=LEDGER) as server:
        assert server.ask("r TIMETABLE GET p").startswith("r OK paused")
        server.wait_until(
            lambda: len((tmp_path / "ran").read_text().split()) > last + 2, "more runs"
        )
        with Schedule(port=server.port) as schedule:
            schedule.pause_timetable("t")
            server.wait_until(
                lambda: all(job.status is Status.EXECUTED for job in schedule.query("t@")),
                "all ran",
            )
            jobs = {job.identifier for job in schedule.query("t@")}
    moments = sorted(datetime.fromisoformat(name.removeprefix("t@")) for name in jobs)
    assert moments[-1] - moments[0] == timedelta(seconds=len(moments) - 1)
