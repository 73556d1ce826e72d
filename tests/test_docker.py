"""Dockerfile and compose.yaml: linted, parsed, and their commands run without Docker."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

import hpgmn

ROOT = Path(__file__).parents[1]
DOCKERFILE = ROOT / "Dockerfile"


def instructions(text):
    """The instructions of a Dockerfile in order: (name, arguments)."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [
        (line.split()[0], line.partition(" ")[2].strip()) for line in joined.splitlines() if line
    ]


def test_hadolint_has_no_findings():
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run(
        [hadolint, DOCKERFILE], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_runs_as_a_user_and_serves_the_exposed_port():
    found = dict(instructions(DOCKERFILE.read_text()))
    assert found["USER"] not in ("root", "0")
    command = json.loads(found["CMD"])
    assert command[command.index("--port") + 1] == found["EXPOSE"]
    assert command[2] == found["VOLUME"]
    assert f":{found['EXPOSE']}/health" in found["HEALTHCHECK"]


def test_what_is_copied_is_not_ignored():
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for name, arguments in instructions(DOCKERFILE.read_text()):
        for path in arguments.split()[:-1] if name == "COPY" else ():
            assert (ROOT / path).exists()
            assert f"!{path}" in ignored


def test_compose_is_restricted_and_requires_a_token():
    [service] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"].values()
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["environment"]["HPGMN_TOKEN"].startswith("${HPGMN_TOKEN:?")
    assert service["ports"] == ["127.0.0.1:8000:8000"]
    assert service["volumes"][0].endswith(":/model")


@pytest.fixture
def small_run(small_graph, tmp_path):
    settings = {"epochs": 3, "estimator_epochs": 3, "statistics": ("attributes", "class_counts")}
    options = {"settings": settings, "splits": [0], "report": False}
    return hpgmn.train(small_graph, model="hpgmn", out=tmp_path / "run", **options).folder


@pytest.mark.slow
def test_the_commands_of_the_image_install_and_serve(tmp_path, small_run):
    """The pip commands and CMD, in a fresh virtual environment; no commands of the system."""
    import httpx

    app, venv = tmp_path / "app", tmp_path / "venv"
    app.mkdir()
    subprocess.run([sys.executable, "-m", "venv", venv], check=True, timeout=120)
    plain = {name: os.environ[name] for name in os.environ if not name.startswith("PYTHON")}
    env = plain | {"PATH": f"{venv / 'bin'}:{os.environ['PATH']}", "TORCH_INDEX": ""}
    ran = 0
    for name, arguments in instructions(DOCKERFILE.read_text()):
        if name == "COPY":
            for source in arguments.split()[:-1]:
                copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
                copy(ROOT / source, app / source)
        if name == "RUN" and "pip install" in arguments:
            subprocess.run(["sh", "-ec", arguments], cwd=app, env=env, check=True, timeout=900)
            ran += 1
    assert ran == 1
    found = dict(instructions(DOCKERFILE.read_text()))
    command = json.loads(found["CMD"])
    command[command.index("/model")] = str(small_run)
    command[command.index("--port") + 1] = "0"
    command[command.index("--host") + 1] = "127.0.0.1"
    command[0] = str(venv / "bin" / command[0])
    log = tmp_path / "log"
    with (
        log.open("w") as err,
        subprocess.Popen(command, cwd=tmp_path, env=env | {"HPGMN_TOKEN": "t"}, stderr=err) as one,
    ):
        try:
            deadline = time.monotonic() + 60
            while not (address := re.search(r"at (http://\S+)", log.read_text())):
                assert one.poll() is None, log.read_text()
                assert time.monotonic() < deadline
                time.sleep(0.1)
            ready = httpx.get(f"{address[1]}/ready", headers={"Authorization": "Bearer t"})
            assert ready.status_code == 200
            health = json.loads(found["HEALTHCHECK"].partition("CMD ")[2])
            port = address[1].rpartition(":")[2]
            words = [word.replace(":8000", f":{port}") for word in health]
            words[0] = str(venv / "bin" / words[0])
            subprocess.run(words, env=env, check=True, timeout=30)
        finally:
            one.terminate()
        assert one.wait(60) == 0, log.read_text()
