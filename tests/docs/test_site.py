"""The documentation site: builds without a warning, and what its pages say to type is true."""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
WRITTEN = [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]

_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`(hpgmn [^`]+)`")
_DECIMAL = re.compile(r"\d+\.\d+")
LEEWAY = 0.03  # scores on another processor


def page_name(path):
    return path.relative_to(ROOT).as_posix()


# --- The build ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of the built site, and what the build said."""
    site = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        # The notice is about the tool's own future, not about these pages.
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return site, done.stdout + done.stderr


class Page(HTMLParser):
    """What a page loads, where it links to, and the anchors it has."""

    def __init__(self, path):
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        given = {key: value or "" for key, value in attrs}
        self.anchors |= {given[key] for key in ("id", "name") if key in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") not in ("canonical", "prev", "next"):
            self.loads.append(given.get("href", ""))
        elif "src" in given:
            self.loads.append(given["src"])


def is_outside(address):
    return re.match(r"(?:[a-z][a-z0-9+.-]*:)?//", address) is not None


def test_the_check_sees_what_comes_from_elsewhere(tmp_path):
    page = tmp_path / "page.html"
    page.write_text(
        '<link rel="stylesheet" href="https://fonts.example/css"><script src="//cdn.example/a.js">'
        '</script><script src="assets/b.js"></script><a id="here" href="https://example.org">x</a>'
    )
    found = Page(page)
    assert [one for one in found.loads if is_outside(one)] == [
        "https://fonts.example/css",
        "//cdn.example/a.js",
    ]
    assert found.links == ["https://example.org"]
    assert found.anchors == {"here"}


@pytest.mark.slow
def test_the_site_builds_without_warnings(built):
    _, said = built
    assert "Documentation built" in said
    assert not [line for line in said.splitlines() if re.match(r"(WARNING|ERROR)\b", line)]


@pytest.mark.slow
def test_pages_load_nothing_from_elsewhere(built):
    site, _ = built
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > len(PAGES)
    outside = [
        f"{page.name}: {one}" for page in pages for one in Page(page).loads if is_outside(one)
    ]
    assert not outside, outside
    styles = [path.read_text(encoding="utf-8") for path in site.rglob("*.css")]
    assert not [
        match for text in styles for match in re.findall(r"(?:@import|url\()[^;)]*//", text)
    ]


@pytest.mark.slow
def test_every_local_link_and_picture_is_there(built):
    site, _ = built
    pages = {page.resolve(): Page(page) for page in site.rglob("*.html") if page.name != "404.html"}
    broken = []
    for path, page in pages.items():
        for address in [*page.links, *page.loads]:
            if is_outside(address) or re.match(r"(mailto|data|javascript):", address):
                continue
            name, _, anchor = address.partition("#")
            target = (path.parent / name.split("?")[0]).resolve() if name else path
            if target.is_dir():
                target /= "index.html"
            if not target.exists():
                broken.append(f"{path.name}: {address}")
            elif anchor and target in pages and anchor not in {"__skip", *pages[target].anchors}:
                broken.append(f"{path.name}: no such place {address}")
    assert not broken, broken


@pytest.mark.slow
def test_pictures_of_records_are_shown(built):
    site, _ = built
    shown = [one for one in Page(site / "BENCHMARKS.html").loads if one.endswith(".svg")]
    drawn = re.findall(r"\((pictures/\S+\.svg)\)", (ROOT / "docs/BENCHMARKS.md").read_text())
    assert drawn
    assert shown == drawn


@pytest.mark.slow
@pytest.mark.parametrize("module", ["nn", "transforms", "statistics", "explain", "auditing"])
def test_the_reference_has_every_public_name(built, module):
    import importlib

    site, _ = built
    package = importlib.import_module(f"hpgmn.{module}")
    anchors = Page(site / "reference" / f"{module}.html").anchors
    public = [name for name in package.__all__ if callable(getattr(package, name))]
    assert public
    assert {f"hpgmn.{module}.{name}" for name in public} <= anchors


@pytest.mark.slow
def test_the_reference_has_every_name_of_the_package(built):
    import hpgmn

    site, _ = built
    text = "".join(page.read_text() for page in (site / "reference").rglob("*.html"))
    missing = [
        name for name in hpgmn.__all__ if not re.search(rf'id="hpgmn\.(\w+\.)?{name}"', text)
    ]
    modules_with_pages = {"nn", "transforms"}
    assert set(missing) <= modules_with_pages | {"__version__"}


@pytest.mark.slow
def test_docstrings_are_shown_as_markdown(built):
    site, _ = built
    for page in (site / "reference").rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r":(func|class|meth):<code>", text), page.name
        assert "<blockquote>" not in text, page.name  # what Markdown makes of >>>
        if page.name in ("hpgmn.html", "statistics.html"):
            assert 'class="gp">&gt;&gt;&gt;' in text  # a prompt in a block of code


@pytest.mark.slow
def test_tables_are_made_of_the_code(built):
    from hpgmn.base.settings import describe_settings
    from hpgmn.models import MODELS

    site, _ = built
    keys = {row["name"] for row in describe_settings(MODELS["hpgmn"].settings)}
    for page, names in (("settings.html", keys), ("compare.html", set(MODELS))):
        text = (site / page).read_text(encoding="utf-8")
        assert set(re.findall(r"<tr>\s*<td><code>([^<]+)</code></td>", text)) == names


# --- Snippets ----------------------------------------------------------------------------------


class Snippet(NamedTuple):
    """A Python block of a page, and the output that stands below it."""

    code: str
    output: str | None


def snippets(text):
    """The Python blocks in order; a text block right after one is its output."""
    fences = list(_FENCE.finditer(text))
    found = []
    for number, fence in enumerate(fences):
        if fence[1] != "python":
            continue
        after = fences[number + 1] if number + 1 < len(fences) else None
        between = text[fence.end() : after.start()].strip() if after else "x"
        output = after[2] if after and after[1] == "text" and not between else None
        found.append(Snippet(fence[2], output))
    return found


def same(printed, promised):
    """Whether two texts are equal but for the last digits of decimal numbers."""
    if _DECIMAL.sub("0.0", printed.strip()) != _DECIMAL.sub("0.0", promised.strip()):
        return False
    pairs = zip(_DECIMAL.findall(printed), _DECIMAL.findall(promised), strict=True)
    return all(abs(float(one) - float(other)) <= LEEWAY for one, other in pairs)


@pytest.mark.parametrize(
    ("printed", "promised", "equal"),
    [
        ("score 0.95\n", "score 0.96", True),
        ("score 0.85\n", "score 0.96", False),
        ("fraud 0.95", "mule 0.95", False),
        ("(2000, 5)", "(2001, 5)", False),
    ],
)
def test_outputs_differ_in_last_digits_only(printed, promised, equal):
    assert same(printed, promised) is equal


def test_snippets_are_found_with_their_output():
    text = "```python\na\n```\n\n```text\nb\n```\n\n```python\nc\n```\n\nwords\n\n```text\nd\n```\n"
    assert snippets(text) == [Snippet("a\n", "b\n"), Snippet("c\n", None)]


WITH_SNIPPETS = [path for path in PAGES if snippets(path.read_text(encoding="utf-8"))]


def test_the_pages_have_snippets():
    names = {path.stem for path in WITH_SNIPPETS}
    assert {"index", "first-steps", "own-data", "audit", "explain", "new-nodes"} <= names


@pytest.mark.slow
@pytest.mark.parametrize("path", WITH_SNIPPETS, ids=page_name)
def test_snippets_run_and_print_what_the_page_says(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": path.stem}
    for snippet in snippets(path.read_text(encoding="utf-8")):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(snippet.code, page_name(path), "exec"), names)
        if snippet.output is not None:
            assert same(printed.getvalue(), snippet.output), printed.getvalue()


# --- Command lines -----------------------------------------------------------------------------


def in_fences(text):
    """The words after ``hpgmn`` of every command in a block for the shell."""
    for language, body in _FENCE.findall(text):
        if language != "sh":
            continue
        for line in body.replace("\\\n", " ").splitlines():
            for part in re.split(r"&&|;|\|", line):
                words = shlex.split(part, comments=True)
                if words[:1] == ["hpgmn"]:
                    yield words[1:]


def in_prose(text):
    """The words after ``hpgmn`` of commands quoted in sentences and tables."""
    for quoted in _INLINE.findall(_FENCE.sub("", text)):
        yield shlex.split(quoted)[1:]


def command_of(words):
    """The command that the first words name, and the words that are left."""
    import typer

    from hpgmn.cli import make_app
    from hpgmn_lab.cli import app as lab_app

    is_lab = words[:1] in (["bench"], ["reproduce"])
    command: Any = typer.main.get_command(lab_app if is_lab else make_app())
    rest = list(words)
    while getattr(command, "commands", None) and rest and not rest[0].startswith("-"):
        command = command.get_command(None, rest.pop(0))  # some are built on request
        if command is None:
            raise LookupError(f"hpgmn has no command '{' '.join(words)}'")
    return command, rest


def check_options(words):
    """Refuse a command or an option that does not exist."""
    command, rest = command_of(words)
    known = {"--help"}
    for parameter in command.params:
        known |= {*parameter.opts, *parameter.secondary_opts}
    for word in rest:
        if word.startswith("--") and word.split("=")[0] not in known:
            raise LookupError(f"hpgmn {' '.join(words)}: no option {word}")


def check_whole(words):
    """Parse a command line as the command itself would, without running it."""
    command, rest = command_of(words)
    check_options(words)
    if not getattr(command, "commands", None):
        command.make_context("hpgmn", rest)


@pytest.mark.parametrize("path", WRITTEN, ids=page_name)
def test_commands_exist_with_their_options(path):
    text = path.read_text(encoding="utf-8")
    for words in in_fences(text):
        check_whole(words)
    for words in in_prose(text):
        check_options(words)


def test_the_pages_have_commands():
    found = [words for path in PAGES for words in in_fences(path.read_text(encoding="utf-8"))]
    used = {words[0] for words in found if words}
    assert {"demo", "convert", "audit", "train", "predict", "explain", "tune"} <= used


@pytest.mark.parametrize(
    "line", ["trian texas", "train texas --sedes 3", "bench grwoth", "audit --split 0"]
)
def test_the_check_sees_wrong_commands(line):
    with pytest.raises(Exception, match=r"no command|no option|[Mm]issing"):
        check_whole(line.split())


def test_commands_are_found_in_blocks_and_prose():
    text = "See `hpgmn tune`.\n```sh\ncd here && hpgmn train texas  # why\nmake demo\n```\n"
    assert list(in_fences(text)) == [["train", "texas"]]
    assert list(in_prose(text)) == [["tune"]]
