"""The signature of a notice over HTTP, by which a receiver knows that this server has sent it.

    Journeyman-Signature: t=1711612800,v1=<hex of HMAC-SHA256(key, "1711612800." + body)>

The key is in the file of ``notices.signing_key_file``. A rule or timetable in the namespace of a
token is signed with a key of that namespace, the hex of HMAC-SHA256(key, namespace): so no tenant
can sign for another.
"""

from __future__ import annotations

import hmac

from journeyman.config.loading import read_secret
from journeyman.runners.reach import Tenants
from journeyman.units import NS_PER_S

HEADER = "Journeyman-Signature"


def signature_headers(
    key_file: str | None, tenants: Tenants | None, owner: str, execution_ns: int, body: bytes
) -> dict[str, str]:
    """The header for a notice of this rule or timetable. Raises UsageError without a key.

    ``key_file`` None: nothing is signed. ``tenants`` None: there are no tokens.
    """
    key = read_secret(key_file, "notices.signing_key_file").encode()
    if not key:
        return {}
    namespace = "" if tenants is None else tenants.namespace_of(owner)
    if namespace:
        key = hmac.digest(key, namespace.encode(), "sha256").hex().encode()
    time_s = execution_ns // NS_PER_S
    signature = hmac.digest(key, b"%d.%b" % (time_s, body), "sha256").hex()
    return {HEADER: f"t={time_s},v1={signature}"}
