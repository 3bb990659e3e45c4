"""The programs in examples/ do what they say."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_shop_loses_nothing_when_worker_and_server_are_killed(tmp_path):
    done = subprocess.run(
        [sys.executable, EXAMPLES / "shop" / "run.py", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok    ") == 4
    assert (tmp_path / "outbox" / "ann@example.com").read_text() == "Welcome!"


def test_the_shop_is_left_running_and_says_where(tmp_path):
    words = [sys.executable, EXAMPLES / "shop" / "run.py", "--serve", tmp_path]
    said = ""
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as shop:
        assert shop.stdout is not None
        for line in shop.stdout:
            said += line
            if line.startswith("Ctrl-C"):
                break
        console = re.search(r"http://127\.0\.0\.1:\d+", said.partition("The console:")[2])
        try:
            assert console is not None, said
            with urlopen(f"{console[0]}/v1/ready") as answer:
                assert answer.status == 200
        finally:
            shop.send_signal(signal.SIGINT)
            code = shop.wait(60)
    assert code == 0
