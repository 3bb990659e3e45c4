"""``journeyman mcp``: a server of the Model Context Protocol. See docs/integrations.md."""

from __future__ import annotations

import os

import click

from journeyman.errors import UsageError

_DEFAULT_URL = "http://127.0.0.1:5679"


@click.command()
@click.option("--url", envvar="JOURNEYMAN_HTTP_URL", default=_DEFAULT_URL, show_default=True,
              help="The HTTP API of the server.")  # fmt: skip
@click.option("--token-env", default="JOURNEYMAN_TOKEN", show_default=True, metavar="NAME",
              help="The environment variable with the secret of a token, for stdio.")  # fmt: skip
@click.option("--http", "port", type=click.IntRange(1, 65_535), metavar="PORT",
              help="Serve HTTP on this port of the loopback; requests bring tokens.")  # fmt: skip
@click.option("--lake", metavar="DIR|URI",
              help="Also offer SQL on this lake, for tokens of all namespaces.")  # fmt: skip
@click.option("--allow-actions", is_flag=True,
              help="Also offer tools that change jobs, queues and events.")  # fmt: skip
def mcp(url: str, token_env: str, port: int | None, lake: str | None, allow_actions: bool) -> int:
    """Serve tools for agents: status, search, failures, the past, SQL on the lake.

    A token of the server decides what a tool may see and do: over stdio that of --token-env, over
    HTTP the one that each request has in its header Authorization. Tools that change something are
    offered only with --allow-actions, need a token that may write, and show a preview first.
    """
    try:
        from journeyman.cli.agent_tools import Api, make_server
    except ModuleNotFoundError as error:
        if error.name != "mcp":
            raise
        raise UsageError("agents need the package mcp: pip install 'journeyman[mcp]'") from None
    # Over HTTP anyone on this machine may call, so nobody acts with a token of this process.
    api = Api(url, os.environ.get(token_env) if port is None else None)
    server = make_server(api, allows_actions=allow_actions, lake=lake)
    if port is None:
        server.run("stdio")
    else:
        server.run("streamable-http", host="127.0.0.1", port=port)
    return 0
