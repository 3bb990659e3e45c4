"""What the loops of kills have in common: the loop, and threads that load the server meanwhile.

KillLoop     kill, start again, compare; each door's own loop says how
LoadThread   a connection that the kill may close at any time; what goes wrong is kept
tell_wrong   AssertionError with the first few of many complaints
"""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from tests.support.servers.schedule_process import ScheduleProcess

__all__ = ["KillLoop", "LoadThread", "tell_wrong"]

ENOUGH_ANSWERS = 101  # of each life
LOAD_LIMIT_S = 60.0
MAX_TOLD = 20  # of many things that are wrong, this many are told

TallyT = TypeVar("TallyT")
ServerT = TypeVar("ServerT", bound=ScheduleProcess)


def tell_wrong(wrong: Sequence[str]) -> None:
    more = [f"and {len(wrong) - MAX_TOLD} more"] if len(wrong) > MAX_TOLD else []
    assert not wrong, "\n".join([*wrong[:MAX_TOLD], *more])


class KillLoop(ABC, Generic[TallyT, ServerT]):
    """The loop. AssertionError: what was found is not what was told."""

    kinds: Sequence[str]
    tally: TallyT
    _random: random.Random
    _server: ServerT

    @abstractmethod
    def _cycle(self, kind: str) -> None:
        """Load, kill in this way, start, compare."""

    @abstractmethod
    def _end(self) -> None:
        """What is to be seen after the last kill."""

    def run(self, cycles: int, each: Callable[[str], None] = lambda _: None) -> TallyT:
        """So many kills, then the end."""
        try:
            for number in range(cycles):
                # The first kills are one of each kind, however few there are.
                known = number < len(self.kinds)
                kind = self.kinds[number] if known else self._random.choice(self.kinds)
                self._cycle(kind)
                each(kind)
            self._end()
        finally:
            if self._server.process.poll() is None:
                self._server.kill()
        return self.tally

    def _wait_for_load(self, answered: Callable[[], int], enough: int | None = None) -> None:
        """Until the load has got so far that a kill can cost something, on a busy machine too."""
        enough = answered() + ENOUGH_ANSWERS if enough is None else enough
        deadline = time.monotonic() + LOAD_LIMIT_S
        while answered() < enough:
            assert time.monotonic() < deadline, f"no load: {self._server.lines[-20:]}"
            time.sleep(0.001)

    def _no_errors(self, loaders: Sequence[LoadThread]) -> None:
        wrong = [complaint for loader in loaders for complaint in loader.wrong]
        wrong += [line for line in self._server.lines if " ERROR " in line]
        tell_wrong(wrong)


class Closable(Protocol):
    def close(self) -> None: ...


class LoadThread(threading.Thread):
    """Steps, until the connection ends or it is told to stop."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.stopping = threading.Event()
        self.wrong: list[str] = []
        self.client: Closable

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.step()
            self.finish()
        except (ConnectionError, EOFError):
            return  # killed, as expected
        except Exception as error:  # noqa: BLE001 - whatever it is, the main thread must hear of it
            self.wrong.append(f"{self.name}: {error!r}")
        finally:
            self.client.close()

    def step(self) -> None:
        raise AssertionError("nothing to do")

    def finish(self) -> None:
        """The server lives on: leave nothing unanswered."""
