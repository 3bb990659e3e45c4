"""Requests over HTTP to a real server, with tokens."""

from __future__ import annotations

import http.client
import json
from typing import Any

from tests.support.servers.schedule_process import ScheduleProcess

TOKENS = """
[token.deploy]
secret = "sk_deploy"
namespace = "deploy."
runners = "shell"
[token.admin]
secret = "sk_admin"
namespace = "*"
runners = "*"
"""


def ask(
    server: ScheduleProcess, method: str, path: str, body: Any = None, secret: str = ""
) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    headers = {"Authorization": f"Bearer {secret}"} if secret else {}
    data = body if isinstance(body, bytes) else None if body is None else json.dumps(body)
    if data is not None:
        headers["Content-Type"] = "application/json"
    try:
        connection.request(method, path, data, headers)
        response = connection.getresponse()
        text = response.read()
    finally:
        connection.close()
    if text and response.headers.get_content_type() == "application/json":
        return response.status, json.loads(text)
    return response.status, text.decode()
