"""The trace of the sender, in W3C form, for the envelope: only if OpenTelemetry is in use here.

    sender: current_trace() -> {"traceparent": "00-..."} --envelope--> worker: a span below it

OpenTelemetry is never imported for this: a process that has no span has not imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping


def current_trace() -> Mapping[str, str]:
    """Empty without OpenTelemetry or outside of any span."""
    if "opentelemetry.trace" not in sys.modules:
        return {}
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier
