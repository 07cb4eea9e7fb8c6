"""What a release says of its public address: links of the README made absolute, and the project's addresses.

``DPRMT_ADDRESS``: the repository's address, which the host of the release knows. Without it links stay relative.
"""

import os
import re
from pathlib import Path

from setuptools import setup

ADDRESS = os.environ.get("DPRMT_ADDRESS", "").rstrip("/")
README = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
RELATIVE_LINK = re.compile(r"(!?)(\[[^\]]*\]\()(?![a-z]+:|#)([^)]+)\)")


def absolute(link: re.Match[str]) -> str:
    """A picture is asked for as a file, everything else as a page."""
    picture, text, path = link.groups()
    return f"{picture}{text}{ADDRESS}/{'raw' if picture else 'blob'}/main/{path})"


urls = {
    "Homepage": ADDRESS,
    "Source": ADDRESS,
    "Issues": f"{ADDRESS}/issues",
    "Changelog": f"{ADDRESS}/blob/main/CHANGELOG.md",
    "Guarantees": f"{ADDRESS}/blob/main/docs/guarantees.md",
}
setup(
    long_description=RELATIVE_LINK.sub(absolute, README) if ADDRESS else README,
    long_description_content_type="text/markdown",
    project_urls=urls if ADDRESS else {},
)
