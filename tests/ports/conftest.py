"""The scripts are run by a test, not collected."""

collect_ignore = ["scripts"]
