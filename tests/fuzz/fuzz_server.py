"""Fuzz target: a whole server in a simulation, on all its ports; bytes that no client sends.

    python -m tests.fuzz.fuzz_server --inputs 1000000
    python -m tests.fuzz.guided server -runs=1000000

The first byte of an input chooses where the rest goes: to a line protocol, to the HTTP port as it
is, or as ``METHOD path LF body`` that is made into a well-formed request. Some inputs share
a connection, and some arrive in two pieces. The server must neither stop nor stumble (an exception
that nothing caught, an HTTP status of 500), and answers a well-behaved client afterwards. Now and
then it is killed, and recovers what the inputs left; now and then it begins with an empty disk, and
keeps its jobs in logs and in a store in turn.
"""

from __future__ import annotations

import sys
import zlib
from collections import deque

from journeyman.config.loading import load
from journeyman.units import NS_PER_MS
from tests.fuzz.runner import run
from tests.simulation.machine import Machine
from tests.simulation.network import ConnectionCut, Network, Weather, Wire
from tests.simulation.world import World

SCHEDULE, WORK, FAN_OUT, HTTP = 5678, 9922, 22133, 8080
INPUTS_A_CONNECTION = 8
INPUTS_AT_ONCE = 4  # the server sees so many before the next ones come
INPUTS_A_LIFE = 2_000
LIVES_A_DISK = 3
PAUSE_NS = 2 * NS_PER_MS  # after them, of virtual time
KEPT = 40  # inputs that are shown with a failure: it may be due to several

_ONE, _TWO = (b"00000000-0000-4000-8000-00000000000%d" % n for n in (1, 2))
_LINES = {
    b"s": (
        b"1 SET job 4000000000000000000\n1 GET job\n",
        b"1 REMOVE job\n1 SET j2 2030-01-01T00:00:00Z\n",
        b'1 RULE SET r job shell "echo hi"\n1 REMOVERULE r\n',
        b"1 RULE SET q j queue name -priority=3\n1 SET j3 1700000000000000000\n",
        b"1 QUERY j\n1 LISTRULES\n1 STAT\n",
        b'1 TIMETABLE SET t cron "0 2 * * *" tz=Asia/Tokyo catch_up=all run shell true\n',
        b"1 TIMETABLE SET u every 20s jitter=5s overlap=queue retries=2 run shell true\n",
        b"1 TIMETABLE NEXT t 5\n1 TIMETABLE LIST\n1 TIMETABLE REMOVE t\n",
        b"1 TIMETABLE PAUSE u\n1 TIMETABLE RESUME u\n1 TIMETABLE RUN u\n",
        b"AUTH secret\n",
    ),
    b"w": (
        b"add %b q 1000 60000 4 -priority=1 -max-fails=3\r\nabcd\r\n" % _ONE,
        b"schedule %b q 1000 60000 2030-01-01T00:00:00Z 2\r\nab\r\n" % _TWO,
        b"lease q 0\r\nlease q r 0 -max=3 -worker=w\r\n",
        b"complete %b 2\r\nok\r\nfail %b 2 -delay=5\r\nno\r\n" % (_ONE, _TWO),
        b"delete %b\r\nrequeue %b\r\nresult %b 0\r\n" % (_ONE, _TWO, _ONE),
        b"inspect jobs q 0 10\r\ninspect server\r\ninspect queues 0 10\r\n",
        b"limit q -rate=10/m -concurrency=2\r\npause q\r\nresume q\r\n",
        b"add %b q 1000 60000 1 -after=%b -key=k\r\nx\r\ntouch %b\r\n" % (_TWO, _ONE, _ONE),
        b"limit q -key-rate=2/1s -fair=1 -weights=a:2,b:3\r\nrun %b q 100 100 1\r\nx\r\n" % _TWO,
        (
            b"add %b q 1000 60000 1 -unique-for=5000 -key=k -replace=finished -even-failed=1"
            b" -retry-delay=5\r\nx\r\n" % _TWO
        ),
        b'worker w 5 12\r\n{"slots": 2}\r\nprogress %b 23\r\n{"done":1,"log":["hi"]}\r\n' % _ONE,
        b"step %b s 1 3 -attempt=1\r\nabc\r\ninspect steps %b -attempt=1\r\n" % (_ONE, _ONE),
        b'park %b 38 -attempt=1\r\n{"step":"w","event":"e","within_ms":5}\r\n' % _ONE,
        b"emit e 1\r\n1\r\ninspect event e\r\nfork %b %b s 1\r\n" % (_ONE, _TWO),
        b"cancel %b\r\ninspect progress %b\r\nrequeue-all q 5\r\n" % (_ONE, _ONE),
    ),
    b"f": (
        b"set q 0 0 5\r\nhello\r\nget q/open\r\n",
        b"get q/close/open/t=1\r\nget q+r/peek\r\nget q/abort\r\n",
        b"monitor q 1 5\r\nconfirm q 1\r\n",
        b"stats\r\ndump_stats\r\nversion\r\nstatus\r\n",
        b"flush q\r\nflush_all_expired\r\ndelete q\r\n",
    ),
    b"h": (
        b"GET /health HTTP/1.1\r\nHost: localhost:8080\r\n\r\n",
        b"GET /v1/work/queues?limit=5 HTTP/1.1\r\nHost: localhost:8080\r\nAccept: */*\r\n\r\n",
        (
            b"POST /v1/work/jobs HTTP/1.1\r\nHost: localhost:8080\r\nTransfer-Encoding: chunked\r\n"
            b'Content-Type: application/json\r\n\r\ne\r\n{"queue": "q"}\r\n0\r\n\r\n'
        ),
        (
            b'GET /v1/events HTTP/1.1\r\nHost: localhost:8080\r\nIf-None-Match: "x"\r\n'
            b"Range: bytes=0-9\r\nAccept-Encoding: gzip\r\nLast-Event-ID: 1\r\n\r\n"
        ),
        (
            b"GET http://localhost:8080/v1/ready HTTP/1.0\r\nHost: localhost:8080\r\n"
            b"Connection: Upgrade\r\nUpgrade: websocket\r\nExpect: 100-continue\r\n"
            b"Origin: http://localhost:8080\r\nCookie: session=a\r\n\r\n"
        ),
    ),
    b"r": (
        b'PUT /v1/schedule/jobs/a\n{"execution": "2030-01-01T00:00:00Z"}',
        b"GET /v1/schedule/jobs?limit=2&status=planned&prefix=a",
        b'PUT /v1/schedule/rules/r\n{"pattern": "a", "runner": "shell", "args": ["true"]}',
        b'PUT /v1/timetables/t\n{"cron": "*/5 * * * *", "tz": "UTC", "runner": ["shell", "true"]}',
        b"GET /v1/timetables/t/next?count=3",
        (
            b'POST /v1/timetables/t/backfill\n{"from": "2023-01-01T00:00:00Z", '
            b'"until": "2023-01-01T01:00:00Z", "preview": true}'
        ),
        b'POST /v1/work/jobs\n{"queue": "q", "payload": "x", "ttr_ms": 1000, "priority": -1}',
        b'POST /v1/work/lease\n{"queues": ["q"], "wait_ms": 0}',
        b'POST /v1/work/jobs/%b/complete\n{"result": "ok"}' % _ONE,
        b'POST /v1/work/requeue\n{"ids": ["%b"], "queue": "q", "limit": 5}' % _ONE,
        b"GET /v1/work/jobs?queue=q&state=ready&limit=3&cursor=",
        b"GET /v1/work/jobs?cursor=QAAAABjo3-bv417DgkZEQnA6QzWrb551ozkAzw==",
        b"GET /v1/work/jobs/%b/records" % _ONE,
        b'PUT /v1/work/queues/q/limits\n{"rate": 5, "per_ms": 1000}',
        b'POST /v1/fan-out/queues/q/items\n{"data": "x", "expire_s": 5}',
        b'POST /v1/fan-out/queues/q/read\n{"reader": "r", "open": true, "hold_ms": 50}',
        b"GET /v1/log/records?service=work&limit=10",
        b"GET /v1/log/files?limit=1&cursor=",
        b"GET /v1/log/tail",
        b"GET /v1/past/work?at=2023-01-01T00:00:00Z",
        b"GET /v1/schedule/records?id=a",
        b"GET /v1/schedule/runs?success=true&at=1",
        (
            b'POST /v1/work/jobs\n{"queue": "q", "key": "k", "replace": "finished", '
            b'"after": ["%b"], "unique_for_ms": 5, "even_failed": true, "at": "17"}' % _ONE
        ),
        b'POST /v1/work/run\n{"queue": "q", "payload": "x", "wait_ms": 5, "ttr_ms": 5}',
        b'PUT /v1/work/queues/q/limits\n{"key_rate": 5, "key_per_ms": 9, "key_concurrency": 1}',
        b"GET /v1/work/jobs/%b/result?wait_ms=1" % _ONE,
        b'POST /v1/fan-out/queues/q/flush\n{"reader": "r", "expired": true}',
        b'PUT /v1/fan-out/status\n{"status": "UP"}',
        b'POST /v1/work/jobs/%b/steps\n{"name": "s", "number": 2, "attempt": 1, "value": "v"}'
        % _ONE,
        b"GET /v1/work/jobs/%b/steps?attempt=1&limit=1&cursor=" % _ONE,
        b"GET /v1/work/jobs/%b/steps?cursor=AAAAAQ==" % _ONE,
        b'POST /v1/work/jobs/%b/progress\n{"done": 1, "total": 2, "note": "n", "log": ["l"]}'
        % _ONE,
        b'POST /v1/work/jobs/%b/fork\n{"step": "s", "number": 1}' % _ONE,
        (
            b'POST /v1/work/jobs/%b/park\n{"attempt": 1, "wait": {"event": "e", "within_ms": 5, '
            b'"step": "w"}}' % _ONE
        ),
        b'PUT /v1/work/events/e\n{"value": "1"}',
        b"GET /v1/work/events/e?at=2023-01-01T00:00:00Z",
        b"GET /v1/work/facets?queue=q&state=dead&at=2023-01-01T00:00:00Z",
        b"GET /v1/work/jobs?text=x&task=t&error=e&since=1&sort=-run&limit=2",
        b"GET /v1/work/workers?limit=1&cursor=dw==",
        b"GET /v1/series?of=task:t&figure=errors,run_p99&from=1&to=2&step=60",
        b"GET /v1/summaries?by=queue&sort=-wait_p99&limit=2&cursor=AAAAAQ==",
        b"GET /v1/tasks/t?from=2023-01-01T00:00:00Z",
        b"GET /v1/past/work/changes?from=1&until=2",
        b"DELETE /v1/fan-out/queues/q/readers/r",
        b"GET /",
        b"GET /console/jobs?service=work&queue=q&state=ready&prefix=a&cursor=",
        b"GET /console/work/%b" % _ONE,
        b"GET /console/schedule/a",
        b"GET /console/timetables?name=t",
        b"GET /console/queues?prefix=q",
        b"GET /console/fan-out?prefix=q",
        b"GET /console/log?service=schedule",
        b"GET /console/confirm?what=delete-job&job=%b&back=/console/jobs" % _ONE,
        b"GET /console/login?back=/console/queues",
        b"POST /console/act\nwhat=delete-job&back=/",
    ),
}
_PORTS = {b"s": SCHEDULE, b"w": WORK, b"f": FAN_OUT}
_OPTIONS = {
    "data.directory": "/data",
    "history.enabled": "false",
    "http.listen": f"127.0.0.1:{HTTP}",
    "workq.cmdlog_seg_size": "20000",
    "kestrel.segment_bytes": "20000",
    "schedule.max_runs": "10",
}
_CONFIGURATION = load(environ={}, options=_OPTIONS)
_WELL = (
    (SCHEDULE, b"1 SET fine 4000000000000000000\n", b"1 OK"),
    (WORK, b"delete fedcba98-7654-4321-8fed-cba987654321\r\n", b"-NOT-FOUND"),
    (FAN_OUT, b"set fine 0 0 1\r\nx\r\n", b"STORED"),
    (HTTP, b"GET /health HTTP/1.1\r\nHost: localhost:8080\r\n\r\n", b"HTTP/1.1 200 OK"),
)


def corpus() -> list[bytes]:
    return [kind + line for kind, lines in _LINES.items() for line in lines]


class FuzzedServer:
    """One server after another; ``take`` hands it an input."""

    def __init__(self) -> None:
        self._inputs = 0
        self._last: deque[bytes] = deque(maxlen=KEPT)
        self._wires: dict[int, tuple[Wire, int]] = {}  # by port, and inputs that it may still carry
        self._begin()

    def _begin(self) -> None:
        self._world = world = World(self._inputs)
        self._outside = world.loop()
        self._network = Network(world, Weather(latency_s=0.0))
        self._machine = Machine(
            world, self._network, _CONFIGURATION, self._outside, lambda: self._inputs
        )
        self._wires.clear()
        self._start()

    def _start(self) -> None:
        self._machine.start()
        self._world.run_until(lambda: self._machine.is_ready or not self._machine.is_running)

    def take(self, data: bytes) -> None:
        self._inputs += 1
        self._last.append(data)
        try:
            self._send(data)
            if self._inputs % INPUTS_AT_ONCE:
                return
            clock = self._world.clock
            end_ns = clock.monotonic_ns() + PAUSE_NS
            self._world.run_until(lambda: clock.monotonic_ns() >= end_ns)
            if self._inputs % INPUTS_A_LIFE == 0:
                self._world.run(self._outside, self._is_well())
                self._end_life()
            machine = self._machine
            assert not machine.mistakes, machine.mistakes[:3]
            assert machine.is_running, machine.lines[-5:]
        except BaseException:
            before = "\n".join(each.hex() for each in self._last)
            sys.stderr.write(f"the last inputs before it:\n{before}\n")
            self._begin()
            raise

    def _send(self, data: bytes) -> None:
        kind, data = data[:1], data[1:]
        port = _PORTS.get(kind, HTTP)
        data = _request(data) if kind == b"r" else data
        wire, left = self._wires.pop(port, (None, 0))
        try:
            if wire is None:
                wire, left = self._network.connect(self._outside, port), INPUTS_A_CONNECTION
            number = zlib.crc32(data)
            at = number % (len(data) + 1) if number & 1 << 31 else len(data)
            wire.send(data[:at])
            if data[at:]:
                wire.send(data[at:])
        except ConnectionCut:
            return
        if left > 1:
            self._wires[port] = wire, left - 1
        else:
            wire.cut()

    def _end_life(self) -> None:
        if self._machine.life >= LIVES_A_DISK:
            self._begin()
        else:
            self._machine.lose_power(self._inputs)
            self._wires.clear()
            self._start()

    async def _is_well(self) -> None:
        for port, ask, answer in _WELL:
            wire = self._network.connect(self._outside, port)
            wire.send(ask)
            found = await wire.read_line()
            assert found == answer, (port, found)
            wire.cut()


def _request(data: bytes) -> bytes:
    head, _, body = data.partition(b"\n")
    method, _, path = head.partition(b" ")
    return b"%b %b HTTP/1.1\r\nHost: localhost:8080\r\nContent-Type: application/json\r\n" % (
        method,
        path,
    ) + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


_server: FuzzedServer | None = None


def check(data: bytes) -> None:
    global _server
    _server = _server or FuzzedServer()
    _server.take(data)


if __name__ == "__main__":
    run(check, corpus(), sys.argv[1:])
