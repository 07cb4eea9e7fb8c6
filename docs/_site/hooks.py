"""What the site makes of the sources: formulas as MathML, drawn without a script; pages from ``--help``."""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
from calculator import calculator_files
from cross_links import linked_names, linked_papers, linked_theory, spaced, with_others
from formulas import drawn
from gallery import gallery_pages
from twins import sections_of, write_twins

from notebooks import notebook_pages

_ROOT = Path(__file__).parents[2]
_UPWARDS = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)]*)\)")
_FILE = re.compile(r"<code>((?:[\w.-]+/)+[\w.-]*)</code>")
_NUMBER = re.compile(r"<!--n:[\w.+-]+-->(.*?)<!--/n-->")  # see tests/docs/test_page_numbers.py
_LONG = re.compile(r"<code>([^<\n]{28,})</code>")
_BREAK = re.compile(r"(/|::|_(?=[a-z]))")
_POWER = re.compile(r"(?<![\w.-])(\d[\d.]*e-\d+)(?![\w.])")
_CELL = re.compile(r"<td[^>]*>[^<]*</td>")
_PAGES: dict[str, tuple[str, str]] = {}  # title and Markdown by address, while the site is built
_SECTIONS: list[tuple[str, list[str]]] = []
_COPIED = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md", "security.md": "SECURITY.md"}


def on_files(files: Files, *, config: Any, **_: Any) -> Files:
    """Pages that are not written by hand, and the pictures that pages show."""
    for name, source in _COPIED.items():
        files.append(File.generated(config, name, content=(_ROOT / source).read_text(encoding="utf-8")))
    files.append(File.generated(config, "command_line.md", content=_command_line()))
    for page in (*notebook_pages(config, _ROOT / "notebooks"), *gallery_pages(config, _ROOT / "docs" / "gallery")):
        files.append(page)
    for file in calculator_files(config, _ROOT):
        files.append(file)
    for picture in sorted((_ROOT / "paper_figures" / "results").glob("*.png")):
        files.append(File.generated(config, f"figures/{picture.name}", abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Links between pages; and out of the folder of documents to pictures, other files being named without a link."""
    markdown = _NUMBER.sub(r"\1", markdown)
    folder, _, name = page.file.src_uri.rpartition("/")
    if folder == "theory":
        markdown = linked_theory(markdown, name.removesuffix(".md"))
    if folder in ("theory", "results"):
        markdown = spaced(markdown)
    if folder in ("theory", "results", "how_to", "concepts", "tutorials"):
        markdown = linked_names(markdown)
    if folder == "api":
        markdown = with_others(markdown)
    markdown = linked_papers(markdown)
    markdown = markdown.replace("](../paper_figures/results/", "](figures/").replace("](docs/", "](")
    markdown = _UPWARDS.sub(lambda match: match[0] if _stays(match[2], folder) else match[1], markdown)
    _PAGES[page.file.dest_uri] = page.title, markdown
    return markdown


def on_nav(nav: Any, **_: Any) -> None:
    """The sections, for the list of pages."""
    _SECTIONS[:] = sections_of(nav)


def on_post_build(*, config: Any, **_: Any) -> None:
    """The pages as plain Markdown, and the list of them."""
    write_twins(Path(config["site_dir"]), _PAGES, _SECTIONS)


def _stays(target: str, folder: str) -> bool:
    """Whether a link from a page of a folder ends among the documents."""
    return not os.path.normpath(os.path.join(folder, target)).startswith("..")


def on_page_content(text: str, **_: Any) -> str:
    """Every formula as MathML; long code in tables may be broken, numbers such as 1e-5 may not."""
    named = _FILE.sub(lambda match: f'<code class="long">{match[1].replace("/", "/<wbr>")}</code>', drawn(text))
    long = _LONG.sub(lambda match: '<code class="long">' + _BREAK.sub(r"\1<wbr>", match[1]) + "</code>", named)
    return _CELL.sub(lambda match: _POWER.sub(r'<span class="number">\1</span>', match[0]), long)


def _command_line() -> str:
    from dprmt.cli import build_parser

    os.environ["COLUMNS"] = "80"
    parser = build_parser()
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    said = "The output of `--help`. `--from-json` takes the output of the same command's `--json` instead of options."
    parts = ["# Command line", said, _help(parser)]
    for name, command in commands.choices.items():
        parts += [f"## dprmt {name}", _help(command)]
    return "\n\n".join(parts) + "\n"


def _help(parser: argparse.ArgumentParser) -> str:
    return f"``` {{ .text .help }}\n{parser.format_help().rstrip()}\n```"
