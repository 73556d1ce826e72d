"""Tables of the record of lab/benchmarks/compare.py, on numbers chosen by hand."""

import pytest

from hpgmn_lab.bench.yardstick import factors, tables

from .conftest import yardstick_row


def test_factors_multiply_to_the_measured_total():
    found = factors(yardstick_row())
    assert found["size"] == 4.0
    assert found["epochs"] == found["algorithm"] == found["replicas"] == 2.0
    assert found["total"] == 30.0
    assert found["rest"] == pytest.approx(30 / 32)


def test_tables_show_the_numbers_and_what_is_short(compare_record):
    text = "\n".join(table.markdown() for table in tables(compare_record))
    assert "| squirrel | 3000 | 100.0 | 30.0 | 25 | reached | 60.0 ± 2.0 | 78.0 ± 1.0 |" in text
    assert "| texas | 3000 | 400.0 | 7.5 | 10 | short by 2.50 |" in text
    assert "| squirrel | 4.00 | 2.00 | 2.00 | 2.00 | 0.94 | 30.00 | 64, 50 |" in text
    assert "| diffusion rows | 0.600 | 0.200 | 3.00 | 2.3 | reached | 600 | 240 | 0.40 |" in text
    assert "| adjacency rows | 0.600 | 0.200 | 3.00 | 4.0 | short by 1.00 |" in text
    assert "short by 0.07 |" in text
