"""The public Python API: every name in it, and that importing it is cheap.

A name that is added or removed here is a change for users: document it in docs/python-api.md and
the changelog. Everything outside these four packages may change at any time.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "python-api.md"
SCRIPT = Path(__file__).parents[2] / "scripts" / "api_reference.py"
HEAVY = ("aiohttp", "aiormq", "numba", "numpy", "pandas", "pyarrow", "pyspark", "redis", "rich")
PUBLIC = {
    "journeyman": """
        App Backoff Call Codec CurrentJob DoneJob Ended FailedJob Failure GiveUp Job JobCancelled
        JobFailed JobTimeout
        JsonCodec LeaseLost Middleware Outbox Retry Task group job
        step sleep sleep_until wait_for gather now random uuid
        astep asleep asleep_until await_for agather anow arandom auuid
        JourneymanError UsageError __version__
    """,
    "journeyman.client": """
        KestrelClient Schedule WorkQueue
        AsyncKestrelClient AsyncSchedule AsyncWorkQueue ServerUrl parse_url
        Job JobInfo LeasedJob NewJob QueueInfo Result Rule Status WorkJobState
        Amqp Awf Direct FanOutRunner Http Redis Runner Shell WorkQueueRunner
        AccessDenied AnswerLost BadAnswer CannotConnect ClientError ConnectionFailed InvalidRequest
        LoginBusy NotFound Refused TimedOut
    """,
    "journeyman.spark": "attempts lake read register send states write",
    "journeyman.testing": "InMemory ManualClock",
}


@pytest.mark.parametrize("package", PUBLIC)
def test_package_exports_exactly_the_public_names(package: str):
    assert set(importlib.import_module(package).__all__) == set(PUBLIC[package].split())


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_can_be_imported_and_explains_itself(package: str):
    module = importlib.import_module(package)
    for name in PUBLIC[package].split():
        value = getattr(module, name)
        assert isinstance(value, str) or name == "Runner" or inspect.getdoc(value)


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_is_documented_with_its_package(package: str):
    parts = re.split(r"^## `([\w.]+)`$", PAGE.read_text(), flags=re.MULTILINE)
    section = dict(zip(parts[1::2], parts[2::2], strict=True))[package]
    assert [n for n in PUBLIC[package].split() if not re.search(rf"`{n}\b", section)] == []


def test_the_reference_has_every_public_name():
    spec = importlib.util.spec_from_file_location("api_reference", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert set(module.PACKAGES) == set(PUBLIC)
    page = module.page()
    missing = [n for names in PUBLIC.values() for n in names.split() if f"### `{n}`" not in page]
    assert missing == []


@pytest.mark.parametrize("package", PUBLIC)
def test_import_is_cheap(package: str):
    code = (
        f"import sys, {package}\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])\n"
        "print(len(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded, count = done.stdout.splitlines()
    assert loaded == "[]"
    assert int(count) < 400
