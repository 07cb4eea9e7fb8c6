"""``python -m dprmt_verify STATEMENT.json …``: one line an end; exit code 0 only if every end is proved."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dprmt_verify import NotCoveredError, read_statement, verify

CODES = {"proved": 0, "not settled": 3, "not covered": 3, "refuted": 4}


def main(arguments: Sequence[str] | None = None) -> int:
    """Verify files; 2 if one cannot be read, 4 if any end is refuted, 3 if any is not settled or not covered."""
    parser = argparse.ArgumentParser(prog="dprmt_verify", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="STATEMENT.json")
    parser.add_argument("--seconds", type=float, default=60.0, help="CPU time for finer meshes, a file (default: 60)")
    parser.add_argument("--peer", metavar="NAME", help="judge what this package says of the run: opacus, prv, …")
    options, codes = parser.parse_args(arguments), []
    for path in options.files:
        try:
            text = path.read_text(encoding="utf-8")
            if options.peer is not None:
                from dprmt_verify.further._peer import claim_of_peer

                text = claim_of_peer(options.peer, text)
            verdicts = verify(read_statement(text), options.seconds)
        except (NotCoveredError, UnicodeDecodeError, OSError) as error:
            sys.stderr.write(f"{path}: not verified: {error}\n")
            return 2
        sys.stdout.writelines(f"{path}: {verdict}\n" for verdict in verdicts)
        codes += [CODES[verdict.word] for verdict in verdicts]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
