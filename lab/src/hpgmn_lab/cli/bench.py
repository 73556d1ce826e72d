"""The command ``hpgmn bench`` and its benchmarks."""

from __future__ import annotations

import importlib
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column
from rich.table import Table as RichTable

from hpgmn.base.errors import SettingError
from hpgmn.cli.console import out, say

if TYPE_CHECKING:
    from hpgmn_lab.bench.records import Call, Record, Table

_DEVICES = ("auto", "cpu", "cuda")
_NOT_IN_COMMAND = ("out_folder", "graphs_folder", "device")  # do not change what is measured

app = typer.Typer(
    invoke_without_command=True, rich_markup_mode=None, pretty_exceptions_enable=False
)

Out = Annotated[Path | None, typer.Option("--out", help="Folder of the record [bench/NAME].")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated."),
]
Nodes = Annotated[int, typer.Option(help="Nodes of the generated graph.")]
Degree = Annotated[float, typer.Option(help="Edges per node of the generated graph.")]
Attributes = Annotated[int, typer.Option(help="Attributes of the generated graph.")]
Seed = Annotated[int, typer.Option(help="Of the generated graph and of the training.")]
Graphs = Annotated[
    Path | None, typer.Option("--graphs", help="Folder of generated graphs [OUT/graphs].")
]
GraphNames = Annotated[
    str | None, typer.Option("--graphs", help="Datasets, graph files or folders, with commas.")
]
Splits = Annotated[str, typer.Option(help="all, or numbers: 0,3.")]
Seeds = Annotated[int, typer.Option(min=1, help="Seeds per split.")]


@app.callback()
def bench(context: typer.Context) -> None:
    """Measure speed, memory and accuracy; without a name, list the benchmarks."""
    if context.invoked_subcommand is None:
        from hpgmn_lab.bench import BENCHMARKS

        table = RichTable("name", "what it measures")
        for name, summary in (BENCHMARKS | {"all": "all of them; --quick in tiny form"}).items():
            table.add_row(name, summary)
        out.print(table)
        say("Start with `hpgmn bench all --quick` (two minutes), then `hpgmn bench growth`.")


@app.command()
def growth(
    context: typer.Context,
    nodes: Annotated[str, typer.Option(help="Increasing sizes.")] = "10000,100000,1000000",
    degree: Degree = 10.0,
    attributes: Attributes = 64,
    epochs: Annotated[int, typer.Option(help="Epochs of HP-GMN.")] = 20,
    repeats: Annotated[int, typer.Option(min=1, help="Runs per size; the median is shown.")] = 1,
    seed: Seed = 0,
    set_: Assignments = None,
    device: Device = "auto",
    graphs_folder: Graphs = None,
    out_folder: Out = None,
) -> None:
    """Measure the cost of each stage of HP-GMN as a generated graph grows."""
    from hpgmn.base.settings import parse_assignments
    from hpgmn_lab.bench import growth as benchmark
    from hpgmn_lab.bench.graphs import GraphSpec

    sizes = _integers("--nodes", nodes)
    call = _call(context, device, out_folder, graphs_folder)
    record = benchmark.measure(
        call,
        sizes,
        graph=GraphSpec(sizes[0], degree, attributes, seed),
        changes={"epochs": epochs} | parse_assignments(set_ or []),
        repeats=repeats,
    )
    _finish(record, call)


@app.command()
def peers(
    context: typer.Context,
    nodes: Nodes = 100_000,
    degree: Degree = 10.0,
    attributes: Attributes = 64,
    graph: Annotated[
        str | None,
        typer.Option(help="Dataset, graph file or folder instead of a generated graph."),
    ] = None,
    split: Annotated[int, typer.Option(help="Number of the split.")] = 0,
    models: Annotated[
        str | None, typer.Option(help="Names with commas; hpgmn is always included [all].")
    ] = None,
    trials: Annotated[int, typer.Option(min=1, max=4, help="Trials of each model.")] = 4,
    epochs: Annotated[int, typer.Option(help="Epochs of HP-GMN.")] = 20,
    peer_epochs: Annotated[int, typer.Option(help="Epochs of all others.")] = 100,
    limit: Annotated[
        float | None, typer.Option(min=0.001, help="Seconds for all trials of a model [none].")
    ] = None,
    seed: Seed = 0,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="[MODEL.]KEY=VALUE",
            help="Change a setting of every model that has it, or of one model.",
        ),
    ] = None,
    device: Device = "auto",
    graphs_folder: Graphs = None,
    out_folder: Out = None,
) -> None:
    """Compare HP-GMN with other models on one graph: accuracy, memory, seconds to a score."""
    from hpgmn.base.settings import parse_assignments
    from hpgmn.runs.compare import settings_by_model
    from hpgmn_lab.bench import peers as benchmark
    from hpgmn_lab.bench.graphs import GraphSpec
    from hpgmn_lab.bench.trials import PYG

    names = benchmark.chosen_models(_names(models, benchmark.TRIALS))
    ours = list(dict.fromkeys(name.removeprefix(PYG) for name in names))
    changes = settings_by_model(ours, parse_assignments(set_ or []))
    call = _call(context, device, out_folder, graphs_folder)
    record = benchmark.measure(
        call,
        graph=GraphSpec(nodes, degree, attributes, seed) if graph is None else graph,
        split=split,
        models=names,
        trials=trials,
        epochs=epochs,
        peer_epochs=peer_epochs,
        changes={name: changes[name.removeprefix(PYG)] for name in names},
        limit=limit,
        seed=seed,
    )
    _finish(record, call)


@app.command()
def forms(
    context: typer.Context,
    graphs: GraphNames = None,
    error_graphs: Annotated[
        str | None, typer.Option(help="Where errors are measured; '' for none.")
    ] = None,
    splits: Splits = "all",
    seeds: Seeds = 1,
    dropouts: Annotated[
        str,
        typer.Option(help="Rates of diffusion_dropout, selected on validation [shipped]."),
    ] = "",
    set_: Assignments = None,
    device: Device = "auto",
    out_folder: Out = None,
) -> None:
    """Compare forms of diffusion with the exact matrix: error and score.

    Interrupted, it resumes when called again with the same --out.
    """
    from hpgmn.base.settings import parse_assignments
    from hpgmn_lab.bench import forms as benchmark

    call = _call(context, device, out_folder)
    record = benchmark.measure(
        call,
        graphs=_names(graphs, benchmark.GRAPHS),
        error_graphs=_names(error_graphs, benchmark.ERROR_GRAPHS),
        splits=None if splits == "all" else _integers("--splits", splits),
        seeds=seeds,
        changes=parse_assignments(set_ or []),
        dropouts=_numbers("--dropouts", dropouts) if dropouts else (),
    )
    _finish(record, call)


@app.command()
def batches(
    context: typer.Context,
    graphs: GraphNames = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Train nodes of a step.")] = 512,
    lr_factors: Annotated[
        str,
        typer.Option(help="Fractions of the shipped learning rate, selected on validation."),
    ] = "1,0.25",
    splits: Splits = "all",
    seeds: Seeds = 1,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of batches only."),
    ] = None,
    device: Device = "auto",
    out_folder: Out = None,
) -> None:
    """Compare training in batches of rows with all rows at once: score and seconds.

    Interrupted, it resumes when called again with the same --out.
    """
    from hpgmn.base.settings import parse_assignments
    from hpgmn_lab.bench import batches as benchmark

    call = _call(context, device, out_folder)
    record = benchmark.measure(
        call,
        graphs=_names(graphs, benchmark.GRAPHS),
        batch_size=batch_size,
        factors=_numbers("--lr-factors", lr_factors),
        splits=None if splits == "all" else _integers("--splits", splits),
        seeds=seeds,
        changes=parse_assignments(set_ or []),
    )
    _finish(record, call)


@app.command()
def workers(
    context: typer.Context,
    engine: Annotated[
        str, typer.Option(help="local: processes; ray: a Ray cluster on this machine.")
    ] = "local",
    runs: Annotated[int, typer.Option(min=2, help="Independent runs, an even number.")] = 8,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of each run.")] = 4000,
    repeats: Annotated[int, typer.Option(min=1, help="Repeats of both sides.")] = 3,
    device: Device = "auto",
    out_folder: Out = None,
) -> None:
    """Compare two workers with one on independent runs of one thread; needs two idle cores."""
    from hpgmn_lab.bench import workers as benchmark

    call = _call(context, device, out_folder)
    options = {"engine": engine, "runs": runs, "epochs": epochs, "repeats": repeats}
    _finish(benchmark.measure(call, **options), call)  # type: ignore[arg-type]


@app.command()
def shards(
    context: typer.Context,
    nodes: Nodes = 500_000,
    degree: Degree = 10.0,
    attributes: Attributes = 64,
    ranges: Annotated[int, typer.Option(min=2, help="Ranges of nodes.")] = 8,
    memory: Annotated[int, typer.Option(min=1, help="MiB of a unit of work.")] = 256,
    sample: Annotated[int, typer.Option(min=1, help="Rows of top-k diffusion.")] = 2000,
    seed: Seed = 0,
    set_: Assignments = None,
    device: Device = "auto",
    graphs_folder: Graphs = None,
    out_folder: Out = None,
) -> None:
    """Measure each kind of work of sharding a graph, and training on the shards."""
    from hpgmn.base.settings import parse_assignments
    from hpgmn_lab.bench import shards as benchmark
    from hpgmn_lab.bench.graphs import GraphSpec

    call = _call(context, device, out_folder, graphs_folder)
    record = benchmark.measure(
        call,
        graph=GraphSpec(nodes, degree, attributes, seed),
        ranges=ranges,
        memory=memory * 2**20,
        sample=sample,
        changes=parse_assignments(set_ or []),
    )
    _finish(record, call)


@app.command()
def deterministic(
    context: typer.Context,
    models: Annotated[str | None, typer.Option(help="Names with commas [all].")] = None,
    nodes: Annotated[int, typer.Option(min=100, help="Nodes of the generated graph.")] = 2000,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of each stage.")] = 200,
    repeats: Annotated[int, typer.Option(min=2, help="Repeats of both sides.")] = 3,
    device: Device = "auto",
    out_folder: Out = None,
) -> None:
    """Measure the cost of train --deterministic by model; on a CPU results repeat anyway."""
    from hpgmn_lab.bench import deterministic as benchmark

    call = _call(context, device, out_folder)
    record = benchmark.measure(
        call,
        models=None if models is None else _names(models, ()),
        nodes=nodes,
        epochs=epochs,
        repeats=repeats,
    )
    _finish(record, call)


# Tiny form: every kind of work once, on generated graphs in the folder {graphs}.
_QUICK = {
    "growth": "--nodes 300,600 --degree 5 --attributes 8 --epochs 3 --graphs {graphs}",
    "peers": "--nodes 600 --degree 5 --attributes 8 --models gcn,linkx,pyg-gcn --trials 2 "
    "--epochs 10 --peer-epochs 20 --graphs {graphs}",
    "forms": "--graphs {graph} --error-graphs {graph} --splits 0,1,2 --set epochs=20 "
    "--set diffusion_dim=32",
    "batches": "--graphs {graph} --splits 0,1,2 --batch-size 64 --lr-factors 0.25 --set epochs=60",
    "workers": "--runs 2 --epochs 20 --repeats 1",
    "shards": "--nodes 600 --degree 5 --attributes 8 --ranges 2 --memory 16 --sample 20 "
    "--set batch_size=64 --graphs {graphs}",
    "deterministic": "--models mlp,gcn --nodes 200 --epochs 3 --repeats 2",
}


@app.command("all")
def run_all(
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny sizes, in two minutes, to see the output.")
    ] = False,
    device: Device = "auto",
    out_folder: Annotated[
        Path | None,
        typer.Option("--out", help="Folder of their folders [bench; --quick: bench/quick]."),
    ] = None,
) -> None:
    """Run every benchmark, one after the other."""
    from hpgmn_lab.bench import BENCHMARKS
    from hpgmn_lab.bench.graphs import GraphSpec, generate
    from hpgmn_lab.bench.records import make_folder

    device = _device(device)
    folder = out_folder or (Path("bench/quick") if quick else Path("bench"))
    make_folder(folder)
    paths = {}
    if quick:
        say("generating a small graph")
        graphs = folder / "graphs"
        path = generate(GraphSpec(600, 5.0, 8), graphs)["path"]
        paths = {"graph": shlex.quote(path), "graphs": shlex.quote(str(graphs))}
    for name in BENCHMARKS:
        options = shlex.split(_QUICK[name].format(**paths)) if quick else []
        options += ["--device", device, "--out", str(folder / name)]
        say(f"== {shlex.join(['hpgmn', 'bench', name, *options])}")
        app(args=[name, *options], prog_name="hpgmn bench", standalone_mode=False)
    if quick:
        say("These sizes are too small for a verdict; measure without --quick.")


def _names(text: str | None, default: Sequence[str] | dict[str, Any]) -> list[str]:
    """Return the names of an option, each once."""
    if text is None:
        return list(default)
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise SettingError(f"{option} takes numbers such as 1,0.5 (got '{text}').") from None


def _integers(option: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise SettingError(f"{option} takes integers such as 1000,2000 (got '{text}').") from None


def _device(name: str) -> str:
    from hpgmn.runs.spec import resolve_device

    if name not in _DEVICES:
        raise SettingError.unknown("device", name, _DEVICES)
    return resolve_device(name)


def _call(
    context: typer.Context, device: str, folder: Path | None, graphs: Path | None = None
) -> Call:
    """Return how the command was called; its folder is created before anything is measured."""
    from hpgmn_lab.bench.records import Call, make_folder

    name, device = str(context.info_name), _device(device)
    words = ["hpgmn", "bench", name]
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        if parameter.name in _NOT_IN_COMMAND or source is None or source.name != "COMMANDLINE":
            continue
        value = context.params[str(parameter.name)]
        values = value if isinstance(value, list | tuple) else [value]
        words += [word for member in values for word in (parameter.opts[0], str(member))]
    folder = Path("bench") / name if folder is None else folder
    make_folder(folder)
    return Call(shlex.join([*words, "--device", device]), device, folder, graphs)


def _finish(record: Record, call: Call) -> None:
    """Write the record and its picture, and print its tables."""
    from hpgmn_lab.bench.pictures import draw
    from hpgmn_lab.bench.records import cores_taken, write_record

    name = record["benchmark"]
    write_record(record, call.out / f"{name}.json")
    for table in importlib.import_module(f"hpgmn_lab.bench.{name}").tables(record):
        print_table(table)
    has_picture = draw(record, call.out / name)
    pictures = f"; picture: {name}.png and {name}.svg beside it" if has_picture else ""
    say(f"Record: {call.out / name}.json{pictures}.")
    taken = cores_taken(record) or 0.0
    if taken > 0.1:
        say(f"Other processes used {taken:.1f} cores: times are too long. Measure again alone.")


def print_table(table: Table) -> None:
    """Print a table on the terminal."""
    columns = (
        Column(name, justify="right" if number else "left", overflow="fold")
        for number, name in enumerate(table.columns)
    )
    shown = RichTable(
        *columns,
        title=table.title or None,
        title_justify="left",
        box=None,
        padding=(0, 2, 0, 0),
    )
    for row in table.rows:
        shown.add_row(*row)
    out.print(shown)
    out.print()
