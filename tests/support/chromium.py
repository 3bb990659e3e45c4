"""A real Chromium without a window, driven over its own debugging protocol. Not a test itself.

with Chromium() as browser:
    browser.open("file:///tmp/report.html", width=390, dark=True)
    browser.evaluate("document.title")
    browser.complaints, browser.requests      # what the console said, what was asked for
"""

from __future__ import annotations

import asyncio
import base64
import re
import subprocess
import tempfile
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Self, TypeVar

import aiohttp

from tests.support.programs import find_program

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
ANSWER_TIMEOUT_S = 60.0
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--remote-debugging-port=0"),
)
T = TypeVar("T")


class Chromium:
    """One browser with one page."""

    def __init__(self, *flags: str) -> None:
        self._flags = flags
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._loaded: set[str] = set()  # documents, by the ids of their loaders
        self._has_loaded = asyncio.Event()
        self._number = 0

    def __enter__(self) -> Self:
        program = find_program(*PROGRAMS)
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        command = [
            program,
            *FLAGS,
            *self._flags,
            f"--user-data-dir={self._profile.name}",
            "about:blank",
        ]
        self._process = subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        try:
            self._run(self._connect(self._address()))
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
            self.call("Page.setLifecycleEventsEnabled", enabled=True)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_how: object) -> None:
        self._run(self._disconnect())
        self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._process.kill()
        self._process.wait()
        assert self._process.stderr is not None
        self._process.stderr.close()
        self._profile.cleanup()

    # -- what tests do --

    def open(
        self, address: str, *, width: int = 1280, height: int = 900, dark: bool = False
    ) -> None:
        """Show a page anew, in a window of this size, and wait until it is loaded."""
        self.complaints.clear()
        self.requests.clear()
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self._run(self._load(address))

    def evaluate(self, script: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def run(self, script: str) -> Any:
        """Wait for a promise that the script gives."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def point_at(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key: str) -> None:
        for way in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=way, key=key)

    def picture(self, path: Path) -> None:
        """All of the page, as a PNG file."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def call(self, method: str, **parameters: Any) -> Any:
        return self._run(self._call(method, parameters))

    # -- the protocol --

    def _run(self, what: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(ANSWER_TIMEOUT_S)

    def _address(self) -> str:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if match := re.search(r"DevTools listening on (ws://\S+)", line):
                return match[1]
        raise AssertionError("Chromium ended without a word")

    async def _connect(self, browser: str) -> None:
        host = browser.split("/")[2]
        self._client = aiohttp.ClientSession()
        async with self._client.get(f"http://{host}/json/list") as answer:
            pages = await answer.json()
        page = next(each for each in pages if each["type"] == "page")
        self._socket = await self._client.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0)
        self._listener = asyncio.create_task(self._listen())

    async def _disconnect(self) -> None:
        self._listener.cancel()
        await self._socket.close()
        await self._client.close()

    async def _call(self, method: str, parameters: dict[str, Any]) -> Any:
        self._number += 1
        number = self._number
        answered = asyncio.get_running_loop().create_future()
        self._answers[number] = answered
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            answer = await answered
        assert "error" not in answer, (method, answer)
        return answer["result"]

    async def _load(self, address: str) -> None:
        document = (await self._call("Page.navigate", {"url": address}))["loaderId"]
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            while document not in self._loaded:  # that of another one may come late
                self._has_loaded.clear()
                await self._has_loaded.wait()

    async def _listen(self) -> None:
        async for message in self._socket:
            told = message.json()
            if "id" in told:
                self._answers.pop(told["id"]).set_result(told)
            else:
                self._heard(told["method"], told["params"])

    def _heard(self, method: str, told: dict[str, Any]) -> None:
        if method == "Page.lifecycleEvent" and told["name"] == "load":
            self._loaded.add(told["loaderId"])
            self._has_loaded.set()
        elif method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.complaints.append(told["entry"]["text"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(told["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(str(told["args"]))
