"""The wheel, installed in a clean virtual environment, on a machine without Java.

The environment has the wheel and nothing else of ours. The libraries that the wheel depends on are
those of the environment that runs the tests: that makes no difference to what the wheel must hold.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
from dataclasses import dataclass
from pathlib import Path

import numpy
import pyarrow.parquet as pq
import pyspark
import pytest

from journeyman.spark.session.java import SWITCH
from tests.support.cli_commands import job, write_ztick

ROOT = Path(__file__).parents[2]
# What Spark's scripts call; and no java.
TOOLS = ("sh", "bash", "env", "dirname", "chmod", "ps", "cat", "uname", "rm", "mkdir", "id")
# A Spark that is not ours compiles all it runs; of three records that is most of the time.
QUICK = [
    *("--conf", "spark.sql.codegen.wholeStage=false", "--conf", "spark.sql.shuffle.partitions=2"),
    *("--conf", "spark.sql.codegen.factoryMode=NO_CODEGEN", "--conf", "spark.ui.enabled=false"),
    *("--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1"),
    *("--conf", "spark.executor.extraJavaOptions=-XX:TieredStopAtLevel=1"),
]
# With these Hadoop unpacks an archive.
UNPACKING = ("gzip", "tar")


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment, and the variables that a shell in it would have."""

    home: Path
    variables: dict[str, str]

    def run(
        self, *words: object, cwd: Path | None = None, **more: str
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(word) for word in words],
            capture_output=True,
            text=True,
            check=False,
            env={**self.variables, **more},
            cwd=cwd or self.home,
        )
        assert done.returncode == 0, done.stderr
        return done


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    home = tmp_path_factory.mktemp("environment")
    venv.create(home / "venv", with_pip=False, symlinks=True)
    python = home / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    # Without a build environment of its own, where the build needs none: that works offline.
    isolation = ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else []
    wheels = home / "wheels"
    subprocess.run([*pip, "wheel", "--no-deps", *isolation, "-w", wheels, ROOT], check=True)
    wheel = next(wheels.glob("journeyman-*.whl"))
    subprocess.run([*pip, "--python", python, "install", "--no-deps", wheel], check=True)
    packages = next((home / "venv" / "lib").glob("python*/site-packages"))
    (packages / "libraries.pth").write_text(f"{Path(numpy.__file__).parents[1]}\n")
    tools = home / "tools"
    tools.mkdir()
    for tool in (*TOOLS, *UNPACKING):
        (tools / tool).symlink_to(str(shutil.which(tool)))
    path = f"{python.parent}:{tools}"
    assert shutil.which("java", path=path) is None
    variables = {"PATH": path, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
    return Environment(home, {**variables, SWITCH: "off"})


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_ztick(tmp_path / "logfile", job("a", 1), job("b", 2), job("a", 3))


def test_the_environment_has_our_code_from_the_wheel_alone(installed):
    code = "import journeyman, pyspark_ztick; print(journeyman.__file__, pyspark_ztick.__file__)"

    done = installed.run("python", "-c", code)

    assert done.stdout.count(f"{installed.home}/venv/lib") == 2


def test_the_pipeline_runs_without_java_on_the_path(installed, log):
    done = installed.run("journeyman", "pipeline", "replay", log, "--format", "json")

    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted((row["identifier"], row["execution_ns"]) for row in rows) == [("a", 3), ("b", 2)]
    assert done.stderr == ""
    assert sorted(path.name for path in installed.home.iterdir()) == [
        "cache",
        "tools",
        "venv",
        "wheels",
    ]


def test_spark_submit_runs_the_installed_wheel(installed, log, tmp_path):
    java = installed.run("journeyman", "pipeline", "--java-home").stdout.strip()
    script = installed.run("journeyman", "pipeline", "--submit-script").stdout.strip()
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"

    installed.run(
        *(submit, "--master", "local[1]", *QUICK, script),
        *("replay", log, "--output", tmp_path / "state"),
        JAVA_HOME=java,
        PYSPARK_PYTHON=f"{installed.home}/venv/bin/python",
    )

    assert script.startswith(f"{installed.home}/venv/lib")
    jobs = pq.read_table(tmp_path / "state" / "jobs").to_pylist()
    assert sorted((row["identifier"], row["execution_ns"]) for row in jobs) == [("a", 3), ("b", 2)]


if os.environ.get("JOURNEYMAN_WHOLE_MATRIX"):  # `make proof`

    def test_a_packed_environment_is_sent_to_the_executors(installed, log, tmp_path):
        """The recipe of operations.md. Executors are processes with a directory of their own.

        Spark plans reads in a Python process beside the driver, so in client mode the environment
        must be where the driver starts as well, under the same path.
        """
        java = installed.run("journeyman", "pipeline", "--java-home").stdout.strip()
        archive = tmp_path / "environment.tar.gz"
        with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
            packed.add(installed.home / "venv", arcname=".")
        unpacked = tmp_path / "environment"
        unpacked.mkdir()
        subprocess.run(["tar", "-xzf", archive, "-C", unpacked], check=True)
        words = ("./environment/bin/python", "-m", "journeyman", "pipeline", "--submit-script")
        script = installed.run(*words, cwd=tmp_path).stdout.strip()
        spark = tmp_path / "spark"  # executors work in a directory below SPARK_HOME
        spark.mkdir()
        for name in ("bin", "jars", "python"):
            (spark / name).symlink_to(Path(pyspark.__file__).parent / name)

        installed.run(
            *(spark / "bin" / "spark-submit", "--master", "local-cluster[1,1,1024]"),
            *("--deploy-mode", "client", "--archives", "environment.tar.gz#environment"),
            *("--conf", "spark.pyspark.python=./environment/bin/python"),
            *(*QUICK, "--conf", "spark.driver.host=127.0.0.1"),
            *(script, "replay", log, "--output", tmp_path / "state"),
            cwd=tmp_path,
            JAVA_HOME=java,
            SPARK_HOME=str(spark),
            SPARK_LOCAL_IP="127.0.0.1",
        )

        assert list(spark.glob("work/*/*/environment/bin/python"))
        jobs = pq.read_table(tmp_path / "state" / "jobs").to_pylist()
        assert sorted((row["identifier"], row["execution_ns"]) for row in jobs) == [
            ("a", 3),
            ("b", 2),
        ]
