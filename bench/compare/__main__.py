"""Compare the peers under every fault; the table goes to bench/results/compare.json as well."""

from __future__ import annotations

import argparse
import json
import platform
import signal
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.compare import checker, faults
from bench.compare.peers import PEERS, ComparedPeer
from bench.compare.world import World

RESULTS = Path(__file__).parent.parent / "results" / "compare.json"
SETTINGS = ("default", "safest")
DISK_MEBIBYTES = {"procrastinate": 160}  # a cluster begins with so much


def main() -> None:
    """Run what was asked for; results of earlier runs stay where nothing new was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = [peer.name for peer in PEERS]
    parser.add_argument("--peers", default=",".join(names), help="comma-separated")
    parser.add_argument("--faults", default=",".join(faults.FAULTS), help="comma-separated")
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--patience", type=float, default=checker.PATIENCE_S)
    parser.add_argument("--directory", default="/var/tmp", help="on the disk to use")
    options = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    rows: dict[str, Any] = results.setdefault("rows", {})
    for peer in PEERS:
        if peer.name not in options.peers.split(","):
            continue
        missing = peer.missing()
        if missing:
            print(f"{peer.name} is not compared: {missing}")
            continue
        results.setdefault("versions", {})[peer.name] = peer.version()
        for setting in options.settings.split(","):
            for fault in options.faults.split(","):
                with tempfile.TemporaryDirectory(
                    dir=options.directory,
                    prefix=f"{peer.name}-{fault}-",
                    ignore_cleanup_errors=True,
                ) as place:
                    row = run(peer, setting, fault, Path(place), options.jobs, options.patience)
                rows[f"{peer.name} {setting} {fault}"] = row
                print(f"{peer.name:14}{setting:9}{fault:15}{row}", flush=True)
                RESULTS.write_text(
                    json.dumps(results | {"machine": platform.machine()}, indent=1) + "\n"
                )
    print(table(rows))


def run(
    peer: ComparedPeer, setting: str, fault: str, place: Path, jobs: int, patience_s: float
) -> dict[str, Any]:
    """Run one peer at one setting through one fault, and count."""
    place.chmod(0o755)
    why_not = faults.not_possible(fault, peer.broker is not None, place)
    if why_not is not None:
        return {"not run": why_not}
    data = place / "data"
    data.mkdir()
    if fault == "full_disk":
        faults.mount(data, DISK_MEBIBYTES.get(peer.name, 24))
    world = World(peer, place, data, is_safest=setting == "safest")
    began_s = time.monotonic()
    try:
        if fault == "clock_step":
            world.clock = place / "clock"
            world.clock.write_text("+0")
        starts = world.start_broker()
        if not starts:
            return {"not run": f"does not start: {world.output()[-200:]}"}
        world.prepare()
        if fault == "power_cut":  # tables were created before the trace begins
            world.stop_broker(signal.SIGTERM)
            world.trace_from_now()
        serves_again = faults.FAULTS[fault](world, faults.Setup(jobs))
        counts = checker.read(world.sent, world.runs)
        stuck = 0
        if serves_again:
            counts = checker.wait_until_done(world.sent, world.runs, patience_s)
            waiting = counts.lost
            if waiting:  # an operator would restart a worker that does nothing
                world.kill_worker()
                world.start_worker()
                counts = checker.wait_until_done(world.sent, world.runs, patience_s / 2)
            stuck = waiting - counts.lost
        if not counts.acknowledged:
            return {"not run": f"no job was acknowledged: {world.output()[-200:]}"}
        row: dict[str, Any] = asdict(counts) | {"seconds": round(time.monotonic() - began_s)}
        row |= {"stuck": stuck, "starts_again": serves_again}
        if fault in ("bit_flip", "power_cut"):
            row["noticed"] = not serves_again or faults.complains(world.output())
        return row
    finally:
        world.close()
        if fault == "full_disk":
            faults.unmount(data)


def table(rows: dict[str, Any], settings: tuple[str, ...] = SETTINGS) -> str:
    """Return the rows as a table in Markdown: lost of acknowledged, and jobs done twice."""
    names = sorted({tuple(key.split()[:2]) for key in rows}, key=_order)
    names = [name for name in names if name[1] in settings]
    lines = ["| | " + " | ".join(name.replace("_", " ") for name in faults.FAULTS) + " |"]
    lines.append("|---" * (len(faults.FAULTS) + 1) + "|")
    for name, setting in names:
        cells = [_cell(rows.get(f"{name} {setting} {fault}")) for fault in faults.FAULTS]
        lines.append(f"| {name}, {setting} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _order(name: tuple[str, ...]) -> tuple[int, int]:
    return [peer.name for peer in PEERS].index(name[0]), SETTINGS.index(name[1])


def _cell(row: dict[str, Any] | None) -> str:
    if row is None or "not run" in row:
        return "-"
    text = f"{row['lost']} of {row['acknowledged']}" if row["lost"] else "0"
    if row["done_twice"]:
        text += f", {row['done_twice']} twice"
    if row["stuck"]:
        text += f", {row['stuck']} stuck"
    if not row["starts_again"]:
        text += ", does not start"
    if row["lost"] and row.get("noticed") is False:
        text += ", in silence"
    return text


if __name__ == "__main__":
    main()
