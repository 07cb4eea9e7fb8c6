"""The command line, ``dprmt``: one file a command."""

from dprmt.cli._main import build_parser as build_parser
from dprmt.cli._main import main as main

__all__ = ["build_parser", "main"]
