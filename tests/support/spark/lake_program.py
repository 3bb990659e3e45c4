"""What tests.spark.test_lake_uri runs: commands on a lake in a process of their own.

python -m tests.support.spark.lake_program COMMAND...

Each COMMAND is one of ``journeyman pipeline``, its words in JSON. Where the store is, and the keys
to it, are in the environment: Python workers have it from Java, and Java from this process.
"""

from __future__ import annotations

import json
import sys

from tests.support.cli_commands import run


def main(commands: list[list[str]]) -> None:
    said = []
    for words in commands:
        done = run("pipeline", *words, "--quiet")
        assert done.exit_code == 0, (words, done.output, done.exception)
        said.append(done.stdout)
    print(json.dumps(said))


if __name__ == "__main__":
    main([json.loads(each) for each in sys.argv[1:]])
