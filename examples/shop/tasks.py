"""The tasks of a small shop: mails, a report, and something every two seconds."""

from __future__ import annotations

import time
from pathlib import Path

import journeyman as jm

app = jm.App(lease=2)  # $JOURNEYMAN_URL, or the server on this machine
OUTBOX = Path("outbox")


@app.task(queue="mail", retries=5, backoff=jm.Backoff(0.2, factor=2))
def send_mail(to: str, subject: str) -> str:
    if jm.job().attempt == 1:
        raise ConnectionError("the mail server is busy")  # it is tried again
    OUTBOX.mkdir(exist_ok=True)
    (OUTBOX / to).write_text(subject)
    return f"sent to {to}"


@app.task(queue="reports", unique="{customer}", timeout=60)
def build_report(customer: int, seconds: float) -> int:
    time.sleep(seconds)
    return customer * 100


@app.every(2, queue="mail")
def count_mails() -> None:
    with open("counts", "a", encoding="utf-8") as file:
        print(len(list(OUTBOX.glob("*"))), file=file)


@app.on_failure
def alert(failed: jm.FailedJob) -> None:
    print(f"{failed.task}{failed.args} failed: {failed.failure}")
