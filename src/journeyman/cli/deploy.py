"""``journeyman deploy``: the files of packaging/, filled in for this machine or cluster.

    systemd      a unit that runs this very program
    compose      the server with Prometheus and Grafana: several files
    kubernetes   a Service and a StatefulSet
    helm         the same as a chart

The files are valid as they stand, with defaults where something can be chosen. Filling one in
replaces these defaults; a chart is made of the manifests by putting its values in their places.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from journeyman import __version__
from journeyman.errors import JourneymanError, UsageError

PROGRAM = "/opt/journeyman/bin/journeyman"
CONFIG = "/etc/journeyman/journeyman.toml"
IMAGE = f"journeyman:{__version__}"
HOST = '["journeyman"]'
STORAGE = "10Gi"
# ProtectHome= of the unit hides these directories.
_HIDDEN = ("/home/", "/root/", "/run/user/")
_BESIDE_COMPOSE = (
    "prometheus/prometheus.yml",
    "prometheus/journeyman.rules.yml",
    "grafana/journeyman.json",
    "grafana/provisioning/dashboards/journeyman.yaml",
    "grafana/provisioning/datasources/prometheus.yaml",
)
_BUILD = """    build:
      context: ../..
      dockerfile: packaging/container/Dockerfile
"""
_CHART = f"""apiVersion: v2
name: journeyman
description: Durable scheduler, work queue and fan-out queues
type: application
version: {__version__}
appVersion: "{__version__}"
"""


def _packaging() -> Path:
    """The folder of the files: inside the package if it was installed, else that of the clone."""
    installed = Path(__file__).parent / "packaging"
    return installed if installed.is_dir() else Path(__file__).parents[3] / "packaging"


def _read(name: str, replaced: Mapping[str, str]) -> str:
    text = (_packaging() / name).read_text()
    for default, value in replaced.items():
        if default not in text:
            raise AssertionError(f"{name} has no {default!r}")
        text = text.replace(default, value)
    return text


@click.group()
def deploy() -> None:
    """Print files for systemd, compose, Kubernetes or Helm, filled in."""


_into = click.option(
    "--into",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write the files there instead; existing files are not replaced.",
)
_image = click.option("--image", default=IMAGE, show_default=True, help="Image of the server.")
_host = click.option(
    "--host", "hosts", multiple=True, metavar="NAME",
    help="Name under which HTTP clients reach the server; may be repeated.",
)  # fmt: skip


@deploy.command()
@_into
@click.option("--program", metavar="PATH", help="The program to run. [default: this one]")
@click.option("--config", default=CONFIG, show_default=True, metavar="FILE", help="Settings.")
def systemd(into: Path | None, program: str | None, config: str) -> None:
    """A unit of systemd."""
    path = program or shutil.which(sys.argv[0]) or sys.argv[0]
    path = os.path.abspath(path)
    if path.startswith(_HIDDEN):
        raise UsageError(
            f"the unit could not run {path}: it sees no home directories; install Journeyman "
            "elsewhere, such as in /opt/journeyman, or name another --program"
        )
    _give({"journeyman.service": _read("systemd/journeyman.service",
                                       {PROGRAM: path, CONFIG: config})}, into)  # fmt: skip


@deploy.command()
@_into
@_image
@_host
def compose(into: Path | None, image: str, hosts: tuple[str, ...]) -> None:
    """A compose file: the server, Prometheus and Grafana."""
    replaced = {_BUILD: f"    image: {image}\n", HOST: _hosts(hosts), "../": "./"}
    files = {"compose.yaml": _read("compose/compose.yaml", replaced)}
    _give(files | {name: _read(name, {}) for name in _BESIDE_COMPOSE}, into)


@deploy.command()
@_into
@_image
@_host
@click.option("--storage", default=STORAGE, show_default=True, help="Size of the volume.")
def kubernetes(into: Path | None, image: str, hosts: tuple[str, ...], storage: str) -> None:
    """A Service and a StatefulSet."""
    replaced = {IMAGE: image, HOST: _hosts(hosts), STORAGE: storage}
    _give({"journeyman.yaml": _read("kubernetes/journeyman.yaml", replaced)}, into)


@deploy.command()
@_into
@_image
@_host
@click.option("--storage", default=STORAGE, show_default=True, help="Size of the volume.")
def helm(into: Path | None, image: str, hosts: tuple[str, ...], storage: str) -> None:
    """A chart with the same manifests."""
    replaced = {
        IMAGE: "{{ .Values.image }}",
        f"'{HOST}'": "'{{ .Values.allowedHosts | toJson }}'",
        STORAGE: "{{ .Values.storage }}",
        "secretName: journeyman-tokens": "secretName: {{ .Values.tokensSecret }}",
    }
    values = f"image: {image}\nstorage: {storage}\nallowedHosts: {_hosts(hosts)}\n"
    _give(
        {
            "Chart.yaml": _CHART,
            "values.yaml": f"{values}tokensSecret: journeyman-tokens\n",
            "templates/journeyman.yaml": _read("kubernetes/journeyman.yaml", replaced),
        },
        into,
    )


def _hosts(names: tuple[str, ...]) -> str:
    """Write names as a list, in the spelling that TOML and JSON share."""
    for name in names:
        if not name.replace("-", "").replace(".", "").isalnum():
            raise UsageError(f"not the name of a host: {name!r}")
    return "[" + ", ".join(f'"{name}"' for name in ("journeyman", *names)) + "]"


def _give(files: Mapping[str, str], into: Path | None) -> None:
    """Print one file as it is, several each below its name; or write them."""
    if into is None:
        for name, text in files.items():
            click.echo(f"# {name}\n{text}" if len(files) > 1 else text, nl=False)
        return
    for name in files:
        if (into / name).exists():
            raise JourneymanError(f"{into / name} exists; choose another directory")
    for name, text in files.items():
        (into / name).parent.mkdir(parents=True, exist_ok=True)
        (into / name).write_text(text)
        click.echo(str(into / name))
