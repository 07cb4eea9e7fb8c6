"""``python -m dprmt``: the command line."""

from dprmt.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
