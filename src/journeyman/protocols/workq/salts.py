"""Ids that follow from what a job is for, and that other namespaces cannot foresee.

    salt        HMAC(secret of the data directory, namespace): the server gives it to the clients of
                that namespace alone (``inspect token``)
    id          what the job is for, as a digest --salted_id--> the id of the job

Without a salt the id is the digest itself. So it is for tokens of all namespaces, and for servers
without tokens.
"""

from __future__ import annotations

import hashlib
import hmac
from uuid import UUID


def namespace_salt(secret: bytes, namespace: str) -> bytes:
    return hmac.digest(secret, namespace.encode(errors="surrogateescape"), "sha256")


def salted_id(job_id: bytes, salt: bytes) -> bytes:
    """The id to use for a derived one; of the form of a UUID of version 4."""
    if not salt:
        return job_id
    return UUID(bytes=hmac.digest(salt, job_id, "sha256")[:16], version=4).bytes


def stable_id(*parts: str | bytes) -> UUID:
    """Return the same id for the same parts, shaped like a random UUID, which the work queue asks
    for."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(b"%d:" % len(data) + data)
    return UUID(bytes=digest.digest()[:16], version=4)


def salted(job_id: UUID, salt: bytes) -> UUID:
    """The id that is used for a derived one, in the namespace of this salt."""
    return UUID(bytes=salted_id(job_id.bytes, salt)) if salt else job_id


def next_id(job_id: UUID) -> UUID:
    """Return the id of the next job in a chain: always the same, so it is added once."""
    return stable_id(job_id.bytes, b"then")
