"""The registry of models: names, summaries and citations, importing a model only on use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from hpgmn.base.errors import HPGMNError

if TYPE_CHECKING:
    from hpgmn.models.stage import ModelEntry

_HPGMN_PAPER = (
    "Junjie Xu, Enyan Dai, Xiang Zhang, Suhang Wang. HP-GMN: Graph Memory Networks for "
    "Heterophilous Graphs. ICDM 2022."
)


class Listing(NamedTuple):
    """What is known of a model without importing it.

    Attributes:
        module: below ``hpgmn.models``, with ``:NAME`` where the entry is not called ``ENTRY``.
        summary: one line.
        citation: the source.
    """

    module: str
    summary: str
    citation: str


LISTINGS: dict[str, Listing] = {
    "hpgmn": Listing(
        "hpgmn",
        "graph memory network on local statistics, for heterophilous graphs",
        _HPGMN_PAPER,
    ),
    "hpgmn-gcn": Listing(
        "propagated:GCN_ENTRY",
        "the memory on a GCN's representation, for homophilous graphs",
        _HPGMN_PAPER,
    ),
    "hpgmn-appnp": Listing(
        "propagated:APPNP_ENTRY",
        "the memory on an APPNP's representation, for homophilous graphs",
        _HPGMN_PAPER,
    ),
    "mlp": Listing(
        "baselines.mlp",
        "multilayer perceptron on the attributes, no edges",
        "David E. Rumelhart, Geoffrey E. Hinton, Ronald J. Williams. Learning Representations "
        "by Back-Propagating Errors. Nature 323, 1986.",
    ),
    "gcn": Listing(
        "baselines.gcn",
        "graph convolutional network",
        "Thomas N. Kipf, Max Welling. Semi-Supervised Classification with Graph Convolutional "
        "Networks. ICLR 2017.",
    ),
    "gcn-jk": Listing(
        "baselines.gcn_jk",
        "graph convolutional network with jumping knowledge",
        "Keyulu Xu, Chengtao Li, Yonglong Tian, Tomohiro Sonobe, Ken-ichi Kawarabayashi, "
        "Stefanie Jegelka. Representation Learning on Graphs with Jumping Knowledge Networks. "
        "ICML 2018.",
    ),
    "gat": Listing(
        "baselines.gat",
        "graph attention network",
        "Petar Veličković, Guillem Cucurull, Arantxa Casanova, Adriana Romero, Pietro Liò, Yoshua "
        "Bengio. Graph Attention Networks. ICLR 2018.",
    ),
    "graphsage": Listing(
        "baselines.graphsage",
        "separate weights for a node and for the mean of its neighbours",
        "William L. Hamilton, Rex Ying, Jure Leskovec. Inductive Representation Learning on Large "
        "Graphs. NeurIPS 2017.",
    ),
    "mixhop": Listing(
        "baselines.mixhop",
        "graph convolutions that mix powers of the adjacency",
        "Sami Abu-El-Haija, Bryan Perozzi, Amol Kapoor, Nazanin Alipourfard, Kristina Lerman, "
        "Hrayr Harutyunyan, Greg Ver Steeg, Aram Galstyan. MixHop: Higher-Order Graph "
        "Convolutional Architectures via Sparsified Neighborhood Mixing. ICML 2019.",
    ),
    "chebnet": Listing(
        "baselines.chebnet",
        "graph convolutions with Chebyshev polynomials of the Laplacian",
        "Michaël Defferrard, Xavier Bresson, Pierre Vandergheynst. Convolutional Neural "
        "Networks on Graphs with Fast Localized Spectral Filtering. NeurIPS 2016.",
    ),
    "gcnii": Listing(
        "baselines.gcnii",
        "deep graph convolutions with initial residual and identity mapping",
        "Ming Chen, Zhewei Wei, Zengfeng Huang, Bolin Ding, Yaliang Li. Simple and Deep Graph "
        "Convolutional Networks. ICML 2020.",
    ),
    "appnp": Listing(
        "baselines.appnp",
        "MLP, then personalised PageRank on its logits",
        "Johannes Gasteiger, Aleksandar Bojchevski, Stephan Günnemann. Predict then Propagate: "
        "Graph Neural Networks meet Personalized PageRank. ICLR 2019.",
    ),
    "gprgnn": Listing(
        "baselines.gprgnn",
        "MLP, then a learned polynomial of the adjacency on its logits",
        "Eli Chien, Jianhao Peng, Pan Li, Olgica Milenkovic. Adaptive Universal Generalized "
        "PageRank Graph Neural Network. ICLR 2021.",
    ),
    "h2gcn": Listing(
        "baselines.h2gcn",
        "one-hop and two-hop neighbourhoods separate from the node itself",
        "Jiong Zhu, Yujun Yan, Lingxiao Zhao, Mark Heimann, Leman Akoglu, Danai Koutra. Beyond "
        "Homophily in Graph Neural Networks: Current Limitations and Effective Designs. NeurIPS"
        " 2020.",
    ),
    "bmgcn": Listing(
        "baselines.bmgcn",
        "graph convolutions whose edge weights follow how classes link",
        "Dongxiao He, Chundong Liang, Huixin Liu, Mingxiang Wen, Pengfei Jiao, Zhiyong Feng. "
        "Block Modeling-Guided Graph Convolutional Neural Networks. AAAI 2022.",
    ),
    "cpgnn": Listing(
        "baselines.cpgnn",
        "prior beliefs spread through a learned compatibility of classes",
        "Jiong Zhu, Ryan A. Rossi, Anup Rao, Tung Mai, Nedim Lipka, Nesreen K. Ahmed, Danai "
        "Koutra. Graph Neural Networks with Heterophily. AAAI 2021.",
    ),
    "mmp": Listing(
        "baselines.mmp",
        "message passing through a gated memory beside each node's own state",
        "Jie Chen, Weiqi Liu, Jian Pu. Memory-Based Message Passing: Decoupling the Message for"
        " Propagation from Discrimination. ICASSP 2022.",
    ),
    "lwgcn": Listing(
        "baselines.lwgcn",
        "label-wise graph convolutions on pseudo-labels",
        "Enyan Dai, Shijie Zhou, Zhimeng Guo, Suhang Wang. Label-Wise Graph Convolutional "
        "Network for Heterophilic Graphs. LoG 2022.",
    ),
    "dssl": Listing(
        "baselines.dssl",
        "decoupled self-supervised learning, then logistic regression",
        "Teng Xiao, Zhengyu Chen, Zhimeng Guo, Zeyang Zhuang, Suhang Wang. Decoupled Self-"
        "supervised Learning for Graphs. NeurIPS 2022.",
    ),
    "linkx": Listing(
        "baselines.linkx",
        "MLPs on adjacency rows and attributes, joined",
        "Derek Lim, Felix Hohne, Xiuyu Li, Sijia Linda Huang, Vaishnavi Gupta, Omkar Bhalerao, "
        "Ser-Nam Lim. Large Scale Learning on Non-Homophilous Graphs: New Benchmarks and Strong"
        " Simple Methods. NeurIPS 2021.",
    ),
    "fsgnn": Listing(
        "baselines.fsgnn",
        "attributes of several hops, each with its own layer, weighted by a learned softmax",
        "Sunil Kumar Maurya, Xin Liu, Tsuyoshi Murata. Improving Graph Neural Networks with "
        "Simple Architecture Design. arXiv:2105.07634, 2021.",
    ),
    "dirgcn": Listing(
        "baselines.dirgcn",
        "graph convolutional network with separate weights for each edge direction",
        "Emanuele Rossi, Bertrand Charpentier, Francesco Di Giovanni, Fabrizio Frasca, Stephan "
        "Günnemann, Michael Bronstein. Edge Directionality Improves Learning on Heterophilic "
        "Graphs. LoG 2023.",
    ),
}


class _Models(Mapping[str, "ModelEntry"]):
    """Every model by name; a lookup imports the model's module."""

    def __getitem__(self, name: str) -> ModelEntry:
        return _load(name)

    def __iter__(self) -> Iterator[str]:
        return iter(LISTINGS)

    def __len__(self) -> int:
        return len(LISTINGS)

    def __contains__(self, name: object) -> bool:
        return name in LISTINGS


@cache
def _load(name: str) -> ModelEntry:
    listing = LISTINGS[name]
    module, _, attribute = listing.module.partition(":")
    entry: ModelEntry = getattr(import_module(f"hpgmn.models.{module}"), attribute or "ENTRY")
    return replace(entry, summary=listing.summary, citation=listing.citation)


MODELS: Mapping[str, ModelEntry] = _Models()


def is_custom(name: str) -> bool:
    """Return whether a model's name is that of a user's class, ``package.module:Class``.

    >>> is_custom("my_model:TwoHop"), is_custom("gcn")
    (True, False)
    """
    return ":" in name


def find_model(name: str) -> ModelEntry:
    """Return the model of that name, or the user's behind ``package.module:Class``."""
    if is_custom(name):
        from hpgmn.models.custom import custom_model

        return custom_model(name)
    if name not in MODELS:
        error = HPGMNError.unknown("model", name, MODELS)
        assert error.remedy is not None
        raise HPGMNError(error.message, error.remedy | "Name your own as package.module:Class")
    return MODELS[name]
