"""``hpgmn report`` on finished runs."""

import shutil
from pathlib import Path


def test_each_run_gets_its_page(hpgmn, own_run, tmp_path):
    other = Path(shutil.copytree(own_run, tmp_path / "copy"))
    expected = (own_run / "report.html").read_text(encoding="utf-8")
    for folder in (own_run, other):
        (folder / "report.html").unlink()
    answer = hpgmn("report", own_run, other)
    assert answer.code == 0, answer.err
    assert answer.out.split() == [str(own_run / "report.html"), str(other / "report.html")]
    for folder in (own_run, other):
        assert (folder / "report.html").read_text(encoding="utf-8") == expected


def test_a_folder_that_is_no_run_is_refused(hpgmn, tmp_path):
    answer = hpgmn("report", tmp_path)
    assert (answer.code, answer.out) == (2, "")
    assert "config.yaml" in answer.err
    assert "--resume" in answer.err
