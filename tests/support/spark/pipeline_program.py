"""Commands of ``journeyman pipeline``, one after the other, in one Spark session.

    python -m tests.support.spark.pipeline_program MASTER COMMAND...

Each COMMAND is the words of one, in JSON; ``stream PATH`` is a query of Spark that counts what a
stream of a work queue gives until nothing is new. What they print goes to stdout as one JSON list.
Where an object store is, and the keys to it, are in the environment.
"""

from __future__ import annotations

import json
import sys
import tempfile

from journeyman.spark.session import SparkSession, build_session
from tests.support.cli_commands import run
from tests.support.spark.cluster import FEW_RECORDS, SETTINGS


def main(master: str, commands: list[list[str]]) -> None:
    conf = {**SETTINGS, **FEW_RECORDS} if master.startswith("spark://") else {}
    session = build_session(master, conf, small=True, tiny=True)
    said = []
    for words in commands:
        if words[0] == "stream":
            said.append(count_stream(session, *words[1:]))
            continue
        done = run("pipeline", *words, "--quiet")
        assert done.exit_code == 0, (words, done.output, done.exception)
        said.append(done.stdout)
    session.stop()
    print(json.dumps(said))


def count_stream(session: SparkSession, path: str) -> str:
    rows = session.readStream.format("workq").load(path)
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = rows.writeStream.format("memory").queryName("streamed").trigger(availableNow=True)
        query = writer.option("checkpointLocation", checkpoint).start()
        query.awaitTermination()
    counts = session.table("streamed").groupBy("kind").count().collect()
    return "\n".join(f"{row.kind} {row['count']}" for row in counts)


if __name__ == "__main__":
    main(sys.argv[1], [json.loads(each) for each in sys.argv[2:]])
