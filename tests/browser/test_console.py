"""The console in a real browser: every page, every action, and what must not work."""

from __future__ import annotations

import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from journeyman.servers.http.console.drawing import MAX_COMPRESSED_BYTES, all_assets
from journeyman.tasks.envelope import Envelope, Failure, JsonCodec
from tests.support.console import (
    HOSTILE,
    HOSTILE_PAYLOAD,
    Api,
    Visits,
    Watched,
    chromium,
    filled_server,
)
from tests.support.servers.schedule_process import ALL_SERVICES, ScheduleProcess

PAGES = {
    "overview": "/",
    "jobs": "/console/jobs?q=state:dead",
    "timetables": "/console/timetables",
    "rules": "/console/rules",
    "queues": "/console/queues",
    "queue": "/console/queues/mail",
    "tasks": "/console/tasks",
    "task": "/console/tasks/shop.missing",
    "timetable": "/console/timetables/nightly",
    "rule": "/console/rules/syncs",
    "workers": "/console/workers",
    "fan-out": "/console/fan-out",
    "log": "/console/log",
    "time-machine": "/console/time?at={now}&since=2020-01-01T00:00:00Z",
    "reports": "/console/reports",
    "settings": "/console/settings",
    "api": "/console/api",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScheduleProcess]:
    with filled_server(tmp_path_factory.mktemp("console")) as running:
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


def dead_job(api: Api, queue: str, reason: str = "it failed", payload: str = "p") -> str:
    job_id = api.add(queue, payload)
    api.fail(job_id, reason)
    return job_id


# -- pages --


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_whole_accessible_and_quiet(browser, api, name):
    for dark, phone in ((False, False), (True, True)):
        with browser.visit(api.address, dark=dark, phone=phone) as visitor:
            page = visitor.open(PAGES[name].format(now=quote(api.now())))
            expect(page.get_by_role("heading", level=1)).to_be_visible()
            expect(page.locator("nav [aria-current=page]")).to_have_count(1)
            width = page.evaluate("document.documentElement.scrollWidth")
            assert width <= (390 if phone else 1280)
            assert visitor.serious() == []
            assert visitor.complaints == []


@pytest.mark.parametrize("name", PAGES)
def test_a_page_can_be_read_without_scripts(browser, api, name):
    with browser.visit(api.address, script=False) as visitor:
        page = visitor.open(PAGES[name].format(now=quote(api.now())))
        assert page.locator("main").inner_text().strip()


def test_the_job_page_draws_its_timeline_from_the_log(visitor, api):
    job_id = api.add("timeline", "x", max_fails=2)
    for _ in range(2):
        api.ask("POST", "/v1/work/lease", {"queues": ["timeline"]})
        api.fail(job_id, "Timeout")
    page = visitor.open(f"/console/work/{job_id}")
    page.get_by_text("raw records").click()
    kinds = page.locator(".timeline .kind").all_inner_texts()
    assert kinds == ["add", "start-attempt", "fail", "timeout-attempt", "start-attempt", "fail"]
    page.locator(".timeline details summary").first.click()
    dump = page.locator(".timeline pre").first.inner_text()
    record = api.ask("GET", f"/v1/work/jobs/{job_id}/records")["records"][0]
    shown = "".join(line[6:53].replace(" ", "") for line in dump.splitlines())
    assert shown == record["bytes_hex"]
    names = page.locator(".trace .name").all_inner_texts()
    assert names == ["waited", "Attempt 1", "waited for the next attempt", "Attempt 2"]
    expect(page.locator(".trace .attempt").last).to_contain_text("Timeout")
    assert visitor.serious() == []


def test_calls_and_errors_of_tasks_are_shown_in_words(visitor, api):
    call = Envelope("shop.divide", (7, 0), {"unit": "kg"}).encode(JsonCodec()).decode()
    trace = 'Traceback (most recent call last):\n  File "shop.py", line 3, in divide\n'
    failure = Failure("ZeroDivisionError", "division by zero", trace).encode().decode()
    api.add("shop", call)
    job_id = dead_job(api, "shop", failure, call)
    page = visitor.open("/console/jobs?q=queue:shop")
    shown = 'shop.divide(7, 0, unit="kg")'
    assert page.locator("td.payload a").all_inner_texts() == [shown, shown]
    expect(page.locator("td .error")).to_have_text("ZeroDivisionError: division by zero")
    page = visitor.open("/")
    expect(page.get_by_text("ZeroDivisionError: division by zero")).to_be_visible()
    page = visitor.open(f"/console/work/{job_id}")
    error = "ZeroDivisionError: division by zero"
    assert page.locator("pre.traceback").inner_text().strip() == f"{error}\n{trace.strip()}"
    expect(page.locator("h1")).to_have_text('shop.divide(7, 0, unit="kg")')
    assert visitor.serious() == []


def test_the_page_of_a_scheduled_job_shows_its_runs(visitor):
    page = visitor.open("/console/schedule/sync.1")
    expect(page.locator(".state")).to_have_text("failed")
    expect(page.get_by_text("exited with status 3")).to_be_visible()
    page.get_by_text("Output").click()
    expect(page.locator("pre", has_text="connecting")).to_be_visible()
    assert visitor.serious() == []


def search_for(page: Page, text: str) -> None:
    page.get_by_label("Search jobs").fill(text)
    with page.expect_navigation():
        page.keyboard.press("Enter")


def test_one_search_looks_in_all_services(visitor):
    page = visitor.open("/console/jobs?q=order")
    expect(page.get_by_role("link", name="orders")).to_be_visible()
    search_for(page, "queue:mail state:dead error:timeout")
    errors = page.locator("td .error").all_inner_texts()
    assert errors
    assert all("Timeout" in text for text in errors)
    search_for(page, "in:schedule state:failed")
    expect(page.get_by_role("link", name="sync.0")).to_be_visible()
    expect(page.get_by_text("exited with status 3").first).to_be_visible()


def test_pages_of_jobs_are_walked(visitor, api):
    for number in range(60):
        api.add("walk", f"walked {number:02}")
    page = visitor.open("/console/jobs?q=queue:walk")
    seen = page.locator("td.payload").all_inner_texts()
    page.get_by_role("link", name="Older jobs").click()
    page.wait_for_url("**work_cursor**")
    seen += page.locator("td.payload").all_inner_texts()
    assert seen == [f"walked {number:02}" for number in reversed(range(60))]


def test_hostile_names_and_payloads_are_text(visitor, api):
    page = visitor.open("/console/jobs?q=in:schedule+bold")
    expect(page.get_by_role("link", name=HOSTILE)).to_be_visible()
    page.get_by_role("link", name=HOSTILE).click()
    expect(page.locator("h1")).to_contain_text(HOSTILE)
    page = visitor.open("/console/jobs?q=queue:mail")
    expect(page.get_by_text(HOSTILE_PAYLOAD).first).to_be_visible()
    page = visitor.open("/console/jobs?q=" + quote("<script>alert(1)</script>\"'"))
    assert "alert(1)" in page.title()
    assert page.locator("main b, main script").count() == 0
    assert "taken over" not in page.title()


# -- live --


def test_the_tail_and_the_tiles_are_live(visitor, api):
    page = visitor.open("/console/log")
    expect(page.locator("#pause")).to_be_visible()
    for _ in range(30):  # until the browser listens
        job_id = api.add("live", "seen while it happens")
        with suppress(AssertionError):
            expect(page.locator("#tail a", has_text=job_id[:8])).to_be_visible(timeout=2_000)
            break
    expect(page.locator("#tail a", has_text=job_id[:8])).to_be_visible()
    expect(page.locator("#tail tr", has_text="seen while it happens").first).to_be_visible()
    page.locator("#filter").fill("nothing has this")
    expect(page.locator("#tail tr", has_text="seen while it happens").first).to_be_hidden()
    page = visitor.open("/")
    ready = page.locator(".tile", has_text="Ready").locator("strong")
    before = ready.inner_text()
    api.add("live", "one more")
    expect(ready).not_to_have_text(before)


def test_a_page_refreshes_itself_and_keeps_what_was_filled_in(visitor, api):
    job_id = api.add("refresh", "first")
    page = visitor.open("/console/jobs?q=queue:refresh")
    page.get_by_label(f"Select {job_id}").check()
    api.add("refresh", "second")
    expect(page.locator("td.payload", has_text="second")).to_be_visible()
    expect(page.get_by_label(f"Select {job_id}")).to_be_checked()
    page = visitor.open("/console/queues?prefix=refresh")
    page.get_by_label("Names that begin with").fill("half a word")
    api.add("refresh", "third")
    expect(page.locator("#queue-refresh [data-l=ready]")).to_have_text("3")
    expect(page.get_by_label("Names that begin with")).to_have_value("half a word")


def test_a_server_that_does_not_answer_is_seen(browser, tmp_path):
    with ExitStack() as running:
        server = running.enter_context(ScheduleProcess(tmp_path, settings=ALL_SERVICES))
        with browser.visit(Api(server.http_port).address) as visitor:
            page = visitor.open("/")
            expect(page.locator("#lost")).to_be_hidden()
            running.close()
            expect(page.locator("#lost")).to_contain_text("The server has not answered for")
            expect(page.locator("#status")).to_have_text("no answer")


def test_a_page_that_cannot_be_read_again_says_so(visitor, api):
    plan = {"every": "1h", "runner": ["shell", "true"]}
    api.ask("PUT", "/v1/timetables/goes-away", plan)
    page = visitor.open("/console/timetables/goes-away")
    page.route("**/console/timetables/goes-away", lambda route: route.fulfill(status=503))
    expect(page.locator("#lost")).to_contain_text("answers this page with an error, 503")
    page.unroute("**/console/timetables/goes-away")
    expect(page.locator("#lost")).to_be_hidden()
    api.ask("DELETE", "/v1/timetables/goes-away")
    expect(page.locator("main")).to_contain_text("404")
    visitor.complaints.clear()  # the browser notes both


# -- actions --


def test_a_dead_job_is_requeued(visitor, api):
    job_id = dead_job(api, "act.requeue")
    visitor.open(f"/console/work/{job_id}")
    visitor.click("Requeue")
    assert api.job(job_id)["state"] == "dead"  # asked first
    assert visitor.confirm() == "requeued 1"
    assert api.job(job_id)["state"] == "ready"


def test_selected_jobs_are_requeued_and_deleted(visitor, api):
    ids = [dead_job(api, "act.many") for _ in range(3)]
    page = visitor.open("/console/jobs?q=queue:act.many")
    page.get_by_label(f"Select {ids[0]}").check()
    page.get_by_label(f"Select {ids[1]}").check()
    visitor.click("Requeue selected")
    assert visitor.confirm() == "requeued 2"
    page.get_by_role("button", name="Select all").click()
    visitor.click("Delete selected")
    assert visitor.confirm() == "deleted 3"
    assert api.queue("act.many")["ready"] == 0


def test_all_that_match_are_requeued(visitor, api):
    for reason in ("Timeout 1", "Timeout 2", "other"):
        dead_job(api, "act.all", reason)
    visitor.open("/console/jobs?q=queue:act.all+state:dead+error:timeout")
    visitor.click("Requeue all that match…")
    assert visitor.confirm() == "requeued 2"
    queue = api.queue("act.all")
    assert (queue["ready"], queue["dead"]) == (2, 1)


def test_a_queue_is_paused_and_resumed(visitor, api):
    api.add("act.pause")
    visitor.open("/console/queues?prefix=act.pause")
    visitor.click("Pause")
    assert visitor.confirm() == "paused act.pause"
    assert api.queue("act.pause")["paused"] is True
    visitor.click("Resume")
    visitor.confirm()
    assert api.queue("act.pause")["paused"] is False


def test_a_job_is_edited_and_sent_again(visitor, api):
    job_id = api.add("act.edit", "first")
    page = visitor.open(f"/console/work/{job_id}")
    page.get_by_role("link", name="Edit and send again").click()
    page.get_by_label("Payload").fill("second")
    visitor.click("Send as a new job")
    said = visitor.confirm()
    assert api.job(said.removeprefix("added "))["payload"] == "second"


def test_scheduled_jobs_are_run_now_planned_and_removed(visitor, server, api):
    api.ask("PUT", "/v1/schedule/jobs/report.act", {"execution": "2039-01-01T00:00:00Z"})
    page = visitor.open("/console/schedule/report.act")
    visitor.click("Run now")
    assert visitor.confirm() == "planned to run now: report.act"
    server.wait_for_status("report.act", "executed")
    page.get_by_label("Plan for").fill("2038-05-05T05:05:05Z")
    visitor.click("Plan")
    visitor.confirm()
    job = api.ask("GET", "/v1/schedule/jobs/report.act")
    assert job["execution"] == "2038-05-05T05:05:05.000000000Z"
    visitor.open("/console/schedule/report.act")
    visitor.click("Remove")
    assert visitor.confirm() == "removed report.act"
    assert server.ask("g GET report.act") == "g ERROR not_found" or "ERROR" in server.ask(
        "g GET report.act"
    )


def test_timetables_are_paused_run_backfilled_resumed_and_removed(visitor, api):
    api.ask("PUT", "/v1/timetables/act", {"every": "1h", "runner": ["shell", "true"]})
    page = visitor.open("/console/timetables/act")
    card = page.locator("main")
    with page.expect_navigation():
        card.get_by_role("button", name="Pause").click()
    assert visitor.confirm() == "paused act"
    assert api.ask("GET", "/v1/timetables/act")["state"] == "paused"
    with page.expect_navigation():
        card.get_by_role("button", name="Run now").click()
    assert visitor.confirm().startswith("planned act@")
    card.get_by_text("Backfill", exact=True).click()
    card.get_by_label("From").fill("2026-01-01T00:00:00Z")
    card.get_by_label("Until").fill("2026-01-01T03:00:00Z")
    with page.expect_navigation():
        card.get_by_role("button", name="Preview").click()
    assert page.get_by_role("cell", name="yes").count() == 3
    visitor.click("Run these")
    assert visitor.confirm() == "3 occurrences run again"
    with page.expect_navigation():
        card.get_by_role("button", name="Resume").click()
    assert visitor.confirm() == "resumed act"
    assert api.ask("GET", "/v1/timetables/act")["state"] == "active"
    with page.expect_navigation():
        card.get_by_role("button", name="Remove").click()
    assert visitor.confirm() == "removed act"
    left = api.ask("GET", "/v1/timetables")["timetables"]
    assert "act" not in [each["id"] for each in left]


def test_a_stale_reader_can_go(visitor, api):
    api.ask("POST", "/v1/fan-out/queues/act_fan/read", {"reader": "stale"})
    visitor.open("/console/fan-out?prefix=act_fan")
    visitor.click("Delete reader")
    assert visitor.confirm() == "deleted reader act_fan+stale"
    assert api.ask("GET", "/v1/fan-out/queues/act_fan")["readers"] == []


def test_a_fan_out_queue_and_a_rule_can_go(visitor, api):
    api.ask("POST", "/v1/fan-out/queues/act_gone/items", {"data": "x"})
    visitor.open("/console/fan-out?prefix=act_gone")
    visitor.click("Delete queue")
    assert visitor.confirm() == "deleted queue act_gone"
    queues = api.ask("GET", "/v1/fan-out/queues?prefix=act_gone")["queues"]
    assert queues == []
    rule = {"pattern": "act.", "runner": "shell", "args": ["true"]}
    api.ask("PUT", "/v1/schedule/rules/act.gone", rule)
    visitor.open("/console/rules?prefix=act.gone")
    visitor.click("Remove")
    assert visitor.confirm() == "removed act.gone"
    assert api.ask("GET", "/v1/schedule/rules?prefix=act.gone")["rules"] == []


def test_logs_are_verified_compacted_and_cleaned(visitor):
    visitor.open("/console/log")
    visitor.click("Verify all logs")
    assert visitor.confirm().startswith("clean: ")
    files = visitor.page.get_by_role("region", name="Files")
    damaged = files.locator("tbody td:nth-child(6)").all_inner_texts()
    assert "0 B" in damaged
    visitor.click("Compact the schedule")
    assert visitor.confirm()
    visitor.click("Clean the work queue")
    assert visitor.confirm()


def test_the_past_is_shown_compared_and_sent_again(visitor, api):
    dead_job(api, "act.past", "Timeout long ago", "sent again")
    page = visitor.open("/console/time")
    page.get_by_label("Queue", exact=True).fill("act.past")
    page.get_by_label("From", exact=True).fill("2020-01-01T00:00:00Z")
    visitor.click("Compare")
    expect(page.get_by_role("heading", level=1)).to_contain_text("changed between")
    expect(page.locator(".tile", has_text="Dead").locator("strong")).to_have_text("+1")
    expect(page.get_by_text("Timeout long ago")).to_be_visible()
    visitor.click("Send these again…")
    expect(page.locator(".targets li")).to_have_count(1)  # previewed
    assert api.queue("act.past")["ready"] == 0
    assert visitor.confirm().startswith("sent 1 of 1")
    assert api.queue("act.past")["ready"] == 1


def test_the_slider_goes_to_a_moment_and_every_link_stays_there(visitor, api):
    moment = api.now()
    api.add("act.slide", "now")
    page = visitor.open("/console/settings")
    expect(page.locator("body.is-live #status")).to_have_text("live")
    page.locator("#scrub").focus()
    with page.expect_navigation():
        page.keyboard.press("ArrowLeft")
    expect(page.locator("body.is-past #status")).to_have_text("the past")
    assert "at=" in page.url
    visitor.open(f"/?at={quote(moment)}")
    expect(page.locator("#moment")).to_have_text(moment[:23].replace("T", " "))
    for name in ("Overview", "Jobs", "Queues"):
        with page.expect_navigation():
            page.locator("nav").get_by_role("link", name=name, exact=True).click()
        expect(page.locator("#moment")).to_have_text(moment[:23].replace("T", " "))
        assert "act.slide" not in page.locator("main").inner_text()
        assert visitor.serious() == []
    with page.expect_navigation():
        page.get_by_role("link", name="Back to live").click()
    assert page.url == visitor.address + "/console/queues"


def test_what_was_done_is_in_the_ledger(visitor, api):
    job_id = dead_job(api, "act.audit")
    visitor.open(f"/console/work/{job_id}")
    visitor.click("Requeue")
    visitor.confirm()
    page = visitor.open("/console/settings")
    row = page.locator("tr", has_text=job_id)
    expect(row).to_contain_text("console")
    expect(row).to_contain_text("requeued 1")


# -- keys --


def test_the_keyboard_is_enough(visitor, api):
    job_id = dead_job(api, "act.keys")
    page = visitor.open("/")
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to content")).to_be_focused()
    page.keyboard.press("/")
    expect(page.locator("#find")).to_be_focused()
    page.keyboard.type("queue:act.keys")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    page.get_by_label(f"Select {job_id}").focus()
    page.keyboard.press("Space")
    page.get_by_role("button", name="Requeue selected").focus()
    with page.expect_navigation():
        page.keyboard.press("Enter")
    expect(page.locator("form.confirm button")).to_be_focused()
    with page.expect_navigation():
        page.keyboard.press("Enter")
    assert api.job(job_id)["state"] == "ready"


# -- who may --

TOKENS = """
[token.admin]
secret = "sk_admin"
namespace = "*"
[token.wallboard]
secret = "sk_look"
namespace = "*"
access = "read"
[token.team]
secret = "sk_team"
namespace = "team."
"""


def test_tokens_log_in_and_see_what_is_theirs(browser, tmp_path):
    (tmp_path / "tokens.toml").write_text(TOKENS)
    (tmp_path / "tokens.toml").chmod(0o600)
    own = ALL_SERVICES | {"controller.auth_file": "tokens.toml"}
    with ScheduleProcess(tmp_path, settings=own) as server:
        api = Api(server.http_port, "sk_admin")
        job_id = dead_job(api, "other.mail")
        api.add("team.mail", "ours")
        with browser.visit(api.address) as visitor:
            page = visitor.page
            page.goto(api.address + "/console/queues")
            assert "/console/login" in page.url
            page.get_by_label("Secret of a token").fill("wrong")
            visitor.click("Log in")
            expect(page.get_by_role("alert")).to_have_text("The secret is wrong.")
            assert visitor.serious() == []
            page.get_by_label("Secret of a token").fill("sk_look")
            visitor.click("Log in")
            assert page.url == api.address + "/console/queues"
            (cookie,) = page.context.cookies()
            assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
            assert page.get_by_role("button", name="Pause").count() == 0
            visitor.open(f"/console/confirm?action=delete&id={job_id}")
            assert page.locator("form.confirm button").count() == 0
            with page.expect_navigation():
                page.get_by_role("button", name="Log out").click()
            page.get_by_label("Secret of a token").fill("sk_team")
            visitor.click("Log in")
            visitor.open("/console/jobs")
            assert page.locator("td.payload").all_inner_texts() == ["ours"]
            refused = page.goto(api.address + "/console/settings")
            assert refused is not None
            assert refused.status == 403
            visitor.complaints = [c for c in visitor.complaints if "40" not in c]
            assert visitor.complaints == []


ATTACK = """<!doctype html><title>attack</title>
<form id=f method=post action="{address}/console/act">
<input name=action value=delete><input name=id value="{job}"><input name=code value=x></form>
<iframe name=elsewhere></iframe>
<script>
const f = document.getElementById('f'); f.target = 'elsewhere'; f.submit();
const body = 'action=delete&id={job}';
const form = {{method: 'POST', mode: 'no-cors', credentials: 'include', body,
  headers: {{'Content-Type': 'application/x-www-form-urlencoded'}}}};
Promise.allSettled([
  fetch('{address}/console/act', form),
  fetch('{address}/v1/work/jobs/{job}', {{method: 'DELETE', credentials: 'include'}}),
  fetch('{address}/v1/work/delete', {{method: 'POST', mode: 'no-cors', credentials: 'include',
    body: JSON.stringify({{ids: ['{job}']}})}}),
  fetch('{address}/v1/schedule/rules/evil', {{method: 'PUT', body: '{{}}'}}),
]).then(() => {{ document.title = 'tried'; }});
</script>"""


def test_a_page_of_another_origin_changes_nothing(browser, api):
    job_id = dead_job(api, "act.attacked")
    page_text = ATTACK.format(address=api.address, job=job_id)

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(page_text.encode())

        def log_message(self, *_: object) -> None:
            """Nothing."""

    elsewhere = HTTPServer(("127.0.0.1", 0), Elsewhere)
    threading.Thread(target=elsewhere.serve_forever, daemon=True).start()
    try:
        with browser.visit(api.address) as visitor:
            visitor.open("/")  # the browser has a session of the console
            visitor.page.goto(f"http://localhost:{elsewhere.server_port}/")
            visitor.page.wait_for_function("document.title === 'tried'")
            framed = visitor.page.context.new_page()
            framed.set_content(f"<iframe src='{api.address}/'></iframe>")
            framed.wait_for_timeout(0)
    finally:
        elsewhere.shutdown()
        elsewhere.server_close()
    assert api.job(job_id)["state"] == "dead"
    assert "evil" not in [rule["id"] for rule in api.ask("GET", "/v1/schedule/rules")["rules"]]


def test_a_form_without_its_code_is_refused(visitor, api):
    job_id = dead_job(api, "act.forged")
    page = visitor.open(f"/console/confirm?action=delete&id={job_id}")
    page.evaluate("document.querySelector('form.confirm [name=code]').value = 'made up'")
    with page.expect_navigation():
        page.locator("form.confirm button").click()
    expect(page.locator("h1")).to_contain_text("this form has expired")
    assert api.job(job_id)["state"] == "dead"
    visitor.complaints = [each for each in visitor.complaints if "403" not in each]


def test_all_assets_together_are_small():
    assert sum(len(asset.compressed) for asset in all_assets().values()) < MAX_COMPRESSED_BYTES


# Last: the pages of a server with so many queues cost the other tests more.
def test_ten_thousand_queues_are_shown_a_page_at_a_time(visitor, server, api):
    add_one_to_each(server, [f"many.{number:05}" for number in range(10_000)])
    page = visitor.open("/console/queues?prefix=many.")
    assert page.locator("tbody tr").count() == 50
    page.get_by_role("link", name="Next queues").click()
    page.wait_for_url("**cursor**")
    expect(page.locator("tbody th").first).to_contain_text("many.00050")
    visitor.open("/")


def add_one_to_each(server: ScheduleProcess, queues: list[str]) -> None:
    """On the work queue's own port, all at once."""
    port = int(server.wait_for_line(r"the work queue listens on [^\s]+?:(\d+)")[1])
    lines = [f"add {uuid.uuid4()} {name} 1000 600000 1\r\nx\r\n" for name in queues]
    with socket.create_connection(("127.0.0.1", port), 60) as connection:
        sender = threading.Thread(target=connection.sendall, args=("".join(lines).encode(),))
        sender.start()
        answers = b""
        while answers.count(b"\n") < len(lines):
            answers += connection.recv(65536)
        sender.join()
    assert answers == b"+OK\r\n" * len(lines)
