"""The keywords of the estimators; ``python -m hpgmn_lab.parameters`` writes the settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from hpgmn.training.replicas import Progress


@dataclass(kw_only=True, eq=False, repr=False)
class CommonParameters:
    """Parameters with any model; the docstrings of the estimators describe them."""

    graph: Any = None
    model: str | type[nn.Module] = "hpgmn"
    seed: int = 0
    device: str = "cpu"
    metric: str | None = None
    positive: str | int | None = None
    calibrate: bool = True
    validation_fraction: float = 0.2
    callbacks: Sequence[Callable[[Progress], object]] | None = None
    settings: Mapping[str, Any] | None = None


@dataclass(kw_only=True, eq=False, repr=False)
class Parameters(CommonParameters):
    """The settings of all models; None is the default of the chosen one."""

    adjacency_dropout: float | None = None
    adjacency_layers: int | None = None
    adjacency_scaling: str | None = None
    attention_dropout: float | None = None
    attributes_dropout: float | None = None
    attributes_layers: int | None = None
    attributes_scaling: str | None = None
    batch_norm: bool | None = None
    batch_size: int | None = None
    class_counts_dropout: float | None = None
    class_counts_scaling: str | None = None
    class_means_dim: int | None = None
    class_means_dropout: float | None = None
    class_means_form: str | None = None
    class_means_scaling: str | None = None
    class_weights: str | None = None
    classifier_layers: int | None = None
    classifier_weight_decay: float | None = None
    column_share: float | None = None
    compatibility_weight_decay: float | None = None
    consistency_passes: int | None = None
    consistency_temperature: float | None = None
    consistency_warmup: int | None = None
    consistency_weight: float | None = None
    convolution_weight_decay: float | None = None
    cosine_weight: float | None = None
    diagonal_weight: float | None = None
    diffusion: str | None = None
    diffusion_dim: int | None = None
    diffusion_dropout: float | None = None
    diffusion_form: str | None = None
    diffusion_scaling: str | None = None
    diffusion_self_entry: bool | None = None
    diffusion_self_loop: int | None = None
    diffusion_threshold: float | None = None
    diffusion_tolerance: float | None = None
    diffusion_topk: int | None = None
    dropout: float | None = None
    edge_types: str | None = None
    embedding_scaling: str | None = None
    encoder: str | None = None
    encoder_layers: int | None = None
    entropy_weight: float | None = None
    epochs: int | None = None
    estimator_dropout: float | None = None
    estimator_epochs: int | None = None
    estimator_hidden: int | None = None
    estimator_layers: int | None = None
    estimator_lr: float | None = None
    estimator_patience: int | None = None
    estimator_weight: float | None = None
    estimator_weight_decay: float | None = None
    factors: int | None = None
    form: str | None = None
    gate: bool | None = None
    gcnii_epochs: int | None = None
    gcnii_identity_strength: float | None = None
    gcnii_initial_share: float | None = None
    gcnii_layers: int | None = None
    gcnii_patience: int | None = None
    gumbel_temperature: float | None = None
    heads: int | None = None
    heat_time: float | None = None
    hidden_dim: int | None = None
    hop_lr: float | None = None
    hop_weight_decay: float | None = None
    hops: int | None = None
    hops_dim: int | None = None
    hops_dropout: float | None = None
    identity_strength: float | None = None
    initial_share: float | None = None
    jump: str | None = None
    keep_gate: bool | None = None
    kpattern_reduction: str | None = None
    kpattern_weight: float | None = None
    l2: float | None = None
    label_confidence: float | None = None
    layers: int | None = None
    leaves: int | None = None
    lr: float | None = None
    memory: bool | None = None
    memory_dim: int | None = None
    message_passing_dropout: float | None = None
    min_leaf: int | None = None
    mix_gcnii: bool | None = None
    mixing: str | None = None
    mixing_lr: float | None = None
    mp_jump: str | None = None
    mp_layers: int | None = None
    mp_norm: str | None = None
    mp_normalization: str | None = None
    mp_residual: bool | None = None
    neighbors: str | None = None
    node_dropout: float | None = None
    norm: str | None = None
    norm_weight: float | None = None
    normalization: str | None = None
    num_patterns: int | None = None
    order: int | None = None
    out_share: float | None = None
    output_heads: int | None = None
    patience: int | None = None
    polynomial_weight_decay: float | None = None
    powers: int | None = None
    precision: str | None = None
    pretraining_epochs: int | None = None
    pretraining_patience: int | None = None
    prior: str | None = None
    prior_epochs: int | None = None
    prior_patience: int | None = None
    prior_weight: float | None = None
    propagation: str | None = None
    propagation_dropout: float | None = None
    prototype_temperature: float | None = None
    prototype_weight: float | None = None
    query_dim: int | None = None
    refinement: bool | None = None
    regression_loss: str | None = None
    representation_epochs: int | None = None
    representation_lr: float | None = None
    representation_weight_decay: float | None = None
    residual: bool | None = None
    rounds: int | None = None
    row_share: float | None = None
    samples: int | None = None
    self_loop: float | None = None
    self_loops: str | None = None
    shared_weights: bool | None = None
    soft_counts: bool | None = None
    statistics: Sequence[str] | None = None
    svd_dim: int | None = None
    target_bins: int | None = None
    target_means_dropout: float | None = None
    target_momentum: float | None = None
    teleport: float | None = None
    unit_encodings: bool | None = None
    unit_hops: bool | None = None
    unit_layers: bool | None = None
    weight_decay: float | None = None
    zero_sum_weight: float | None = None
