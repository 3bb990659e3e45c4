"""A client made out of the API's own document does everything that the API can do."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from tests.support.api_round_trip import STREAMS, go_round
from tests.support.servers.schedule_process import ALL_SERVICES, ScheduleProcess


class DocumentClient:
    """Calls operations by their ids, with nothing but what the document says about them."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.called: set[str] = set()
        self.document = self._read("GET", "/v1/openapi.json")[1]
        self.operations = {
            operation["operationId"]: (method.upper(), path, operation)
            for path, methods in self.document["paths"].items()
            for method, operation in methods.items()
            if "operationId" in operation
        }

    def call(self, operation: str, body: Any = None, /, **parameters: Any) -> Any:
        method, path, said = self.operations[operation]
        places = {each["name"]: each["in"] for each in said.get("parameters", ())}
        assert parameters.keys() <= places.keys(), operation
        for name in [name for name in parameters if places[name] == "path"]:
            path = path.replace(f"{{{name}}}", quote(str(parameters.pop(name)), safe=""))
        asked = f"{path}?{urlencode(parameters)}" if parameters else path
        assert body is None or "requestBody" in said, operation
        status, answer = self._read(method, asked, body)
        assert status < 300, (operation, status, answer)
        schema = said["responses"][str(status)].get("content", {}).get("application/json", {})
        self._check(operation, answer, schema.get("schema"))
        self.called.add(operation)
        return answer

    def _check(self, operation: str, answer: Any, schema: dict[str, Any] | None) -> None:
        """An answer has what the document says, and an object nothing else."""
        if schema is None:
            assert answer is None, operation
            return
        found = self.document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        assert set(found.get("required", ())) <= answer.keys(), operation
        assert answer.keys() <= found["properties"].keys(), operation

    def _read(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._address}{path}", data, method=method)
        if data is not None:
            request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                text = response.read()
                return response.status, json.loads(text) if text else None
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read()


def test_every_operation_succeeds_through_a_client_made_of_the_document(tmp_path: Path):
    more = {"series.enabled": "true", "storage.engine": "sqlite", "storage.path": tmp_path / "db"}
    with ScheduleProcess(tmp_path, settings=ALL_SERVICES | more) as server:
        client = DocumentClient(f"http://127.0.0.1:{server.http_port}")
        go_round(client)
    assert client.operations.keys() - STREAMS == client.called
