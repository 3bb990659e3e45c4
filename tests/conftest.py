"""Settings for all lanes."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, Phase, settings

pytest.register_assert_rewrite("tests.support")  # before anything of it is imported

from tests.support.effort import cases  # noqa: E402

# Found by itself where this tree is installed as a package; named here for where it is not.
pytest_plugins = [
    "journeyman.pytest_plugin",
    "tests.support.databases",
    "tests.support.programs",
    "tests.support.simulated_database",
]

# Speed is measured in bench/, not in tests. A run that gates a change must not depend on luck:
# there, as in `make test`, the examples are the same every time; those of pytest at a desk are new
# ones. HYPOTHESIS_PROFILE=deep tries ten times as many.
EXAMPLES = cases(50)
settings.register_profile(
    "desk",
    deadline=None,
    print_blob=True,
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow],  # a busy machine is no mistake of a test
)
settings.register_profile("deep", settings.get_profile("desk"))
settings.register_profile("gate", settings.get_profile("desk"), derandomize=True)
# Of a planted bug only the fact that it is noticed counts, not the smallest example.
settings.register_profile(
    "planted",
    settings.get_profile("gate"),
    phases=[Phase.explicit, Phase.generate],
    report_multiple_bugs=False,
)
usual = "gate" if os.environ.get("CI") else "desk"
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or usual)

# A shell starts what runs in the background with SIGINT ignored, and that is inherited: programs
# that a test starts and interrupts would never hear of it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests start programs of this tree hundreds of times: half of what a start costs is compiling the
# sources, if nobody may keep the result.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Makes millions of objects that stay: the collector of garbage need not look at them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # libraries complain at the end about what is left of theirs


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest tests start first, so that no worker is left alone with one at the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
