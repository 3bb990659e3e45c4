"""Delta tables in a directory or at a URI, through the package ``deltalake``.

Credentials and endpoints come from the environment, under the names that pyarrow reads too
(``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL``, ``GOOGLE_APPLICATION_CREDENTIALS``, ...).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from journeyman.errors import JourneymanError, UsageError

_DECORATION: Final = re.compile(r"\x1b\[[0-9;]*m|\s*↳|\s+")


def import_deltalake() -> Any:
    """Raises UsageError if it is not installed."""
    try:
        import deltalake
    except ModuleNotFoundError as error:
        raise UsageError("a lake needs a package: pip install 'journeyman[spark]'") from error
    return deltalake


def storage_options() -> dict[str, str]:
    """Return what deltalake must be told besides what it finds in the environment.

    Commits of a lake rely on conditional puts. Plain http is meant where the endpoint says so.
    """
    options = {"aws_conditional_put": "etag"}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        allow_http = "true" if endpoint.startswith("http://") else "false"
        options |= {"aws_endpoint": endpoint, "aws_allow_http": allow_http}
    return options


def open_delta(path: str) -> Any | None:
    """The DeltaTable at a path or URI; None if there is none."""
    deltalake = import_deltalake()
    with errors_of_delta(path):
        try:
            return deltalake.DeltaTable(path, storage_options=storage_options())
        except deltalake.exceptions.TableNotFoundError:
            return None


@contextmanager
def errors_of_delta(path: str) -> Iterator[None]:
    """Errors of the package, which take several lines, as one of ours."""
    deltalake = import_deltalake()
    try:
        yield
    except deltalake.exceptions.CommitFailedError:
        raise
    except (deltalake.exceptions.DeltaError, OSError) as error:
        said = _DECORATION.sub(" ", str(error)).strip()
        raise JourneymanError(f"{path}: {said}") from error
