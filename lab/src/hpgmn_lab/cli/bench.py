"""The command ``hpgmn bench``: the options of a benchmark are the parameters of its ``measure``."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table as RichTable
from typer.core import TyperGroup

from hpgmn.cli.console import out, say
from hpgmn_lab.bench import BENCHMARKS, load_module
from hpgmn_lab.rendering import frame, print_table

if TYPE_CHECKING:
    from hpgmn_lab.bench.records import Record, Table

_PLAIN: dict[str, Any] = {"rich_markup_mode": None, "pretty_exceptions_enable": False}

Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Out = Annotated[Path | None, typer.Option("--out", help="Folder of the record [bench/NAME].")]
Graphs = Annotated[
    Path | None, typer.Option("--graphs", help="Folder of generated graphs [OUT/graphs].")
]
_COMMON = {"device": (Device, "auto"), "graphs_folder": (Graphs, None), "out_folder": (Out, None)}
"""Options of every benchmark, which do not change what is measured."""


class _Benchmarks(TyperGroup):
    """A group that imports only the requested benchmark."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all benchmarks."""
        return [*BENCHMARKS, "all"]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Build the command of a benchmark on first use."""
        if cmd_name in BENCHMARKS and cmd_name not in self.commands:
            single = typer.Typer(**_PLAIN)
            single.command(cmd_name)(_command(cmd_name))
            self.commands[cmd_name] = typer.main.get_command(single)
        return super().get_command(ctx, cmd_name)


app = typer.Typer(cls=_Benchmarks, invoke_without_command=True, **_PLAIN)


@app.callback()
def bench(context: typer.Context) -> None:
    """Measure speed, memory and accuracy; without a name, list the benchmarks."""
    if context.invoked_subcommand is None:
        table = RichTable("name", "what it measures")
        for name, summary in (BENCHMARKS | {"all": "all of them; --quick in tiny form"}).items():
            table.add_row(name, summary)
        out.print(table)
        say("Start with `hpgmn bench all --quick` (two minutes), then `hpgmn bench growth`.")


def _command(name: str) -> Any:
    """Return a function with the options of a benchmark's ``measure`` and the common ones."""
    module = load_module(name)
    measure = getattr(module, f"measure_{name}", None) or module.measure
    _, *parameters = inspect.signature(measure, eval_str=True).parameters.values()
    options = {parameter.name for parameter in parameters}
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [parameter.replace(kind=keyword) for parameter in parameters]
    for common, (annotation, default) in _COMMON.items():
        if common != "graphs_folder" or "degree" in options:  # of those that generate graphs
            added = inspect.Parameter(common, keyword, default=default, annotation=annotation)
            parameters.append(added)
    context = inspect.Parameter("context", keyword, annotation=typer.Context)

    def command(**values: Any) -> None:
        _run(measure, module.tables, **values)

    command.__doc__ = measure.__doc__
    command.__signature__ = inspect.Signature([context, *parameters])  # type: ignore[attr-defined]
    return command


def _run(
    measure: Callable[..., Record],
    tables: Callable[[Record], list[Table]],
    context: typer.Context,
    device: str,
    out_folder: Path | None,
    graphs_folder: Path | None = None,
    **options: Any,
) -> None:
    """Measure, write the record and its picture, and print its tables."""
    from hpgmn.runs.spec import resolve_device
    from hpgmn_lab.bench.pictures import draw
    from hpgmn_lab.bench.records import Call, cores_taken, make_folder, write_record

    name, device = str(context.info_name), resolve_device(device)
    folder = Path("bench") / name if out_folder is None else out_folder
    make_folder(folder)
    call = Call(_command_line(context, device), device, folder, graphs_folder)
    record = measure(call, **options)
    write_record(record, folder / f"{name}.json")
    for table in tables(record):
        print_table(table.title, frame(table.columns, table.rows))
    has_picture = draw(record, folder / name)
    pictures = f"; picture: {name}.png and {name}.svg beside it" if has_picture else ""
    say(f"Record: {folder / name}.json{pictures}.")
    taken = cores_taken(record) or 0.0
    if taken > 0.1:
        say(f"Other processes used {taken:.1f} cores: times are too long. Measure again alone.")


def _command_line(context: typer.Context, device: str) -> str:
    """Return the command line that measures the record again."""
    words = ["hpgmn", "bench", str(context.info_name)]
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        if parameter.name in _COMMON or source is None or source.name != "COMMANDLINE":
            continue
        value = context.params[str(parameter.name)]
        values = value if isinstance(value, list | tuple) else [value]
        words += [word for member in values for word in (parameter.opts[0], str(member))]
    return shlex.join([*words, "--device", device])


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
    "serve": "--nodes 500 --edges 1500 --epochs 2 --seconds 2 --added 20 --no-ensemble",
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
    from hpgmn.runs.spec import resolve_device
    from hpgmn_lab.bench.graphs import GraphSpec, generate
    from hpgmn_lab.bench.records import make_folder

    device = resolve_device(device)
    folder = out_folder or (Path("bench/quick") if quick else Path("bench"))
    make_folder(folder)
    paths = {}
    if quick:
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
