"""Check LightGBM's text format before its parser, which trusts array lengths and node numbers."""

from __future__ import annotations

import numpy as np

_OF_NODES = (
    *("split_feature", "threshold", "decision_type", "left_child", "right_child"),
    *("split_gain", "internal_value", "internal_weight", "internal_count"),
)
_OF_LEAVES = ("leaf_value", "leaf_weight", "leaf_count")


def clean_booster(text: str, width: int, trees: int) -> str:
    """Return the trees of a model, with a head of our own and nothing after them.

    Args:
        width: columns of the table.
        trees: in each round; 1 for two classes.

    Raises:
        ValueError: LightGBM would read or write outside its memory.
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


def _clean_tree(block: str, width: int) -> list[str]:
    """Return the lines of a tree that LightGBM reads; one leaf has a value only."""
    lines = dict(line.split("=", 1) for line in block.splitlines()[1:] if line)
    leaves = int(lines["num_leaves"])
    of_nodes, of_leaves = (_OF_NODES, _OF_LEAVES) if leaves > 1 else ((), ("leaf_value",))
    lengths = dict.fromkeys(of_nodes, leaves - 1) | dict.fromkeys(of_leaves, leaves)
    for name, length in lengths.items():
        if length < 1 or len(lines[name].split()) != length:
            raise ValueError(f"{name} has not the numbers of {leaves} leaves")
    if leaves > 1:
        _check_nodes(lines, leaves, width)
    kept = [f"{name}={' '.join(lines[name].split())}" for name in (*lengths, "shrinkage")]
    return [f"num_leaves={leaves}", "num_cat=0", *kept]


def _check_nodes(lines: dict[str, str], leaves: int, width: int) -> None:
    """Refuse columns that do not exist, and nodes that do not form one tree."""
    features, kinds, *children = (
        np.array(lines[name].split(), np.int64)
        for name in ("split_feature", "decision_type", "left_child", "right_child")
    )
    if features.min() < 0 or features.max() >= width:
        raise ValueError(f"a split of column {features.max()} of {width}")
    if (kinds % 2).any():
        raise ValueError("a split by category")
    expected = np.concatenate([np.arange(-leaves, 0), np.arange(1, leaves - 1)])
    if not np.array_equal(np.sort(np.concatenate(children)), expected):
        raise ValueError("a node that is not the child of exactly one other")
    parents = np.arange(leaves - 1)
    if any(((child >= 0) & (child <= parents)).any() for child in children):
        raise ValueError("a node before its parent")
