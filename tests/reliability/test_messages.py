"""Every message for users says what to do next, those that no test has provoked included."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "hpgmn"
ERRORS = {"HPGMNError", "GraphError", "SettingError", "DataNotFoundError"}
FILLED = "…"
"""Stands where a message has a value."""

PARTS = {
    "its source has changed: ",  # in brackets within another message
    "What is finished is kept.",  # after what an engine says of a lost process
    "is not an https address, and nothing else is fetched",
}
"""Messages of which another part has the remedy."""


@pytest.mark.parametrize(
    "text",
    [
        "Graph 'a' has no label, and the run no name.",
        "The use of a number is wrong: label x is not set.",
        "Unknown name 'Use it, or choose another one.'",
        "y is wrong (give another).",
        "class_names must be distinct.",
        "Every node needs one.",
        "Here splits and seeds are trained at once.",
        "Train nodes of one class only",
        "Split 3 is not there.",
        "It takes a number.",
        "Graph has no node. Nearest ids: set, label.",
    ],
)
def test_what_names_a_fault_alone_is_no_remedy(text, has_remedy):
    assert not has_remedy(text)


@pytest.mark.parametrize(
    "text",
    [
        "No rows. Add one.",
        "Error: Cannot write a (b (c)). Choose a writable path.",
        "y has 3 values; store one.",
        "'a' does not exist; check the path.",
        "x must be numbers (got str).",
        "Setting 'lr' takes a number (got '').",
        "No column 'a'. Did you mean 'b'?",
        "It is damaged (cut (short)): write it again.",
        "It is gone. Restore it, or give all nodes.",
    ],
)
def test_what_to_do_is_a_remedy(text, has_remedy):
    assert has_remedy(text)


def written(node):
    """The text of an expression, with a sign for each value that is put in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(written(part) for part in node.values)
    return FILLED


def messages():
    """Where each user error without a structured remedy is raised, and its message."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            if is_call and node.func.id in ERRORS and len(node.args) == 1 and not node.keywords:
                text = written(node.args[0]).removeprefix(f"{FILLED} ")  # a sentence, then ours
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}", text


def test_every_message_in_the_source_says_what_to_do(has_remedy):
    """Of messages that end with a value only a test that provokes them can tell."""
    found = list(messages())
    whole = [(place, text) for place, text in found if not text.rstrip(".").endswith(FILLED)]
    assert whole
    silent = [
        f"{place} {text}"
        for place, text in whole
        if not has_remedy(text) and not any(part in text for part in PARTS)
    ]
    assert silent == []
