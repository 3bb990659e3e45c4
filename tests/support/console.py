"""A server with real data of every kind, and a browser that fails a test for any complaint."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.support.programs import find_program
from tests.support.servers.schedule_process import ALL_SERVICES, ScheduleProcess

PATIENCE_MS = 60_000
expect.set_options(timeout=PATIENCE_MS)
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
AXE = Path(__file__).parents[1] / "browser" / "vendor" / "axe.js"
HOUR_MS = 3_600_000
HOSTILE = "<b onclick=alert(1)>\"bold\"</b> '😀' مرحبا"
HOSTILE_PAYLOAD = "<script>document.title = 'taken over'</script> & \"quotes\" 😀 مرحبا"


class Api:
    """Asks version 1 of the HTTP API."""

    def __init__(self, port: int, secret: str = "") -> None:
        self.address = f"http://127.0.0.1:{port}"
        self._secret = secret

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.address}{path}", data, method=method)
        if data is not None:
            request.add_header("Content-Type", "application/json")
        if self._secret:
            request.add_header("Authorization", f"Bearer {self._secret}")
        with urllib.request.urlopen(request, timeout=60) as response:
            text = response.read()
        return json.loads(text) if text else None

    def add(self, queue: str, payload: str = "", **more: Any) -> str:
        added = self.ask("POST", "/v1/work/jobs", {"queue": queue, "payload": payload, **more})
        return str(added["id"])

    def fail(self, job_id: str, reason: str) -> None:
        self.ask("POST", f"/v1/work/jobs/{job_id}/fail", {"result": reason})

    def now(self) -> str:
        return str(self.ask("GET", "/v1/figures")["time"])

    def job(self, job_id: str) -> Any:
        return self.ask("GET", f"/v1/work/jobs/{job_id}")

    def queue(self, name: str) -> Any:
        return self.ask("GET", f"/v1/work/queues/{name}")


def fill(server: ScheduleProcess, api: Api) -> None:
    """Jobs, rules, runs, timetables and items of every state."""
    ask = api.ask
    shell = {"pattern": "report.", "runner": "shell", "args": ["echo done"]}
    ask("PUT", "/v1/schedule/rules/reports", shell)
    failing = {"pattern": "sync.", "runner": "shell", "args": ["echo connecting; exit 3"]}
    ask("PUT", "/v1/schedule/rules/syncs", failing)
    for number in range(20):
        moment = f"203{number % 10}-01-01T00:00:00Z"
        ask("PUT", f"/v1/schedule/jobs/report.{number:03}", {"execution": moment})
    for number in range(4):
        ask("PUT", f"/v1/schedule/jobs/sync.{number}", {"execution": 1})
    ask("PUT", f"/v1/schedule/jobs/{quote(HOSTILE, '')}", {"execution": "2031-01-01T00:00:00Z"})
    nightly = {"cron": "0 2 * * *", "tz": "Europe/Berlin", "runner": ["shell", "true"]}
    ask("PUT", "/v1/timetables/nightly", nightly)
    errors = ("TimeoutError: smtp.example.org did not answer within 10 s", "ValueError: no user 7")
    for number in range(60):
        queue = ("mail", "images", "billing", "search.index")[number % 4]
        payload = json.dumps({"to": f"user{number}@example.org", "n": number})
        job_id = api.add(queue, payload, ttr_ms=HOUR_MS)  # what is leased stays so
        if number % 5 == 0:
            ask("POST", "/v1/work/lease", {"queues": [queue]})
        if number % 6 == 0:
            api.fail(job_id, errors[number % 12 != 0])
        elif number % 6 == 1:
            ask("POST", f"/v1/work/jobs/{job_id}/complete", {"result": "sent"})
    api.add("mail", HOSTILE_PAYLOAD)
    api.fail(api.add("mail", "hostile error"), HOSTILE_PAYLOAD)
    for _ in range(3):
        api.add("billing", "invoice", at="2031-01-01T00:00:00Z")
    for reader in ("audit", "search", "mailer"):
        ask("POST", "/v1/fan-out/queues/orders/read", {"reader": reader})
    for number in range(12):
        ask("POST", "/v1/fan-out/queues/orders/items", {"data": f"order {number}"})
    for _ in range(7):
        ask("POST", "/v1/fan-out/queues/orders/read", {"reader": "audit"})
    for number in range(4):
        server.wait_for_status(f"sync.{number}", "failed")


class Watched:
    """A page whose console errors, CSP violations and failed scripts are noted."""

    address = ""  # of the server that is visited

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.complaints.append(f"script: {error}"))
        page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        page.add_init_script(
            "document.addEventListener('securitypolicyviolation', e => "
            "console.error('CSP', e.violatedDirective, e.blockedURI))"
        )

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def open(self, path: str) -> Page:
        response = self.page.goto(self.address + path)
        assert response is not None
        assert response.status == 200, (path, response.status)
        return self.page

    def click(self, name: str) -> None:
        """A button, by its words; the page that comes is waited for."""
        with self.page.expect_navigation():
            self.page.get_by_role("button", name=name, exact=True).first.click()

    def confirm(self) -> str:
        """On the confirm page: yes. What the next page says was done."""
        with self.page.expect_navigation():
            self.page.locator("form.confirm button").click()
        said = self.page.locator(".banner.said").text_content()
        assert said is not None
        return said

    def serious(self) -> list[str]:
        """What axe-core finds that is serious or critical."""
        self.page.evaluate(AXE.read_text())
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{each['id']}: {node['html'][:120]}"
            for each in found["violations"]
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"][:3]
        ]


@contextmanager
def filled_server(directory: Path) -> Iterator[ScheduleProcess]:
    """With all services, and something to see on every page."""
    with ScheduleProcess(directory, settings=ALL_SERVICES | {"series.enabled": "true"}) as running:
        fill(running, Api(running.http_port))
        yield running


class Visits:
    """A browser whose pages are used again: to make one costs more than most visits.

    A visit that ends well leaves nothing behind; a page in which one failed is given up.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._pages: dict[bool, Watched] = {}  # by whether scripts run

    @contextmanager
    def visit(
        self, address: str, *, dark: bool = False, phone: bool = False, script: bool = True
    ) -> Iterator[Watched]:
        watched = self._pages.pop(script, None) or self._new_page(script)
        page = watched.page
        watched.address, watched.complaints = address, []
        try:
            width, height = (390, 844) if phone else (1280, 900)
            page.set_viewport_size({"width": width, "height": height})
            page.emulate_media(color_scheme="dark" if dark else "light", reduced_motion="reduce")
            yield watched
            self._clean(page, address)
        except BaseException:
            page.context.close()
            raise
        self._pages[script] = watched

    @contextmanager
    def visit_untrusted(self, address: str) -> Iterator[Watched]:
        """A visit of a server whose certificate nobody has signed."""
        context = self._browser.new_context(ignore_https_errors=True)
        context.set_default_timeout(PATIENCE_MS)
        watched = Watched(context.new_page())
        watched.address = address
        try:
            yield watched
        finally:
            context.close()

    def _new_page(self, script: bool) -> Watched:
        context = self._browser.new_context(java_script_enabled=script)
        context.set_default_timeout(PATIENCE_MS)
        return Watched(context.new_page())

    def _clean(self, page: Page, address: str) -> None:
        page.goto("about:blank")
        for other in page.context.pages:
            if other is not page:
                other.close()
        page.context.clear_cookies()
        protocol = page.context.new_cdp_session(page)
        protocol.send("Storage.clearDataForOrigin", {"origin": address, "storageTypes": "all"})
        protocol.detach()


@contextmanager
def chromium() -> Iterator[Visits]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_program("chromium"), args=FLAGS)
        try:
            yield Visits(browser)
        finally:
            browser.close()
