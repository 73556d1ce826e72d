"""Files made to do harm: each is refused in one sentence or does nothing, soon, in little memory.

All of them are read by a process of its own, which may take a quarter of a GiB beside what it
needs to start. A trap in a file would leave a file behind.
"""

import io
import json
import os
import sqlite3
import struct
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SOURCE = Path(__file__).parents[2] / "src"
SECONDS = 10
"""The most that reading one file may take, on a busy machine."""

READER = """
import json, logging, resource, signal, sys, time
from pathlib import Path
import networkx, numpy, pyarrow, torch
from hpgmn.base.settings import read_yaml
from hpgmn.graph.datasets import load
from hpgmn.graph.files import read_graph
from hpgmn.base.errors import HPGMNError
from hpgmn.runs.study import study_exists
from hpgmn.base.parsing import read_json
from hpgmn.runs.report_data import build_report
from hpgmn.shards import Shards
from hpgmn.shards.files import RowFile, small_array
from hpgmn.statistics.cache import read_entry
from hpgmn.training.saved import SavedModel

def entry(path):
    try:
        return read_entry(path.parent, path.name)
    except (OSError, ValueError) as error:  # what its caller takes for a missing entry
        raise HPGMNError(f"{error}.") from None

def plain_json(path):
    try:
        return read_json(path)
    except (OSError, ValueError) as error:
        raise HPGMNError(f"{error}.") from None

readers = {
    "graph": read_graph, "tables": load, "config": read_yaml, "json": plain_json,
    "model": SavedModel.read, "report": build_report, "rows": RowFile, "small": small_array,
    "shard rows": lambda path: Shards(path).y(0),
    "sparse rows": lambda path: Shards(path).statistic("attributes", 0),
    "manifest": Shards, "entry": entry, "study": study_exists,
}
def too_late(number, frame):
    raise TimeoutError("It takes too long.")

signal.signal(signal.SIGALRM, too_late)
logging.disable(logging.CRITICAL)
pyarrow.set_cpu_count(1)
pyarrow.set_io_thread_count(1)
load(Path(sys.argv[1]))  # what is loaded late, and threads, are no part of the limit
size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 2**28, size + 2**28))
for line in sys.stdin:
    name, kind, path = json.loads(line)
    print(json.dumps([name]), flush=True)
    began = time.monotonic()
    signal.alarm(SECONDS)
    try:
        readers[kind](Path(path))
        said = ["read", ""]
    except HPGMNError as error:
        said = ["refused", str(error)]
    except BaseException as error:
        said = [type(error).__name__, str(error)]
    signal.alarm(0)
    print(json.dumps([name, *said, time.monotonic() - began]), flush=True)
"""


def trap(folder):
    """A pickle that makes a file when it is loaded."""
    return b"cbuiltins\nopen\n(V" + str(folder / "sprung").encode() + b"\nVw\ntR."


def npy(shape, kind="<f8", body=b""):
    """A ``.npy`` file with a header of one's own."""
    file = io.BytesIO()
    about = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_2_0(file, about)
    return file.getvalue() + body


def saved(array):
    file = io.BytesIO()
    np.save(file, np.asarray(array))
    return file.getvalue()


def harmful_arrays(folder):
    """Files that are, or look like, arrays."""
    magic = b"\x93NUMPY"
    return {
        "pickle": npy((4,), "|O", trap(folder)),
        "pickle in a record": npy((4,), [("a", "<f8"), ("b", "|O")], trap(folder)),
        "bare pickle": trap(folder),
        "terabytes": npy((10**6, 10**6)),
        "gigabytes": npy((10**5, 10**4)),
        "one long row": npy((4, 10**12)),
        "overflow": npy((2**40, 2**40)),
        "below zero": npy((-1, 2)),
        "nothing, very often": npy((10**12,), "<U0"),
        "wide text": npy((4,), "<U500000000"),
        "long header": magic + b"\x02\x00" + struct.pack("<I", 2**31) + b"{",
        "deep header": magic + b"\x01\x00" + struct.pack("<H", 9000) + b"(" * 8999 + b"\n",
        "code in the header": magic
        + b"\x01\x00"
        + struct.pack("<H", 22)
        + b"__import__('os').exit",
        "another version": magic + b"\x03\x00" + struct.pack("<I", 30000) + b" " * 30000,
        "cut": saved(np.ones((4, 2)))[:-1],
        "empty": b"",
    }


GRAPH = {
    "x": np.ones((4, 2)),
    "edge_index": np.array([[0, 1], [1, 2]]),
    "y": np.array([0, 1, 0, 1]),
    "directed": np.array(True),
    "node_ids": np.array(["a", "b", "c", "d"]),
    "class_names": np.array(["r", "s"]),
    "edge_weight": np.ones(2),
    **{f"{part}_mask": np.eye(4, 1, -place, bool) for place, part in enumerate(("train", "val"))},
    "test_mask": np.eye(4, 1, -2, dtype=bool),
}


def archive(path, members, method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", method) as file:
        for name, content in members.items():
            file.writestr(name if "." in name else f"{name}.npy", content)
    return path


Files = Iterator[tuple[str, str, Path]]
"""Name, kind of reader, path."""


def graphs(folder, everywhere):
    """Every harmful array in a graph file and in a graph folder, in one place or in each."""
    good = {name: saved(value) for name, value in GRAPH.items()}
    for count, (name, content) in enumerate(harmful_arrays(folder).items()):
        places = list(GRAPH) if everywhere else [list(GRAPH)[count % len(GRAPH)]]
        for place in places:
            stem = f"{name} as {place}"
            yield stem, "graph", archive(folder / f"{stem}.npz", good | {place: content})
            inside = folder / f"{stem}.graph"
            inside.mkdir()
            for member, own in (good | {place: content}).items():
                (inside / f"{member}.npy").write_bytes(own)
            yield f"{stem} in a folder", "graph", inside
        path = folder / f"{name}.npy"
        path.write_bytes(content)
        yield f"{name} in rows", "rows", path
        yield f"{name} read at once", "small", path


def archives(folder):
    """Archives that inflate, repeat, encrypt or lie, and names that lead elsewhere."""
    good = {name: saved(value) for name, value in GRAPH.items()}
    named = {"../../sprung.npy": saved([1]), "/tmp/sprung.npy": saved([1]), "C:\\x.npy": b""}
    yield "fine names elsewhere", "graph", archive(folder / "names.npz", good | named)
    path = folder / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for name in ("edge_index", "y", "directed"):
            file.writestr(f"{name}.npy", good[name])
        with file.open("x.npy", "w", force_zip64=True) as member:
            member.write(npy((5 * 2**26 // 8, 1)))
            for _ in range(5 * 2**26 // 2**24):
                member.write(bytes(2**24))
    yield "bomb of 320 MiB", "graph", path
    nested = archive(folder / "inner.npz", {"x": path.read_bytes()[:1000]})
    yield (
        "bomb in an archive",
        "graph",
        archive(folder / "n.npz", good | {"x": nested.read_bytes()}),
    )
    for method in (zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2):
        yield f"method {method}", "graph", archive(folder / f"m{method}.npz", good, method)
    whole = archive(folder / "whole.npz", good, zipfile.ZIP_STORED).read_bytes()
    place = whole.index(b"PK\x01\x02")
    for name, at, change in (
        ("encrypted", place + 8, b"\x01\x00"),
        ("unknown method", place + 10, b"\x63\x00"),
        ("size below that of the header", place + 24, struct.pack("<I", 5)),
        ("size of the rest of the disk", place + 24, struct.pack("<I", 2**32 - 2)),
        ("place beyond the end", place + 42, struct.pack("<I", 2**31)),
    ):
        spoiled = bytearray(whole)
        spoiled[at : at + len(change)] = change
        path = folder / f"{name}.npz"
        path.write_bytes(spoiled)
        yield name, "graph", path
    path = archive(folder / "twice.npz", good)
    with zipfile.ZipFile(path, "a") as file, pytest.warns(UserWarning, match="Duplicate name"):
        file.writestr("x.npy", good["x"])
    yield "an array twice", "graph", folder / "twice.npz"
    os.symlink("/dev/zero", folder / "zero.npz")
    yield "device without end", "graph", folder / "zero.npz"
    os.mkfifo(folder / "pipe.npz")
    yield "pipe that nobody writes to", "graph", folder / "pipe.npz"
    os.symlink("/etc/passwd", folder / "link.npz")
    yield "link to a text", "graph", folder / "link.npz"


def shards(folder):
    """Harmful arrays among rows, and sparse rows whose indices lead out of the matrix."""
    import shutil

    import scipy.sparse as sp

    from hpgmn.graph import Graph
    from hpgmn.shards import shard
    from hpgmn.statistics import StatisticsSettings

    graph = Graph(sp.csr_array(np.eye(6)), [[0, 1, 2], [1, 2, 3]], np.arange(6) % 2)
    chosen = StatisticsSettings(statistics=("attributes", "class_counts"), neighbors="out")
    shard(graph, folder / "good", graph.y, chosen, ranges=1)
    for name, content in harmful_arrays(folder).items():
        made = shutil.copytree(folder / "good", folder / f"{name} rows")
        (made / "rows-00000" / "y.npy").write_bytes(content)
        yield f"{name} among rows", "shard rows", made
        made = shutil.copytree(folder / "good", folder / f"{name} sparse")
        parts = {"indptr": saved(np.arange(7)), "indices": content, "data": saved(np.ones(6))}
        path = made / "rows-00000" / "attributes.npz"
        archive(path, parts | {"shape": saved([6, 6]), "format": saved(b"csr")})
        yield f"{name} in sparse rows", "sparse rows", made
    for name, indptr, indices in (
        ("indices outside", [0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 10**9]),
        ("indices below zero", [0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, -(10**9)]),
        ("rows outside", [0, 1, 2, 3, 4, 5, 10**9], [0, 1, 2, 3, 4, 5]),
        ("rows backwards", [0, 6, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 5]),
    ):
        made = shutil.copytree(folder / "good", folder / name)
        parts = {"indptr": saved(indptr), "indices": saved(indices), "data": saved(np.ones(6))}
        archive(made / "rows-00000" / "attributes.npz", parts | {"shape": saved([6, 6])})
        yield name, "sparse rows", made
    made = shutil.copytree(folder / "good", folder / "deep manifest")
    (made / "manifest.json").write_text("[" * 10**6)
    yield "deep manifest", "manifest", made


def entries(folder):
    """Harmful arrays in the cache, under descriptions that fit them."""
    from hpgmn.base.files import file_checksum
    from hpgmn.statistics.cache import publish

    for count, (name, content) in enumerate(harmful_arrays(folder).items()):
        place, key = folder / f"draft {name}", f"{count:040x}"
        place.mkdir()
        path = place / "a.npy"
        path.write_bytes(content)
        said = {"bytes": len(content), "crc32": file_checksum(path), "shape": [4], "dtype": "<f8"}
        assert publish(place, key, {}, {"a": said})
        yield f"{name} in the cache", "entry", folder / key


def models(folder):
    """Model files whose headers lie or grow."""
    about = {"__metadata__": {"about": "{}"}}
    one = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    headers: dict[str, Any] = {
        "header of exabytes": (b"{}", 2**63),
        "header of a terabyte": (b"{}", 2**40),
        "tensor of 2^80": about | {"a": one | {"shape": [2**40, 2**40]}},
        "tensor below zero": about | {"a": one | {"shape": [-1]}},
        "offsets outside": about | {"a": one | {"data_offsets": [0, 2**62]}},
        "offsets that overlap": about | {"a": one, "b": one},
        "a tensor twice": b'{"a":%s,"a":%s}' % ((json.dumps(one).encode(),) * 2),
        "deep header": b"[" * 10**6,
        "deep description": {"__metadata__": {"about": "[" * 10**6}},
        "long number": {"__metadata__": {"about": "1" * 10**6}},
        "description that is a list": {"__metadata__": {"about": "[]"}},
        "description of 5 MB": {"__metadata__": {"about": '{"a":"%s"}' % ("a" * 5_000_000)}},
        "very many tensors": about
        | {f"k{n}": one | {"shape": [0], "data_offsets": [0, 0]} for n in range(30_000)},
    }
    for name, header in headers.items():
        content, size = header if isinstance(header, tuple) else (header, None)
        if isinstance(content, dict):
            content = json.dumps(content).encode()
        path = folder / f"{name}.safetensors"
        path.write_bytes(struct.pack("<Q", size or len(content)) + content + bytes(4))
        yield name, "model", path
    path = folder / "hole.safetensors"
    whole = json.dumps(about | {"a": one | {"shape": [2**38], "data_offsets": [0, 2**40]}}).encode()
    path.write_bytes(struct.pack("<Q", len(whole)) + whole)
    os.truncate(path, 8 + len(whole) + 2**40)
    yield "a terabyte of holes", "model", path
    (folder / "pickle.safetensors").write_bytes(trap(folder))
    yield "pickle as a model", "model", folder / "pickle.safetensors"
    os.mkfifo(folder / "pipe.safetensors")
    yield "pipe as a model", "model", folder / "pipe.safetensors"
    os.symlink("/etc/passwd", folder / "link.safetensors")
    yield "link to a text as a model", "model", folder / "link.safetensors"


def texts(folder):
    """YAML and JSON that run code, grow or never end."""
    run = f"[touch, {folder / 'sprung'}]"
    laughs = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 15)
    )
    merged = "a0: &a0 {k: 1}\n" + "".join(
        f"a{n}: &a{n} {{<<: [{','.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 15)
    )
    for name, text in {
        "call": f"a: !!python/object/apply:subprocess.check_call [{run}]",
        "new object": f"a: !!python/object/new:subprocess.Popen [{run}]",
        "name": "a: !!python/name:os.system",
        "module": "a: !!python/module:antigravity",
        "laughs": laughs,
        "merged laughs": merged,
        "one that holds itself": "a: &a [*a]",
        "chain": "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 3000)),
        "deep": "a: " + "[" * 200_000,
        "deep and closed": "a: " + "[" * 100_000 + "]" * 100_000,
        "deep block": "\n".join(" " * n + "a:" for n in range(600)),
        "digits": "a: " + "1" * 200_000,
        "base sixty": "a: 1" + ":1" * 100_000,
        "no such day": "a: 2024-13-45",
        "large": "a: 1\n#" + "x" * 2**20,
    }.items():
        (folder / f"{name}.yaml").write_text(text)
        yield f"YAML: {name}", "config", folder / f"{name}.yaml"
    os.symlink("/dev/zero", folder / "zero.yaml")
    yield "YAML: device without end", "config", folder / "zero.yaml"
    for name, text in {
        "deep": "[" * 10**6,
        "deep objects": '{"a":' * 10**5,
        "digits": "1" * 10**6,
        "not text": "\ud800",
    }.items():
        path = folder / f"{name}.json"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        yield f"JSON: {name}", "json", path
        run_folder = folder / f"run {name}"
        run_folder.mkdir()
        (run_folder / "config.yaml").write_text("graph: texas\nmodel: hpgmn\nsettings: {}\n")
        (run_folder / "metrics.json").write_bytes(path.read_bytes())
        yield f"report of JSON: {name}", "report", run_folder
    path = folder / "hole.json"
    path.write_text("{}")
    os.truncate(path, 2**40)
    yield "JSON: a terabyte of holes", "json", path
    os.symlink("/dev/zero", folder / "zero.json")
    yield "JSON: device without end", "json", folder / "zero.json"


def tables(folder):
    """GraphML, Parquet and CSV that grow, reach out or unpickle."""
    body = (
        "<graphml><graph edgedefault='directed'>{}<edge source='a' target='b'/></graph></graphml>"
    )
    nodes = "<node id='a'/><node id='b'/>"
    laughs = "<!ENTITY a0 'lol'>" + "".join(
        f"<!ENTITY a{n} '{f'&a{n - 1};' * 10}'>" for n in range(1, 12)
    )
    key = "<key id='k' for='node' attr.name='v' attr.type='long'/>"
    for name, text in {
        "laughs": f"<!DOCTYPE l [{laughs}]>" + body.format("<node id='&a11;'/>"),
        "long entity": f"<!DOCTYPE l [<!ENTITY a '{'x' * 100_000}'>]>"
        + body.format(f"{nodes}<desc>{'&a;' * 5000}</desc>"),
        "file": "<!DOCTYPE l [<!ENTITY a SYSTEM 'file:///etc/passwd'>]>"
        + body.format(f"{nodes}<desc>&a;</desc>"),
        "deep": body.format("<node id='a'><graph>" * 50_000 + "</graph></node>" * 50_000 + nodes),
        "long number": body.format("<node id='a'><data key='k'>" + "9" * 4000 + "</data></node>")
        .replace("<graph ", f"{key}<graph ")
        .replace("<edge source='a' target='b'/>", "<node id='b'/>"),
    }.items():
        (folder / f"{name}.graphml").write_text(text)
        yield f"GraphML: {name}", "tables", folder / f"{name}.graphml"
    import pyarrow as pa
    import pyarrow.parquet as pq

    def in_folder(name, ending, write):
        place = folder / f"tables {name}"
        place.mkdir()
        (place / "edges.csv").write_text("source,target\na,b\n")
        write(place / f"nodes.{ending}")
        return name, "tables", place

    plain = io.BytesIO()
    pq.write_table(pa.table({"id": ["a", "b"], "v": [1.0, 2.0]}), plain)
    footer = plain.getvalue()[:-8]
    yield in_folder(
        "Parquet: footer of 4 GiB",
        "parquet",
        lambda path: path.write_bytes(footer + struct.pack("<I", 2**32 - 1) + b"PAR1"),
    )
    secret = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": trap(folder),
    }
    fields = [pa.field("id", pa.string()), pa.field("v", pa.binary(), metadata=secret)]
    pickled = pa.table([pa.array(["a", "b"]), pa.array([b"1", b"2"])], schema=pa.schema(fields))
    yield in_folder("Parquet: pickled type", "parquet", lambda path: pq.write_table(pickled, path))
    repeated = pa.table({"id": pa.nulls(10**6, pa.string()), "v": np.zeros(10**6)})

    def rows(path):
        with pq.ParquetWriter(path, repeated.schema, compression="zstd") as writer:
            for _ in range(5):
                writer.write_table(repeated)

    yield in_folder("Parquet: the same row for ever", "parquet", rows)
    for name, text in {
        "a value of 6 MB": "id,v\n" + "a" * 6_000_000 + ",1\nb,2\n",
        "a quote without end": 'id,v\na,"' + "\n" * 6_000_000,
        "a formula": "id,v\n=cmd|' /C calc'!A0,1\na,2\nb,2\n",
        "a name that is code": "id,__import__('os').system('x')\na,1\nb,2\n",
    }.items():
        yield in_folder(f"CSV: {name}", "csv", lambda path, text=text: path.write_text(text))

    def hole(path):
        path.write_text("id,v\na,1\n")
        os.truncate(path, 2**40)

    yield in_folder("CSV: a terabyte of holes", "csv", hole)


def studies(folder):
    """SQLite files in which reading a table runs for ever, or writing to one does more."""
    endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c"
    table = "CREATE TABLE studies (study_name TEXT)"
    for name, script in {
        "view without end": f"CREATE VIEW studies AS SELECT x AS study_name FROM ({endless})",
        "trigger": f"{table}; INSERT INTO studies VALUES ('hpgmn tune'); CREATE TRIGGER t AFTER "
        "INSERT ON studies BEGIN DELETE FROM studies; END",
        "virtual table": f"{table}; INSERT INTO studies VALUES ('hpgmn tune'); CREATE VIRTUAL "
        "TABLE v USING fts5(x)",
    }.items():
        path = folder / f"{name}.db"
        with closing(sqlite3.connect(path)) as database:
            database.executescript(script)
        yield f"study: {name}", "study", path


HARMLESS = {
    "fine names elsewhere",
    "size of the rest of the disk",  # the array's own header says less
    "GraphML: deep",
    "Parquet: pickled type",
    "CSV: a formula",
    "CSV: a name that is code",
}
"""What may be read: nothing happens."""


@pytest.mark.slow
@pytest.mark.soak
def test_files_made_to_do_harm_are_refused_soon_and_in_little_memory(tmp_path, soak):
    made: list[tuple[str, str, Path]] = []
    for maker in (archives, shards, entries, models, texts, tables, studies):
        place = tmp_path / maker.__name__
        place.mkdir()
        made += maker(place)
    (tmp_path / "graphs").mkdir()
    made += graphs(tmp_path / "graphs", everywhere=soak.is_long)
    good = tmp_path / "good"
    good.mkdir()
    (good / "nodes.csv").write_text("id,label,v\na,x,1\nb,y,2\n")
    (good / "edges.csv").write_text("source,target\na,b\n")
    before = sorted(tmp_path.rglob("*"))
    done = subprocess.run(
        [sys.executable, "-c", READER.replace("SECONDS", str(SECONDS)), str(good)],
        input="".join(json.dumps([name, kind, str(path)]) + "\n" for name, kind, path in made),
        env=os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=soak.amount(short=120, long=300),
        check=False,
    )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, (told[-1], done.stderr[-2000:])
    outcomes = {line[0]: line[1:] for line in told if len(line) > 1}
    assert set(outcomes) == {name for name, _, _ in made}
    wrong = {
        name: (outcome, message[:300])
        for name, (outcome, message, _) in outcomes.items()
        if outcome != ("read" if name in HARMLESS else "refused")
    }
    assert wrong == {}
    assert [name for name, (_, message, _) in outcomes.items() if len(message) > 1500] == []
    assert {name: took for name, (_, _, took) in outcomes.items() if took > SECONDS} == {}
    assert sorted(tmp_path.rglob("*")) == before  # no trap was sprung
    soak.record(
        "malicious-files",
        "A file made to do harm is refused in one sentence, soon and in little memory.",
        files_tried=len(made),
    )
