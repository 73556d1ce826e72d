"""The state of a service: failures while it loads."""

import asyncio

import pytest

from hpgmn.base.errors import HPGMNError
from hpgmn.runs.run import open_run
from hpgmn.service.journal import Journal
from hpgmn.service.state import ServedRun


def test_a_journal_that_does_not_fit_is_a_user_error(run_folder):
    run = open_run(run_folder)
    journal = Journal(run)
    journal.append([], [{"source": "n1", "target": "gone", "amount": 1.0}])
    served = ServedRun(run, journal)
    with pytest.raises(HPGMNError) as caught:
        asyncio.run(served.load())
    assert str(journal.path) in caught.value.message
    assert caught.value.remedy is not None
    with pytest.raises(HPGMNError):
        served.require()
    served.close()
