"""Markdown, LaTeX and CSV of one document."""

from __future__ import annotations

import csv
import io
import re
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from hpgmn_lab.reproduction.cells import CellRecord, read_cell
from hpgmn_lab.reproduction.documents import Document, document
from hpgmn_lab.reproduction.grids import Grid, Heading, Items, Picture, Words
from hpgmn_lab.reproduction.plan import EXPERIMENTS, Budget, experiment
from hpgmn_lab.reproduction.writers import COLUMNS, comma_separated, escaped, latex, markdown

ELEMENTS = (
    *("heading", "paragraph", "bullet_list", "list_item"),
    *("table", "thead", "tbody", "tr", "th", "td"),
)
Fill = Callable[..., None]
MakeFacts = Callable[..., None]
MakeRecord = Callable[..., CellRecord]

ROWS = ((Words("a_b"), Words("1.0 ± 0.1", " / 2.0 ↓", True)), (Words("c"), Words("–")))
MADE = Document(
    "made",
    "A & B",
    (
        "See `hpgmn x --quick`: 5 % off.",
        Grid("made", "All of it.", ("model", "texas"), ROWS),
        Grid(
            "made-more",
            "More.",
            ("model", "x"),
            ((Words("d"), Words("-1.0 (-2.0 to +0.5)")),),
            True,
        ),
        Heading("Further"),
        Items(("One.", "Two_2.")),
        Picture("figure3", "Bars."),
    ),
    None,
    1,
)


def test_markdown() -> None:
    assert markdown(MADE, level=2, pictures="../r/") == (
        "## A & B\n\nSee `hpgmn x --quick`: 5 % off.\n\nAll of it.\n\n"
        "| model | texas |\n| --- | --- |\n| a_b | **1.0 ± 0.1** / 2.0 ↓ |\n| c | – |\n\n"
        "<details>\n<summary>More.</summary>\n\n"
        "| model | x |\n| --- | --- |\n| d | -1.0 (-2.0 to +0.5) |\n\n</details>\n\n"
        "### Further\n\n- One.\n- Two_2.\n\n![Bars.](../r/figure3.svg)\n"
    )


HOSTILE = (
    "![x](http://evil/x.png)",
    "[a](javascript:alert(1))",
    "a\n# head\n\n- item",
    "# head",
    "> quoted",
    "1. one",
    "a`b <i>c</i>",
    "`` ` <b>x</b> ```",  # no code: none of these runs has an end
    "\\`<b>x</b>`",  # a tick behind a backslash begins no code
    "*a* **b** _c_ __d__",
    "a|b \\| c `d|e\\|f`",
    "<img src=x>",
    "a\\",
    "a { onclick=alert(1) }",
    "    indented",
)


def words(text: str) -> str:
    return " ".join(text.replace("`", "").split())


@pytest.mark.parametrize("text", HOSTILE)
def test_text_in_markdown_stays_text(text: str) -> None:
    """Whatever a page is made from, a renderer finds the words and the page's own elements."""
    rows = ((Words(text), Words(text, text, True)),)
    blocks = (text, Heading(text), Items((text,)), Grid("g", text, (text, "b"), rows))
    picture = Picture("figure3", text)
    page = markdown(Document("made", text, (*blocks, picture), None, 1))
    found = MarkdownIt("commonmark").enable("table").parse(page)
    inner = [one for token in found for one in token.children or []]
    assert {token.type for token in found} <= {
        *(f"{name}_{end}" for name in ELEMENTS for end in ("open", "close")),
        "inline",
    }
    assert {one.type for one in inner} <= {
        *("text", "text_special", "code_inline", "strong_open", "strong_close", "image")
    }
    assert [one.attrs["src"] for one in inner if one.type == "image"] == ["figure3.svg"]
    counts = {name: sum(token.type == f"{name}_open" for token in found) for name in ELEMENTS}
    assert counts == {"heading": 2, "paragraph": 4, "bullet_list": 1, "list_item": 1} | {
        "table": 1,
        "thead": 1,
        "tbody": 1,
        "tr": 2,
        "th": 2,
        "td": 2,
    }
    shown = [
        "".join(one.content for one in token.children or [] if one.type != "image")
        for token in found
    ]
    assert sum(words(one) == words(text) for one in shown) == 7  # a bold cell has them twice


def test_the_line_of_what_is_folded_is_html() -> None:
    """Markdown is not read in it, so that backticks make no code."""
    page = markdown(Document("m", "T", (Grid("g", "`<b>` a_b\n\n<i>", ("a",), (), True),), None, 1))
    assert "<summary>`&lt;b&gt;` a_b  &lt;i&gt;</summary>\n" in page


def test_ordinary_names_are_spelt_as_they_are() -> None:
    text = "gcn_jk and `own_model:Two_Hop`: 5 < 6, -1.0 (95 %), a/b-c.d, x = y & z"
    assert markdown(Document("made", text, (text,), None, 1)) == f"# {text}\n\n{text}\n"


def test_latex() -> None:
    text = latex(MADE)
    assert "\\paragraph{A \\& B}" in text
    assert "See \\texttt{hpgmn x -{}-quick}: 5 \\% off." in text
    assert (
        "a\\_b & \\textbf{1.0 $\\pm$ 0.1} / 2.0 $\\downarrow$ \\\\\nc & -- \\\\\n\\bottomrule"
        in text
    )
    assert "d & $-$1.0 ($-$2.0 to $+$0.5) \\\\" in text
    assert "\\caption{All of it.}\n\\label{tab:made}" in text
    assert "\\begin{tabular}{lr}\n\\toprule\nmodel & texas \\\\\n\\midrule" in text
    assert "\\begin{itemize}\n\\item One.\n\\item Two\\_2.\n\\end{itemize}" in text
    assert "\\includegraphics[width=\\linewidth]{figure3.png}" in text


def test_every_sign_that_latex_reads_is_escaped() -> None:
    assert escaped("\\ & % $ # _ { } ~ ^") == (
        "\\textbackslash{} \\& \\% \\$ \\# \\_ \\{ \\} \\textasciitilde{} \\textasciicircum{}"
    )
    assert escaped("gcn-jk 2030-01-02") == "gcn-jk 2030-01-02"  # hyphens stay


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_latex_of_every_experiment_is_balanced(
    name: str, tmp_path: Path, fill_cells: Fill, make_facts: MakeFacts
) -> None:
    plan = experiment(name, Budget(trials=1, splits=2, seeds=2))
    fill_cells(tmp_path, plan)
    make_facts(tmp_path)
    text = latex(document(plan, tmp_path))
    bare = re.sub(r"\\[\\{}%&$#_]", "", text)
    bare = re.sub(r"(?m)%.*$", "", bare)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    assert sorted(re.findall(r"\\begin\{(\S+?)\}", text)) == sorted(
        re.findall(r"\\end\{(\S+?)\}", text)
    )
    labels = re.findall(r"\\label\{(.*?)\}", text)
    assert len(labels) == len(set(labels))
    known = set("–×±↓≠τ")
    assert not known & set(text)
    assert text.isascii()
    for tabular in re.findall(r"\\begin\{tabular\}.*?\\end\{tabular\}", text, flags=re.S):
        columns = re.match(r"\\begin\{tabular\}\{(\w+)\}", tabular)
        assert columns is not None
        for line in re.findall(r"(?m)^(.*) \\\\$", tabular):
            assert len(re.findall(r"(?<!\\)&", line)) == len(columns[1]) - 1


def test_csv_has_a_line_per_cell_with_numbers_that_can_be_worked_out(
    tmp_path: Path, fill_cells: Fill
) -> None:
    plan = experiment("table2", Budget(trials=2, splits=3, graphs=("texas", "squirrel")))
    fill_cells(tmp_path, plan)
    (tmp_path / "texas-gcn-tuned.json").unlink()
    text = comma_separated(document(plan, tmp_path))
    lines = list(csv.DictReader(io.StringIO(text)))
    assert tuple(lines[0]) == COLUMNS
    assert len(lines) == len(plan.cells) == 22
    found = {(line["graph"], line["model"], line["variant"]): line for line in lines}
    record = read_cell(tmp_path, "squirrel-mlp-tuned")
    ours = read_cell(tmp_path, "squirrel-hpgmn-tuned")
    assert record is not None
    assert ours is not None
    scores = [100 * one for one in record.metrics["test_score"]]
    others = [100 * one for one in ours.metrics["test_score"]]
    line = found["squirrel", "mlp", "tuned"]
    assert float(line["test_mean"]) == pytest.approx(statistics.mean(scores), abs=1e-4)
    assert float(line["test_std"]) == pytest.approx(statistics.stdev(scores), abs=1e-4)
    assert float(line["validation_minus_test"]) == pytest.approx(2.0, abs=1e-4)
    gap = statistics.mean(scores) - statistics.mean(others)
    assert float(line["difference"]) == pytest.approx(gap, abs=1e-4)
    assert float(line["difference_low"]) < gap < float(line["difference_high"])
    assert (line["printed_mean"], line["is_reached"], line["trials"]) == ("33.4", "true", "2")
    assert (line["elsewhere_source"], line["reference"]) == ("FaberNet", "hpgmn")
    assert found["squirrel", "hpgmn", "tuned"]["difference"] == ""
    missing = found["texas", "gcn", "tuned"]
    assert (missing["test_mean"], missing["printed_mean"]) == ("", "59.5")
    ensemble = found["texas", "hpgmn", "ensemble"]
    assert (ensemble["kind"], ensemble["runs"], ensemble["validation_mean"]) == (
        "ensemble",
        "3",
        "",
    )


def test_csv_leaves_out_what_an_option_does_not_change(tmp_path: Path, fill_cells: Fill) -> None:
    plan = experiment("options", Budget(splits=2))
    fill_cells(tmp_path, plan)
    lines = list(csv.DictReader(io.StringIO(comma_separated(document(plan, tmp_path)))))
    names = [f"{line['graph']}-{line['model']}-{line['variant']}" for line in lines]
    assert sorted(names) == sorted(cell.name for cell in plan.cells)
    assert {line["row"] for line in lines if line["variant"] == "shipped"} == {"shipped"}
    assert len(names) < len(plan.rows) * len(plan.graphs)


def test_csv_of_a_single_run_has_no_interval(tmp_path: Path, fill_cells: Fill) -> None:
    plan = experiment("figure3", Budget(splits=1, graphs=("texas",)))
    fill_cells(tmp_path, plan)
    lines = list(csv.DictReader(io.StringIO(comma_separated(document(plan, tmp_path)))))
    assert {line["test_low"] for line in lines} == {""}
    assert {line["difference_low"] for line in lines} == {""}
    assert {line["is_reached"] for line in lines[1:]} == {""}


def test_csv_of_table1_is_what_it_shows(tmp_path: Path, make_facts: MakeFacts) -> None:
    make_facts(tmp_path)
    text = comma_separated(document(experiment("table1"), tmp_path))
    assert text.splitlines()[:2] == [
        "graph,nodes,edges,attributes,classes,homophily",
        'texas,183 / 183,325 / 309 ≠,"1,703 / 1,703",5 / 5,0.11 / 0.11',
    ]


def test_csv_without_graphs_is_a_header(tmp_path: Path) -> None:
    text = comma_separated(document(experiment("table2", Budget(graphs=())), tmp_path))
    assert text == ",".join(COLUMNS) + "\n"
