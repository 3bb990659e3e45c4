"""A real `journeyman worker` on an app in a directory of its own. Not a test itself."""

from __future__ import annotations

import os
import re
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.servers.nursery import start_journeyman

PATIENCE_S = 60.0


class WorkerProcess:
    """``with WorkerProcess(tmp_path, "shop:app", "-c", "4", url=url) as worker: ...``"""

    def __init__(self, directory: Path, *words: str, url: str) -> None:
        self._words = ["worker", *words]
        self._directory = directory
        self._environment = {**os.environ, "JOURNEYMAN_URL": url}
        self.lines: list[str] = []
        self._heard = threading.Condition()

    def __enter__(self) -> Self:
        self.process = start_journeyman(self._words, self._directory, self._environment)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def wait_for(self, pattern: str, count: int = 1) -> list[str]:
        """The lines that match, once there are so many."""
        deadline = time.monotonic() + PATIENCE_S
        with self._heard:
            while len(found := self.matching(pattern)) < count:
                left = deadline - time.monotonic()
                assert left > 0, f"no {pattern!r} in:\n" + "\n".join(self.lines)
                self._heard.wait(left)
        return found

    def matching(self, pattern: str) -> list[str]:
        return [line for line in self.lines if re.search(pattern, line)]

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.terminate()
        return self.wait()

    def wait(self) -> int:
        """Its exit code. All that it said is in ``lines``."""
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._heard:
                self.lines.append(line.rstrip())
                self._heard.notify_all()
        with self._heard:
            self._heard.notify_all()
