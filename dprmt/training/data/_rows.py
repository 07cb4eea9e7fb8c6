"""Rows of a data set: from the hub, from local files, or the docstrings."""

from __future__ import annotations

import ast
import csv
import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import datasets

from dprmt._validation import ParameterError
from dprmt.training.data._docstrings import PACKAGES, Docstring, docstrings, library_files, module_of, split_of
from dprmt.training.recipes import DataRecipe

SPLITS = ("train", "validation", "test")


class Row(NamedTuple):
    """One sample as text."""

    inputs: tuple[str, ...]
    target: Any  # a label, or the target texts
    part: str  # the split or file it is from
    unit: int | str | None = None  # owner of the row, if the recipe names a column


class Rows(NamedTuple):
    """Rows of every split, and the names of the labels if the source has them."""

    splits: dict[str, list[Row]]
    label_names: tuple[str, ...] | None


def read_rows(data: DataRecipe, task: str, base_folder: Path | None) -> Rows:
    r"""Read all rows as text.

    Parameters
    ----------
    data : DataRecipe
        Location of the rows.
    task : {"classification", "generation"}
        Whether the target is a label or text.
    base_folder : Path or None
        Folder of relative file names; the current folder by default.

    Returns
    -------
    Rows
        Rows of every split; a missing split is empty.

    Raises
    ------
    ParameterError
        If a file, split or column is missing, a file cannot be read, or a split is empty.

    Examples
    --------
    >>> import tempfile
    >>> from dprmt.training.recipes import DataRecipe
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "films.csv").write_text("text,label\na fine film,good\n")
    ...     file = ("films.csv",)
    ...     table = DataRecipe("files", train=file, validation=file, inputs=("text",), target="label")
    ...     read_rows(table, "classification", Path(folder)).splits["train"]
    [Row(inputs=('a fine film',), target='good', part='films', unit=None)]
    """
    if data.source == "docstrings":
        return _built_in_rows(task, data.unit is not None)
    splits, names = {}, None
    for split in SPLITS:
        rows: list[Row] = []
        for part in getattr(data, split):
            table, found = _table(data, split, part, base_folder)
            names = names or found
            unit = data.unit if split == "train" else None
            rows += _rows_of(table, data, task, Path(part).stem if data.source == "files" else part, unit)
        if getattr(data, split) and not rows:
            raise ParameterError(f"data.{split}", getattr(data, split), "a split with rows")
        splits[split] = rows
    return Rows(splits, names)


def _built_in_rows(task: str, has_units: bool) -> Rows:
    names = None

    def unit(sample: Docstring | Summary) -> str | None:
        return sample.module if has_units and sample.split == "train" else None

    if task == "classification":
        names = tuple(sorted({sample.package for sample in docstrings()}))
        rows = [Row((one.text,), names.index(one.package), one.split, unit(one)) for one in docstrings()]
    else:
        rows = [Row((one.source,), one.summary, one.split, unit(one)) for one in summaries()]
    return Rows({split: [row for row in rows if row.part == split] for split in SPLITS}, names)


def _rows_of(table: Any, data: DataRecipe, task: str, part: str, unit: str | None) -> list[Row]:
    columns = (
        table.column_names if isinstance(table, datasets.Dataset) else sorted({key for row in table for key in row})
    )
    wanted = [*(("data.inputs", name) for name in data.inputs), ("data.target", data.target)]
    for key, column in wanted if unit is None else [*wanted, ("data.unit", unit)]:
        if column not in columns:
            raise ParameterError(key, column, "one of the columns " + ", ".join(columns))
    units = [None] * len(table) if unit is None else _units(unit, [row.get(unit) for row in table])
    rows = [(tuple(as_text(row.get(name)) for name in data.inputs), row.get(data.target)) for row in table]
    if task == "classification":
        return [Row(inputs, label, part, whose) for (inputs, label), whose in zip(rows, units, strict=True)]
    return [
        Row(inputs, reference, part, whose)
        for (inputs, target), whose in zip(rows, units, strict=True)
        for reference in as_references(target)
    ]


def _units(column: str, values: Sequence[Any]) -> list[int | str]:
    """Read the owner of each row, and raise an error for a row without one."""
    holes = sum(value is None or value == "" or value != value for value in values)
    if holes:
        raise ParameterError("data.unit", column, f"a column without holes: {holes} of {len(values)} rows have none")
    if odd := [value for value in values if isinstance(value, bool) or not isinstance(value, (int, str))]:
        raise ParameterError("data.unit", column, f"a column of integers or strings, not of {type(odd[0]).__name__}")
    return [*values]


def _table(data: DataRecipe, split: str, part: str, base_folder: Path | None) -> tuple[Any, tuple[str, ...] | None]:
    if data.source == "files":
        path = (base_folder or Path()) / part
        if not path.is_file():
            raise ParameterError(
                f"data.{split}", str(path), f"a file that is there (--set \"data.{split}=['FILE']\" names one)"
            )
        return _read_file(path), None
    try:
        table = datasets.load_dataset(data.source, data.subset, split=part, revision=data.revision)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ParameterError("data.source", data.source, f"a data set whose split {part} loads ({reason})") from error
    feature = table.features.get(data.target)
    return table, tuple(feature.names) if isinstance(feature, datasets.ClassLabel) else None


def _read_file(path: Path) -> list[dict[str, Any]]:
    kind = path.suffix.removeprefix(".")
    if kind == "xml":
        return read_dart_xml(path)
    if kind not in ("csv", "tsv", "json", "jsonl"):
        raise ParameterError("data file", str(path), "named *.csv, *.tsv, *.json, *.jsonl or *.xml")
    try:
        rows, header = _json_rows(path) if kind in ("json", "jsonl") else _table_rows(path, kind)
    except (OSError, ValueError, csv.Error) as error:
        raise ParameterError("data file", str(path), f"a readable {kind} file in UTF-8 ({error})") from error
    if not rows:
        raise ParameterError("data file", str(path), f"a file with rows{' below its header' if header else ''}")
    for number, row in enumerate(rows, 1):
        if len(row) != len(header or row):
            found = f"row {number} has {len(row)}; quote text with commas"
            raise ParameterError("data file", str(path), f"rows of {len(header)} fields, as the header has ({found})")
    if not header:
        return rows
    columns = [_integers(column) for column in zip(*rows, strict=True)]
    return [dict(zip(header, row, strict=True)) for row in zip(*columns, strict=True)]


def _json_rows(path: Path) -> tuple[list[Any], list[str]]:
    text = path.read_text(encoding="utf-8-sig")
    rows = (
        json.loads(text)
        if text.lstrip().startswith("[")
        else [json.loads(row) for row in text.split("\n") if row.strip()]
    )
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError("a row is no object")
    return rows, []


def _table_rows(path: Path, kind: str) -> tuple[list[Any], list[str]]:
    # Tab-separated text is not quoted: a lone quotation mark must not swallow the lines after it.
    tabs: Any = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    limit = csv.field_size_limit(2**31 - 1)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = [row for row in csv.reader(file, strict=True, **(tabs if kind == "tsv" else {})) if row]
    finally:
        csv.field_size_limit(limit)
    return rows[1:], rows[0] if rows else []


def _integers(column: Sequence[str]) -> Sequence[str] | list[int]:
    """Return a column of integers as such, unless one is written in another way, such as 007."""
    try:
        numbers = [int(value) for value in column]
    except ValueError:
        return column
    return numbers if all(str(number) == value for number, value in zip(numbers, column, strict=True)) else column


class Summary(NamedTuple):
    """A function with its summary line, and the first module that has it."""

    source: str
    summary: str
    split: str
    module: str


@cache
def summaries() -> tuple[Summary, ...]:
    """Collect functions of the standard library with their summary lines, without duplicates.

    The packages are those used for classification of docstrings. Every function is included whose docstring's first
    paragraph is one line. The source has no docstring, comments or decorators, and is cut after 600 characters.
    Duplicates are kept once; a hash of the source determines the split.

    Examples
    --------
    >>> samples = summaries()
    >>> len(samples) > 1000, all(sample.source.startswith(("def ", "async def ")) for sample in samples)
    (True, True)
    >>> any(sample.summary in sample.source for sample in samples[:100])
    False
    """
    found: dict[str, str] = {}
    modules: dict[str, str] = {}
    for sources in PACKAGES.values():
        for source in sources:
            for file in library_files(source):
                for text, summary in _functions_of(file):
                    found.setdefault(text, summary)
                    modules.setdefault(text, module_of(file))
    return tuple(Summary(text, found[text], split_of(text), modules[text]) for text in sorted(found))


def _functions_of(file: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            paragraph = (ast.get_docstring(node) or "").partition("\n\n")[0]
            node.body, node.decorator_list = node.body[1:] or [ast.Pass()], []
            text = ast.unparse(node)[:600]
            # A lone surrogate, possible in a string literal, is no text.
            printable = all(line.isprintable() for line in (paragraph, *text.split("\n")))
            if sum(map(str.isalpha, paragraph)) > 9 and printable:
                yield text, paragraph


def as_text(value: Any) -> str:
    """Return a cell of a table as text; triples are written ``subject : relation : object | …``.

    Examples
    --------
    >>> as_text([["Mars Hill College", "JOINED", "1973"], ["Mars Hill College", "LOCATION", "Mars Hill"]])
    'Mars Hill College : JOINED : 1973 | Mars Hill College : LOCATION : Mars Hill'
    """
    if isinstance(value, (list, tuple)) and all(isinstance(triple, (list, tuple)) for triple in value):
        return " | ".join(" : ".join(str(part).strip() for part in triple) for triple in value)
    if isinstance(value, (str, int, float)):
        return str(value).strip()
    raise ParameterError("data.inputs", type(value).__name__, "columns of strings or of triples")


def as_references(value: Any) -> list[str]:
    """Return the target texts of a cell: one string, strings, or annotations with a ``text``.

    Examples
    --------
    >>> as_references([{"source": "e2e", "text": "A pub. "}]), as_references({"text": ["A pub."]})
    (['A pub.'], ['A pub.'])
    """
    if isinstance(value, dict):
        value = value.get("text")
    if isinstance(value, str):
        return [value.strip()]
    if isinstance(value, (list, tuple)):
        texts = [entry.get("text") if isinstance(entry, dict) else entry for entry in value]
        strings = [text.strip() for text in texts if isinstance(text, str)]
        if strings and len(strings) == len(texts):
            return strings
    raise ParameterError("data.target", type(value).__name__, "a column of strings, lists of strings or annotations")


def read_dart_xml(path: Path) -> list[dict[str, Any]]:
    """Return rows of DART's XML layout, in the shape of its JSON layout.

    ``path``: A file of ``entry`` elements with ``modifiedtripleset/mtriple`` and ``lex``.
    """
    try:
        entries = ElementTree.parse(path).getroot().iter("entry")
        rows = [_row(entry) for entry in entries]
    except ElementTree.ParseError as error:
        raise ParameterError("data file", str(path), f"XML ({error})") from None
    if not rows:
        raise ParameterError("data file", str(path), "XML with entry elements")
    return rows


def _row(entry: ElementTree.Element) -> dict[str, Any]:
    triples = [[part.strip() for part in (node.text or "").split(" | ")] for node in entry.iter("mtriple")]
    return {"tripleset": triples, "annotations": [{"text": node.text or ""} for node in entry.iter("lex")]}
