"""When upkeep looks again: on whole seconds of the event loop's clock, even ones if it can wait.

What is not urgent rings together. So an idle server wakes up every other second, whatever its parts
watch, and not once for each of them.
"""

from __future__ import annotations

import asyncio
import math

WHOLE_S = 1.0
EVEN_S = 2.0


def delay_to_second(loop: asyncio.AbstractEventLoop, delay_s: float) -> float:
    """Until the last whole second within ``delay_s`` from now, of two or more the last even one; as
    it is if it is less than one."""
    if delay_s < WHOLE_S:
        return delay_s
    now_s, step_s = loop.time(), EVEN_S if delay_s >= EVEN_S else WHOLE_S
    return math.floor((now_s + delay_s) / step_s) * step_s - now_s
