"""The version has one home, which the package and its metadata follow."""

import hpgmn
from hpgmn.base.version import __version__


def test_the_package_has_the_version():
    assert hpgmn.__version__ == __version__
