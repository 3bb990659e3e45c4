"""Pages of the console without a browser: every page at a moment, forms full of nonsense, commands.

tests/browser/test_console.py clicks on them.
"""

from __future__ import annotations

import http.client
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from html import unescape
from typing import Any
from unittest.mock import MagicMock
from urllib.parse import quote, urlencode

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from journeyman.disk import RealDisk
from journeyman.logs.holders import register
from journeyman.protocols.workq.replies import JobView
from journeyman.servers.http.console import commands
from journeyman.servers.http.console.actions import Actions
from journeyman.servers.http.console.drawing import NAVIGATION, SHOWS_NOW, local
from journeyman.servers.http.v1 import values
from tests.support.console import HOSTILE, Api, filled_server
from tests.support.effort import cases
from tests.support.servers.schedule_process import ALL_SERVICES, ScheduleProcess

FORM = "application/x-www-form-urlencoded"
ACTIONS = sorted(Actions(*[MagicMock()] * 4)._kinds)
# Reading all logs and starting Spark take minutes if a test does them a hundred times.
QUICK = [name for name in ACTIONS if name not in ("verify", "report", "compact", "clean")]


class Visitor:
    """A browser without a window: keeps its cookie and its connection."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._cookie = ""
        self.code = re.findall(
            r'name="code" value="(\w+)"', self.get("/console/confirm?action=clean")
        )[0]

    def ask(
        self, method: str, path: str, body: str = "", more: dict[str, str] | None = None
    ) -> tuple[int, str]:
        headers = {"Cookie": self._cookie} | ({"Content-Type": FORM} if body else {}) | (more or {})
        try:
            response = self._send(method, path, body, headers)
        except (http.client.RemoteDisconnected, ConnectionError):  # it was idle for too long
            self._connection.close()
            response = self._send(method, path, body, headers)
        text = response.read().decode()
        given_cookie = response.headers.get("Set-Cookie", "")
        self._cookie = given_cookie.partition(";")[0] or self._cookie
        self.location = response.headers.get("Location", "")
        return response.status, text

    def _send(
        self, method: str, path: str, body: str, headers: dict[str, str]
    ) -> http.client.HTTPResponse:
        self._connection.request(method, path, body.encode() or None, headers)
        return self._connection.getresponse()

    def close(self) -> None:
        self._connection.close()

    def get(self, path: str) -> str:
        status, text = self.ask("GET", path)
        assert status == 200, (path, status, text[-300:])
        return text

    def act(self, **fields: Any) -> tuple[int, str]:
        return self.ask(
            "POST", "/console/act", urlencode({"code": self.code, **fields}, doseq=True)
        )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScheduleProcess]:
    with filled_server(tmp_path_factory.mktemp("pages")) as running:
        yield running


@pytest.fixture(scope="module")
def api(server: ScheduleProcess) -> Api:
    return Api(server.http_port)


@pytest.fixture(scope="module")
def visitor(server: ScheduleProcess) -> Iterator[Visitor]:
    found = Visitor(server.http_port)
    yield found
    found.close()


# -- the past --


def test_the_days_of_a_lake_are_shown_without_spark(server, visitor, tmp_path):
    lake, cmdlog = tmp_path / "a lake & <more>", server.directory / "cmdlog"
    table = lake / "gold" / "throughput_daily"
    for day, host in (("2026-10-31", "a"), ("2026-11-01", "a"), ("2026-11-01", "b")):
        rows = {
            "dialect": ["workq", "workq"], "queue": ["mail", "sync"],
            "added": [1000, int(day[-2:])], "started": [2, 2], "completed": [3, 3],
            "failed": [4, 4], "date": [date.fromisoformat(day)] * 2, "host": [host] * 2,
        }  # fmt: skip
        write_deltalake(str(table), pa.table(rows), mode="append", partition_by=["host"])
    register(RealDisk(), str(cmdlog), "pages", f"lake {lake}", 1, {})
    assert "Day</th>" not in visitor.get("/console/reports")
    asked = "/console/reports?" + urlencode({"lake": str(lake)})
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", visitor.get(asked).partition("Day</th>")[2])
    assert cells[:6] == ["2026-11-01", "workq", "2002", "8", "12", "16"]
    assert cells[6:12] == ["2026-10-31", "workq", "1031", "4", "6", "8"]
    assert "Day</th>" not in visitor.get("/console/reports?lake=/etc")
    for part in table.glob("host=b/*.parquet"):
        part.write_bytes(b"PAR1")
    assert "could not be read" in visitor.get(asked)


@pytest.mark.parametrize(("name", "path"), [(name, path) for name, path, _ in NAVIGATION])
def test_every_page_takes_a_moment(visitor, name, path):
    text = visitor.get(f"{path}?at=2039-01-01T00:00:00Z")
    assert "<h1" in text
    assert ("shows the present" in text) == (name in SHOWS_NOW)
    assert "<button name=" not in text  # nothing can be changed then
    assert 'class="act"' not in text or name == "time"
    assert visitor.ask("GET", f"{path}?at=then")[0] in (200, 400)


def test_states_have_the_words_of_the_glossary(visitor):
    """Those of the protocols are still understood."""
    for word, other in (("running", "leased"), ("done", "completed")):
        page, same = (
            visitor.get(f"/console/jobs?q=in:work+state:{each}").partition("<tbody>")[2]
            for each in (word, other)
        )
        shown = set(re.findall(r'class="state [a-z]+">([a-z]+)<', page))
        assert shown == set(re.findall(r'class="state [a-z]+">([a-z]+)<', same)) == {word}
    headings = re.findall(r"<th[^>]*>([^<]+)</th>", visitor.get("/console/queues"))
    assert {"Ready", "Scheduled", "Running", "Dead"} <= set(headings)


def test_a_page_shows_what_was_then(visitor, server, api):
    job_id = api.add("then.mail", "still here")
    added = api.ask("GET", f"/v1/work/jobs/{job_id}/records")["records"][0]["time_ns"]
    api.fail(job_id, "it broke")
    api.ask("PUT", "/v1/work/queues/then.mail/paused", {"paused": True})
    every = {"every": "1h", "runner": ["shell", "true"]}
    api.ask("PUT", "/v1/timetables/then", every)
    after = api.ask("GET", "/v1/figures")["time"]
    api.ask("DELETE", f"/v1/work/jobs/{job_id}")
    api.ask("PUT", "/v1/work/queues/then.mail/paused", {"paused": False})
    api.ask("DELETE", "/v1/timetables/then")
    page = visitor.get(f"/console/work/{job_id}?at={added}")
    assert "state ready" in page
    assert "it broke" not in page
    page = visitor.get(f"/console/work/{job_id}?at={after}")
    assert "state dead" in page
    assert "it broke" in page
    assert "still here" in visitor.get(f"/console/work/{job_id}?at={after}")
    assert "The job no longer exists" in visitor.get(f"/console/work/{job_id}")
    assert "it broke" in visitor.get(f"/?at={after}")
    queues = visitor.get(f"/console/queues?prefix=then.&at={after}")
    assert "state paused" in queues
    assert "state paused" not in visitor.get(f"/console/queues?prefix=then.&at={added}")
    timetables = visitor.get(f"/console/timetables?at={after}")
    assert ">then</a>" in timetables
    assert "every 1h" in timetables
    assert ">then</a>" not in visitor.get(f"/console/timetables?at={added}")
    records = visitor.get(f"/console/log?at={after}")
    assert job_id in records
    assert "delete</span>" not in records.partition("<h2>Files")[0].partition(job_id)[0]
    settings_then = visitor.get(f"/console/settings?at={added}")
    assert "then.mail" not in settings_then
    assert "then.mail" in visitor.get("/console/settings")

    def timed() -> bool:
        found = api.ask("GET", "/v1/schedule/records?id=sync.0")["records"]
        return all("time_ns" in each for each in found)

    server.wait_until(timed, "marks in the ledger")
    found = api.ask("GET", "/v1/schedule/records?id=sync.0")["records"]
    first, last = found[0]["time_ns"], found[-1]["time_ns"]
    assert "state failed" in visitor.get(f"/console/schedule/sync.0?at={last}")
    assert visitor.ask("GET", f"/console/schedule/sync.0?at={int(first) - 1}")[0] == 404
    assert "sync.0" in visitor.get(f"/console/log?service=schedule&at={last}")


def test_ages_are_those_of_the_moment_that_a_page_shows(visitor):
    days = (datetime(2039, 1, 1, tzinfo=UTC) - datetime.now(UTC)).days
    page = visitor.get("/console/schedule/sync.0?at=2039-01-01T00:00:00Z")
    runs = page.partition("<h2>Runs")[2]
    assert re.search(rf"\b({days}|{days - 1}) d\b.* ago", runs)


def test_pages_of_a_server_that_has_the_schedule_alone(tmp_path):
    """What is off is said to be off, and the pages are live."""
    with ScheduleProcess(tmp_path, settings={"http.listen": "127.0.0.1:0"}) as server:
        visitor = Visitor(server.http_port)
        for at in ("", "?at=2039-01-01T00:00:00Z"):
            for _, path, _ in NAVIGATION:
                status, text = visitor.ask("GET", path + at)
                assert status == 200 or (at and status == 422), path  # no ledger, no times
                assert "<h1" in text
        assert re.search(
            r"Fan-out lag</span><strong>\u2013</strong>\s*<small>off</small>", visitor.get("/")
        )
        visitor.close()
        connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
        connection.request("GET", "/console/events")
        stream = connection.getresponse()
        while (line := stream.readline()) and b"event: tick" not in line:
            pass
        assert line
        connection.close()


def test_moments_are_given_in_words_and_refused_before_anything_is_shown(visitor):
    for words in ("-1h", "yesterday 14:00", "today"):
        status, _ = visitor.ask("GET", f"/console/queues?at={quote(words)}")
        assert status == 303
        assert re.search(r"[?&]at=\d{4}-\d\d-\d\dT", visitor.location.replace("%3A", ":"))
    assert visitor.ask("GET", "/console/queues?at=yesterday+25:00")[0] == 400


def test_a_search_names_the_words_that_it_knows(visitor):
    text = visitor.get("/console/jobs?q=state:broken+in:nowhere")
    assert "state:broken is not known; known are ready, scheduled, waiting, running" in text
    assert "in:nowhere is not known; known are schedule, work, fan-out" in text
    text = visitor.get("/console/jobs?q=stat:dead")
    assert "stat: is not known; known are queue:, state:, error:, after:" in text
    assert "is not known" not in visitor.get("/console/jobs?q=http://example.com+%22at:home%22")


LOOKS_AT_FEW = """
import journeyman.engines.workq.browsing, journeyman.servers.http.v1.backend
journeyman.engines.workq.browsing.LOOKED_AT_ONCE = 3
journeyman.servers.http.v1.backend.SEARCHED_JOBS = 3
"""


def test_a_search_says_how_far_it_looked_and_goes_on(tmp_path):
    with ScheduleProcess(tmp_path, settings=ALL_SERVICES, patch=LOOKS_AT_FEW) as server:
        api, visitor = Api(server.http_port), Visitor(server.http_port)
        for payload in ("needle", *"abcdef"):
            api.add("far", payload)
        text = visitor.get("/console/jobs?q=queue:far+needle")
        assert "No jobs match so far." in text
        assert "3 jobs were looked at, those since" in text
        for _ in range(2):
            [further] = re.findall(r'rel="next" href="([^"]+)"', text)
            text = visitor.get(unescape(further))
        assert ">needle<" in text
        visitor.close()


def test_a_refresh_does_not_take_what_an_action_said(visitor, api):
    api.add("refreshed.mail")
    assert visitor.act(action="pause", id="refreshed.mail", back="/console/queues")[0] == 303
    refreshed = visitor.ask("GET", "/console/queues?prefix=x", more={"X-Refresh": "1"})[1]
    assert "paused refreshed.mail" not in refreshed
    assert "paused refreshed.mail" in visitor.get("/console/queues?prefix=x")


# -- nonsense --


TEXT = st.one_of(
    st.sampled_from(
        ["", "a", HOSTILE, "\0", "\r", "\r\nX: y", "-1", "1e9", "9" * 400, "../..", "\ud7ff"]
    ),
    st.text(max_size=30),
)
NAMES = (
    "queue",
    "payload",
    "error",
    "at",
    "from",
    "until",
    "execution",
    "max_fails",
    "ttr_ms",
    "back",
)


@given(
    name=st.sampled_from([*QUICK, "", "none"]),
    ids=st.lists(TEXT, max_size=3),
    fields=st.dictionaries(st.sampled_from(NAMES), TEXT, max_size=4),
)
@settings(max_examples=cases(150), phases=[Phase.generate], deadline=None, database=None,
          derandomize=True, suppress_health_check=list(HealthCheck))  # fmt: skip
def check_forms(visitor: Visitor, name: str, ids: list[str], fields: dict[str, str]) -> None:
    form = {"action": name, "id": ids, **fields}
    status, text = visitor.ask("GET", f"/console/confirm?{urlencode(form, doseq=True)}")
    assert status < 500, (form, text[-500:])
    status, text = visitor.act(**form)
    assert status < 500, (form, text[-500:])
    if status == 303:
        assert visitor.location.startswith("/")
        assert not visitor.location.startswith("//")


def test_forms_full_of_nonsense_are_refused_and_break_nothing(visitor, api):
    check_forms(visitor)
    assert api.ask("GET", "/v1/ready")["ready"] is True


def test_addresses_full_of_nonsense_are_refused_and_break_nothing(visitor):
    names = ("q", "at", "cursor", "work_cursor", "schedule_cursor", "prefix", "service", "since")
    for _, path, _ in NAVIGATION:
        for name in names:
            for text in ("\0", "\r\n", "!!!!", "AAAA", HOSTILE, "9" * 400, "state:dead error:'"):
                status, page = visitor.ask("GET", f"{path}?{name}={quote(text)}")
                assert status < 500, (path, name, text, page[-400:])


@pytest.mark.parametrize(
    "address",
    [
        *(
            "//evil.example",
            "//[",  # no host at all: it was an error of the server
            "///evil.example",
            "/\\evil.example",
            "\\\\evil.example",
            "http://a/",
            "",
        ),
        *(
            "https:evil.example",
            "javascript:alert(1)",
            "/\t/evil.example",
            "/\r/evil.example",
            " /",
        ),
        *("/console/jobs\rX: y", "/console/jobs\nX: y", "/console/\x00", "/jobs", "console/jobs"),
        *("/\u2028/evil.example", "/;@evil.example", "?a=b", "//evil.example/console/jobs"),
    ],
)
def test_no_redirect_leaves_the_console(address):
    assert local(address) == "/"


def test_paths_of_the_console_are_kept():
    for address in ("/", "/?at=1", "/console/jobs?q=queue:a%20state:dead&at=1", "/console/log#x"):
        assert local(address) == address


def test_what_an_action_said_is_shown_once_and_cannot_be_made_up(visitor, api):
    api.add("said.mail")
    assert visitor.act(action="pause", id="said.mail", back="/console/queues")[0] == 303
    assert "paused said.mail" in visitor.get("/console/queues?prefix=x")
    assert "paused said.mail" not in visitor.get("/console/queues?prefix=x")
    assert "call us" not in visitor.get("/console/queues?said=call+us")


def test_hostile_names_are_text_on_every_page(visitor, api):
    name = quote(HOSTILE, "")
    rule = {"pattern": HOSTILE, "runner": "shell", "args": [HOSTILE]}
    api.ask("PUT", f"/v1/schedule/rules/{name}", rule)
    api.ask("PUT", f"/v1/timetables/{name}", {"every": "1h", "runner": ["shell", HOSTILE]})
    for path in (
        "/console/rules",
        "/console/timetables",
        f"/console/schedule/{name}",
        "/console/log?service=schedule",
    ):
        text = visitor.get(path)
        assert "<b onclick" not in text, path
        assert "&lt;b onclick" in text, path


# -- commands --


def test_commands_can_be_pasted_into_a_shell(server, api):
    """Whatever a payload holds; curl and `journeyman` add the same job."""
    payload = 'it\'s "quoted" $HOME `id` \\ \n; rm -rf / #é😀 -- --json'
    data = payload.encode()
    seen = JobView(bytes(16), "paste", "dead", 0, 0, 0, 3, 7, 90_500, 600_000, 0, 1, 1, data)
    line, curl = commands.add_job(seen, commands.ServerPlace(api.address, False))
    port = int(server.wait_for_line(r"the work queue listens on [^\s]+?:(\d+)")[1])
    own = f"{shlex.quote(sys.executable)} -m {line} "
    url = f"--server journeyman://127.0.0.1:{port} --"
    subprocess.run(["sh", "-c", own.replace(" -- ", f" {url} ", 1)], check=True)
    subprocess.run(["sh", "-c", curl], check=True, capture_output=True)
    jobs = api.ask("GET", "/v1/work/jobs?queue=paste")["jobs"]
    same = ("payload", "ttr_ms", "ttl_ms", "priority", "max_fails")
    assert [[job[name] for name in same] for job in jobs] == [[payload, 90_500, 600_000, 7, 3]] * 2


def test_commands_name_what_the_page_shows():
    place = commands.ServerPlace("https://host:1", True)
    rule = values.Rule("a b", "p'", "shell", ["echo $1"])
    line, curl = commands.rule(rule, place)
    assert shlex.split(line)[3:] == ["--", "a b", "p'", "shell", "echo $1"]
    assert curl.startswith('curl -H "Authorization: Bearer $TOKEN" -X PUT ')
    assert shlex.split(curl)[-1] == "https://host:1/v1/schedule/rules/a%20b"
    fields = {
        "cron": "0 2 * * *",
        "catch_up": "all",
        "exclude": ["12-24"],
        "runner": ["shell", "x"],
    }
    shown = values.Timetable("n", "active", fields, "", None, "", "", 0, 0)
    assert shlex.split(commands.timetable(shown, place)[0])[3:] == [
        *("--cron", "0 2 * * *", "--catch-up", "all", "--exclude", "12-24", "--", "n", "shell", "x")
    ]
    binary = JobView(bytes(16), "q", "dead", 0, 0, 0, 0, 0, 1, 1, 0, 1, 1, b"\xff")
    (curl,) = commands.add_job(binary, place)
    assert '"payload_base64":"/w=="' in curl


def test_a_job_with_steps_shows_its_waits_and_runs_again_from_a_step(api, visitor):
    api.ask("POST", "/v1/work/jobs", {"queue": "forked", "payload": "order 7"})
    job = api.ask("POST", "/v1/work/lease", {"queues": ["forked"]})["job"]["id"]
    for name, value in (("charge", "receipt 1"), ("pack", "parcel 1")):
        step = {"name": name, "attempt": 1, "value": value}
        api.ask("POST", f"/v1/work/jobs/{job}/steps", step)
    wait = {"step": "wait_for:paid:7", "event": "paid:7", "within_ms": 60_000}
    api.ask("POST", f"/v1/work/jobs/{job}/park", {"attempt": 1, "wait": wait})
    shown = visitor.get(f"/console/work/{job}")
    assert "for the event paid:7, until then at the latest:" in shown
    assert "parked for the event paid:7" in shown
    assert "receipt 1" in shown
    api.ask("PUT", "/v1/work/events/paid:7", {"value": "42"})
    assert "wait_for:paid:7" in visitor.get(f"/console/work/{job}")

    fields = re.findall(r'name="step" value="([^"]+)"', shown)
    assert fields == ["charge#1", "pack#1"]
    form = {"action": "fork", "id": job, "step": fields[1], "back": f"/console/work/{job}"}
    asked = visitor.get(f"/console/confirm?{urlencode(form)}")
    assert "run again from a step" in asked
    status, _ = visitor.act(**form)
    assert status == 303
    (fork,) = api.ask("GET", f"/v1/work/jobs/{job}")["forks"]
    told = api.ask("GET", f"/v1/work/jobs/{fork}")
    assert (told["forked_from"], told["forked_at"], told["payload"]) == (job, "pack#1", "order 7")
    assert f'href="/console/work/{fork}"' in visitor.get(f"/console/work/{job}")
    shown = visitor.get(f"/console/work/{fork}")
    assert f'<a href="/console/work/{job}">{job[:8]}</a>, at its step pack' in shown
    assert "!fork" not in shown
    assert "receipt 1" in shown
    assert "parcel 1" not in shown
    assert visitor.act(**form | {"step": "nothing"})[0] in (303, 404)
    assert len(api.ask("GET", f"/v1/work/jobs/{job}")["forks"]) == 1
