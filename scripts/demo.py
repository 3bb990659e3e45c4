"""A shop and a server through kill -9; logs damaged, repaired, made smaller; then all on Spark.

    python scripts/demo.py [DIRECTORY]            (or: make demo)

Everything happens in that directory, ./demo unless told otherwise, which is made anew. Every
command shown is really run, and every claim is checked: the exit code is 1 if one does not hold.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from journeyman.client import KestrelClient
from journeyman.clock import SystemClock
from journeyman.disk import RealDisk
from journeyman.folds.kestrel import Reader
from journeyman.formats.timed_frame import Instant
from journeyman.formats.workq import CODEC, JobAdded
from journeyman.formats.ztick import JobRemoved, JobSet, RuleSet, Shell, Status
from journeyman.logs.appender import SyncPolicy
from journeyman.logs.kestrel.log import KestrelLog
from journeyman.logs.workq.log import WorkqLog
from journeyman.logs.ztick.log import ZtickLog

WRITER = "--write-until-killed"
WHERE = Path(sys.argv[1] if len(sys.argv) == 2 else Path(__file__).parent.parent / "demo").resolve()
ROOT = WHERE.parent
DEMO = Path(WHERE.name)  # relative to ROOT, where the commands are run, so that they read well
MARK = ".made-by-the-demo"
DISK = RealDisk()
CLOCK = SystemClock()
SHOWN_LINES = 12
RECORDS = 10_000
ACKNOWLEDGED = 1000


def main() -> int:
    if WHERE.exists():
        if not (WHERE / MARK).exists():
            say(f"{WHERE} is there already and was not made by the demo: it is left alone")
            return 2
        shutil.rmtree(WHERE)
    WHERE.mkdir(parents=True)
    (WHERE / MARK).touch()
    checks = Checks()
    shop(checks)
    serving(checks)
    schedule(checks)
    work_queue(checks)
    killed_writer(checks)
    fan_out(checks)
    served_queue(checks)
    pipeline(checks)
    title("The end")
    say(f"{checks.held} of {checks.made} claims hold. The logs are in {DEMO}/; look around, e.g.")
    say(f"    journeyman dump --compact {DEMO}/schedule.log")
    say(f"The report is {DEMO}/report.html; open it in a browser.")
    return 0 if checks.held == checks.made else 1


# --- an application ---


def shop(checks: Checks) -> None:
    title("1. a web application, a worker and a timetable; kill -9 of worker and server")
    program = Path(__file__).parent.parent / "examples" / "shop" / "run.py"
    say(f"$ python {program.relative_to(program.parent.parent.parent)} {DEMO}/shop")
    done = subprocess.run(
        [sys.executable, program, WHERE / "shop"], capture_output=True, text=True, check=False
    )
    for line in done.stdout.splitlines():
        if not line.startswith("ok "):
            say(f"    {line}")
    for claim in re.findall(r"^ok +(.*)", done.stdout, re.MULTILINE):
        checks.claim(claim, True)
    checks.claim("the shop lost nothing", done.returncode == 0)


# --- the server ---


def serving(checks: Checks) -> None:
    title("2. the server: jobs run when due, and nothing is lost by kill -9")
    ran = WHERE / "ran.txt"
    with Server() as server:
        server.ask(f'RULE SET rule.greet greet. shell "echo $JOURNEYMAN_JOB_ID >> {DEMO}/ran.txt"')
        server.ask(f"SET greet.soon {CLOCK.now_ns() + 300_000_000}")
        server.ask("SET greet.later 2090-01-01 00:00:00")
        while not server.ask("GET greet.soon", show=False).startswith("OK executed"):
            time.sleep(0.05)
        server.ask("GET greet.soon")
        say(f"Then {ACKNOWLEDGED} jobs more, sent ahead on one connection, and kill -9.")
        acknowledged = server.set_many(ACKNOWLEDGED)
        server.process.send_signal(signal.SIGKILL)
    checks.claim("all of them were acknowledged", acknowledged == ACKNOWLEDGED)
    with Server() as server:
        server.ask("GET greet.later")
        found = sum(line.startswith("many.") for line in server.list("QUERY many."))
        checks.claim(f"after the kill {found} jobs are there", found == ACKNOWLEDGED)
        server.process.terminate()
    checks.claim("the server stops cleanly", server.process.returncode == 0)
    checks.claim("the job that had run did not run again", ran.read_text() == "greet.soon\n")
    verified = journeyman("verify", DEMO / "server")
    checks.claim("all that is in its data directory is clean", verified.code == 0)


class Server:
    """`journeyman serve` on a free port of this machine, and one connection to it."""

    def __init__(self, data: str = "server") -> None:
        """``data`` is the data directory."""
        words = ["serve", "--data", f"{DEMO}/{data}", "--listen", "127.0.0.1:0"]
        words += ["--workq-listen", "127.0.0.1:0", "--kestrel-listen", "127.0.0.1:0"]
        self.queue_port = 0
        say(f"\n$ journeyman {' '.join(words)}")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "journeyman", *words],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Server:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            say(f"    {line.rstrip()}")
            if queues := re.search(r"queues listen on \S+:(\d+)", line):
                self.queue_port = int(queues[1])
            if listening := re.search(r"schedule listens on \S+:(\d+)", line):
                self._socket = socket.create_connection(("127.0.0.1", int(listening[1])), 30)
                self._answers = self._socket.makefile("r")
                return self
        raise SystemExit("the server did not start")

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self.process.communicate()

    def ask(self, command: str, *, show: bool = True) -> str:
        self._socket.sendall(f"demo {command}\n".encode())
        answer = self._answers.readline().removeprefix("demo ").rstrip()
        if show:
            say(f"    > {command}\n    < {answer}")
        return answer

    def list(self, command: str) -> list[str]:
        lines = [self.ask(command, show=False)]
        while lines[-1] != "OK":
            lines.append(self._answers.readline().removeprefix("demo ").rstrip())
        return lines[:-1]

    def set_many(self, count: int) -> int:
        """Send so many SETs ahead; how many were answered OK."""
        lines = [f"demo SET many.{number} 4000000000000000000\n" for number in range(count)]
        self._socket.sendall("".join(lines).encode())
        return sum(self._answers.readline() == "demo OK\n" for _ in lines)


# --- ztick ---


def schedule(checks: Checks) -> None:
    title("3. ztick: the log of a schedule")
    say("A thousand changes to ten jobs and one rule, a hundred of them in one write and one sync.")
    path = DEMO / "schedule.log"
    with ZtickLog.open(DISK, CLOCK, str(ROOT / path)) as log:
        log.append([RuleSet("rule.backup", "backup.", Shell("/usr/bin/backup.sh"))])
        for begin in range(0, 1000, 100):
            changes = [
                JobSet(f"backup.{n % 10}", 4_000_000_000_000_000_000 + n, Status.PLANNED)
                for n in range(begin, begin + 100)
            ]
            log.append([*changes, JobRemoved("backup.9")])
    before = journeyman("dump", "--compact", path)
    verified = journeyman("verify", path)
    checks.claim("the log is clean", verified.code == 0)
    say("Most of it is history. Compaction keeps the last record of each job and rule:")
    journeyman("compact", path)
    after = journeyman("dump", path)
    checks.claim("the compacted log says what the whole log said", after.text == before.text)


# --- workq ---


def work_queue(checks: Checks) -> None:
    title("4. workq: the work queue, damaged")
    path = DEMO / "workq"
    start_ns = CLOCK.now_ns() - 2 * 3600 * 1_000_000_000
    journeyman(
        *("generate", "workq", path, "--records", RECORDS, "--segment-bytes", 200_000),
        *("--removals", 0.6, "--start", start_ns),
    )
    before = dump(path)
    segments = sorted((ROOT / path).glob("*.log"))
    say("Now three bits flip on the disk, and a crash tears the last write in half.")
    hit = [before[1000], before[7000], before[7001]]
    for record in hit:
        flip_bit(ROOT / path / record["segment"], record["offset"] + record["length"] // 2)
    with segments[-1].open("ab") as file:
        file.write(CODEC.encode(new_job(1))[:40])

    verified = journeyman("verify", path)
    checks.claim("verify sees the damage", verified.code == 1 and "crc mismatch" in verified.text)
    repaired = journeyman("repair", path)
    checks.claim("repair leaves the log clean", repaired.code == 0)
    checks.claim("and verify agrees", journeyman("verify", "--quiet", path).code == 0)
    after = dump(path)
    lost = {identity(r) for r in before} - {identity(r) for r in after}
    checks.claim(
        f"of {len(before)} records all are there but the {len(hit)} whose bits flipped",
        lost == {identity(record) for record in hit} and len(after) == len(before) - len(hit),
    )
    quarantined = sorted(file.name for file in (ROOT / path / "quarantine").iterdir())
    say("    in quarantine/: " + ", ".join(quarantined))
    checks.claim(
        "and even their bytes are kept, with those of the torn write", len(quarantined) == 3
    )

    say("Deleted jobs, and those past their time to live, need no room. Cleaning drops them:")
    state = journeyman("dump", "--compact", path, show=False)
    size = sum(file.stat().st_size for file in segments)
    journeyman("clean", path, "--force")
    smaller = sum(file.stat().st_size for file in (ROOT / path).glob("*.log"))
    say(f"    {size} bytes before, {smaller} after")
    checks.claim("the log is smaller", smaller < size)
    same = journeyman("dump", "--compact", path, show=False)
    checks.claim(f"its {len(state.lines)} jobs are the same", same.text == state.text)


def killed_writer(checks: Checks) -> None:
    title("5. workq: a writer killed in the middle of its work")
    path = DEMO / "killed"
    say("Another process adds jobs as fast as it can and tells us of each one acknowledged.")
    say(f"After {ACKNOWLEDGED} of them it is killed (SIGKILL).")
    with subprocess.Popen(
        [sys.executable, __file__, WRITER, str(ROOT / path)],
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdout is not None
        acknowledged = [writer.stdout.readline().strip() for _ in range(ACKNOWLEDGED)]
        writer.send_signal(signal.SIGKILL)
        acknowledged += [line.strip() for line in writer.stdout if line.endswith("\n")]
    checks.claim("it was killed", writer.returncode == -signal.SIGKILL)
    journeyman("repair", path)
    found = {record["id"] for record in dump(path)}
    checks.claim(
        f"all {len(acknowledged)} jobs that were acknowledged are there",
        set(acknowledged) <= found and len(set(acknowledged)) == len(acknowledged),
    )


def write_until_killed(directory: str) -> None:
    """What the other process does."""
    with WorkqLog.open(DISK, CLOCK, directory, sync=SyncPolicy.ALWAYS) as log:
        for number in range(1, 10_000_000):
            job = new_job(number)
            log.append([job])
            sys.stdout.write(f"{shown_id(job.job_id)}\n")
            sys.stdout.flush()


# --- kestrel ---


def fan_out(checks: Checks) -> None:
    title("6. kestrel: one queue, two readers")
    path = DEMO / "kestrel"
    say("600 items in small segments; one reader has finished 450 of them, the other 300.")
    with KestrelLog.open(DISK, CLOCK, str(ROOT / path), "mail", segment_bytes=4096) as journal:
        for number in range(600):
            journal.put(f"letter {number}".encode())
        journal.add_reader("archive")
        journal.add_reader("smtp")
        journal.checkpoint("archive", Reader(300))
        journal.checkpoint("smtp", Reader(450, {455, 460}))
    before = journeyman("dump", "--compact", path, show=False)
    journeyman("verify", path)
    say("Segments that both readers are past may go:")
    journeyman("compact", path, "--archive", DEMO / "kestrel-archive")
    after = journeyman("dump", "--compact", "--json", path, show=False)
    items = [row["item_id"] for row in map(json.loads, after.lines) if row["command"] == "PUT"]
    checks.claim("both readers still get all that they have to get", items == list(range(301, 601)))
    again = journeyman("dump", "--compact", path, show=False)
    checks.claim("the state is the same as before", again.text == before.text)
    checks.claim("the rest is in the archive", any((ROOT / DEMO / "kestrel-archive").iterdir()))


def served_queue(checks: Checks) -> None:
    title("7. kestrel, served: every reader gets every item, also after kill -9")
    data = "fan-out"
    with Server(data) as server, KestrelClient(port=server.queue_port) as client:
        for reader in ("billing", "audit"):
            checks.claim(f"{reader} has nothing yet", client.get("due", reader=reader) is None)
        stored = [client.put("due", f"order {number}".encode()) for number in range(3)]
        checks.claim("three orders are stored, synced", stored == [True] * 3)
        say("A rule of the schedule puts on the queue as well, when its job is due:")
        server.ask("RULE SET rule.close close. journal due")
        server.ask("SET close.books 1")
        while not server.ask("GET close.books", show=False).startswith("OK executed"):
            time.sleep(0.05)
        checks.claim("billing reads", client.open("due", reader="billing") == b"order 0")
        say("The order is open, not confirmed. Then kill -9.")
        server.process.send_signal(signal.SIGKILL)
    wanted = [b"order 0", b"order 1", b"order 2", b"close.books"]
    with Server(data) as server, KestrelClient(port=server.queue_port) as client:
        for reader in ("billing", "audit"):
            items = [client.get("due", reader=reader) for _ in range(5)]
            say(f"    {reader}: {items}")
            checks.claim(f"{reader} gets all four, in order", items == [*wanted, None])
        server.process.terminate()
    with Server(data) as server, KestrelClient(port=server.queue_port) as client:
        again = [client.get("due", reader=reader) for reader in ("billing", "audit")]
        checks.claim("and after a clean stop nothing twice", again == [None, None])
        server.process.terminate()
    checks.claim("the journal is clean", journeyman("verify", DEMO / data).code == 0)


# --- Spark ---


def pipeline(checks: Checks) -> None:
    title("8. the pipeline: the same logs as tables, on Spark")
    logs = [DEMO / name for name in ("server/schedule.log", "workq", "kestrel")]
    say("Every log is replayed on Spark; the first session of a machine takes some seconds longer.")
    state = DEMO / "state"
    replayed = journeyman("pipeline", "replay", *logs, "--format", "json", "--output", state)
    checks.claim("the state is written", replayed.code == 0)
    now_ns = CLOCK.now_ns()
    for table, log, is_left in (
        ("ztick.jobs", "server/schedule.log", lambda _: True),
        ("workq.jobs", "workq", lambda row: row["expires_ns"] > now_ns),
        ("kestrel.items", "kestrel", lambda row: row["item_id"] > 300),
    ):
        local = [
            row for row in dump_state(DEMO / log) if row.keys() & {"execution", "cmd", "data_b64"}
        ]
        left = [row for row in rows_of(ROOT / state / table) if is_left(row)]
        checks.claim(
            f"{table}: {len(left)} rows, {len(local)} by `dump --compact`",
            len(left) == len(local) > 0,
        )
    question = "SELECT state, count(*) AS jobs FROM work_jobs GROUP BY state ORDER BY state"
    asked = journeyman("pipeline", "sql", DEMO / "workq", "--execute", question)
    checks.claim("SQL answers", asked.code == 0 and "completed" in asked.text)
    journeyman("generate", "ztick", DEMO / "large.log", "--records", RECORDS, "--quiet")
    before = journeyman("dump", "--compact", DEMO / "large.log", show=False)
    journeyman("pipeline", "compact", DEMO / "large.log")
    after = journeyman("dump", DEMO / "large.log", show=False)
    checks.claim("a log compacted on Spark says what it said before", after.text == before.text)
    reported = journeyman("pipeline", "report", *logs, "--output", DEMO / "report.html")
    checks.claim("the report is one HTML file", reported.code == 0)


def rows_of(directory: Path) -> list[dict[str, Any]]:
    files = directory.rglob("*.json")
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def dump_state(path: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for line in journeyman("dump", "--compact", "--json", path, show=False).lines
    ]


# --- telling and checking ---


class Checks:
    """Claims made, and how many of them hold."""

    def __init__(self) -> None:
        self.made = 0
        self.held = 0

    def claim(self, text: str, holds: bool) -> None:
        self.made += 1
        self.held += holds
        say(f"  [{'ok' if holds else 'NOT TRUE'}] {text}")


class Answer:
    """What a command said."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code = done.returncode
        self.text = done.stdout

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


def journeyman(*args: object, show: bool = True) -> Answer:
    """Run a command, show it and the beginning of what it says."""
    words = [str(arg) for arg in args]
    done = run(words)
    if show:
        say(f"\n$ journeyman {' '.join(words)}")
        lines = (done.stdout + done.stderr).splitlines()
        for line in lines[:SHOWN_LINES]:
            say(f"    {line[:110]}")
        if len(lines) > SHOWN_LINES:
            say(f"    ... {len(lines) - SHOWN_LINES} more lines")
    return Answer(done)


def run(words: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "journeyman", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def dump(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in journeyman("dump", "--json", path, show=False).lines]


def identity(record: dict[str, Any]) -> tuple[Any, ...]:
    """What makes a record the same wherever it stands."""
    return record["logged_ns"], record["cmd"], record["id"]


def new_job(number: int) -> JobAdded:
    now = Instant(CLOCK.now_ns())
    identifier = number.to_bytes(6, "big") + bytes.fromhex("40008000") + bytes(6)
    return JobAdded(now, identifier, "demo", 60_000, 86_400_000, 0, 0, 0, b"work", None, now)


def shown_id(raw: bytes) -> str:
    text = raw.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def flip_bit(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def title(text: str) -> None:
    say(f"\n=== {text} " + "=" * max(0, 70 - len(text)))


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1:2] == [WRITER]:
        write_until_killed(sys.argv[2])
    sys.exit(main())
