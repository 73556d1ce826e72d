"""Every error raised for users carries a remedy, also those that no test provokes."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "hpgmn"
ERRORS = {"HPGMNError", "GraphError", "SettingError", "DataNotFoundError"}
VALUE = "…"
"""Stands for a value in a message."""


def read_message(node):
    """Return the text of an expression with a placeholder for each value."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(read_message(part) for part in node.values)
    return VALUE


def messages_without_remedy():
    """Yield where an error without a structured remedy is constructed, and its message."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            if is_call and node.func.id in ERRORS and len(node.args) == 1 and not node.keywords:
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}", read_message(node.args[0])


def test_every_error_has_a_remedy_or_says_what_it_expected():
    """A message that ends with a value passes on another error."""
    silent = [
        f"{location} {message}"
        for location, message in messages_without_remedy()
        if "(got " not in message and not message.rstrip(".").endswith(VALUE)
    ]
    assert silent == []
