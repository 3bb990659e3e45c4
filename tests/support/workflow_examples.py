"""The examples for Airflow, Dagster and dbt, run by these programs themselves.

    python -m tests.support.workflow_examples [airflow|dagster|dbt]

Each is installed into an environment of its own, because their libraries do not fit together. It
takes minutes, so `make proof` does it; `make test` has doubles of what they call.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.support.servers.task_worker import WorkerProcess
from tests.support.servers.whole_process import WholeProcess

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
LIMIT_S = 900

REQUIREMENTS = {
    "airflow": [str(ROOT), "apache-airflow-core>=3.3,<4"],
    "dagster": [str(ROOT), "dagster>=1.13,<2"],
    "dbt": [f"{ROOT}[columnar]", "deltalake>=1.6", "dbt-core<1.11", "dbt-duckdb>=1.10"],
}
APP = """
import journeyman as jm

app = jm.App()


@app.task(name="shop.build_report")
def build_report(customer):
    if int(customer) == 0:
        raise ValueError("no such customer")
    return {"pages": 3, "mail": mail.send(customer).id}


@app.task(name="shop.mail")
def mail(customer):
    return f"mailed to {customer}"
"""


def run_example(name: str, directory: Path) -> str:
    """Install a program, run its example against a server, and check what became of the jobs."""
    venv = directory / "venv" / "bin"
    _run([sys.executable, "-m", "venv", str(venv.parent)], directory)
    _run([str(venv / "pip"), "install", "--quiet", *REQUIREMENTS[name]], directory)
    (directory / "shop.py").write_text(APP)
    with WholeProcess(directory) as server:
        url = f"journeyman://127.0.0.1:{server.ports['work']}"
        with WorkerProcess(directory, "shop:app", url=url) as worker:
            if name == "dbt":
                return _run_dbt(venv, directory, server)
            environment = {"JOURNEYMAN_URL": url, "PATH": f"{venv}:{os.environ['PATH']}"}
            run = {"airflow": _run_airflow, "dagster": _run_dagster}[name]
            said = run(venv, directory, environment)
            worker.wait_for("done shop.build_report")
            return said


def _run_airflow(venv: Path, directory: Path, environment: Mapping[str, str]) -> str:
    program = str(venv / "airflow")
    settings = {
        "AIRFLOW_HOME": str(directory / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(EXAMPLES / "airflow"),
        **environment,
    }
    _run([program, "db", "migrate"], directory, settings)
    test = [program, "dags", "test", "reports"]
    said = _run(test, directory, settings)
    assert said.count("Trigger completed") == 2, said  # Both steps have deferred.
    assert re.search("Marking run .* successful", said), said
    failed = _run([*test, "--conf", '{"customer": 0}'], directory, settings, code=None)
    assert "no such customer" in failed, failed
    assert re.search("Marking run .* failed", failed), failed
    return "Airflow: a DAG deferred twice and succeeded; one whose job failed did not"


def _run_dagster(venv: Path, directory: Path, environment: Mapping[str, str]) -> str:
    (directory / "dagster").mkdir()
    settings = {"DAGSTER_HOME": str(directory / "dagster"), **environment}
    example = str(EXAMPLES / "dagster" / "report_assets.py")
    words = [str(venv / "dagster"), "asset", "materialize", "--select", "*", "-f", example]
    assert "RUN_SUCCESS" in _run(words, directory, settings)
    return "Dagster: two assets were made, the first by a worker"


def _run_dbt(venv: Path, directory: Path, server: WholeProcess) -> str:
    send = "import shop; shop.mail.send(1).result(60)"
    url = {"JOURNEYMAN_URL": f"journeyman://127.0.0.1:{server.ports['work']}"}
    _run([sys.executable, "-c", send], directory, url)
    lake = str(directory / "lake")
    ingest = [sys.executable, "-m", "journeyman", "pipeline", "ingest", "-q"]
    _run([*ingest, str(server.data), "--lake", lake], directory)
    settings = {
        "JOURNEYMAN_LAKE": lake,
        "JOURNEYMAN_DBT_DATABASE": str(directory / "dbt.duckdb"),
        "DBT_SEND_ANONYMOUS_USAGE_STATS": "False",
    }
    places = ["--target-path", str(directory / "target"), "--log-path", str(directory / "logs")]
    build = [str(venv / "dbt"), "build", "--profiles-dir", ".", *places]
    said = _run(build, EXAMPLES / "dbt", settings)
    assert "ERROR=0" in said, said
    return f"dbt: {said[said.rindex('PASS=') :].strip()}"


def _run(
    words: list[str],
    directory: Path,
    environment: Mapping[str, str] | None = None,
    *,
    code: int | None = 0,
) -> str:
    """Run a program to its end; return what it printed. ``code`` None: however it ends."""
    done = subprocess.run(
        words,
        cwd=directory,
        env=os.environ | dict(environment or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert code in (None, done.returncode), f"{' '.join(words)}\n{done.stdout[-8_000:]}"
    return done.stdout


def main() -> None:
    for name in sys.argv[1:] or REQUIREMENTS:
        with tempfile.TemporaryDirectory() as directory:
            sys.stdout.write(f"{run_example(name, Path(directory))}\n")


if __name__ == "__main__":
    main()
