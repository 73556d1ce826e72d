"""The command that measures: bench and its benchmarks."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column
from rich.table import Table as RichTable

from hpgmn.base.errors import SettingError
from hpgmn.cli.console import out, say

if TYPE_CHECKING:
    from hpgmn_lab.bench.records import Table

_DEVICES = ("auto", "cpu", "cuda")
_NOT_IN_COMMAND = ("out_folder", "graphs_folder", "device")  # these do not change what is measured

app = typer.Typer(
    invoke_without_command=True, rich_markup_mode=None, pretty_exceptions_enable=False
)

Out = Annotated[Path | None, typer.Option("--out", help="The folder of the record [bench/NAME].")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated."),
]
Degree = Annotated[float, typer.Option(help="Edges per node of the generated graph.")]
Attributes = Annotated[int, typer.Option(help="Attributes of the generated graph.")]
Seed = Annotated[int, typer.Option(help="Of the generated graph and of the training.")]
Graphs = Annotated[
    Path | None,
    typer.Option("--graphs", help="Where generated graphs are kept and found [OUT/graphs]."),
]


@app.callback()
def bench(context: typer.Context) -> None:
    """Measure speed, memory and accuracy; without a name, list what can be measured."""
    if context.invoked_subcommand is None:
        from hpgmn_lab.bench import BENCHMARKS

        table = RichTable("name", "what it measures")
        for name, words in (BENCHMARKS | {"all": "all of them; --quick in tiny form"}).items():
            table.add_row(name, words)
        out.print(table)
        say("Start with `hpgmn bench all --quick` (two minutes), then `hpgmn bench growth`.")


@app.command()
def growth(
    context: typer.Context,
    nodes: Annotated[str, typer.Option(help="Rising sizes.")] = "10000,100000,1000000",
    degree: Degree = 10.0,
    attributes: Attributes = 64,
    epochs: Annotated[int, typer.Option(help="Epochs of HP-GMN.")] = 20,
    repeats: Annotated[int, typer.Option(help="Runs of each size; the median counts.")] = 1,
    seed: Seed = 0,
    set_: Assignments = None,
    device: Device = "auto",
    graphs_folder: Graphs = None,
    out_folder: Out = None,
) -> None:
    """The cost of each stage of HP-GMN as a generated graph grows."""
    from hpgmn.base.settings import parse_assignments
    from hpgmn_lab.bench import growth as benchmark
    from hpgmn_lab.bench.graphs import GraphSpec
    from hpgmn_lab.bench.pictures import draw_growth

    sizes = whole_numbers("--nodes", nodes)
    place = _device(device)
    folder = _folder(out_folder, "growth")
    record = benchmark.measure(
        sizes,
        folder,
        command=_typed(context, place),
        graph=GraphSpec(sizes[0], degree, attributes, seed),
        changes={"epochs": epochs} | parse_assignments(set_ or []),
        repeats=repeats,
        graphs=graphs_folder,
        device=place,
        say=say,
    )
    _finish(record, folder, benchmark.tables(record), draw_growth, benchmark.disturbance(record))


@app.command()
def peers(
    context: typer.Context,
    nodes: Annotated[int, typer.Option(help="Nodes of the generated graph.")] = 100_000,
    degree: Degree = 10.0,
    attributes: Attributes = 64,
    graph: Annotated[
        str | None,
        typer.Option(help="A dataset's name, graph file or folder in place of a generated graph."),
    ] = None,
    split: Annotated[int, typer.Option(help="The number of the split.")] = 0,
    models: Annotated[
        str | None, typer.Option(help="Names with commas; hpgmn is always there [all].")
    ] = None,
    trials: Annotated[int, typer.Option(help="Settings tried for each model.")] = 4,
    epochs: Annotated[int, typer.Option(help="Epochs of HP-GMN.")] = 20,
    peer_epochs: Annotated[int, typer.Option(help="Epochs of all others.")] = 100,
    limit: Annotated[
        float | None, typer.Option(help="Most seconds for all trials of a model [none].")
    ] = None,
    seed: Seed = 0,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="[MODEL.]KEY=VALUE",
            help="Change a setting in every trial of every model that knows it, or of one model.",
        ),
    ] = None,
    device: Device = "auto",
    graphs_folder: Graphs = None,
    out_folder: Out = None,
) -> None:
    """HP-GMN beside other models on one graph: accuracy, memory, seconds to the same score."""
    from hpgmn.base.settings import parse_assignments
    from hpgmn.cli.several import shared_assignments
    from hpgmn_lab.bench import peers as benchmark
    from hpgmn_lab.bench.graphs import GraphSpec
    from hpgmn_lab.bench.pictures import draw_peers
    from hpgmn_lab.bench.trials import PYG

    asked = list(benchmark.TRIALS) if models is None else models.split(",")
    names = benchmark.chosen_models([name.strip() for name in asked if name.strip()])
    known = list(dict.fromkeys(name.removeprefix(PYG) for name in names))
    changed = shared_assignments(known, set_ or [])
    place = _device(device)
    folder = _folder(out_folder, "peers")
    record = benchmark.measure(
        folder,
        command=_typed(context, place),
        graph=GraphSpec(nodes, degree, attributes, seed) if graph is None else graph,
        split=split,
        models=names,
        trials=trials,
        epochs=epochs,
        peer_epochs=peer_epochs,
        changes={name: parse_assignments(changed[name.removeprefix(PYG)]) for name in names},
        limit=limit,
        seed=seed,
        graphs=graphs_folder,
        device=place,
        say=say,
    )
    _finish(record, folder, benchmark.tables(record), draw_peers, benchmark.disturbance(record))


GraphNames = Annotated[
    str | None, typer.Option("--graphs", help="Datasets, graph files or folders, with commas.")
]
Splits = Annotated[str, typer.Option(help="all, or numbers: 0,3.")]
Seeds = Annotated[int, typer.Option(help="Seeds per split.")]


@app.command()
def forms(
    context: typer.Context,
    graphs: GraphNames = None,
    error_graphs: Annotated[
        str | None, typer.Option(help="Where errors are measured; '' for nowhere.")
    ] = None,
    splits: Splits = "all",
    seeds: Seeds = 1,
    dropouts: Annotated[
        str,
        typer.Option(
            help="Rates of diffusion_dropout; validation chooses one for each form [shipped]."
        ),
    ] = "",
    set_: Assignments = None,
    device: Device = "auto",
    out_folder: Out = None,
) -> None:
    """Diffusion as largest entries or as a sketch, against the exact matrix: error and score.

    Interrupted, it goes on where it was when it is called again with the same --out.
    """
    from hpgmn.base.settings import parse_assignments
    from hpgmn_lab.bench import forms as benchmark
    from hpgmn_lab.bench.pictures import draw_forms

    place = _device(device)
    folder = _folder(out_folder, "forms")
    record = benchmark.measure(
        folder,
        command=_typed(context, place),
        graphs=_names(graphs, benchmark.GRAPHS),
        error_graphs=_names(error_graphs, benchmark.ERROR_GRAPHS),
        splits=_splits(splits),
        seeds=seeds,
        changes=parse_assignments(set_ or []),
        dropouts=_numbers("--dropouts", dropouts) if dropouts else (),
        device=place,
        say=say,
    )
    _finish(record, folder, benchmark.tables(record), draw_forms)


@app.command()
def batches(
    context: typer.Context,
    graphs: GraphNames = None,
    batch_size: Annotated[int, typer.Option(help="Train nodes of a step.")] = 512,
    lr_factors: Annotated[
        str,
        typer.Option(
            help="Learning rates of batches as shares of the shipped one; validation chooses."
        ),
    ] = "1,0.25",
    splits: Splits = "all",
    seeds: Seeds = 1,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of batches alone."),
    ] = None,
    device: Device = "auto",
    out_folder: Out = None,
) -> None:
    """Training in batches of rows, against all rows at once: score and seconds.

    Interrupted, it goes on where it was when it is called again with the same --out.
    """
    from hpgmn.base.settings import parse_assignments
    from hpgmn_lab.bench import batches as benchmark
    from hpgmn_lab.bench.pictures import draw_batches

    place = _device(device)
    folder = _folder(out_folder, "batches")
    record = benchmark.measure(
        folder,
        command=_typed(context, place),
        graphs=_names(graphs, benchmark.GRAPHS),
        batch_size=batch_size,
        factors=_numbers("--lr-factors", lr_factors),
        splits=_splits(splits),
        seeds=seeds,
        changes=parse_assignments(set_ or []),
        device=place,
        say=say,
    )
    _finish(record, folder, benchmark.tables(record), draw_batches)


@app.command()
def workers(
    context: typer.Context,
    engine: Annotated[str, typer.Option(help="local: processes; ray: a Ray of this machine.")] = (
        "local"
    ),
    runs: Annotated[int, typer.Option(help="Independent runs, an even number.")] = 8,
    epochs: Annotated[int, typer.Option(help="Epochs of each run.")] = 4000,
    repeats: Annotated[int, typer.Option(help="How often both are measured.")] = 3,
    device: Device = "auto",
    out_folder: Out = None,
) -> None:
    """Two workers against one on independent runs of one thread each; wants two idle cores."""
    from hpgmn_lab.bench import workers as benchmark

    place = _device(device)
    folder = _folder(out_folder, "workers")
    record = benchmark.measure(
        command=_typed(context, place),
        engine=engine,
        runs=runs,
        epochs=epochs,
        repeats=repeats,
        device=place,
        say=say,
    )
    _finish(record, folder, benchmark.tables(record), taken=benchmark.disturbance(record))


@app.command()
def shards(
    context: typer.Context,
    nodes: Annotated[int, typer.Option(help="Nodes of the generated graph.")] = 500_000,
    degree: Degree = 10.0,
    attributes: Attributes = 64,
    ranges: Annotated[int, typer.Option(help="Ranges of nodes.")] = 8,
    memory: Annotated[int, typer.Option(help="MiB that a unit of work holds.")] = 256,
    sample: Annotated[int, typer.Option(help="Rows of top-k diffusion.")] = 2000,
    seed: Seed = 0,
    set_: Assignments = None,
    device: Device = "auto",
    graphs_folder: Graphs = None,
    out_folder: Out = None,
) -> None:
    """What a graph in node ranges costs, kind by kind of work, and what training on rows costs."""
    from hpgmn.base.settings import parse_assignments
    from hpgmn_lab.bench import shards as benchmark
    from hpgmn_lab.bench.graphs import GraphSpec

    place = _device(device)
    folder = _folder(out_folder, "shards")
    record = benchmark.measure(
        folder,
        command=_typed(context, place),
        graph=GraphSpec(nodes, degree, attributes, seed),
        ranges=ranges,
        memory=memory * 2**20,
        sample=sample,
        changes=parse_assignments(set_ or []),
        graphs=graphs_folder,
        device=place,
        say=say,
    )
    _finish(record, folder, benchmark.tables(record), taken=benchmark.disturbance(record))


@app.command()
def deterministic(
    context: typer.Context,
    models: Annotated[str | None, typer.Option(help="Names with commas [all].")] = None,
    nodes: Annotated[int, typer.Option(help="Nodes of the generated graph.")] = 2000,
    epochs: Annotated[int, typer.Option(help="Epochs of each stage.")] = 200,
    repeats: Annotated[int, typer.Option(help="How often both sides are measured.")] = 3,
    device: Device = "auto",
    out_folder: Out = None,
) -> None:
    """What train --deterministic costs, model by model; on a CPU bits repeat anyway."""
    from hpgmn_lab.bench import deterministic as benchmark

    names = None if models is None else _names(models, ())
    place = _device(device)
    folder = _folder(out_folder, "deterministic")
    record = benchmark.measure(
        command=_typed(context, place),
        models=names,
        nodes=nodes,
        epochs=epochs,
        repeats=repeats,
        device=place,
        say=say,
    )
    _finish(record, folder, benchmark.tables(record), taken=benchmark.disturbance(record))


# In tiny form: every kind of work once, on generated graphs in the folder {graphs}.
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
        bool, typer.Option("--quick", help="Tiny sizes: what it looks like, in two minutes.")
    ] = False,
    device: Device = "auto",
    out_folder: Annotated[
        Path | None,
        typer.Option("--out", help="One folder for each inside it [bench; --quick: bench/quick]."),
    ] = None,
) -> None:
    """Every benchmark, one after the other."""
    from hpgmn_lab.bench import BENCHMARKS
    from hpgmn_lab.bench.graphs import GraphSpec, generated

    place = _device(device)
    folder = _folder(out_folder or (Path("bench/quick") if quick else Path("bench")), "all")
    found = {}
    if quick:
        say("a small graph")
        graphs = folder / "graphs"
        path = generated(GraphSpec(600, 5.0, 8), graphs)["path"]
        found = {"graph": shlex.quote(path), "graphs": shlex.quote(str(graphs))}
    for name in BENCHMARKS:
        options = shlex.split(_QUICK[name].format(**found)) if quick else []
        ends = ["--device", place, "--out", str(folder / name)]
        say(f"== {shlex.join(['hpgmn', 'bench', name, *options, *ends])}")
        app(args=[name, *options, *ends], prog_name="hpgmn bench", standalone_mode=False)
    if quick:
        say("These sizes are too small for any verdict; leave --quick out to measure.")


def _names(text: str | None, default: Sequence[str]) -> list[str]:
    """The graphs of an option, each once."""
    if text is None:
        return list(default)
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _splits(text: str) -> list[int] | None:
    """The numbers behind ``--splits``; None for all."""
    return None if text == "all" else whole_numbers("--splits", text)


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise SettingError(f"{option} takes numbers such as 1,0.5 (got '{text}').") from None


def whole_numbers(option: str, text: str) -> list[int]:
    """The numbers of an option such as ``--nodes 1000,2000``."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise SettingError(
            f"{option} takes whole numbers such as 1000,2000 (got '{text}')."
        ) from None


def _device(name: str) -> str:
    from hpgmn.runs.spec import resolve_device

    if name not in _DEVICES:
        raise SettingError.unknown("device", name, _DEVICES)
    return resolve_device(name)


def _folder(asked: Path | None, name: str) -> Path:
    """The folder of a benchmark, made now: a measurement that cannot be kept is not begun."""
    from hpgmn_lab.bench.records import make_folder

    folder = Path("bench") / name if asked is None else asked
    make_folder(folder)
    return folder


def _typed(context: typer.Context, device: str) -> str:
    """What to type to make this record again: the options that were given, and the device."""
    words = ["hpgmn", "bench", str(context.info_name)]
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        value = context.params[str(parameter.name)]
        if parameter.name in _NOT_IN_COMMAND or source is None or source.name != "COMMANDLINE":
            continue
        if isinstance(value, bool):
            words.append(parameter.opts[0])
        else:
            each = value if isinstance(value, list | tuple) else [value]
            words += [word for one in each for word in (parameter.opts[0], str(one))]
    return shlex.join([*words, "--device", device])


def _finish(
    record: Mapping[str, Any],
    folder: Path,
    tables: Sequence[Table],
    draw: Callable[[Mapping[str, Any], Path], None] | None = None,
    taken: float = 0.0,
) -> None:
    """Print the tables and leave the record in the folder, and a picture where there is one.

    ``taken`` says how many cores other processes kept busy meanwhile.
    """
    from hpgmn_lab.bench.records import write_record

    name = record["benchmark"]
    write_record(record, folder / f"{name}.json")
    for table in tables:
        print_table(table)
    if draw is None:
        say(f"Record: {folder / name}.json.")
    else:
        draw(record, folder / name)
        say(f"Record: {folder / name}.json; picture: {name}.png and {name}.svg beside it.")
    if taken > 0.1:
        say(f"Others kept {taken:.1f} cores busy: times are too long. Measure again alone.")


def print_table(table: Table) -> None:
    """A table of a record on the terminal."""
    shown = RichTable(
        *(
            Column(name, justify="left" if place == 0 else "right", overflow="fold")
            for place, name in enumerate(table.columns)
        ),
        title=table.title or None,
        title_justify="left",
        box=None,
        padding=(0, 2, 0, 0),
    )
    for row in table.rows:
        shown.add_row(*row)
    out.print(shown)
    out.print()
