"""The one rule for damaged logs: the server, ``verify``, ``dump`` and Spark find the same records.

Damage of every kind that disks, crashes and newer writers leave, alone and together, on logs that
are longer than what is held back; Spark reads them whole and cut at the borders of the damage.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from journeyman.disk import RealDisk
from journeyman.formats import ztick
from journeyman.logs.damage import Damage, read_past_damage
from journeyman.logs.recovery import recover_file
from tests.support.columnar_twins import JOURNAL, LEDGER, WORKQ, ZTICK, Twins
from tests.support.effort import cases
from tests.support.spark.pieces import (
    expected_items,
    items_of,
    log_file,
    options_of,
    pieces_of,
)
from tests.support.specimens import KESTREL as KESTREL_LOG
from tests.support.specimens import LEDGER as LEDGER_LOG
from tests.support.specimens import WORKQ as WORKQ_LOG
from tests.support.specimens import ZTICK as ZTICK_LOG
from tests.support.specimens import Dialect
from tests.support.wounds import (
    WOUNDS,
    Wound,
    borders,
    run,
    several,
    short_memory,
)

RECORDS = 120
SEEDS = range(cases(2))


LOGS = [
    pytest.param(ZTICK, ZTICK_LOG, id="ztick"),
    pytest.param(WORKQ, WORKQ_LOG, id="workq"),
    pytest.param(JOURNAL, KESTREL_LOG, id="kestrel"),
    pytest.param(LEDGER, LEDGER_LOG, id="ledger"),
]
each_log = pytest.mark.parametrize(("twins", "dialect"), LOGS)
each_wound = pytest.mark.parametrize("wound", [*WOUNDS, several], ids=lambda w: w.__name__)


def wounded(dialect: Dialect, wound: Wound, seed: int) -> bytes:
    random = Random(f"{dialect.name} {wound.__name__} {seed}")
    records = dialect.records(RECORDS)
    data = bytearray(dialect.codec.header)
    starts = []
    for record in records:
        starts.append(len(data))
        data += dialect.codec.encode(record)
    wound(data, starts, random)
    return bytes(data)


@each_log
@each_wound
def test_spark_gives_what_the_server_loads(twins: Twins, dialect: Dialect, wound, tmp_path):
    for seed in SEEDS:
        data = wounded(dialect, wound, seed)
        path = tmp_path / f"log.{seed}"
        path.write_bytes(data)
        random = Random(seed)
        file = log_file(path, twins)
        for held_bytes in (200, 256 * 1024):
            with short_memory(held_bytes):
                for salvage in (False, True):
                    expected = expected_items(twins, data, file, salvage=salvage)
                    cuts = borders(data, expected, random)
                    options = options_of(twins, salvage=str(salvage))
                    assert items_of(pieces_of(file, []), options) == expected
                    assert items_of(pieces_of(file, cuts), options) == expected
        entries, _ = recover_file(RealDisk(), dialect.codec, str(path))
        loaded = [each.record for each in entries]
        read = list(read_past_damage(dialect.codec, data))
        assert loaded == [each.record for each in read if not isinstance(each, Damage)]


@each_log
@each_wound
def test_dump_and_verify_find_what_the_server_loads(twins, dialect: Dialect, wound, tmp_path):
    for seed in SEEDS:
        path = tmp_path / str(seed) / dialect.file
        path.parent.mkdir()
        path.write_bytes(wounded(dialect, wound, seed))
        dumped = run("dump", "--json", "--dialect", dialect.name, path)
        verified = run("verify", "--json", "--dialect", dialect.name, path)
        entries, report = recover_file(RealDisk(), dialect.codec, str(path))
        assert len(dumped.splitlines()) == len(entries)
        file = json.loads(verified)["logs"][0]["files"][0]
        assert file["records"] == len(entries) == report.records


def test_rules_of_a_newer_writer_cost_no_other_record(tmp_path: Path):
    """Two neighbours with a runner that is not known here, in front of a thousand jobs."""
    jobs = [ztick.JobSet(f"job.{n}", n, ztick.Status.PLANNED) for n in range(1001)]
    rule = ztick.CODEC.encode(ztick.RuleSet("r", "p", ztick.Shell("x")))
    newer = rule[:-4] + b"\x63" + rule[-3:]
    data = ztick.CODEC.encode(jobs[0]) + 2 * newer + b"".join(map(ztick.CODEC.encode, jobs[1:]))
    path = tmp_path / "log"
    path.write_bytes(data)
    found = items_of(pieces_of(log_file(path, ZTICK), [40, 60, 5000]), options_of(ZTICK))
    assert [row["identifier"] for row in found if not isinstance(row, Damage)] == [
        job.identifier for job in jobs
    ]
    assert [each.length for each in found if isinstance(each, Damage)] == 2 * [len(newer)]
