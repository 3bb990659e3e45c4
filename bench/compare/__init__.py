"""What task queues lose: one load, one recorder and one checker for Journeyman and its peers.

    python -m bench.compare [--peers journeyman,celery] [--faults worker_kill,power_cut]

    peers.py     each peer twice: as it is installed, and at its safest documented setting
    faults.py    what happens to broker and worker while jobs are sent
    power.py     what a disk holds after a power cut, from a trace of system calls
    checker.py   the counts: acknowledged, lost, done twice, stuck, noticed

A sender writes down a number before it sends a job and again when the peer has acknowledged it.
Each job writes its number when it starts and when it ends. A job is lost if it was acknowledged
and has not ended two minutes after the last sign of life. docs/proof.md shows the table.
"""
