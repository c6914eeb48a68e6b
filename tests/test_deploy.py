"""What the service is deployed with: unit file, container, alerts and runbook are true, and tried where that can be."""

from __future__ import annotations

import configparser
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

import bansong as bs
from bansong.base.options import StatusOptions
from bansong.cli.app import app
from bansong.cli.serve import serve as serve_command
from bansong.reference.nts import NtsKey
from bansong.server.bodies import OVERHEAD
from bansong.server.job_files import _LARGE_SECONDS
from bansong.server.settings import Settings, load_plans
from bansong.testing import FakeNts, serve
from conftest import ROOT, SAMPLE
from hooks import receiving
from serving import HTTP, Account, Served, ServedProcess, make_key, served, wait_until

DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "bansong.service"
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")


def unit_section(name: str = "Service") -> configparser.SectionProxy:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.read(UNIT, encoding="utf-8")
    return unit[name]


def unit_options() -> str:
    return unit_section()["Environment"].strip('"').removeprefix("OPTIONS=")


def reference_files(folder: Path) -> dict[str, Path]:
    """A registry and a gazetteer, under the names that the unit file has."""
    source = folder / "source.csv"
    source.write_text("b_no,b_stt,asof\n1248100998,계속사업자,2026-11-10\n", encoding="utf-8")
    made = {name: folder / f"{name}.parquet" for name in ("registry", "gazetteer")}
    bs.build_registry([source], made["registry"])
    bs.build_gazetteer(SAMPLE.glob("*rnaddrkor_sample.txt"), made["gazetteer"])
    return made


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a server with everything answers to its monitor, after a request and a refusal."""
    folder = tmp_path_factory.mktemp("monitored")
    with serve(FakeNts("kEy", {"1248100998": "active"})) as url:
        status = StatusOptions(source="nts", key=NtsKey("kEy"), base_url=url, budget=100)
        with served(folder / "db.sqlite", status=status, metrics_port=0, **reference_files(folder)) as server:
            assert server.account().verify().status_code == 200
            HTTP.get(f"{server.url}/me", headers={"X-API-Key": "none"})
            wait_until(lambda: server.app.state.metrics.under_way == 0)
            return HTTP.get(f"http://127.0.0.1:{server.app.state.metrics_port}/metrics").text


# ------------------------------------------------------------------------------------------------------- unit file


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_understands_the_unit_and_finds_it_hardened(tmp_path: Path) -> None:
    """Every line is known to systemd; of its 0 (safe) to 10, the exposure is at most 1.5."""
    unit = tmp_path / UNIT.name  # with its drop-in, its program being one that is there
    unit.write_text(UNIT.read_text(encoding="utf-8").replace("/opt/bansong/bin/bansong", sys.executable), "utf-8")
    shutil.copytree(DEPLOY / "bansong.service.d", tmp_path / "bansong.service.d")
    for words in (["verify"], ["security", "--offline=true", "--threshold=15"]):
        done = subprocess.run(["systemd-analyze", *words, unit], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-200:]
        assert words != ["verify"] or done.stdout + done.stderr == ""


def test_a_unit_that_cannot_start_is_tried_again_for_ever() -> None:
    """A full disk, or a registry that is gone, keeps it from starting for longer than systemd tries by default."""
    assert unit_section("Unit")["StartLimitIntervalSec"] == "0"
    assert [unit_section()[name] for name in ("Restart", "RestartSec")] == ["on-failure", "10"]
    assert "every ten seconds" in RUNBOOK


@pytest.mark.skipif(os.name != "posix", reason="systemd is not there")
def test_what_the_unit_starts_serves_and_ends_in_good_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its check and its start, word for word (at free ports), in a folder as it makes it: SIGTERM ends it with 0."""
    reference_files(tmp_path)
    section, expanded = unit_section(), {"OPTIONS": unit_options(), "STATUS_OPTIONS": "--port 0 --metrics-port 0"}

    def command(name: str) -> list[str]:
        program, *words = section[name].split()
        assert program == "/opt/bansong/bin/bansong"
        values = [expanded[word.removeprefix("$")].split() if word.startswith("$") else [word] for word in words]
        return [sys.executable, "-m", "bansong", *(word for value in values for word in value)]

    monkeypatch.chdir(tmp_path)
    checked = CliRunner().invoke(app, command("ExecStartPre")[3:])
    assert checked.exit_code == 0, checked.output
    process = ServedProcess(tmp_path / "service.sqlite", command=command("ExecStart"), folder=tmp_path)
    url = process.start()
    assert HTTP.get(f"{url}/healthz").json() == {"status": "ok"}
    assert process.stop() == 0, process.state()


# ----------------------------------------------------------------------------------------------------------- proxy


def proxy_settings() -> dict[str, str]:
    """The directives of the proxy file by name, those that are repeated by name and first word."""
    text = re.sub(r"^\s*#.*$", "", (DEPLOY / "nginx.conf").read_text(encoding="utf-8"), flags=re.M)
    words = [shlex.split(line) for line in re.findall(r"^\s*([a-z_]+ .*);$", text, flags=re.M)]
    repeated = {"proxy_set_header", "ssl_protocols"}
    return {" ".join(line[:2]) if line[0] in repeated else line[0]: " ".join(line[1:]) for line in words}


def seconds(setting: str) -> float:
    return float(setting.removesuffix("s"))


def test_the_proxy_agrees_with_the_service(tmp_path: Path) -> None:
    """Bodies, waits and the place of the service; whose request it is; and a refusal that is not the quota's end."""
    found, settings = proxy_settings(), Settings(db=tmp_path)
    largest = max(plan.upload_bytes for plan in load_plans().values())
    assert largest + OVERHEAD <= int(found["client_max_body_size"].removesuffix("m")) << 20
    assert seconds(found["client_body_timeout"]) == settings.stall_seconds
    assert seconds(found["proxy_read_timeout"]) > _LARGE_SECONDS
    assert found["proxy_request_buffering"] == "off"
    defaults = {option.name: option.default for option in serve_command.params}
    assert found["proxy_pass"] == f"http://{defaults['host']}:{defaults['port']}"
    assert f"--trusted-proxy {defaults['host']}" in unit_options()
    assert found["proxy_set_header X-Forwarded-For"] == "X-Forwarded-For $remote_addr"
    assert found["proxy_set_header X-Request-Id"] == "X-Request-Id $request_id"
    assert found["limit_conn_status"] == found["limit_req_status"] == found["error_page"].split()[0] == "429"
    status, _, body = found["return"].partition(" ")
    assert (status, json.loads(body)["error"]["code"]) == ("429", "limit_exceeded")
    assert found["add_header"] == "Retry-After 1 always"


def test_the_page_of_the_service_says_the_bounds_of_the_proxy() -> None:
    found, page = proxy_settings(), " ".join((ROOT / "docs" / "service.md").read_text(encoding="utf-8").split())
    connections = found["limit_conn"].split()[1]
    (rate,) = re.findall(r"rate=(\d+)r/s", found["limit_req_zone"])
    assert f"{connections} connections at once and {rate} requests a second" in page
    head, body = (f"{seconds(found[name]):g}" for name in ("client_header_timeout", "client_body_timeout"))
    assert f"a head must arrive within {head} seconds, and a body must not pause for {body}" in page


# ------------------------------------------------------------------------------------------------------- container


def container_words(pattern: str) -> list[str]:
    """The words of an instruction of the Containerfile, which ``pattern`` finds."""
    (found,) = re.findall(rf"{pattern} (\[.*\])$", (DEPLOY / "Containerfile").read_text(encoding="utf-8"), flags=re.M)
    return list(json.loads(found))


def test_the_container_is_given_options_that_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["0" if word == "9464" else word for word in container_words("^CMD")]
    done = CliRunner().invoke(app, [*words, "--port", "0", "--check"])
    assert done.exit_code == 0, done.output
    assert container_words("^ENTRYPOINT") == ["bansong"]


def test_the_containers_health_check_tells_a_server_from_none(tmp_path: Path) -> None:
    program, option, script = container_words("^ +CMD")
    assert (program, option) == ("python3", "-c")
    with served(tmp_path / "db.sqlite") as server:
        command = [sys.executable, option, script.replace("http://127.0.0.1:8080", server.url)]
        assert subprocess.run(command).returncode == 0
    assert subprocess.run(command, capture_output=True).returncode == 1


@pytest.mark.process
def test_the_container_is_built_and_serves(tmp_path: Path) -> None:
    """It answers as an unprivileged user; CONTAINER_TOOL, _BASE and _BUILD say how, where no registry is reached."""
    names = (name for name in ("podman", "docker") if shutil.which(name))
    tool = shlex.split(os.environ.get("CONTAINER_TOOL", "")) or list(names)[:1]
    base = os.environ.get("CONTAINER_BASE") or "docker.io/library/python:3.12-slim"
    if not tool or ("CONTAINER_BASE" not in os.environ and subprocess.run([*tool, "pull", base]).returncode):
        pytest.skip("there is neither podman nor docker, or it cannot get the image")
    build = [*tool, "build", *shlex.split(os.environ.get("CONTAINER_BUILD", "")), "--build-arg", f"BASE={base}"]
    command = [*build, "-f", "deploy/Containerfile", "-t", "bansong-test", "."]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-2000:]
    run = [*tool, "run", "--rm", "--network=host", "--read-only", "--tmpfs", "/tmp"]
    enrich_and_serve([*run, "bansong-test"], [*run, "--entrypoint", "sh", "bansong-test"], tmp_path)


def enrich_and_serve(program: list[str], shell: list[str], folder: Path) -> None:
    """The image's command on its own sample, and its service."""
    job = "cd $(mktemp -d) && bansong sample && bansong enrich sample_data/customers.csv && rm -r sample_data"
    done = subprocess.run([*shell, "-c", job], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "300" in done.stderr
    words = [*container_words("^CMD"), "--port", "0", "--metrics-port", "0"]
    process = ServedProcess(folder / "unused", command=[*program, *words], folder=folder)
    url = process.start().replace("0.0.0.0", "127.0.0.1")
    assert HTTP.get(f"{url}/healthz").json() == {"status": "ok"}
    assert process.stop() == 0, process.state()


def container_steps() -> list[tuple[str, str]]:
    text = re.sub(r"^\s*#.*\n", "", (DEPLOY / "Containerfile").read_text(encoding="utf-8"), flags=re.M)
    lines = text.replace("\\\n", " ").splitlines()
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines if line]


class Steps:
    """Takes a Containerfile's instructions without a builder: below ``root``, which stands for the image's root."""

    def __init__(self, place: Path) -> None:
        self.root, self.first, self.folder, self.env = place / "root", place / "first", place, dict(os.environ)
        self.env |= {"PYTHONPATH": "", "PIP_NO_COMPILE": "1"}

    def inside(self, words: str) -> str:
        return re.sub(r"(?<![\w./])/(?=(opt|data|source)\b)", f"{self.root}/", words)

    def do_from(self, _: str) -> None:
        if self.root.exists():  # a stage begins with nothing of the one before
            self.root.rename(self.first)
        self.root.mkdir()

    def do_copy(self, words: str) -> None:
        origin = self.first if words.startswith("--from=build ") else ROOT
        *sources, target = words.removeprefix("--from=build ").split()
        place = Path(self.inside(target))
        for source in (origin / one.lstrip("/") for one in sources):
            if source.is_dir():
                shutil.copytree(source, place, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                assert target.endswith("/")
                place.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, place)

    def do_run(self, words: str) -> None:
        words = words if os.geteuid() == 0 else re.sub(r" -[og] \d+", "", words)
        done = subprocess.run(["sh", "-euc", self.inside(words)], env=self.env, capture_output=True, text=True)
        if "No matching distribution" in done.stderr:
            pytest.skip("no package index is reached")
        assert done.returncode == 0, (words, done.stderr[-2000:])

    def do_env(self, words: str) -> None:
        for pair in shlex.split(self.inside(words)):
            name, _, value = pair.partition("=")
            self.env[name] = value.replace("$PATH", self.env["PATH"])

    def do_user(self, words: str) -> None:
        assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", words)

    def do_workdir(self, words: str) -> None:
        self.folder = Path(self.inside(words))


@pytest.mark.process
@pytest.mark.skipif(os.name != "posix", reason="an image is POSIX's")
def test_the_steps_of_the_container_are_taken_without_a_builder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(tmp_path)
    for instruction, words in container_steps():
        if instruction not in {"ARG", "VOLUME", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"}:
            getattr(steps, f"do_{instruction.lower()}")(words)
    for name, value in steps.env.items():
        monkeypatch.setenv(name, value)
    (name,) = container_words("^ENTRYPOINT")
    assert shutil.which(name) == str(steps.root / "opt/bansong/bin/bansong")
    enrich_and_serve([name], ["sh"], steps.folder)
    assert (steps.root / "data" / "service.sqlite").exists()


# --------------------------------------------------------------------------------------------------- every night


def test_the_compose_file_agrees_with_the_image_and_the_command(tmp_path: Path) -> None:
    nightly = yaml.safe_load((DEPLOY / "cron" / "compose.yaml").read_text(encoding="utf-8"))["services"]["nightly"]
    image = dict(container_steps())
    assert nightly["user"] == image["USER"]
    assert (nightly["read_only"], nightly["cap_drop"]) == (True, ["ALL"])
    assert f"state:{image['VOLUME']}" in nightly["volumes"]
    assert (DEPLOY / "cron" / nightly["build"]["context"]).resolve() == ROOT
    shell, script, at, *words = nightly["entrypoint"]
    assert (shell, f".{script}:{script}:ro" in nightly["volumes"]) == ("/bin/sh", True)
    assert re.fullmatch(r"\d\d:\d\d", at)
    done = CliRunner().invoke(app, ["run", *words])  # its options exist; its job file is not here
    assert (done.exit_code, "/lists/customers.toml" in done.output) == (2, True), done.output


NEEDS_GNU_DATE = pytest.mark.skipif(sys.platform != "linux", reason="`date -d` is GNU's")


@contextlib.contextmanager
def nightly(folder: Path, program: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """The script with a job that is due in two seconds; ``program`` stands for `bansong`."""
    (folder / "bin").mkdir()
    (folder / "bin" / "bansong").write_text(f"#!/bin/sh\n{program}\n", "utf-8")
    (folder / "bin" / "bansong").chmod(0o700)
    noon = "AAA0" if 6 <= time.gmtime().tm_hour < 18 else "BBB-12"  # a zone in which midnight is far
    paths = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "SECRETS": str(folder / "secrets")}
    env = os.environ | paths | {"TZ": noon}
    command = ["sh", DEPLOY / "cron" / "nightly", date("+2 seconds", "+%T", env), folder / "job.toml", "--log-json"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process, env
        finally:
            process.terminate()  # with its sleep


@NEEDS_GNU_DATE
def test_the_nightly_script_runs_the_job_and_tells_how_it_ended(tmp_path: Path) -> None:
    """As cron would, at its time and not before, and then again the next day; secrets are files."""
    (tmp_path / "secrets").mkdir()
    customers = "사업자번호,상호,주소\n124-81-00998,삼성전자,경기 수원시 영통구 삼성로 129\n"
    (tmp_path / "in.csv").write_text(customers, "utf-8")
    notify = "[notify]\nwhen = 'always'\nwebhook_env = 'HOOK_URL'\n"
    (tmp_path / "job.toml").write_text(f"[[inputs]]\npath = 'in.csv'\n[output]\npath = 'out.csv'\n{notify}", "utf-8")
    with receiving() as receiver:
        (tmp_path / "secrets" / "HOOK_URL").write_text(f"{receiver.url}\n", "utf-8")
        with nightly(tmp_path, f'exec {shlex.quote(sys.executable)} -m bansong "$@"') as (process, env):
            assert process.stdout is not None
            lines = [process.stdout.readline()]
            assert not (tmp_path / "out.csv").exists()
            while not lines[-1].startswith("nightly: bansong run"):
                assert lines[-1], lines
                lines.append(process.stdout.readline())
            assert lines[-1] == f"nightly: bansong run {tmp_path / 'job.toml'} ended with exit code 0\n", lines
            assert process.stdout.readline() == lines[0].replace(lines[0].split()[-2], date("tomorrow", "+%F", env))
            process.terminate()
            assert process.wait(timeout=60) == 128 + signal.SIGTERM
    assert len(receiver.received) == 1
    assert [json.loads(line)["exit_code"] for line in lines if line.startswith("{")] == [0, 0]
    assert (tmp_path / "out.csv").read_text("utf-8-sig").startswith("사업자번호,상호,주소,biz_status")


@NEEDS_GNU_DATE
def test_the_nightly_script_lets_a_run_end_in_good_order(tmp_path: Path) -> None:
    program = "trap 'echo in good order; exit 130' TERM; echo began; while :; do sleep 0.05; done"
    with nightly(tmp_path, program) as (process, _):
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)][1] == "began\n"
        process.terminate()
        said = process.stdout.read().splitlines()
        assert said == ["in good order", "nightly: asked to stop; exit code 130"]
        assert process.wait(timeout=60) == 128 + signal.SIGTERM


def date(when: str, form: str, env: dict[str, str]) -> str:
    return subprocess.check_output(["date", "-d", when, form], env=env, text=True).strip()


# ---------------------------------------------------------------------------------------------------------- alerts


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DEPLOY / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool")
def test_prometheus_understands_the_alerts_and_the_metrics(scraped: str) -> None:
    rules = subprocess.run(["promtool", "check", "rules", DEPLOY / "alerts.yml"], capture_output=True, text=True)
    assert rules.returncode == 0, rules.stdout + rules.stderr
    metrics = subprocess.run(["promtool", "check", "metrics"], input=scraped, capture_output=True, text=True)
    ours = [line for line in (metrics.stdout + metrics.stderr).splitlines() if line.startswith("bansong_")]
    assert ours == []


def test_each_alert_asks_for_metrics_that_a_server_has(scraped: str) -> None:
    """By name, and with labels that it has: one that is spelled otherwise never alarms."""
    series = re.findall(r"^(\w+)(?:\{(.*)\})? \S+$", scraped, flags=re.M)
    names = {name for name, _ in series}
    for rule in alerts():
        asked = re.findall(r"\b((?:bansong|process)_\w+)(?:\{([^}]*)\})?", rule["expr"])
        assert asked or rule["expr"].startswith("up{"), rule
        assert {name for name, _ in asked} <= names, rule["alert"]
        for name, labels in asked:
            for label in re.findall(r'\w+="[^"]*"', labels.replace('job="bansong"', "")):
                assert any(label in given for known, given in series if known == name), (rule["alert"], label)


def test_each_alert_has_its_section_in_the_runbook_and_the_other_way_round() -> None:
    sections = dict(re.findall(r"^### (Bansong\w+)\n\n\*(Page|Ticket)\.\*", RUNBOOK, flags=re.M))
    assert sections == {rule["alert"]: rule["labels"]["severity"].capitalize() for rule in alerts()}


# --------------------------------------------------------------------------------------------------------- runbook

SYSTEMCTL = """#!/bin/bash
# stands for systemd: one process of `bansong serve`, its log in a file
gone() { [ ! -e /proc/$1 ] || grep -q ') Z' /proc/$1/stat; }
case $1 in
is-active) kill -0 "$(cat pid)" && echo active ;;
start)
    setsid bansong serve $OPTIONS >> log 2>&1 < /dev/null & echo $! > pid ;;
stop) kill -TERM "$(cat pid)"; until gone "$(cat pid)"; do sleep 0.05; done ;;
restart) "$0" stop "$2" && "$0" start "$2" ;;
esac
"""
JOURNALCTL = "#!/bin/bash\ncat log\n"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def runbook_blocks() -> list[tuple[str, str]]:
    """The commands of the page, block by block, each with the title of its section."""
    sections = [section.partition("\n") for section in re.split(r"^#+ ", RUNBOOK, flags=re.M)]
    return [(title, block) for title, _, text in sections for block in re.findall(r"```bash\n(.*?)```", text, re.S)]


class Machine:
    """A folder in which the commands of the runbook are given, in the place of a machine with systemd."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs = folder.parent / "programs"
        self.programs.mkdir()
        bansong = f'#!/bin/bash\nexec {sys.executable} -m bansong "$@"\n'
        for name, text in (("systemctl", SYSTEMCTL), ("journalctl", JOURNALCTL), ("bansong", bansong)):
            (self.programs / name).write_text(text, encoding="utf-8")
            (self.programs / name).chmod(0o755)
        self.port, self.metrics_port = free_port(), free_port()
        (_, settings), *commands = runbook_blocks()
        self._settings = self._here(settings)
        self.blocks = [(section, self._here(block)) for section, block in commands]

    def _here(self, block: str) -> str:
        """A block of the page with the places and ports of this test."""
        here = {
            "/var/lib/bansong": self.folder,
            "/opt/bansong/bin": self.programs,
            "/srv/newer": self.folder.parent,
            "--metrics-port 9464": f"--metrics-port {self.metrics_port} --port {self.port}",
            ":9464": f":{self.metrics_port}",
            ":8080": f":{self.port}",
        }
        for written, value in here.items():
            block = block.replace(written, str(value))
        return block

    def give(self, commands: str) -> str:
        """Give commands; return what they print on stdout, each failing one fails the test."""
        script = f"set -eu; export OPTIONS U\n{self._settings}\n{commands}"
        done = subprocess.run(["bash", "-c", script], cwd=self.folder, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{commands}\n{done.stdout}{done.stderr}"
        return done.stdout

    def kill(self) -> None:
        os.kill(int((self.folder / "pid").read_text()), signal.SIGKILL)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    folder = tmp_path / "bansong"
    folder.mkdir(mode=0o700)
    for file in reference_files(folder).values():
        shutil.copy(file, tmp_path)
    made = Machine(folder)
    made.give("systemctl start bansong; curl -fsS --retry 60 --retry-delay 1 --retry-connrefused $U/healthz")
    yield made
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        made.kill()


@pytest.mark.process
@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="there is no sqlite3")
def test_the_commands_of_the_runbook_do_what_it_says(machine: Machine) -> None:
    """All of them, in their order, with a job that is there before the backup and after the restore."""
    make_key(machine.folder / "service.sqlite")  # whose secret is lost
    secret = make_key(machine.folder / "service.sqlite")
    server = Served(f"http://127.0.0.1:{machine.port}", machine.folder / "service.sqlite", None)
    key = Account(server, secret)
    job = key.job("b_no\n1248100998\n")["job_id"]
    said = []
    for section, block in machine.blocks:
        if section.startswith("After a kill"):
            machine.kill()
        said.append(machine.give(block))
    text = "\n".join(said)
    assert 'active\n{"status":"ok"}' in text
    assert 'bansong_readable{part="database"} 1.0' in text
    assert "\nok\n" in text  # the backup is whole
    assert 'bansong_reference_file_refused{file="registry"} 0.0' in text
    assert key.get(f"/batch/{job}")["results"][0]["b_no"] == "1248100998"
    [broken] = machine.folder.glob("broken-*")
    assert (broken / "service.sqlite").exists()
    helping = "".join((machine.folder / name).read_text() for name in ("check.txt", "metrics.txt", "log.txt"))
    assert [word for word in (secret, "1248100998") if word in helping] == []


def test_the_runbook_has_the_options_of_the_unit() -> None:
    assert f'OPTIONS="{unit_options()}"' in RUNBOOK
