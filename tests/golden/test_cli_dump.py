"""``journeyman dump`` and ``verify`` on every golden log: what the originals' own tools say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from journeyman.cli import journeyman
from tests.support.departures import expected_here

DATA = Path(__file__).parent / "data"
ZTICK = sorted((DATA / "ztick").glob("*.log"))
WORKQ = sorted(path.parent for path in (DATA / "workq").glob("*/description.json"))
KESTREL = sorted(path.parent for path in (DATA / "kestrel").glob("*/case.json"))

# The original compacts by bare identifier and so loses a job or a rule of the same name.
COMPACTED_RIGHT = {
    "d5_same_id_input": {
        "txt": (
            "SET same 4000000000000000000 planned\n"
            "RULE SET same same shell true\n"
            "SET keep 4000000000000000000 planned\n"
            "SET gone 4000000000000000000 planned\n"
        ),
        "jsonl": (
            '{"type":"set","identifier":"same","execution":4000000000000000000,"status":"planned"}\n'
            '{"type":"rule_set","identifier":"same","pattern":"same",'
            '"runner":{"type":"shell","command":"true"}}\n'
            '{"type":"set","identifier":"keep","execution":4000000000000000000,"status":"planned"}\n'
            '{"type":"set","identifier":"gone","execution":4000000000000000000,"status":"planned"}\n'
        ),
    }
}

# What follows damage that the original cannot read past, here read as the server reads it.
READ_ON = {
    "e4_torn_then_appended": ["torn.0", "torn.1", "torn.2", "after.0", "after.1", "after.2"],
    "g2_huge_length_synthetic": ["a", "b"],
}
READ_TO_THE_END = [log for log in ZTICK if log.stem not in READ_ON]


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(journeyman, [str(arg) for arg in args])


def lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def named(path: Path) -> str:
    return path.stem


def test_there_is_golden_data_of_each_dialect():
    assert len(ZTICK) >= 10
    assert len(WORKQ) >= 30
    assert len(KESTREL) >= 40


# --- ztick ---


@pytest.mark.parametrize("log", READ_TO_THE_END, ids=named)
@pytest.mark.parametrize(("suffix", "options"), [("txt", ()), ("jsonl", ("--format", "json"))])
def test_ztick_dump_prints_what_the_original_prints(log, suffix, options):
    result = run("dump", *options, log)

    assert result.exit_code == 0
    assert result.stdout_bytes == log.with_suffix(f".dump.{suffix}").read_bytes()
    warnings = log.with_suffix(".dump.stderr")
    assert result.stderr == (warnings.read_text() if warnings.exists() else "")


@pytest.mark.parametrize("log", READ_TO_THE_END, ids=named)
@pytest.mark.parametrize(("suffix", "options"), [("txt", ()), ("jsonl", ("--json",))])
def test_ztick_compact_dump_is_the_original_s_without_its_bug(log, suffix, options):
    result = run("dump", "--compact", *options, log)

    expected = log.with_suffix(f".compact.{suffix}").read_text()
    if log.stem in COMPACTED_RIGHT:
        assert COMPACTED_RIGHT[log.stem][suffix] != expected
        expected = COMPACTED_RIGHT[log.stem][suffix]
    assert result.exit_code == 0
    assert result.stdout == expected
    warnings = log.with_suffix(".dump.stderr")
    assert result.stderr == (warnings.read_text() if warnings.exists() else "")


@pytest.mark.parametrize("name", ["a_all_entry_types", "e1_truncated_in_frame", "h_empty"])
def test_the_script_writes_the_same_bytes(name):
    log = DATA / "ztick" / f"{name}.log"

    done = subprocess.run(
        [sys.executable, "-m", "journeyman", "dump", "--format=json", log],
        capture_output=True,
        check=False,
    )

    assert done.returncode == 0
    assert done.stdout == log.with_suffix(".dump.jsonl").read_bytes()
    warnings = log.with_suffix(".dump.stderr")
    assert done.stderr == (warnings.read_bytes() if warnings.exists() else b"")


@pytest.mark.parametrize(("name", "identifiers"), READ_ON.items())
@pytest.mark.parametrize("options", [(), ("--compact",), ("--salvage",)], ids=str)
def test_dump_finds_ztick_entries_that_the_original_loses(name, identifiers, options):
    result = run("dump", *options, "--json", DATA / "ztick" / f"{name}.log")

    assert [line["identifier"] for line in lines(result)] == identifiers
    assert result.stderr.startswith("warning: ")


# --- workq ---

WORKQ_FIELDS: tuple[str, ...]
WORKQ_FIELDS = ("offset", "length", "logged_ns", "cmd", "id", "name", "ttr", "ttl", "priority")
WORKQ_FIELDS += ("max_attempts", "max_fails", "payload_hex", "time_ns", "created_ns", "result_hex")
STATE_FIELDS = tuple(name for name in WORKQ_FIELDS if name not in ("offset", "length", "logged_ns"))
STATE_FIELDS += ("state", "attempts", "fails", "queue")


def described(folder: Path) -> dict[str, Any]:
    description: dict[str, Any] = json.loads((folder / "description.json").read_text())
    return description


@pytest.mark.parametrize("folder", WORKQ, ids=named)
def test_workq_dump_shows_every_described_record(folder):
    result = run("dump", "--json", folder / "cmdlog")

    expected = [
        {"segment": segment["file"]}
        | {name: record[name] for name in WORKQ_FIELDS if name in record}
        for segment in described(folder)["segments"]
        for record in segment["records"]
    ]
    found = lines(result)
    # The original stops at the first fault; here records behind it are shown, and a warning.
    assert result.exit_code == 0
    assert found[: len(expected)] == expected
    if folder.name == "x-unknown-type":  # of a newer writer, so not damage
        assert [(line["cmd"], line["code"]) for line in found[len(expected) :]] == [("unknown", 9)]
        assert result.stderr == ""
    elif len(found) > len(expected) or described(folder)["fault"] is not None:
        assert "left out" in result.stderr
    else:
        assert result.stderr == ""


@pytest.mark.parametrize(
    ("name", "behind"),
    [("e-crc-flipped-middle", 16), ("e-payload-flipped", 16), ("e-bad-magic", 34)],
)
def test_workq_dump_reads_on_behind_damage(name, behind):
    folder = DATA / "workq" / name
    whole = lines(run("dump", "--json", DATA / "workq" / "a-all-types" / "cmdlog"))

    result = run("dump", "--json", folder / "cmdlog")

    assert lines(result)[-behind:] == whole[-behind:]
    assert result.stderr.count("\n") == 1
    assert "000000001.log: " in result.stderr
    assert "at offset" in result.stderr


@pytest.mark.parametrize(
    "folder",
    # What the original cannot replay has no described state, and what its bugs make is no model.
    [
        folder
        for folder in WORKQ
        if described(folder)["state_after_replay"] is not None
        and folder.name != "x-complete-before-add"
    ],
    ids=named,
)
def test_workq_compact_dump_is_the_state_after_replay(folder):
    description = described(folder)
    # Records of f-never-expires are logged in 2099, so for it the moment must be left open.
    moment = () if folder.name == "f-never-expires" else ("--as-of", str(description["now_ns"]))

    result = run("dump", "--compact", "--json", *moment, folder / "cmdlog")

    expected = [
        {name: job[name] for name in STATE_FIELDS} for job in description["state_after_replay"]
    ]
    assert result.exit_code == 0
    assert lines(result) == expected


def test_work_completed_before_its_add_stays_completed():
    folder = DATA / "workq" / "x-complete-before-add"
    now_ns = described(folder)["now_ns"]

    result = run("dump", "--compact", "--json", "--as-of", str(now_ns), folder / "cmdlog")

    assert [job["state"] for job in lines(result)] == [1]
    assert [job["state"] for job in described(folder)["state_after_replay"]] == [0]


# --- kestrel ---

KESTREL_FIELDS: tuple[str, ...]
KESTREL_FIELDS = ("offset", "length", "command", "item_id", "add_time_ms", "expire_time_ms")
KESTREL_FIELDS += ("error_count", "data_size", "data_b64", "id", "ids", "code")


def kestrel_files() -> list[tuple[Path, dict[str, Any]]]:
    return [
        (folder / file["name"], file)
        for folder in KESTREL
        for file in json.loads((folder / "case.json").read_text())["files"]
    ]


@pytest.mark.parametrize(
    ("path", "file"),
    kestrel_files(),
    ids=[f"{path.parent.name}/{path.name}" for path, _ in kestrel_files()],
)
def test_kestrel_dump_shows_every_described_record_and_stops_at_damage(path, file):
    result = run("dump", "--dialect", "kestrel", "--json", path)

    expected = [
        {"file": path.name} | {name: record[name] for name in KESTREL_FIELDS if name in record}
        for record in file["records"]
    ]
    assert result.exit_code == 0
    assert lines(result) == expected
    ends_well = file["end"]["reason"] in ("eof", "zero-byte")
    assert (result.stderr == "") is ends_well
    if not ends_well:
        assert f"at offset {file['end']['offset']} " in result.stderr


@pytest.mark.parametrize(
    ("path", "file"),
    kestrel_files(),
    ids=[f"{path.parent.name}/{path.name}" for path, _ in kestrel_files()],
)
def test_verify_calls_a_kestrel_file_clean_exactly_when_it_ends_well(path, file):
    result = run("verify", "--dialect", "kestrel", path)

    assert (result.exit_code == 0) is (file["end"]["reason"] in ("eof", "zero-byte"))


def folders_with_readers() -> list[tuple[Path, dict[str, Any]]]:
    cases = [(folder, json.loads((folder / "case.json").read_text())) for folder in KESTREL]
    return [
        (folder, expected_here(folder.name, case["expect"]))
        for folder, case in cases
        if "readers" in case.get("expect", {})
    ]


@pytest.mark.parametrize(
    ("folder", "expect"), folders_with_readers(), ids=[f.name for f, _ in folders_with_readers()]
)
def test_kestrel_compact_dump_is_what_readers_still_have_to_get(folder, expect):
    result = run("dump", "--compact", "--json", folder)

    found = lines(result)
    items = {line["item_id"] for line in found if line["command"] == "PUT"}
    heads = {line["reader"]: line["id"] for line in found if line["command"] == "READ_HEAD"}
    done = {line["reader"]: line["ids"] for line in found if line["command"] == "READ_DONE"}
    assert result.exit_code == 0
    if folder.name == "q07_no_bookmark":
        # No reader has consumed anything: the items are shown, and no reader is invented.
        assert items == set(range(1, 9))
        assert heads == {}
        return
    assert heads == {name: reader["head"] for name, reader in expect["readers"].items()}
    for name, reader in expect["readers"].items():
        assert done[name] == reader.get("done", [])
        assert items >= set(reader.get("deliver", []))
    assert items == {i for reader in expect["readers"].values() for i in reader.get("deliver", [])}


# --- verify ---


@pytest.mark.parametrize("log", ZTICK, ids=named)
def test_verify_calls_a_ztick_log_clean_exactly_when_the_original_warns_of_nothing(log):
    result = run("verify", log)

    assert (result.exit_code == 0) is (not log.with_suffix(".dump.stderr").exists())


@pytest.mark.parametrize("folder", WORKQ, ids=named)
def test_verify_calls_a_workq_log_clean_exactly_when_its_bytes_have_no_fault(folder):
    result = run("verify", folder / "cmdlog")

    # The original refuses a command that it does not know; a newer writer's is not damage.
    is_whole = described(folder)["fault"] is None or folder.name == "x-unknown-type"
    assert (result.exit_code == 0) is is_whole


@pytest.mark.parametrize(
    "path",
    [*ZTICK, *(folder / "cmdlog" for folder in WORKQ), *KESTREL],
    ids=lambda path: f"{path.parent.name}/{path.name}",
)
def test_the_bytes_that_verify_counts_add_up(path):
    result = run("verify", "--json", path)

    for log in json.loads(result.stdout)["logs"]:
        for file in log["files"]:
            parts = ("live_bytes", "dead_bytes", "damaged_bytes", "other_bytes")
            assert sum(file[part] for part in parts) == file["size"]
            assert min(file[part] for part in parts) >= 0
            assert sum(file["kinds"].values()) == file["records"]
            assert file["clean"] is (file["damage_count"] == 0)
