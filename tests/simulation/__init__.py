"""A whole server in one thread of virtual time, with everything that can go wrong, from one seed.

    python -m tests.simulation --seed 7

    Story      one seed: settings, processes, troubles, ends of the server, checks     scenario.py
      Machine  the real services, engines, logs and ledger of a server                 machine.py
        on     SimulatedDisk, SimulatedThreads, Loop, ManualClock                      world.py
      Process  clients, workers, readers, an operator; their Wires          clients.py,
                                                                 work_clients.py, network.py
      Pair     two servers and a PostgreSQL                    pair.py, database.py, strands.py
      History  what was asked and answered --> linearizable?                           history.py
                                               durable? in order?                      checks.py

What is simulated is what the server is given: time, disk, threads, connections and programs. All
the rest is the code that runs in production, on logs or on a store, HTTP included. What
it does not show: two threads that take turns inside of one piece of work, TLS, the engines of
stores, and real kernels. tests/crash has kills of real processes.
"""

from tests.simulation.history import (
    UNKNOWN,
    History,
    NotLinearizable,
    Operation,
    check,
)
from tests.simulation.scenario import (
    SimulationFailed,
    SimulationPlan,
    SimulationReport,
    simulate,
)

__all__ = [
    "UNKNOWN",
    "History",
    "NotLinearizable",
    "Operation",
    "SimulationFailed",
    "SimulationPlan",
    "SimulationReport",
    "check",
    "simulate",
]
