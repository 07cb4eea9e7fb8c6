"""The published figures and tables: ``python -m paper_figures``."""

import sys
from pathlib import Path

_HERE = str(Path(__file__).parent)
if _HERE not in sys.path:  # studies, heavy_tail, … import each other as top-level packages
    sys.path.append(_HERE)
