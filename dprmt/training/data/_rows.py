"""Rows of a data set: from the hub, from local files, or the docstrings."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import datasets

from dprmt._validation import ParameterError
from dprmt.training.data._docstrings import docstrings, split_of, summaries
from dprmt.training.private_run._batches import check_owners
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
    names: tuple[str, ...] | None = None
    if task == "classification":
        names = tuple(sorted({one.package for one in docstrings()}))
        found: list[tuple[str, Any, str, str]] = [
            (one.text, names.index(one.package), one.split, one.module) for one in docstrings()
        ]
    else:
        found = [(source, summary, split_of(source), module) for source, summary, module in summaries()]
    splits: dict[str, list[Row]] = {split: [] for split in SPLITS}
    for text, target, split, module in found:
        splits[split].append(Row((text,), target, split, module if has_units and split == "train" else None))
    return Rows(splits, names)


def _rows_of(table: Any, data: DataRecipe, task: str, part: str, unit: str | None) -> list[Row]:
    if isinstance(table, datasets.Dataset):
        columns = table.column_names
    else:
        columns = sorted({key for row in table for key in row})
    wanted = [*(("data.inputs", name) for name in data.inputs), ("data.target", data.target), ("data.unit", unit)]
    for key, column in wanted:
        if column is not None and column not in columns:
            raise ParameterError(key, column, "one of the columns " + ", ".join(columns))
    units: list[Any] = [None if unit is None else row.get(unit) for row in table]
    if unit is not None:
        units = check_owners("data.unit", units, len(table))
    rows = []
    for row, whose in zip(table, units, strict=True):
        inputs, target = tuple(as_text(row.get(name)) for name in data.inputs), row.get(data.target)
        targets = [target] if task == "classification" else as_references(target)
        rows += [Row(inputs, each, part, whose) for each in targets]
    return rows


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
    readers = {"csv": _table_rows, "tsv": _table_rows, "json": _json_rows, "jsonl": _json_rows, "xml": dart_xml_rows}
    if kind not in readers:
        raise ParameterError("data file", str(path), "named *.csv, *.tsv, *.json, *.jsonl or *.xml")
    try:
        rows = readers[kind](path)
    except (OSError, ValueError, csv.Error, ElementTree.ParseError) as error:
        raise ParameterError("data file", str(path), f"a readable {kind} file in UTF-8 ({error})") from error
    if not rows:
        raise ParameterError("data file", str(path), "a file with rows")
    return rows


def _json_rows(path: Path) -> list[dict[str, Any]]:
    text = path.read_text(encoding="utf-8-sig")
    lines = [row for row in text.split("\n") if row.strip()]
    rows: list[Any] = json.loads(text) if text.lstrip().startswith("[") else list(map(json.loads, lines))
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError("a row is no object")
    return rows


def _table_rows(path: Path) -> list[dict[str, Any]]:
    # Tab-separated text is not quoted: a lone quotation mark must not swallow the lines after it.
    tabs: Any = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if path.suffix == ".tsv" else {}
    csv.field_size_limit(2**31 - 1)  # of documents
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file, strict=True, **tabs))
    for number, row in enumerate(rows, 1):
        if None in row or None in row.values():
            raise ValueError(f"row {number} has not as many fields as the header; quote text with commas")
    for name in rows[0] if rows else ():
        for row, value in zip(rows, _integers([row[name] for row in rows]), strict=True):
            row[name] = value
    return rows


def _integers(column: Sequence[str]) -> Sequence[str] | list[int]:
    """Return a column of integers as such, unless one is written in another way, such as 007."""
    try:
        numbers = [int(value) for value in column]
    except ValueError:
        return column
    return numbers if all(str(number) == value for number, value in zip(numbers, column, strict=True)) else column


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


def dart_xml_rows(path: Path) -> list[dict[str, Any]]:
    """Return rows of DART's XML layout, in the shape of its JSON layout.

    ``path``: A file of ``entry`` elements with ``modifiedtripleset/mtriple`` and ``lex``.
    """
    return [_row(entry) for entry in ElementTree.parse(path).getroot().iter("entry")]


def _row(entry: ElementTree.Element) -> dict[str, Any]:
    triples = [[part.strip() for part in (node.text or "").split(" | ")] for node in entry.iter("mtriple")]
    return {"tripleset": triples, "annotations": [{"text": node.text or ""} for node in entry.iter("lex")]}
