"""Every notebook runs without an error and shows pictures; so do its stored outputs.

``python tests/examples/test_notebooks.py`` runs all of them and stores what they show.
"""

import os
import re
import shutil
import tempfile
from pathlib import Path

import pytest

import hpgmn

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
SECONDS = 120  # of one cell, on a busy machine
LARGEST = 200_000
MACHINE_PATH = re.compile(r"/(?:home|root|tmp|work|usr|opt|Users|var)/")


def execute(path, folder):
    """Run a notebook in an empty folder, with this package and the other examples' modules."""
    import nbformat
    from nbclient import NotebookClient

    shutil.copy(EXAMPLES / "own_model.py", folder)
    notebook = nbformat.read(path, as_version=4)
    source = f"{Path(hpgmn.__file__).parents[1]}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    NotebookClient(
        notebook,
        timeout=SECONDS,
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    ).execute(
        # PyTorch Geometric's progress bars warn where no widgets are installed.
        env=os.environ | {"PYTHONPATH": source, "PYTHONWARNINGS": "ignore:IProgress not found"}
    )
    return notebook


def outputs_of(notebook):
    return [
        output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs
    ]


def assert_good(notebook):
    """No error and no machine's path, and a picture in what is shown."""
    outputs = outputs_of(notebook)
    assert outputs
    assert not [output for output in outputs if output.output_type == "error"]
    assert not [o for o in outputs if o.output_type == "stream" and o.name == "stderr"]
    assert not MACHINE_PATH.search(str(outputs))
    shown = [output.data for output in outputs if "data" in output]
    assert any("image/png" in data or "<svg" in data.get("text/html", "") for data in shown)


def test_there_are_three():
    assert [path.stem for path in NOTEBOOKS] == ["compare", "first_steps", "own_tables"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_outputs_are_small_and_whole(path):
    nbformat = pytest.importorskip("nbformat")
    assert path.stat().st_size < LARGEST
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert_good(notebook)
    codes = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in codes] == list(range(1, len(codes) + 1))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the notebook tools
@pytest.mark.filterwarnings("ignore::RuntimeWarning:zmq")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_is_stored(path, tmp_path):
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("nbclient")
    notebook = execute(path, tmp_path)
    assert_good(notebook)
    stored = nbformat.read(path, as_version=4)
    now, before = ([kinds(o) for o in outputs_of(one)] for one in (notebook, stored))
    assert now == before  # the same tables and pictures; numbers depend on the machine
    assert str(tmp_path) not in str(notebook)


def kinds(output):
    """What an output shows, without its values."""
    if "data" not in output:
        return output.output_type
    captions = re.findall("<caption>(.*?)</caption>", output.data.get("text/html", ""))
    pictures = output.data.get("text/html", "").count("<svg")
    plain = [re.sub(r"(?s)[\d:].*", "", caption) for caption in captions]
    return sorted(output.data), plain, pictures


if __name__ == "__main__":
    import nbformat

    for notebook_path in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as name:
            nbformat.write(execute(notebook_path, Path(name)), notebook_path)
