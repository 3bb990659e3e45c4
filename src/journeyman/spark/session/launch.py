"""What a Spark that is started from this process finds in its environment.

    JAVA_HOME         see journeyman.spark.session.java
    PYSPARK_PYTHON    this very Python
    SPARK_HOME        the files of the installed pyspark

On a single machine SPARK_HOME is a directory of links to these files, without one of them: the
zipped copy of pyspark that Spark puts first on the path of every Python it starts. Python compiles
what it imports from a zip file again each time, which takes half a second in each of the four
processes that plan and read a Python data source one after another. Without the copy they import
the installed pyspark.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import pyspark

from journeyman.spark.session.cache import cache_path
from journeyman.spark.session.java import Java, find_java, java_home

_LINKED = ("bin", "jars", "conf")  # not python/lib/pyspark.zip


def prepare_launch(*, on_this_machine: bool) -> Java:
    """Set the environment; what the user has set in it stays. Raises UsageError without a Java."""
    java = find_java()
    os.environ["JAVA_HOME"] = str(java_home(java))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_HOME", str(_linked_home() if on_this_machine else _installed()))
    return java


def spark_home() -> Path:
    """Where a Spark that was prepared for has its files."""
    return Path(os.environ["SPARK_HOME"])


def _installed() -> Path:
    return Path(pyspark.__file__).parent


def _linked_home() -> Path:
    """A directory with links to all that is in the installed one but its Python. Made once."""
    installed = _installed()
    home = cache_path("spark", pyspark.__version__ + str(installed).replace("/", "_"))
    if home is None:
        return installed
    home.mkdir(exist_ok=True)
    for name in _LINKED:
        if (installed / name).exists():
            _link(home / name, installed / name)
    # On the class path by all means: where it is missing, newer Javas take no class archive.
    (home / "conf").mkdir(exist_ok=True)
    return home


def _link(link: Path, target: Path) -> None:
    with contextlib.suppress(FileExistsError):
        link.symlink_to(target)
