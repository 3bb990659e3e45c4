"""Tasks of operators in the console, each with the number of clicks that it may take, from the
overview or from the page that it is about."""

from __future__ import annotations

import json
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from journeyman.protocols.workq.salts import next_id
from journeyman.tasks.envelope import Envelope, Failure, JsonCodec
from tests.support.console import Api, Visits, Watched, chromium
from tests.support.ports import free_port
from tests.support.servers.schedule_process import ALL_SERVICES, ScheduleProcess

DATA = Path(__file__).parents[1] / "integration" / "data"
CHAIN, KEY = DATA / "server_chain.pem", DATA / "server_key.pem"
WORK_PORT = free_port()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScheduleProcess]:
    own = ALL_SERVICES | {"series.enabled": "true", "workq.listen": f"127.0.0.1:{WORK_PORT}"}
    with ScheduleProcess(tmp_path_factory.mktemp("operator"), settings=own) as running:
        yield running


@pytest.fixture(scope="module")
def api(server: ScheduleProcess) -> Api:
    return Api(server.http_port)


@pytest.fixture(scope="module")
def browser() -> Iterator[Visits]:
    with chromium() as running:
        yield running


@pytest.fixture
def visitor(browser: Visits, api: Api) -> Iterator[Watched]:
    with browser.visit(api.address) as page:
        yield page
        assert page.complaints == []


class Hand:
    """Counts the clicks on a page."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.clicks = 0

    def follow(self, target: Locator) -> None:
        """Click on what leads to another page."""
        with self.page.expect_navigation():
            target.click()
        self.clicks += 1

    def click(self, target: Locator) -> None:
        target.click()
        self.clicks += 1

    def confirm(self) -> str:
        self.follow(self.page.locator("form.confirm button"))
        return self.page.locator(".banner.said").inner_text()


def call_of(task: str, *args: object, **more: object) -> str:
    return json.dumps(json.loads(Envelope(task, args).encode(JsonCodec())) | more,
                      separators=(",", ":"))  # fmt: skip


def run_job(api: Api, queue: str, task: str, *args: object, error: str = "") -> str:
    """A job of a task that a worker has leased and ended."""
    job_id = api.add(queue, call_of(task, *args))
    api.ask("POST", "/v1/work/lease", {"queues": [queue], "worker": "w1"})
    if error:
        api.fail(job_id, Failure(error, "no answer", "Traceback: here\n").encode().decode())
    else:
        api.ask("POST", f"/v1/work/jobs/{job_id}/complete", {"result": "1"})
    return job_id


def wait_for_figures(server: ScheduleProcess, api: Api, task: str) -> None:
    def counted() -> bool:
        rows = api.ask("GET", "/v1/tasks")["rows"]
        return any(row["name"] == task for row in rows)

    server.wait_until(counted, f"figures of {task}")


def test_why_did_it_fail(visitor, api):
    run_job(api, "op.why", "op.why_task", 1, error="GatewayTimeout")
    hand = Hand(visitor.open("/"))
    hand.follow(hand.page.get_by_role("link", name="op.why_task(1)"))
    expect(hand.page.locator(".traceback")).to_contain_text("GatewayTimeout: no answer")
    expect(hand.page.locator(".trace .attempt")).to_contain_text("w1")
    assert hand.clicks == 1
    assert visitor.serious() == []


def test_the_dead_jobs_of_a_queue_are_retried(visitor, api):
    for number in range(3):
        run_job(api, "op.retry", "op.retry_task", number, error="GatewayTimeout")
    hand = Hand(visitor.open("/"))
    hand.follow(hand.page.get_by_role("link", name="op.retry", exact=True).first)
    hand.follow(hand.page.get_by_role("button", name="Requeue 3 dead…"))
    expect(hand.page.locator(".targets li")).to_have_count(3)
    assert hand.confirm() == "requeued 3"
    assert hand.clicks == 3
    assert api.queue("op.retry")["ready"] == 3


def test_a_slow_task_is_two_clicks_away(visitor, server, api):
    job_id = run_job(api, "op.slow", "op.slow_task", 7)
    wait_for_figures(server, api, "op.slow_task")
    hand = Hand(visitor.open("/"))
    hand.follow(hand.page.locator("nav").get_by_role("link", name="Tasks"))
    expect(hand.page.locator("#task-op\\.slow_task")).to_contain_text("ms")
    hand.follow(hand.page.get_by_role("link", name="op.slow_task"))
    slowest = hand.page.get_by_role("region", name="Slowest jobs")
    expect(slowest.get_by_role("link", name="op.slow_task(7)")).to_have_attribute(
        "href", f"/console/work/{job_id}"
    )
    assert hand.page.locator("svg.chart").count() >= 3
    assert hand.clicks == 2
    assert visitor.serious() == []


def test_who_runs_what(visitor, server, api):
    api.add("op.who", call_of("op.who_task", 7))
    api.ask("POST", "/v1/work/lease", {"queues": ["op.who"], "worker": "who-1"})
    facts = json.dumps({"host": "anvil", "queues": ["op.who"], "slots": 2}).encode()
    with socket.create_connection(("127.0.0.1", WORK_PORT), timeout=60) as worker:
        worker.sendall(b"worker who-1 60000 %d\r\n%b\r\n" % (len(facts), facts))

        def known() -> bool:
            return bool(api.ask("GET", "/v1/work/workers")["workers"])

        server.wait_until(known, "the worker has said what it is")
        hand = Hand(visitor.open("/"))
        hand.follow(hand.page.locator("nav").get_by_role("link", name="Workers"))
        row = hand.page.locator("#worker-who-1")
        expect(row.get_by_role("link", name="op.who_task(7)")).to_be_visible()
        expect(row).to_contain_text("1/2")
        expect(hand.page.locator("h1")).to_have_text("1 of 1 worker is at work.")
        assert hand.clicks == 1
        assert visitor.serious() == []
        page = visitor.open("/console/jobs?q=queue:op.who")
        expect(page.locator("tr", has_text="op.who_task")).to_contain_text("running on who-1")


def test_throughput_of_yesterday(visitor, server, api):
    run_job(api, "op.rate", "op.rate_task")
    wait_for_figures(server, api, "op.rate_task")
    hand = Hand(visitor.open("/"))
    hand.follow(hand.page.get_by_role("link", name="7 d"))
    expect(hand.page.get_by_role("region", name="Activity").or_(
        hand.page.locator("section[aria-label=Activity]")
    ).first).to_contain_text("last 7 days")  # fmt: skip
    assert hand.clicks == 1
    hand.follow(hand.page.locator("nav").get_by_role("link", name="Tasks"))
    expect(hand.page.locator(".zoom [aria-current]")).to_have_text("7 d")  # it governs every page


def test_the_state_of_yesterday_at_14(visitor, api):
    hand = Hand(visitor.open("/console/queues"))
    moment = hand.page.get_by_label("Moment to go to")
    hand.click(moment)
    moment.fill("yesterday 14:00")
    hand.follow(hand.page.get_by_role("button", name="Go", exact=True))
    expect(hand.page.locator("#moment")).to_contain_text("14:00:00")
    expect(hand.page.locator("body.is-past")).to_be_visible()
    assert hand.clicks == 2
    refused = hand.page.goto(f"{api.address}/console/queues?at=the+day+before")
    assert refused is not None
    assert refused.status == 400
    visitor.complaints.clear()  # the browser notes the refusal


def test_a_chain_is_followed_link_by_link(visitor, api):
    first = str(uuid.uuid4())
    second = str(next_id(uuid.UUID(first)))
    then = [{"task": "op.second", "args": [], "kwargs": {}}]
    api.add("op.chain", call_of("op.first", then=then), id=first)
    api.add("op.chain", call_of("op.second", follows=first), id=second)
    hand = Hand(visitor.open(f"/console/work/{first}"))
    hand.follow(hand.page.locator(".flow").get_by_role("link", name="op.second()"))
    expect(hand.page.locator(".flow .here")).to_contain_text("op.second()")
    hand.follow(hand.page.locator(".flow").get_by_role("link", name="op.first()"))
    expect(hand.page.locator("h1")).to_have_text("op.first()")
    assert hand.clicks == 2
    assert visitor.serious() == []


def test_a_timetable_is_edited(visitor, api):
    before = {"cron": "0 2 * * *", "tz": "Europe/Berlin", "timeout": "5m", "retries": 2}
    api.ask("PUT", "/v1/timetables/op-edit", before | {"runner": ["shell", "true"]})
    hand = Hand(visitor.open("/console/timetables/op-edit"))
    hand.page.get_by_label("When").fill("30 3 * * *")
    hand.follow(hand.page.get_by_role("button", name="Look at the change…"))
    expect(hand.page.locator(".targets")).to_contain_text("cron: 0 2 * * * → 30 3 * * *")
    expect(hand.page.locator(".targets")).to_contain_text("T03:30:00+01:00")
    assert hand.confirm() == "set op-edit"
    fields = api.ask("GET", "/v1/timetables/op-edit")["fields"]
    assert fields == before | {"cron": "30 3 * * *", "runner": ["shell", "true"]}
    assert hand.clicks == 2


def test_a_timetable_is_added(visitor, api):
    page = visitor.open("/console/timetables")
    page.get_by_text("Add a timetable").click()
    page.get_by_label("Name").fill("op-added")
    page.get_by_label("Every", exact=True).fill("15m")
    page.get_by_label("Runner and what it runs").fill("shell 'echo one two'")
    visitor.click("Look at the next runs…")
    assert visitor.confirm() == "set op-added"
    fields = api.ask("GET", "/v1/timetables/op-added")["fields"]
    assert fields == {"every": "15m", "runner": ["shell", "echo one two"]}


def test_a_limit_is_set(visitor, api):
    api.add("op.limit")
    hand = Hand(visitor.open("/console/queues/op.limit"))
    hand.click(hand.page.get_by_text("Change limits"))
    hand.page.get_by_label("Starts", exact=True).fill("120")
    hand.page.get_by_label("in so many seconds").first.fill("60")
    hand.page.get_by_label("Running at the same time", exact=True).fill("4")
    hand.follow(hand.page.get_by_role("button", name="Set limits…"))
    assert hand.confirm() == "limits set of op.limit"
    limits = api.queue("op.limit")["limits"]
    assert (limits["rate"], limits["per_ms"], limits["concurrency"]) == (120, 60_000, 4)
    assert hand.clicks == 3


def test_a_queue_is_drained(visitor, api):
    for _ in range(12):
        api.add("op.drain")
    api.add("op.drain", at="2039-01-01T00:00:00Z")
    hand = Hand(visitor.open("/console/queues/op.drain"))
    hand.follow(hand.page.get_by_role("button", name="Drain 13 waiting…"))
    expect(hand.page.locator(".targets")).to_contain_text("12 jobs that are ready")
    assert hand.confirm() == "cancelled 13"
    queue = api.queue("op.drain")
    assert (queue["ready"], queue["scheduled"]) == (0, 0)
    assert hand.clicks == 2


def test_a_job_is_found_by_its_arguments(visitor, api):
    wanted = api.add("op.find", call_of("op.charge", 4634, 12))
    api.add("op.find", call_of("op.charge", 46))
    api.add("op.find", call_of("op.refund", 4634))
    for words in ("op.charge(4634", "op.charge(4634, 12)", "task:op.charge op.charge(4634, 1"):
        page = visitor.open("/")
        page.locator("#find").fill(words)
        with page.expect_navigation():
            page.keyboard.press("Enter")
        expect(page.locator("td.payload a")).to_have_count(1)
        assert page.locator("td.payload a").get_attribute("href") == f"/console/work/{wanted}"


def test_facets_count_and_narrow(visitor, api):
    for queue in ("op.facet_a", "op.facet_b"):
        run_job(api, queue, "op.facet", error="GatewayTimeout")
    page = visitor.open("/console/jobs?q=state:dead")
    facet = page.locator(".facets a", has_text="op.facet_a")
    expect(facet).to_contain_text("1")
    with page.expect_navigation():
        facet.click()
    expect(page.locator("td.payload a")).to_have_count(1)
    expect(page.locator(".facets [aria-current]", has_text="dead")).to_contain_text("1")
    expect(page.locator("h1")).to_have_text("1 dead job in op.facet_a")
    assert visitor.serious() == []


def test_the_zone_governs_tables_and_the_time_bar(visitor, api):
    job_id = api.add("op.zone")
    page = visitor.open(f"/console/work/{job_id}")
    before = page.locator("dd time").first.inner_text()
    with page.expect_navigation():
        page.locator("#zone").select_option("server")
    expect(page.locator("#zone")).to_have_value("server")
    page.context.add_cookies(
        [{"name": "journeyman_zone", "value": "Asia/Kolkata", "url": api.address}]
    )
    page.reload()
    expect(page.locator("#zone")).to_have_value("Asia/Kolkata")
    assert page.locator("dd time").first.inner_text() != before  # five hours and a half later


def test_searches_are_kept(visitor):
    page = visitor.open("/console/jobs?q=queue:op.kept")
    page.get_by_role("button", name="Save this search").click()
    page = visitor.open("/console/jobs")
    with page.expect_navigation():
        page.locator("#views").get_by_role("link", name="queue:op.kept").click()
    expect(page.locator("#find")).to_have_value("queue:op.kept")
    page.get_by_role("button", name="Forget queue:op.kept").click()
    expect(page.locator("#views a")).to_have_count(0)


def test_an_item_is_peeked_at_and_a_reader_flushed(visitor, api):
    api.ask("POST", "/v1/fan-out/queues/op_fan/read", {"reader": "late"})
    for number in range(3):
        api.ask("POST", "/v1/fan-out/queues/op_fan/items", {"data": f"item {number}"})
    page = visitor.open("/console/fan-out?prefix=op_fan")
    row = page.locator("tr", has_text="late")
    expect(row.locator("td[data-l=oldest]")).to_contain_text("s")  # seconds or milliseconds
    with page.expect_navigation():
        row.get_by_role("link", name="Peek").click()
    expect(page.locator("#peeked")).to_have_text("item 0")
    with page.expect_navigation():
        page.get_by_role("button", name="Flush").click()
    assert visitor.confirm() == "flushed op_fan+late"
    [reader] = api.ask("GET", "/v1/fan-out/queues/op_fan")["readers"]
    assert reader["items"] == 0


def test_play_goes_on_to_the_present(visitor, api):
    page = visitor.open("/console/settings?at=-2m")
    moment = page.locator("#scrub").input_value()
    with page.expect_navigation():
        page.get_by_role("button", name="Play").click()
    page.wait_for_function(f"Number(document.querySelector('#scrub').value) > {moment}")
    page.wait_for_url(lambda address: "at=" not in address)
    expect(page.locator("#status")).to_have_text("live")


def test_the_cursor_is_shared_by_all_charts(visitor, server, api):
    run_job(api, "op.cursor", "op.cursor_task")
    wait_for_figures(server, api, "op.cursor_task")
    page = visitor.open("/console/tasks/op.cursor_task")
    page.locator("svg.chart").first.hover()
    assert page.locator("line.cursor").count() == page.locator("svg.chart").count()
    page.locator("h1").hover()
    expect(page.locator("line.cursor")).to_have_count(0)


def test_five_thousand_queues_are_paged_and_found(visitor):
    lines = b"".join(
        b"add %b op.many.%04d 60000 3600000 1\r\nx\r\n" % (str(uuid.uuid4()).encode(), number)
        for number in range(5_000)
    )
    with (
        socket.create_connection(("127.0.0.1", WORK_PORT), timeout=60) as client,
        client.makefile("rb") as answers,  # it keeps the socket open for as long as it is open
    ):
        client.sendall(lines)
        assert {answers.readline() for _ in range(5_000)} == {b"+OK\r\n"}
    page = visitor.open("/console/queues?prefix=op.many.")
    expect(page.locator("tbody tr")).to_have_count(50)
    with page.expect_navigation():
        page.get_by_role("link", name="Next queues").click()
    expect(page.locator("tbody tr").first).to_contain_text("op.many.0050")
    expect(visitor.open("/").get_by_role("heading", level=1)).to_be_visible()
    page = visitor.open("/console/jobs?q=queue:op.many.4999")
    expect(page.locator("td.payload a")).to_have_count(1)
    assert page.locator(".facets li").count() < 60


def test_a_token_logs_in_over_tls(browser, tmp_path):
    tokens = tmp_path / "tokens.toml"
    tokens.write_text('[token.look]\nsecret = "sk_look"\nnamespace = "*"\naccess = "read"\n')
    tokens.chmod(0o600)
    own = ALL_SERVICES | {"controller.auth_file": "tokens.toml", "controller.tls_cert": str(CHAIN),
                          "controller.tls_key": str(KEY)}  # fmt: skip
    with (
        ScheduleProcess(tmp_path, settings=own) as server,
        browser.visit_untrusted(f"https://127.0.0.1:{server.http_port}") as visitor,
    ):
        page = visitor.open("/console/queues")
        page.get_by_label("Secret of a token").fill("sk_look")
        visitor.click("Log in")
        expect(page.locator(".who")).to_contain_text("read only")
        [cookie] = [each for each in page.context.cookies() if each["name"] == "journeyman_session"]
        assert cookie["secure"]
        assert cookie["httpOnly"]
        assert visitor.complaints == []
