"""``python -m dprmt``: the command line."""

from dprmt.cli import main

raise SystemExit(main())
