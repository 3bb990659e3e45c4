"""The program for spark-submit: what follows its path are the words of ``journeyman pipeline``.

spark-submit --master yarn $(journeyman pipeline --submit-script) replay s3://logs --dialect ztick
"""

from __future__ import annotations

import sys


def main() -> None:
    # Python puts the directory of a program first on its path, where our modules would hide others.
    sys.path[:] = [path for path in sys.path if path != sys.path[0]]
    from journeyman.cli import journeyman

    journeyman.main(["pipeline", *sys.argv[1:]], prog_name="journeyman")


if __name__ == "__main__":
    main()
