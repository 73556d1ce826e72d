"""The shape of the source: imports follow the layers, files are short, each has its test."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "hpgmn"
TESTS = Path(__file__).parent

# Left to right, one layer per line: a module imports from its own layer and from those before it.
LAYERS = (
    ("base",),
    ("engines", "graph", "tables"),
    ("statistics",),
    ("shards",),
    ("transforms",),
    ("models",),
    ("training",),
    ("nn",),
    ("evaluation", "explain", "auditing"),
    ("report", "runs"),
    ("classifier",),
    ("__init__",),
    ("cli",),
    ("__main__",),
)
PLACE = {name: step for step, group in enumerate(LAYERS) for name in group}

# (importing module, imported module): why this one may point right. Keep it short.
POINTS_RIGHT: dict[tuple[str, str], str] = {}

# What the modules on the training path may import when they are loaded.
AT_HAND = set(sys.stdlib_module_names) | {
    *("numpy", "scipy", "torch", "safetensors", "yaml", "typer", "rich", "pyarrow", "matplotlib"),
    *("typing_extensions", "hpgmn", "filelock", "jinja2"),
}
# Modules off the training path, which may import more: module → what for.
OFF_THE_PATH = {
    "transforms": "the statistics as transforms of PyTorch Geometric",
    "base.kernels": "Triton, imported where it is installed",
}

LONGEST = 500
NO_MIRROR = {"__init__.py", "__main__.py"}
UNPICKLERS = {
    *("pickle", "_pickle", "cloudpickle", "dill", "joblib", "jsonpickle", "marshal", "shelve"),
}
UNSAFE_CALLS = {
    *("torch.load", "torch.save", "torch.hub.load", "torch.package.PackageImporter"),
    *("yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load"),
    *("pd.read_pickle", "pandas.read_pickle", "pd.read_hdf", "pandas.read_hdf"),
    *("networkx.read_gpickle", "nx.read_gpickle", "CmaEsSampler", "optuna.samplers.CmaEsSampler"),
    *("eval", "exec", "os.system", "os.popen"),
}
BOUNDED_CALLS = {
    *("json.load", "json.loads", "yaml.safe_load", "sp.load_npz", "scipy.sparse.load_npz"),
    *("np.load", "numpy.load", "np.fromfile", "np.memmap", "zipfile.ZipFile.extractall"),
    *("np.lib.format.read_array", "np.lib.format.open_memmap", "tarfile.open", "zipfile.ZipFile"),
}
"""What reads files without a limit; ``hpgmn.base.parsing`` sets them."""
MAY_CALL = {
    "base.parsing": BOUNDED_CALLS,
    "shards.files": {"zipfile.ZipFile"},  # writes one
    "statistics.cache": {"np.memmap"},  # fills one
}


def module_name(path: Path, root: Path = SOURCE) -> str:
    """The dotted name below the package: ``models.memory``, ``models`` for its ``__init__``."""
    parts = list(path.relative_to(root).with_suffix("").parts)
    if parts[-1] == "__init__" and len(parts) > 1:
        parts.pop()
    return ".".join(parts)


def sources(root: Path = SOURCE) -> dict[str, Path]:
    return {module_name(path, root): path for path in sorted(root.rglob("*.py"))}


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imported_names(node: ast.AST, package: str) -> list[str]:
    """The full dotted names that one statement or ``import_module`` call asks for.

    ``from hpgmn.models import memory`` gives ``hpgmn.models.memory``; relative imports are resolved
    against ``package``, the package that holds the module.
    """
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = [node.module] if node.module else []
        if node.level:
            parents = package.split(".")
            base = [".".join(parents[: len(parents) - node.level + 1]), *base]
        return [".".join([*base, alias.name]) for alias in node.names]
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
        first = node.args[0] if node.args else None
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            return [first.value]
    return []


def package_of(path: Path, root: Path = SOURCE) -> str:
    return ".".join(["hpgmn", *path.parent.relative_to(root).parts])


def wrong_imports(root: Path = SOURCE) -> set[tuple[str, str]]:
    """(importing module, imported name) for every import from a later layer."""
    wrong = set()
    for module, path in sources(root).items():
        for node in ast.walk(parse(path)):
            for name in imported_names(node, package_of(path, root)):
                package, _, rest = name.partition(".")
                if package != "hpgmn" or rest == "__version__":
                    continue
                target = rest.split(".")[0]
                if target not in PLACE:  # a public name, or the package itself
                    rest = target = "__init__"
                if PLACE[target] > PLACE.get(module.split(".")[0], len(LAYERS)):
                    wrong.add((module, rest))
    return wrong


def loaded_at_once(tree: ast.Module) -> Iterator[ast.AST]:
    """The nodes that run when the module is imported: no function bodies, no TYPE_CHECKING."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            waiting += node.orelse
            continue
        waiting += ast.iter_child_nodes(node)


def test_every_module_has_a_layer() -> None:
    unplaced = sorted({name.split(".")[0] for name in sources()} - set(PLACE))
    assert not unplaced, f"Give these modules a place in LAYERS: {', '.join(unplaced)}."


def test_imports_point_left() -> None:
    wrong = sorted(wrong_imports() - set(POINTS_RIGHT))
    lines = [f"hpgmn.{module} imports hpgmn.{target}" for module, target in wrong]
    assert not lines, "These imports import from a later layer:\n" + "\n".join(lines)


def test_allowed_exceptions_are_still_needed() -> None:
    unused = sorted(set(POINTS_RIGHT) - wrong_imports())
    assert not unused, f"Take these out of POINTS_RIGHT: {unused}."


@pytest.mark.parametrize(
    ("path", "code", "found"),
    [
        ("graph.py", "from hpgmn.cli import main", {("graph", "cli.main")}),
        (
            "graph.py",
            "def f():\n    import hpgmn.training.trainer",
            {("graph", "training.trainer")},
        ),
        (
            "models/memory.py",
            "from ..training import stages",
            {("models.memory", "training.stages")},
        ),
        ("models/__init__.py", "from .. import report", {("models", "report")}),
        ("graph.py", "from hpgmn import Graph", {("graph", "__init__")}),
        (
            "graph.py",
            "importlib.import_module('hpgmn.report.page')",
            {("graph", "report.page")},
        ),
        ("training/trainer.py", "from hpgmn.models import memory", set()),
        ("models/hpgmn.py", "from .memory import Memory", set()),
        ("training/checkpoint.py", "from hpgmn import __version__", set()),
        ("config.py", "from hpgmn.base.errors import SettingError", set()),
    ],
)
def test_the_check_sees_imports_that_point_right(
    tmp_path: Path, path: str, code: str, found: set[tuple[str, str]]
) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(code)
    assert wrong_imports(tmp_path) == found


def test_no_drawer_for_odds_and_ends() -> None:
    drawers = [name for name in sources() if name.split(".")[-1] in {"utils", "common"}]
    assert not drawers, f"Name these for what they do: {drawers}."


def test_modules_are_short() -> None:
    lengths = {
        name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in sources().items()
    }
    long = {name: length for name, length in lengths.items() if length > LONGEST}
    assert not long, f"Over {LONGEST} lines: {long}."


def unsafe_reads(tree: ast.Module, package: str = "hpgmn") -> list[str]:
    """Everything in a module that could run code hidden in a file: pickles and full YAML."""
    found = []
    for node in ast.walk(tree):
        for name in imported_names(node, package):
            if name.split(".")[0] in UNPICKLERS or name in UNSAFE_CALLS:
                found.append(f"line {node.lineno}: import of {name}")
        if isinstance(node, ast.Call) and ast.unparse(node.func) in UNSAFE_CALLS | BOUNDED_CALLS:
            found.append(f"line {node.lineno}: {ast.unparse(node.func)}")
        if isinstance(node, ast.keyword) and node.arg == "shell":
            found.append(f"line {node.value.lineno}: shell")
        if (
            isinstance(node, ast.keyword)
            and node.arg == "allow_pickle"
            and ast.unparse(node.value) != "False"
        ):
            found.append(f"line {node.lineno}: allow_pickle")
    return found


def test_nothing_unpickles() -> None:
    found = [
        f"hpgmn.{name} {place}"
        for name, path in sources().items()
        for place in unsafe_reads(parse(path), package_of(path))
        if place.split(": ")[1] not in MAY_CALL.get(name, ())
    ]
    assert not found, (
        "Weights are safetensors, arrays plain npz, settings safe YAML; base.parsing reads them:\n"
        + "\n".join(found)
    )


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "def f():\n    from torch import load",
        "torch.load(path)",
        "yaml.load(text, Loader)",
        "np.lib.format.write_array(file, array, allow_pickle=True)",
        "np.load(path, mmap_mode='r')",
        "json.loads(text)",
        "sp.load_npz(path)",
        "from pandas import read_pickle",
        "from optuna.samplers import CmaEsSampler",
        "eval(text)",
        "subprocess.run(line, shell=True)",
    ],
)
def test_the_check_sees_unpickling(code: str) -> None:
    assert len(unsafe_reads(ast.parse(code))) == 1


def test_safe_reads_pass_the_check() -> None:
    code = "read_config(path); read_array(path); model.load(path); model.eval()"
    assert unsafe_reads(ast.parse(code)) == []


def test_every_module_has_a_test_file() -> None:
    missing = [
        str(mirror)
        for path in sources().values()
        if path.name not in NO_MIRROR
        for mirror in [path.relative_to(SOURCE).parent / f"test_{path.name}"]
        if not (TESTS / mirror).exists()
    ]
    assert not missing, "Missing below tests/:\n" + "\n".join(missing)


def test_training_path_loads_only_what_is_at_hand() -> None:
    found = [
        f"hpgmn.{module} line {node.lineno}: {name}"
        for module, path in sources().items()
        if module not in OFF_THE_PATH
        for node in loaded_at_once(parse(path))
        for name in imported_names(node, package_of(path))
        if name.split(".")[0] not in AT_HAND
    ]
    assert not found, "Import these inside the function that needs them:\n" + "\n".join(found)


def test_the_check_tells_late_imports_from_early_ones() -> None:
    code = """
import early_one
if TYPE_CHECKING:
    import typing_only
try:
    import early_two
except ImportError:
    pass
class Holder:
    import early_three
    def method(self):
        import late
"""
    names = {
        name for node in loaded_at_once(ast.parse(code)) for name in imported_names(node, "hpgmn")
    }
    assert names == {"early_one", "early_two", "early_three"}


def test_importing_the_package_leaves_slow_packages_alone() -> None:
    code = "import sys, hpgmn; print(*({'torch_geometric', 'matplotlib'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(SOURCE.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
