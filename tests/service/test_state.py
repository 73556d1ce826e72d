"""The state of a service: failures while it loads."""

import asyncio

import pytest

from hpgmn.base.errors import HPGMNError
from hpgmn.runs.run import open_run
from hpgmn.service.journal import Journal, Rows
from hpgmn.service.state import ServedRun, load_live


def test_a_journal_that_does_not_fit_is_a_user_error(run_folder):
    run = open_run(run_folder)
    journal = Journal(run)
    journal.append(Rows([], [{"source": "n1", "target": "gone", "amount": 1.0}]))
    stopped = []
    served = ServedRun(run, journal)
    served.on_failure = lambda: stopped.append(True)
    asyncio.run(served.load())
    assert stopped == [True]
    assert isinstance(served.failure, HPGMNError)
    assert str(journal.path) in served.failure.message
    with pytest.raises(HPGMNError):
        served.require()
    served.close()


def test_mapped_predictions_are_used_without_computing(run_folder, tmp_path, new_node):
    import numpy as np

    run = open_run(run_folder)
    journal = Journal(run)
    journal.append(Rows([new_node("a")], []))
    values = load_live(run, journal, None).refresh()
    assert len(values) == 61
    marked = np.full_like(values, 0.5)
    np.save(tmp_path / "p.npy", marked)
    live = load_live(run, journal, None, tmp_path / "p.npy")
    assert live.is_current(["a", "n1"])
    assert live.predict(["a"])[0]["confidence"] == 0.5
    journal.close()
