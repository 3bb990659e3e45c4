"""Failed jobs of a log go back onto a real server: selected, previewed, recorded, none twice."""

from __future__ import annotations

from pathlib import Path

from journeyman.client import Schedule
from journeyman.clock import SystemClock
from journeyman.disk import RealDisk
from journeyman.formats import workq, ztick
from journeyman.formats.timed_frame import Instant
from journeyman.spark.redrive import RedriveLedger, read_done, redrive, selection
from journeyman.spark.sinks.sending import job_uuid
from journeyman.spark.sinks.server_options import ServerOptions
from tests.support.cli_commands import run
from tests.support.scripted_peer import ScriptedPeer
from tests.support.servers.schedule_process import ScheduleProcess

FAR_NS = 4_000_000_000_000_000_000
LOGGED = Instant(1_700_000_000_000_000_000)


def ztick_log(path: Path) -> None:
    records: list[ztick.Record] = []
    for number in range(12):
        status = ztick.Status.FAILED if number % 3 == 0 else ztick.Status.EXECUTED
        records += [
            ztick.JobSet(f"job.{number}", number, ztick.Status.PLANNED),
            ztick.JobSet(f"job.{number}", number, status),
        ]
    path.write_bytes(b"".join(map(ztick.CODEC.encode, records)))


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = run("pipeline", "redrive", *arguments)
    return result.exit_code, result.stdout, result.stderr


def test_failed_jobs_are_shown_then_sent_once(spark, tmp_path):
    log, record = tmp_path / "logfile", tmp_path / "record" / "redrive.jsonl"
    ztick_log(log)
    code, shown, remark = invoke(str(log), "--format", "csv")
    assert code == 0, remark
    assert [line for line in shown.splitlines() if "job." in line] == [
        line for line in shown.splitlines()[1:] if "failed" in line
    ]
    assert len(shown.splitlines()) == 5
    assert "nothing was sent" in remark
    _, some, _ = invoke(str(log), "--format", "csv", "--since", "3", "--until", "9")
    assert [line.count("job.3") + line.count("job.6") for line in some.splitlines()[1:]] == [1, 1]
    code, _, complaint = invoke(str(log), "--yes")
    assert code == 2
    assert "--record" in complaint
    (tmp_path / "server").mkdir()
    with ScheduleProcess(tmp_path / "server") as server:
        send = [str(log), "--to", f"127.0.0.1:{server.port}", "--record", str(record), "--yes"]
        code, said, complaint = invoke(*send, "--at", str(FAR_NS), "--limit", "3", "--rate", "1000")
        assert (code, said) == (0, "3 sent, 0 arrived before, 0 changed meanwhile, 0 refused\n")
        code, said, _ = invoke(*send, "--at", str(FAR_NS), "--where", "status != 'executed'")
        assert said == "1 sent, 0 arrived before, 0 changed meanwhile, 0 refused\n"
        code, said, _ = invoke(*send)
        assert said == "0 sent, 0 arrived before, 0 changed meanwhile, 0 refused\n"
        with Schedule(port=server.port) as client:
            jobs = {job.identifier: job.execution_ns for job in client.query()}
    assert jobs == {f"job.{number}": FAR_NS for number in (0, 3, 6, 9)}
    assert [mark.key for mark in read_done(RealDisk(), str(record))] == sorted(jobs)


def test_work_jobs_are_added_again_with_their_payload_under_a_new_id(spark, tmp_path):
    log, record = tmp_path / "log", str(tmp_path / "redrive.jsonl")
    log.mkdir()
    ids = [f"{n:08d}-0000-4000-8000-000000000000" for n in range(2)]
    records: list[workq.Record] = []
    for number, name in enumerate(ids):
        raw = bytes.fromhex(name.replace("-", ""))
        records.append(
            workq.JobAdded(
                LOGGED, raw, "q", 1000, 60_000, 3, 0, 0, b"payload %d" % number, None, LOGGED
            )
        )
        if number == 0:
            records.append(workq.JobFinished(LOGGED, raw, workq.Command.FAIL, b"why"))
    (log / "000000001.log").write_bytes(workq.HEADER + b"".join(map(workq.CODEC.encode, records)))
    jobs = selection(spark, "workq", [str(log)])
    with RedriveLedger(RealDisk(), record) as ledger:
        new = str(job_uuid(ledger.run_id, ids[0])).encode()
        added = b"add %s q 1000 60000 9 -priority=3\r\npayload 0\r\n" % new
        with ScriptedPeer([(added, b"+OK\r\n")]) as peer:
            options = ServerOptions.parse({"door": "workq", "address": f"127.0.0.1:{peer.port}"})
            outcome = redrive(jobs, options, ledger, SystemClock(), at_ns=None)
        assert outcome.sent == 1
        assert [mark.key for mark in ledger.done] == ids[:1]
