"""The scripts are run by a test, not collected; without the packages of training nothing is."""

from tests.training.conftest import collect_ignore_glob as collect_ignore_glob

collect_ignore = ["scripts"]
