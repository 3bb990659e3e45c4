"""`journeyman workq-server`: the work queue alone."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.servers.workq_process import WorkqClient


def test_work_queue_alone_opens_one_port_and_keeps_its_jobs(tmp_path: Path):
    command = [sys.executable, "-m", "journeyman", "workq-server", "-listen", "127.0.0.1:0"]
    command += ["-cmdlog-path", "log", "-cmdlog-sync", "always", "-cmdlog-sync-int", "0"]
    jobs = []
    for kill in (True, False):
        with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as server:
            assert server.stderr is not None
            ports = []
            for line in server.stderr:
                ports += re.findall(r"listens on \S+:(\d+)", line)
                if "the work queue listens" in line:
                    break
            with WorkqClient(int(ports[-1])) as client:
                jobs.append(client.add("q", b"x"))
                assert [client.job(job_id)["state"] for job_id in jobs] == ["0"] * len(jobs)
            server.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
            rest = server.stderr.read()
            assert not re.findall("listens on", rest)
            assert len(ports) == 1
        assert server.returncode == (-signal.SIGKILL if kill else 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log"]
