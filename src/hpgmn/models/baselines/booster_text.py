"""Check LightGBM's text format before its parser, which trusts array lengths and node numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hpgmn.graph import Array

_OF_NODES = (
    *("split_feature", "threshold", "decision_type", "left_child", "right_child"),
    *("split_gain", "internal_value", "internal_weight", "internal_count"),
)
_OF_LEAVES = ("leaf_value", "leaf_weight", "leaf_count")
_COUNTS = ("internal_count", "leaf_count")
_WHOLE = ("split_feature", "decision_type", "left_child", "right_child", *_COUNTS)
_NUMERICAL = (0, 2, 4, 6, 8, 10)  # decision types: default direction and kind of missing values
_MOST_LEAVES = 2**16


def clean_booster(text: str, width: int, trees: int) -> str:
    """Return the checked trees of a model as a text that LightGBM reads safely.

    Every number of a tree is parsed; the head is rewritten, and what follows the trees left out.

    Args:
        width: columns of the table.
        trees: in each round; 1 for two classes.

    Raises:
        ValueError: the text is damaged.
    """
    _, *blocks = text.partition("\nend of trees")[0].split("\nTree=")
    if not blocks or len(blocks) % trees:
        raise ValueError(f"{len(blocks)} trees, not a multiple of {trees}")
    classes = f"multiclass num_class:{trees}" if trees > 1 else "binary sigmoid:1"
    head = [
        "tree",
        "version=v4",
        f"num_class={trees}",
        f"num_tree_per_iteration={trees}",
        "label_index=0",
        f"max_feature_idx={width - 1}",
        f"objective={classes}",
        "feature_names=" + " ".join(f"Column_{number}" for number in range(width)),
        "feature_infos=" + " ".join(["none"] * width),
        "",
    ]
    parts = [
        "\n".join([f"Tree={number}", *_clean_tree(block, width), "", ""])
        for number, block in enumerate(blocks)
    ]
    return "\n".join([*head, *parts, "end of trees", ""])


def _clean_tree(block: str, width: int) -> Iterator[str]:
    """Yield the lines of a tree, its numbers checked."""
    lines = dict(line.split("=", 1) for line in block.splitlines()[1:] if line)
    leaves = int(lines["num_leaves"])
    if not 1 <= leaves <= _MOST_LEAVES or lines.get("num_cat") != "0":
        raise ValueError(f"a tree of {leaves} leaves and {lines.get('num_cat')} categories")
    if lines.get("is_linear", "0") != "0":
        raise ValueError("a tree with linear models")
    yield f"num_leaves={leaves}"
    yield "num_cat=0"
    numbers = {}
    for names, length in ((_OF_NODES, leaves - 1), (_OF_LEAVES, leaves)):
        for name in names:
            words = lines[name].split()
            if leaves == 1 and name in ("leaf_weight", "leaf_count") and not words:
                yield f"{name}="
                continue
            values = np.array(words, np.int64 if name in _WHOLE else np.float64)
            if values.size != length or not np.isfinite(values).all():
                raise ValueError(f"{values.size} numbers in {name} for {leaves} leaves")
            numbers[name] = values
            yield f"{name}={' '.join(map(str, values.tolist()) if name in _WHOLE else words)}"
    _check_nodes(numbers, leaves, width)
    yield "is_linear=0"
    yield f"shrinkage={float(lines['shrinkage']):.17g}"


def _check_nodes(numbers: dict[str, Array], leaves: int, width: int) -> None:
    """Refuse columns that do not exist, and nodes that do not form one tree."""
    features = numbers["split_feature"]
    if ((features < 0) | (features >= width)).any():
        raise ValueError(f"a split of column {features.max()} of {width}")
    if not np.isin(numbers["decision_type"], _NUMERICAL).all():
        raise ValueError("a split that is not numerical")
    children = np.concatenate([numbers["left_child"], numbers["right_child"]])
    parents = np.tile(np.arange(leaves - 1), 2)
    expected = np.concatenate([np.arange(-leaves, 0), np.arange(1, leaves - 1)])
    is_node = children >= 0
    if leaves > 1 and not np.array_equal(np.sort(children), expected):
        raise ValueError("a node that is not the child of exactly one other")
    if (children[is_node] <= parents[is_node]).any():
        raise ValueError("a node before its parent")
    if any((numbers[name] < 0).any() for name in _COUNTS if name in numbers):
        raise ValueError("a negative number of train nodes")
