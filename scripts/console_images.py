"""Make the pictures of the console for README and docs again: python scripts/console_images.py

The server is that of `journeyman demo`, with two days of history from a seed. It needs the tools of
developers (playwright) and Chromium.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

from playwright.sync_api import Browser, sync_playwright

IMAGES = Path(__file__).parents[1] / "docs" / "images"
PORT = 15_679
WARM_UP_S = 90.0  # until the workers have done something that can be seen
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
WIDE, PHONE = (1280, 900), (390, 844)
PAGES = {
    "overview-wide": "/",
    "jobs-wide": "/console/jobs?q=queue:billing+state:dead",
    "job-wide": "/console/work/{dead}",
    "task-wide": "/console/tasks/shop.charge",
    "queue-wide": "/console/queues/billing",
    "workers-wide": "/console/workers",
    "timetables-wide": "/console/timetables/nightly-backup",
    "time-machine-wide": "/console/time?since=-40m&at=-2m",
    "overview-phone-dark": "/",
}


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        command = ["journeyman", "demo", f"{directory}/shop", "--http-port", str(PORT)]
        demo = subprocess.Popen([sys.executable, "-m", *command])
        try:
            time.sleep(WARM_UP_S)
            dead = ask("/v1/work/jobs?queue=billing&state=dead")["jobs"][-1]["id"]  # of the history
            with sync_playwright() as playwright:
                chromium = shutil.which("chromium") or shutil.which("chromium-browser")
                browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
                for name, path in PAGES.items():
                    shoot(browser, name, path.format(dead=quote(dead)))
                browser.close()
        finally:
            demo.send_signal(signal.SIGTERM)
            demo.wait()


def shoot(browser: Browser, name: str, path: str) -> None:
    width, height = PHONE if "phone" in name else WIDE
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if "dark" in name else "light",
        reduced_motion="reduce",
    )
    page = context.new_page()
    page.goto(f"http://127.0.0.1:{PORT}{path}")
    page.wait_for_timeout(2500)
    page.screenshot(path=IMAGES / f"console-{name}.png")
    context.close()


def ask(path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}{path}", timeout=60) as answer:
        return json.load(answer)


if __name__ == "__main__":
    main()
