"""The files of a reproduction: every experiment as Markdown, CSV and LaTeX, and the figure."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hpgmn.base.files import write_error, write_text
from hpgmn_lab.reproduction.documents import document
from hpgmn_lab.reproduction.figure import write_figure
from hpgmn_lab.reproduction.plan import Experiment
from hpgmn_lab.reproduction.writers import comma_separated, latex, markdown

FIGURE = "figure3"


def write_outputs(
    folder: Path, experiments: Iterable[Experiment], *, cells_folder: Path, options: str = ""
) -> list[Path]:
    """Write what the records give; the same records give the same bytes.

    The page that shows all of it is :func:`hpgmn_lab.reproduction.html.write_page`.

    Args:
        folder: where the files go.
        experiments: what is shown.
        cells_folder: the folder of the records.
        options: what the command had beside the experiment's name, as " --quick".

    Returns:
        The files.
    """
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for experiment in experiments:
            found = document(experiment, cells_folder, options)
            texts = {"md": markdown(found), "csv": comma_separated(found), "tex": latex(found)}
            for ending, text in texts.items():
                written.append(folder / f"{experiment.name}.{ending}")
                write_text(written[-1], text)
            if experiment.name == FIGURE and found.table is not None:
                written += write_figure(found.table, folder / FIGURE)
    except OSError as error:
        raise write_error(folder, error) from None
    return written
