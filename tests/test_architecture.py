"""The shape of the source: layers, no cycles, safe readers, short files, mirrored tests."""

import ast
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {"hpgmn": ROOT / "src", "hpgmn_lab": ROOT / "lab" / "src"}
TESTS = {"hpgmn": ROOT / "tests", "hpgmn_lab": ROOT / "lab" / "tests"}

# Left to right: a module imports from its own layer and from those before it.
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
    ("report",),
    ("runs",),
    ("service",),
    ("estimators",),
    ("__init__",),
    ("cli",),
    ("__main__",),
)
LAYER = {name: number for number, names in enumerate(LAYERS) for name in names}

# Third-party packages that modules may import when they are loaded; others are imported on use.
INSTALLED = {
    *("numpy", "scipy", "torch", "safetensors", "yaml", "typer", "rich", "pyarrow", "matplotlib"),
    *("typing_extensions", "jinja2", "filelock", "hpgmn", "hpgmn_lab"),
}
INSTALLED_WITH_LAB = {"pandas"}
MAY_IMPORT_MORE = {
    "hpgmn.transforms": "PyTorch Geometric: its transforms",
    "hpgmn.estimators.classifier": "scikit-learn: its estimators; imported on use",
    "hpgmn.estimators.estimator": "scikit-learn: its estimators; imported on use",
    "hpgmn.base.kernels": "Triton, where it is installed",
    "hpgmn.service.app": "FastAPI and Prometheus; imported when a service starts",
    "hpgmn.service.page": "FastAPI; imported when a service starts",
}

LONGEST_FILE = 500
NO_TEST_FILE = {"__init__.py", "__main__.py"}
UNPICKLERS = {
    *("pickle", "_pickle", "cloudpickle", "dill", "joblib", "jsonpickle", "marshal", "shelve")
}
UNSAFE_CALLS = {
    *("torch.load", "torch.save", "torch.hub.load", "torch.package.PackageImporter"),
    *("yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load"),
    *("pd.read_pickle", "pandas.read_pickle", "pd.read_hdf", "pandas.read_hdf"),
    *("networkx.read_gpickle", "nx.read_gpickle", "CmaEsSampler", "optuna.samplers.CmaEsSampler"),
    *("eval", "exec", "os.system", "os.popen"),
}
UNBOUNDED_CALLS = {
    *("json.load", "json.loads", "yaml.safe_load", "sp.load_npz", "scipy.sparse.load_npz"),
    *("np.load", "numpy.load", "np.fromfile", "np.memmap", "zipfile.ZipFile.extractall"),
    *("np.lib.format.read_array", "np.lib.format.open_memmap", "tarfile.open", "zipfile.ZipFile"),
}
"""Readers without limits; ``hpgmn.base.parsing`` wraps them."""
MAY_CALL = {
    "hpgmn.base.parsing": UNBOUNDED_CALLS,
    "hpgmn.shards.files": {"zipfile.ZipFile"},  # writes one
    "hpgmn.statistics.cache": {"np.memmap"},  # fills one
}


@cache
def modules():
    """Every module by dotted name; a package's ``__init__`` has the package's name."""
    return {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for package, root in PACKAGES.items()
        for path in sorted((root / package).rglob("*.py"))
    }


@cache
def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imported_names(node, package):
    """The dotted names that an import statement or ``import_module`` call refers to."""
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


def package_of(module, path):
    return module if path.name == "__init__.py" else module.rpartition(".")[0]


def imports_of(tree, package, known):
    """The project's modules that a module imports, lazily and for type checking too."""
    found = set()
    for node in ast.walk(tree):
        for name in imported_names(node, package):
            target = name
            while target and target not in known:
                target = target.rpartition(".")[0]
            if target:
                found.add(target)
    return found


@cache
def import_graph():
    known = set(modules())
    return {
        module: imports_of(tree_of(path), package_of(module, path), known) - {module}
        for module, path in modules().items()
    }


def layer_of(module):
    parts = module.split(".")
    return LAYER[parts[1] if len(parts) > 1 else "__init__"]


def imports_against_layers(graph):
    return sorted(
        f"{module} imports {target}"
        for module, targets in graph.items()
        for target in targets
        if module.split(".")[0] == "hpgmn"
        and (target.split(".")[0] == "hpgmn_lab" or layer_of(target) > layer_of(module))
        and module != "hpgmn.cli.lab"  # forwards its commands to the laboratory
    )


def cycles(graph):
    """Groups of modules that import each other (Kosaraju's algorithm)."""
    order: list[str] = []
    seen: set[str] = set()

    def visit(start, edges, finished):
        stack = [(start, iter(edges.get(start, ())))]
        seen.add(start)
        while stack:
            node, targets = stack[-1]
            following = next((target for target in targets if target not in seen), None)
            if following is None:
                finished.append(node)
                stack.pop()
            else:
                seen.add(following)
                stack.append((following, iter(edges.get(following, ()))))

    for node in graph:
        if node not in seen:
            visit(node, graph, order)
    reverse: dict[str, set[str]] = {}
    for node, targets in graph.items():
        for target in targets:
            reverse.setdefault(target, set()).add(node)
    seen.clear()
    groups = []
    for node in reversed(order):
        if node not in seen:
            group: list[str] = []
            visit(node, reverse, group)
            if len(group) > 1:
                groups.append(sorted(group))
    return groups


def executed_on_import(tree):
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


def test_every_package_has_a_layer():
    packages = {name.split(".")[1] for name in modules() if name.startswith("hpgmn.")}
    assert packages <= set(LAYER)


def test_imports_follow_the_layers():
    assert imports_against_layers(import_graph()) == []


@pytest.mark.parametrize(
    ("module", "code", "is_wrong"),
    [
        ("hpgmn.graph.graph", "from hpgmn.cli import main", True),
        ("hpgmn.graph.graph", "def f():\n    import hpgmn.training.trainer", True),
        ("hpgmn.models.memory", "from ..training import trainer", True),
        ("hpgmn.graph.graph", "importlib.import_module('hpgmn.report.page')", True),
        ("hpgmn.runs.run", "from hpgmn_lab import paper", True),
        ("hpgmn.training.trainer", "from hpgmn.models import memory", False),
        ("hpgmn.models.hpgmn", "from .memory import Memory", False),
    ],
)
def test_the_check_finds_imports_against_the_layers(module, code, is_wrong):
    known = {*modules(), "hpgmn.training.trainer", "hpgmn.report.page"}
    graph = {module: imports_of(ast.parse(code), module.rpartition(".")[0], known)}
    assert bool(imports_against_layers(graph)) == is_wrong


def test_no_import_cycles():
    assert cycles(import_graph()) == []


def test_the_check_finds_cycles():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}
    assert cycles(graph) == [["a", "b", "c"]]


def test_no_modules_for_odds_and_ends():
    assert not [name for name in modules() if name.split(".")[-1] in {"utils", "common"}]


def test_modules_are_short():
    lengths = {
        name: len(path.read_text(encoding="utf-8").splitlines())
        for name, path in modules().items()
        if name.split(".")[0] == "hpgmn"
    }
    assert {name: length for name, length in lengths.items() if length > LONGEST_FILE} == {}


def unsafe_reads(tree, package="hpgmn"):
    """Everything in a module that could execute code from a file, or read one without limits."""
    found = []
    for node in ast.walk(tree):
        for name in imported_names(node, package):
            if name.split(".")[0] in UNPICKLERS or name in UNSAFE_CALLS:
                found.append(f"line {node.lineno}: import of {name}")
        if isinstance(node, ast.Call) and ast.unparse(node.func) in UNSAFE_CALLS | UNBOUNDED_CALLS:
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


def test_files_are_read_safely():
    found = [
        f"{module} {place}"
        for module, path in modules().items()
        for place in unsafe_reads(tree_of(path), package_of(module, path))
        if place.split(": ")[1] not in MAY_CALL.get(module, ())
    ]
    assert found == [], "read files through hpgmn.base.parsing"


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
def test_the_check_finds_unsafe_reads(code):
    assert len(unsafe_reads(ast.parse(code))) == 1


def test_safe_reads_pass_the_check():
    code = "read_config(path); read_array(path); model.load(path); model.eval()"
    assert unsafe_reads(ast.parse(code)) == []


def test_every_module_has_a_test_file():
    missing = []
    for module, path in modules().items():
        if path.name in NO_TEST_FILE:
            continue
        package, *parents, name = module.split(".")
        test = TESTS[package].joinpath(*parents, f"test_{name}.py")
        if not test.exists():
            missing.append(str(test.relative_to(ROOT)))
    assert missing == []


def test_modules_load_only_installed_packages():
    allowed = set(sys.stdlib_module_names) | INSTALLED
    found = [
        f"{module} line {node.lineno}: {name}"
        for module, path in modules().items()
        if module not in MAY_IMPORT_MORE
        for node in executed_on_import(tree_of(path))
        for name in imported_names(node, package_of(module, path))
        if name.split(".")[0] not in allowed
        and not (module.startswith("hpgmn_lab") and name.split(".")[0] in INSTALLED_WITH_LAB)
    ]
    assert found == [], "import these inside the function that needs them"


def test_the_check_distinguishes_late_imports():
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
        name
        for node in executed_on_import(ast.parse(code))
        for name in imported_names(node, "hpgmn")
    }
    assert names == {"early_one", "early_two", "early_three"}


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import hpgmn", {"torch", "torch_geometric", "matplotlib", "pyarrow"}),
        ("import hpgmn.statistics", {"pyarrow", "hpgmn.tables", "torch_geometric"}),
    ],
)
def test_imports_leave_slow_packages_alone(statement, unwanted):
    code = f"import sys\n{statement}\nprint(*({unwanted!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(PACKAGES["hpgmn"])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
