"""Tasks sent from Python run in a TypeScript worker, and the other way round, on a real server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

import journeyman as jm
from tests.support.programs import find_program
from tests.support.servers.whole_process import WholeProcess

CLIENT = Path(__file__).parents[2] / "clients" / "typescript"
CACHE = Path(sys.prefix) / "typescript"  # node_modules, installed once
LIMIT_S = 120

NODE_WORKER = """
import { Journeyman, Worker, GiveUp } from "./build/src/index.js";
const worker = new Worker(new Journeyman(), { queues: ["node"], name: "node-1" });
worker.task("double", (job, n) => n * 2);
worker.task("describe", (job, when, data) => ({
  iso: when.toISOString(), bytes: [...data], extra: job.kwargs.extra, attempt: job.attempt,
}));
worker.task("refuse", () => { throw new GiveUp("never"); });
worker.task("wait", (job) => new Promise((_, reject) => {
  job.signal.addEventListener("abort", () => { console.log("aborted"); reject(new Error()); });
}));
worker.task("tell", async (job) => {
  job.progress(1, 2, "begun");
  job.log("halfway");
  await job.heartbeat();
  job.progress(2, 2, "nearly done");
  return job.signal.aborted;
});
process.on("SIGTERM", () => worker.stop());
console.log("running");
await worker.run();
"""

NODE_SENDER = """
import { Journeyman, JobFailed, NotFinished } from "./build/src/index.js";
const jm = new Journeyman();
const job = await jm.send("python.add", [1, 2], { queue: "python", kwargs: { c: 3 } });
console.log(await job.result({ timeoutMs: 60000 }));
const again = await jm.send("python.add", [5, 5], { queue: "python", id: job.id });
console.log(await again.result({ timeoutMs: 60000 }), (await again.show()).state);
const failing = await jm.send("python.fail", [], { queue: "python" });
try { await failing.result({ timeoutMs: 60000 }); }
catch (error) { console.log(error instanceof JobFailed, error.error, error.message); }
const at = new Date(Date.now() + 3600e3);
const later = await jm.send("python.add", [1], { queue: "python", at });
try { await later.result({ timeoutMs: 1 }); }
catch (error) { console.log(error instanceof NotFinished); }
await later.cancel();
try { await later.result({ timeoutMs: 60000 }); } catch (error) { console.log(error.name); }
try { await jm.job("00000000-0000-4000-8000-000000000000").show(); }
catch (error) { console.log(error.status, error.code); }
const waiting = await jm.send("python.wait", [], { queue: "python" });
await jm.emit("approval:7/a", { by: "ann", at: new Date(0) });
await jm.emit("approval:7/a", { by: "ann", at: new Date(0) });
await jm.emit("nothing");
console.log(await waiting.result({ timeoutMs: 60000 }));
try { await jm.emit("approval:7/a", 2); } catch (error) { console.log(error.status, error.code); }
"""


def run(*words: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        words,
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeProcess]:
    with WholeProcess(
        tmp_path_factory.mktemp("server"), settings={"http.listen": "127.0.0.1:0"}
    ) as running:
        yield running


@pytest.fixture(scope="module")
def built(server: WholeProcess, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package, compiled with the types of this server's API; its own tests pass."""
    find_program("node")
    npm = find_program("npm")
    place = tmp_path_factory.mktemp("typescript")
    shutil.copytree(CLIENT, place, dirs_exist_ok=True)
    wanted = (CLIENT / "package.json").read_text()
    installed = CACHE / "package.json"
    if not installed.exists() or installed.read_text() != wanted:
        CACHE.mkdir(exist_ok=True)
        installed.write_text(wanted)
        words = ("install", "--silent", "--no-fund", "--no-audit", "--no-package-lock")
        try:
            run(npm, *words, cwd=CACHE)
        except BaseException:
            installed.unlink()
            raise
    (place / "node_modules").symlink_to(CACHE / "node_modules")
    run(npm, "pack", cwd=place, JOURNEYMAN_HTTP_URL=address(server))
    assert "# fail 0" in run(npm, "test", cwd=place)  # compiles it, and tests what needs no server
    return place


def test_the_package_has_what_its_users_need_and_nothing_else(built: Path, tmp_path: Path):
    (packed,) = built.glob("journeyman-client-*.tgz")
    with tarfile.open(packed) as archive:
        archive.extractall(tmp_path, filter="data")
    package = tmp_path / "package"
    names = {str(path.relative_to(package)) for path in package.rglob("*") if path.is_file()}
    sources = {f"src/{path.name}" for path in (CLIENT / "src").glob("*.ts")} | {"src/api.ts"}
    stems = {Path(name).stem for name in sources}
    compiled = {f"dist/{stem}{end}" for stem in stems for end in (".js", ".d.ts")}
    assert names == sources | compiled | {"package.json", "README.md"}
    assert "dependencies" not in json.loads((package / "package.json").read_text())
    asked = "import('./dist/index.js').then((m) => console.log(Object.keys(m).sort().join()))"
    offered = run(find_program("node"), "-e", asked, cwd=package).strip().split(",")
    assert {"Journeyman", "Worker", "Job", "JobFailed", "GiveUp", "Retry"} <= set(offered)


def address(server: WholeProcess) -> str:
    return f"http://127.0.0.1:{server.ports['http']}"


@contextmanager
def node_worker(built: Path, server: WholeProcess) -> Iterator[subprocess.Popen[str]]:
    (built / "worker.mjs").write_text(NODE_WORKER)
    environment = os.environ | {"JOURNEYMAN_HTTP_URL": address(server)}
    with subprocess.Popen(
        [find_program("node"), "worker.mjs"],
        cwd=built,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        yield process
        process.terminate()
        assert process.wait(LIMIT_S) == 0


def queue_url(server: WholeProcess) -> str:
    return f"journeyman://127.0.0.1:{server.ports['work']}"


def test_tasks_of_python_run_in_node(built: Path, server: WholeProcess):
    app = jm.App(queue_url(server), queue="node")

    @app.task(name="double")
    def double(_n: int) -> int:
        raise AssertionError

    @app.task(name="describe")
    def describe(_when: object, _data: bytes, *, extra: str) -> dict[str, object]:
        raise AssertionError(extra)

    @app.task(name="refuse", retries=5)
    def refuse() -> None: ...

    @app.task(name="wait", lease=1.5)
    def wait() -> None: ...

    @app.task(name="tell")
    def tell() -> bool:
        raise AssertionError

    with node_worker(built, server) as process:
        telling = tell.send()
        assert telling.result(timeout=LIMIT_S) is False
        told = telling.progress()
        assert (told.done, told.total, told.note) == (2, 2, "nearly done")
        assert [line.text for line in told.log] == ["halfway"]
        assert double.send(21).result(timeout=LIMIT_S) == 42
        chain = double.call(1).then(double).then(double)
        assert chain.send().result(timeout=LIMIT_S) == 8
        group = jm.group(double.call(n) for n in range(3))
        assert group.send().results(timeout=LIMIT_S) == [0, 2, 4]
        moment = datetime(2026, 11, 18, 2, tzinfo=UTC)
        assert describe.send(moment, b"\x00\xff", extra="ä").result(timeout=LIMIT_S) == {
            "iso": "2026-11-18T02:00:00.000Z",
            "bytes": [0, 255],
            "extra": "ä",
            "attempt": 1,
        }
        with pytest.raises(jm.JobFailed, match="never"):
            refuse.send().result(timeout=LIMIT_S)
        waiting = wait.send()
        while waiting.state() != "running":
            time.sleep(0.05)
        waiting.cancel()
        assert process.stdout is not None
        assert process.stdout.readline() == "aborted\n"
        assert waiting.state() == "cancelled"
    app.close()


def test_tasks_of_node_run_in_python(built: Path, server: WholeProcess, tmp_path: Path):
    (tmp_path / "adding.py").write_text(
        "import journeyman as jm\n"
        f"app = jm.App('journeyman://127.0.0.1:{server.ports['work']}', queue='python')\n"
        "@app.task(name='python.add')\n"
        "def add(a, b, c=0): return a + b + c\n"
        "@app.task(name='python.fail')\n"
        "def fail(): raise ValueError('no such user')\n"
        "@app.task(name='python.wait')\n"
        "def wait():\n"
        "    value = jm.wait_for('approval:7/a')\n"
        "    return f\"{value['by']} {value['at'].year} {jm.wait_for('nothing')}\"\n"
    )
    (built / "sender.mjs").write_text(NODE_SENDER)
    words = [sys.executable, "-m", "journeyman", "worker", "adding:app"]
    with subprocess.Popen(words, cwd=tmp_path) as worker:
        try:
            printed = run(
                find_program("node"), "sender.mjs", cwd=built, JOURNEYMAN_HTTP_URL=address(server)
            )
        finally:
            worker.terminate()
    assert printed.splitlines() == [
        "6",
        "6 completed",
        "true ValueError ValueError: no such user",
        "true",
        "JobCancelled",
        "404 not_found",
        "ann 1970 None",
        "409 event_differs",
    ]
