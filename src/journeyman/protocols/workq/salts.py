"""Ids that follow from what a job is for, and that other namespaces cannot foresee.

    salt        HMAC(secret of the data directory, namespace): the server gives it to the clients of
                that namespace alone (``inspect token``)
    id          what the job is for, as a digest --salted_id--> the id of the job

Without a salt the id is the digest itself. So it is for tokens of all namespaces, and for servers
without tokens.
"""

from __future__ import annotations

import hmac
from uuid import UUID


def namespace_salt(secret: bytes, namespace: str) -> bytes:
    return hmac.digest(secret, namespace.encode(errors="surrogateescape"), "sha256")


def salted_id(job_id: bytes, salt: bytes) -> bytes:
    """The id to use for a derived one; of the form of a UUID of version 4."""
    if not salt:
        return job_id
    return UUID(bytes=hmac.digest(salt, job_id, "sha256")[:16], version=4).bytes
