"""Commands of ``journeyman pipeline``, one after the other, in one Spark session.

    python -m tests.support.spark.pipeline_program MASTER COMMAND...

Each COMMAND is the words of one, in JSON. What they print goes to stdout as one JSON list. Where an
object store is, and the keys to it, are in the environment.
"""

from __future__ import annotations

import json
import sys

from journeyman.spark.session import build_session
from tests.support.cli_commands import run
from tests.support.spark.cluster import SETTINGS


def main(master: str, commands: list[list[str]]) -> None:
    conf = SETTINGS if master.startswith("spark://") else {}
    session = build_session(master, conf, small=True)
    said = []
    for words in commands:
        done = run("pipeline", *words, "--quiet")
        assert done.exit_code == 0, (words, done.output, done.exception)
        said.append(done.stdout)
    session.stop()
    print(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1], [json.loads(each) for each in sys.argv[2:]])
