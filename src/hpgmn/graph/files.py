"""Graph files: one graph in one ``.npz`` file of plain arrays, never a pickle.

A large graph may be a folder of ``.npy`` files instead, whose large arrays are memory-mapped. Its
edges are stored sorted, as an adjacency matrix.

| array | meaning |
| --- | --- |
| ``x``, or ``x_indptr``, ``x_indices``, ``x_data``, ``x_shape`` | attributes (N, F), dense or CSR |
| ``edge_index`` | (2, E) integers; row 0 sources, row 1 targets |
| or ``edges_indptr`` (N + 1), ``edges_indices`` (E) | CSR; targets ascend for each source |
| ``edges_data``, ``edges_places`` (E) | optional: weights; the position of each edge as listed |
| ``edges_types`` (E) | optional: numbers of edge types |
| ``directed`` | false: edges are undirected, listed once or twice |
| ``y`` | (N,) integers: class, -1 unknown; or floats: target, NaN unknown; optional |
| ``train_mask``, ``val_mask``, ``test_mask`` | (N, S) booleans, one column for each split |
| ``<family>_train_mask``, … | a further family of splits, such as ``geom`` |
| ``edge_weight``, ``edge_type``, ``edge_type_names`` | optional, as in ``Graph`` |
| ``node_ids``, ``class_names``, ``feature_names`` | optional, as in ``Graph`` |
| ``edge_values`` | (E, columns) of an edge table, in the order of ``edge_index``; optional |
| ``full_x``, ``full_edge_index``, … | the same with the edges after a date; optional |
| ``preparation`` | how node tables became ``x``: the bytes of a JSON object; optional |
| ``name`` | the graph's name; without it that of the file or folder (without ``.graph``) |
| ``format`` | the version of this list of arrays; optional |
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from hpgmn.base.errors import GraphError, HPGMNError, Remedy, SettingError
from hpgmn.base.files import (
    GRAPH_FORMAT,
    atomic_folder,
    atomic_write,
    check_format,
    file_checksum,
    verify_checksum,
    with_checksum,
    write_error,
)
from hpgmn.base.parsing import (
    TooLargeError,
    parse_json,
    read_archive,
    read_array,
    read_json,
    require_file,
)
from hpgmn.graph.edges import Array, SortedEdges
from hpgmn.graph.graph import PARTS, Graph, Splits

logger = logging.getLogger(__name__)

_NUMBERS, _INTEGERS = ("biuf", "numbers"), ("iu", "integers")
_BOOLEANS, _TEXT = ("b", "booleans"), ("U", "text")
_NAMES = ("node_ids", "class_names", "feature_names", "edge_type_names")
_CSR = ("x_indptr", "x_indices", "x_data", "x_shape")
_EDGES = ("edges_indptr", "edges_indices", "edges_data", "edges_places", "edges_types")
_LATER = ("x", "edge_index", "edge_weight", "edge_type", "edge_values")
# The NumPy kinds that each array may have, and their name in messages.
_KINDS = {
    **dict.fromkeys(("x", "x_data", "edges_data", "edge_weight", "edge_values", "y"), _NUMBERS),
    **dict.fromkeys((*_CSR[:2], "x_shape", *_EDGES[:2], *_EDGES[3:]), _INTEGERS),
    **dict.fromkeys(("edge_index", "edge_type", "format"), _INTEGERS),
    **dict.fromkeys((*_NAMES, "name"), _TEXT),
    "preparation": ("u", "the bytes of a JSON object"),
    "directed": _BOOLEANS,
}
_MASK = re.compile(r"(?:(?P<family>.+)_)?(?P<part>train|val|test)_mask")
_WRITE_AGAIN = "Write the graph again, for example with write_graph"
_MAPPED_BYTES = 1 << 20  # smaller arrays are read at once

CHECKSUMS = "checksums.json"
"""The file of checksums in a graph folder; changed files are refused."""

CHECKED_BYTES = 1 << 30
"""Of a larger folder only sizes are compared: its files are mapped, not read."""

FOLDER_ENDING = ".graph"
"""The optional suffix of a graph folder."""


def is_graph_folder(path: Path) -> bool:
    """Whether a path is a graph folder."""
    return path.is_dir() and next(path.glob("*.npy"), None) is not None


def graph_name(path: Path) -> str:
    """Return the name of the graph in a file or folder.

    >>> graph_name(Path("data/texas.npz")), graph_name(Path("data/big.graph"))
    ('texas', 'big')
    """
    return path.resolve().name.removesuffix(FOLDER_ENDING) if path.is_dir() else path.stem


def read_graph(path: str | Path, name: str | None = None) -> Graph:
    """Read a ``.npz`` graph file or a graph folder, which names the graph unless you do."""
    path = Path(path)
    arrays = _checked_arrays(path)
    later = {key: arrays.pop(f"full_{key}") for key in _LATER if f"full_{key}" in arrays}
    graph = _graph_of(path, arrays, name)
    if later:
        same = {key: own for key, own in arrays.items() if key not in (*_LATER, *_EDGES)}
        graph.with_later_edges = _graph_of(path, same | later, name)
    return graph


def _graph_of(path: Path, arrays: dict[str, Array], name: str | None) -> Graph:
    """Make a graph of the arrays of a file."""
    _require(path, arrays, "directed")
    directed = arrays["directed"]
    if directed.size != 1:
        raise _fault(path, f"array 'directed' has {directed.size} values", "Store one boolean")
    x = _attributes(path, arrays)
    edges = _edges(path, arrays, x.shape[0]) if x.ndim == 2 else None
    matches = map(_MASK.fullmatch, arrays)
    families: dict[str, Splits] = {}
    for family in sorted({match["family"] for match in matches if match} - {None}):
        names = [f"{family}_{part}_mask" for part in PARTS]
        _require(path, arrays, *names)
        families[family] = Splits(*(arrays[name] for name in names))
    optional = ("y", "edge_weight", "edge_type", *_NAMES)
    masks = [f"{part}_mask" for part in PARTS]
    if name is None:
        name = str(arrays["name"]) if "name" in arrays else graph_name(path)
    preparation = _preparation(path, arrays)
    try:
        graph = Graph(
            x,
            edges,
            directed=bool(directed.item()),
            name=name,
            alternative_splits=families,
            **{key: arrays.get(key) for key in (*optional, *masks)},
        )
    except GraphError as error:
        if str(path) in str(error):
            raise
        raise error.prefixed(f"{_describe_path(path)} is not valid: ") from None
    values = arrays.get("edge_values")
    if values is not None and (values.ndim != 2 or len(values) != graph.num_listed_edges):
        fault = f"'edge_values' must have {graph.num_listed_edges} rows (got shape {values.shape})"
        raise _fault(path, fault, _WRITE_AGAIN)
    graph.preparation, graph.edge_values = preparation, values
    return graph


def write_graph(graph: Graph, path: str | Path, *, as_copy: bool = False) -> None:
    """Write a graph atomically; :func:`read_graph` returns exactly the same graph.

    A path that ends in ``.npz`` is a file, any other a folder. Missing parent folders are made; an
    existing graph is replaced.

    Args:
        as_copy: keep the graph's name, instead of that of the file, and do not compress it.
    """
    path = Path(path)
    _refuse_other_files(path)
    arrays = _arrays(graph, in_folder=path.suffix != ".npz")
    if as_copy:
        arrays["name"] = np.asarray(graph.name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(path, error) from None
    if path.suffix == ".npz":
        with atomic_write(path) as draft:
            save: Any = np.savez if as_copy else np.savez_compressed  # keywords: arrays' names
            save(draft, **arrays)
        return
    with atomic_folder(path) as draft:
        for name, array in arrays.items():
            np.save(draft / f"{name}.npy", array, allow_pickle=False)
        checksums = {
            path.name: [path.stat().st_size, file_checksum(path)] for path in draft.iterdir()
        }
        content = json.dumps(with_checksum(checksums)) + "\n"
        (draft / CHECKSUMS).write_text(content, encoding="utf-8")


def refuse_changed(path: Path) -> None:
    """Refuse a folder whose files were changed, if it has checksums."""
    if not (path / CHECKSUMS).is_file():  # of an earlier version, or made by hand
        return
    remedy = f"Write it again; if the change was intended, delete {CHECKSUMS}"
    try:
        checksums = verify_checksum(read_json(path / CHECKSUMS))
        is_small = sum(size for size, _ in checksums.values()) <= CHECKED_BYTES
        for name, (size, checksum) in checksums.items():
            member = path / name
            if not member.is_file() or member.stat().st_size != size:
                raise _fault(path, f"{name} is missing or has another size", remedy)
            if is_small and file_checksum(member) != checksum:
                raise _fault(path, f"{name} was changed since it was written", remedy)
    except (ValueError, TypeError) as error:
        raise _fault(path, f"{CHECKSUMS} is damaged ({error})", remedy) from None


def check_target(path: Path, *, overwrite: bool) -> None:
    """Refuse a path that :func:`write_graph` cannot write or that exists."""
    if path.suffix not in (".npz", FOLDER_ENDING, ""):
        raise SettingError(
            f"A graph is written to FILE.npz or to a folder (got '{path}').",
            Remedy(f"End the name in .npz, {FOLDER_ENDING} or nothing", option="out"),
        )
    _refuse_other_files(path)
    if path.exists() and not overwrite:
        raise HPGMNError(
            f"{path} exists.",
            Remedy("Replace it", option="overwrite", value=True)
            | Remedy("Choose another path", option="out"),
        )


def _refuse_other_files(path: Path) -> None:
    """Refuse to write a graph folder over anything but a graph folder."""
    if path.suffix == ".npz" or not path.exists():
        return
    other: Path | None = path
    if path.is_dir():
        others = (member for member in path.iterdir() if member.name != CHECKSUMS)
        other = next((member for member in others if member.suffix != ".npy"), None)
    if other is not None:
        raise GraphError(
            f"Graph folder '{path}' cannot be written: {other} exists.",
            "Choose another name, or one that ends in .npz to write a file",
        )


def _arrays(graph: Graph, *, in_folder: bool) -> dict[str, Array]:
    """Return the arrays of a graph file or folder by name."""
    arrays: dict[str, Array | None] = {
        "format": np.asarray(GRAPH_FORMAT),
        "directed": np.asarray(graph.directed),
        "y": graph.y,
        "class_names": np.asarray(graph.class_names, dtype=np.str_),
        "node_ids": graph.node_ids,
        "feature_names": graph.feature_names,
        "edge_values": graph.edge_values,
    }
    if graph.preparation is not None:
        arrays["preparation"] = np.frombuffer(json.dumps(graph.preparation).encode(), np.uint8)
    if in_folder:
        edges = graph.sorted_edges
        parts = (edges.indptr, edges.targets, edges.weights, edges.places, edges.types)
        arrays |= zip(_EDGES, parts, strict=True)
    else:
        integer = np.int32 if graph.num_nodes <= np.iinfo(np.int32).max else np.int64
        arrays["edge_index"] = graph.edge_index.astype(integer)
        arrays["edge_weight"], arrays["edge_type"] = graph.edge_weight, graph.edge_type
    if graph.edge_type_names:
        arrays["edge_type_names"] = np.asarray(graph.edge_type_names, dtype=np.str_)
    x: Any = graph.x
    if sp.issparse(x):
        shape = np.asarray(x.shape, np.int64)
        arrays |= zip(_CSR, (x.indptr, x.indices, x.data, shape), strict=True)
    else:
        arrays["x"] = x
    families = {f"{family}_": splits for family, splits in graph.alternative_splits.items()}
    if graph.splits is not None:
        families[""] = graph.splits
    for prefix, splits in families.items():
        arrays |= {f"{prefix}{part}_mask": getattr(splits, part) for part in PARTS}
    if graph.with_later_edges is not None:
        later = _arrays(graph.with_later_edges, in_folder=False)
        arrays |= {f"full_{name}": later.get(name) for name in _LATER}
    return {name: array for name, array in arrays.items() if array is not None}


def graph_size(graph: Graph) -> int:
    """Return about how many bytes a graph file takes before compression."""
    return sum(array.nbytes for array in _arrays(graph, in_folder=True).values())


def _describe_path(path: Path) -> str:
    return f"Graph {'folder' if path.is_dir() else 'file'} '{path}'"


def _fault(path: Path, what: str, remedy: str) -> GraphError:
    return GraphError(f"{_describe_path(path)}: {what}.", remedy)


def _require(path: Path, arrays: dict[str, Array], *names: str) -> None:
    for name in names:
        if name not in arrays:
            remedy = "Add it, or write the file with write_graph"
            raise _fault(path, f"array '{name}' is missing", remedy)


def _checked_arrays(path: Path) -> dict[str, Array]:
    """Read the arrays of a graph file by name; check their kinds."""
    if not path.exists():
        raise GraphError(f"Graph file '{path}' does not exist.", "Check the path")
    if path.is_dir() and not is_graph_folder(path):
        raise GraphError(f"'{path}' is a folder, not a graph file.", "Pass a .npz file")
    try:
        if path.is_dir():
            arrays, unread = _members(path)
        else:
            require_file(path)
            with path.open("rb") as file:
                if file.read(2) != b"PK":
                    raise _fault(path, "it is not a .npz file", "Write one with write_graph")
            arrays, unread = read_archive(path, lambda name: bool(_kind(name)[1]))
    except OSError as error:
        is_refused = isinstance(error, PermissionError)
        remedy = "Allow reading it" if is_refused else "Copy or write it again"
        raise _fault(path, f"it cannot be read ({error.strerror or error})", remedy) from None
    except TooLargeError as error:
        remedy = "Free some memory, or write it as a graph folder, which is mapped"
        raise _fault(path, str(error), remedy) from None
    except ValueError as error:
        fault, remedy = f"it is truncated or damaged ({error})", "Copy or write it again"
        if "Python objects" in str(error):
            name = str(error).split("'")[1]
            fault = f"array '{name}' holds pickled Python objects, which are never loaded"
            remedy = "Store plain numbers or text instead"
        raise _fault(path, fault, remedy) from None
    version = arrays.get("format")
    if version is not None and version.shape == () and version.dtype.kind in "iu":
        check_format(_describe_path(path), int(version), GRAPH_FORMAT)  # before a missing array
    if path.is_dir():
        refuse_changed(path)
    for name, array in arrays.items():
        kinds, called = _kind(name)
        if array.dtype.kind not in kinds:
            raise _fault(path, f"array '{name}' has type {array.dtype}", f"Store {called}")
    if unread:
        logger.warning("%s: ignored: %s.", _describe_path(path), ", ".join(sorted(unread)))
    return arrays


def _kind(name: str) -> tuple[str, str]:
    """Return the kinds of an array and their name; empty for an unknown array."""
    if _MASK.fullmatch(name):
        return _BOOLEANS
    is_later = name.startswith("full_") and name.removeprefix("full_") in _LATER
    return _KINDS.get(name.removeprefix("full_") if is_later else name, ("", ""))


def _members(folder: Path) -> tuple[dict[str, Array], list[str]]:
    """Read the arrays of a graph folder, large ones mapped, and the names of unknown ones.

    Writing into a mapped array changes a copy of the page, never the file.
    """
    arrays, unread = {}, []
    for path in sorted(folder.glob("*.npy")):
        if not _kind(path.stem)[1]:
            unread.append(path.stem)
            continue
        try:
            is_large = path.stat().st_size > _MAPPED_BYTES
            arrays[path.stem] = read_array(path, mapped="c" if is_large else None)
        except TooLargeError:
            raise
        except ValueError as error:
            raise ValueError(f"array '{path.stem}': {error}") from None
    return arrays, unread


def _attributes(path: Path, arrays: dict[str, Array]) -> Any:
    """Return the attributes, dense or CSR."""
    stored = [name for name in _CSR if name in arrays]
    if "x" in arrays or not stored:
        _require(path, arrays, "x")
        if stored:
            raise _fault(path, f"it holds both 'x' and '{stored[0]}'", "Keep one form of x")
        return arrays["x"]
    _require(path, arrays, *_CSR)
    indptr, indices, data, shape = (arrays[name] for name in _CSR)
    if shape.shape != (2,) or shape.min() < 1 or shape.max() > np.iinfo(np.int32).max:
        raise _fault(path, f"'x_shape' must be two sizes (got {shape.tolist()})", _WRITE_AGAIN)
    rows, columns = (int(size) for size in shape)
    _check_csr(path, arrays, _CSR[:3], rows, columns, "attributes")
    parts = (data, indices.astype(np.int32), indptr.astype(np.int64))
    return sp.csr_array(parts, shape=(rows, columns))


def _preparation(path: Path, arrays: dict[str, Array]) -> dict[str, Any] | None:
    """Return how tables became attributes, in plain values."""
    if "preparation" not in arrays:
        return None
    try:
        content = parse_json(arrays["preparation"].astype(np.uint8).tobytes())
    except ValueError as error:
        raise _fault(path, f"array 'preparation' is not JSON ({error})", _WRITE_AGAIN) from None
    if not isinstance(content, dict) or not isinstance(content.get("roles"), dict):
        raise _fault(path, "array 'preparation' is not a table's preparation", _WRITE_AGAIN)
    return content


def _edges(path: Path, arrays: dict[str, Array], num_nodes: int) -> Array | SortedEdges:
    """Return the edges, as listed or sorted."""
    stored = [name for name in _EDGES if name in arrays]
    if "edge_index" in arrays or not stored:
        _require(path, arrays, "edge_index")
        if stored:
            raise _fault(path, f"it holds both 'edge_index' and '{stored[0]}'", "Keep one form")
        return arrays["edge_index"]
    _require(path, arrays, *_EDGES[:2])
    for name, sorted_name in (("edge_weight", _EDGES[2]), ("edge_type", _EDGES[4])):
        if name in arrays:
            fault = f"it holds '{name}' beside 'edges_indices'"
            raise _fault(path, fault, f"Use '{sorted_name}'")
    _check_csr(path, arrays, _EDGES, num_nodes, num_nodes, "nodes")
    indptr, indices = (_wide(arrays[name]) for name in _EDGES[:2])
    weights, places, types = (arrays.get(name) for name in _EDGES[2:])
    starts = np.zeros(indices.size + 1, bool)
    starts[indptr] = True
    if ((indices[1:] < indices[:-1]) & ~starts[1:-1]).any():
        raise _fault(path, "'edges_indices' must ascend for each source", _WRITE_AGAIN)
    if weights is not None:
        weights = np.asarray(weights, np.float32)
    if places is not None:
        if not _is_permutation(places):
            raise _fault(path, "'edges_places' must name every edge once", _WRITE_AGAIN)
        places = _wide(places)
    return SortedEdges(indptr, indices, weights, places, types)


def _check_csr(
    path: Path, arrays: dict[str, Array], names: Sequence[str], rows: int, columns: int, noun: str
) -> None:
    """Refuse an inconsistent CSR matrix, which SciPy would read beyond its end.

    Args:
        path: the graph file or folder.
        arrays: all arrays by name.
        names: those of indptr, indices, and others with a value for each entry.
        rows: the number of rows.
        columns: the number of columns.
        noun: what columns are.
    """
    indptr, indices = (arrays[name] for name in names[:2])
    if indptr.shape != (rows + 1,):
        fault = f"'{names[0]}' must have {rows + 1} values (got shape {indptr.shape})"
        raise _fault(path, fault, _WRITE_AGAIN)
    for name in names[1:]:
        if name in arrays and arrays[name].shape != (indices.size,):
            raise _fault(path, f"'{name}' must have {indices.size} values", _WRITE_AGAIN)
    if indptr[0] != 0 or indptr[-1] != indices.size or (indptr[1:] < indptr[:-1]).any():
        fault = f"'{names[0]}' must rise from 0 to {indices.size}, the length of {names[1]}"
        raise _fault(path, fault, _WRITE_AGAIN)
    if indices.size and not 0 <= indices.min() <= indices.max() < columns:
        worst = int(indices.min() if indices.min() < 0 else indices.max())
        fault = f"'{names[1]}' holds {worst}, but there are {columns} {noun}"
        raise _fault(path, fault, _WRITE_AGAIN)


def _wide(numbers: Array) -> Array:
    """Convert integers to a type that SciPy knows; most are already."""
    return numbers if numbers.dtype in (np.int32, np.int64) else numbers.astype(np.int64)


def _is_permutation(places: Array) -> bool:
    """Whether each number from 0 to E - 1 occurs once."""
    if places.size and not 0 <= places.min() <= places.max() < places.size:
        return False
    seen = np.zeros(places.size, bool)
    seen[places] = True
    return bool(seen.all())
