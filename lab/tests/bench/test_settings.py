"""The settings for large graphs are valid, and may be changed."""

from __future__ import annotations

import pytest

from hpgmn.base.errors import SettingError
from hpgmn.statistics import statistic_names
from hpgmn_lab.bench.settings import LARGE, large


def test_large_settings_hold_and_can_be_changed() -> None:
    settings = large({"lr": "0.5"})
    assert settings.lr == 0.5
    assert settings.batch_size == LARGE["batch_size"] == 4096
    assert not {"adjacency", "diffusion"} & set(settings.statistics)  # no column per node
    assert statistic_names(settings)[1:] == [
        *("class_counts_out", "class_counts_in", "class_means_out", "class_means_in"),
    ]


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(SettingError, match=r"Unknown setting 'hiden_dim'.*hidden_dim"):
        large({"hiden_dim": 3})
