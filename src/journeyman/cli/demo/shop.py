"""The app of the demo's shop: tasks that sleep as long as real ones would take, and fail at times.

``journeyman worker journeyman.cli.demo.shop:app`` runs them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import Any, Final

import journeyman as jm
from journeyman.cli.demo.workloads import WORKLOADS, Workload

FAILING: Final = 0.12  # share of charges that fail in every attempt while the demo runs
SLOW_RESIZE: Final = 14.0  # how many times longer a picture takes then: its queue falls behind
PARTS: Final = 8  # steps of progress of a report

app = jm.App()
tasks: dict[str, Any] = {}


class CardGatewayTimeout(Exception):
    """The bank does not answer."""


class CardDeclined(Exception):
    """The bank says no."""


_CLASSES: Final[dict[str, type[Exception]]] = {
    "CardGatewayTimeout": CardGatewayTimeout,
    "CardDeclined": CardDeclined,
    "TimeoutError": TimeoutError,
    "OSError": OSError,
    "ConnectionError": ConnectionError,
    "MemoryError": MemoryError,
}


def _function_of(workload: Workload) -> Callable[..., str]:
    """Return what the task does: the same call of the same job ends in the same way."""

    def run(*_: Any, **__: Any) -> str:
        job = jm.job()
        random = Random(f"{job.id} {job.attempt}")
        seconds = workload.run_time_s(random)
        if workload.queue == "images":
            seconds *= SLOW_RESIZE
        if workload.queue == "reports":
            for part in range(PARTS):
                job.progress(part, PARTS, "pages")
                job.log("page written", page=part + 1)
                time.sleep(seconds / PARTS)
        else:
            time.sleep(seconds)
        failing = FAILING if workload.queue == "billing" else workload.failure
        if Random(job.id).random() < failing or random.random() < workload.hiccup:
            error, message = Random(job.id).choice(workload.errors)
            raise _CLASSES[error](message)
        return "done"

    return run


for _workload in WORKLOADS:
    _make = app.task(
        name=_workload.task,
        queue=_workload.queue,
        retries=_workload.max_fails - 1,
        backoff=jm.Backoff(10, factor=2),
        timeout=90,
    )
    tasks[_workload.task] = _make(_function_of(_workload))


@app.task(name="shop.collect_orders", queue="billing")
def collect_orders(batch: str) -> list[int]:
    """Fetch the orders of a batch; charging and the receipt follow in a chain."""
    orders = jm.step(Random(batch).sample, range(80_000, 90_000), 5, key="load_orders")
    time.sleep(0.4)
    return jm.step(list[int], orders, key="reserve_stock")


@app.task(name="shop.charge_batch", queue="billing", retries=2, backoff=5)
def charge_batch(orders: list[int], batch: str) -> int:
    """Charge all orders of a batch."""
    job = jm.job()
    for number, order in enumerate(orders, start=1):
        jm.step(int, order, key="charge")
        job.progress(number, len(orders), f"orders of {batch}")
        time.sleep(0.5)
        if job.attempt == 1 and number == 3:
            raise CardGatewayTimeout("no answer within 5 s")
    return len(orders)


@app.task(name="shop.send_receipt", queue="mail")
def send_receipt(count: int, batch: str) -> str:
    """Tell the accountant."""
    time.sleep(0.3)
    return f"receipt of {count} orders of {batch}"
