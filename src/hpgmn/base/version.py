"""The version of hpgmn, which files record and ``hpgmn --version`` prints."""

__version__ = "0.5.0"
