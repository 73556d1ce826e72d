"""The wheel, used as a stranger would: in an environment of its own, away from the source."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "hpgmn"


@dataclass(frozen=True)
class Installed:
    """A wheel and a fresh environment that holds it."""

    wheel: Path
    python: Path
    site_packages: Path

    def run(self, *arguments, cwd):
        """Run the environment's Python without anything of ours in its machine_environment."""
        ours = ("PYTHONPATH", "PYTHONHOME", "HPGMN_DATA", "VIRTUAL_ENV")
        return checked(
            [self.python, *arguments], cwd, {k: os.environ[k] for k in os.environ if k not in ours}
        )


def checked(command, cwd, env=None):
    done = subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The wheel built from this tree, installed beside the third-party packages of this Python.

    Those are reached through one ``.pth`` line. Python does not read the ``.pth`` files of a folder
    added that way, so an editable install of this tree stays out of reach.
    """
    folder = tmp_path_factory.mktemp("packaging")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir"]
    checked([*build, folder / "dist", ROOT], folder)
    (wheel,) = (folder / "dist").glob("hpgmn-*.whl")

    checked([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], folder)
    python = folder / "venv" / "bin" / "python"
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site_packages = Path(checked([python, "-I", "-c", asked], folder).stdout.strip())
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    checked([*install, "--target", site_packages, wheel], folder)
    third_party = sorted({sysconfig.get_path(kind) for kind in ("purelib", "platlib")})
    (site_packages / "third_party.pth").write_text("\n".join(third_party) + "\n")
    return Installed(wheel, python, site_packages)


def test_wheel_holds_every_file_of_the_package(installed):
    present = {
        f"hpgmn/{path.relative_to(SOURCE)}"
        for path in SOURCE.rglob("*")
        if path.is_file() and path.suffix in {".py", ".yaml", ".typed", ".js", ".css", ".j2"}
    }
    shipped = {name for name in present if re.fullmatch(r"hpgmn/models/shipped/[^/]+\.yaml", name)}
    assert shipped, "no shipped settings"
    assert "hpgmn/py.typed" in present
    missing = present - set(zipfile.ZipFile(installed.wheel).namelist())
    assert not missing


def test_package_is_imported_from_the_wheel(installed, tmp_path):
    code = "import hpgmn; print(hpgmn.__file__, hpgmn.__version__)"
    file, version = installed.run("-c", code, cwd=tmp_path).stdout.split()
    assert Path(file) == installed.site_packages / "hpgmn" / "__init__.py"
    assert installed.wheel.name.startswith(f"hpgmn-{version}-")


def test_help_names_the_commands(installed, tmp_path):
    text = installed.run("-m", "hpgmn", "--help", cwd=tmp_path).stdout
    for command in ("demo", "train", "predict"):
        assert command in text


@pytest.mark.slow
def test_demo_runs_from_the_wheel(installed, tmp_path):
    run = tmp_path / "run"
    text = installed.run("-m", "hpgmn", "demo", "--out", run, cwd=tmp_path).stdout
    rows = [line for line in text.splitlines() if re.search(r"hp-?gmn\b.*\d\.\d", line, re.I)]
    assert rows, f"no row of a table names the model and a score:\n{text}"
    metrics = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    assert 0 < metrics["test_score_mean"] <= 1
    assert (run / "report.html").stat().st_size > 0
