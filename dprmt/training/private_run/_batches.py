"""Batches of a private run: who is drawn, in which micro-batches, and how their rows are loaded.

Every row travels with its position in the data set, from the draw through workers and collation to the private step.
"""

from __future__ import annotations

import hashlib
import math
import pickle
import random
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler, SequentialSampler

from dprmt._validation import ParameterError, TrainingStateError
from dprmt.accounting import CyclicPoisson, Poisson, RandomAllocation, Sampling
from dprmt.training.clipping._batch_rows import BatchRows
from dprmt.training.norms._probes import SampleId, checked_ids
from dprmt.training.private_run._randomness import Randomness, rank
from dprmt.training.randomness import SecureRandom, allocation, draws_from, secret_generator

_COMPARED = 8  # rows that are collated again
RESOLUTION = 2.0**24  # values of one float32 of torch.rand, which a sample is drawn by
_REPLACED = (SequentialSampler, RandomSampler, DistributedSampler)
_KEPT = (
    "num_workers",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
)
"""Options of a DataLoader that a private run takes over."""


def poisson(batch_size: float, samples: int) -> Poisson:
    """Make Poisson sampling at the smallest rate, at least the nominal one, that ``torch.rand`` can draw exactly."""
    return Poisson(min(1.0, math.ceil(batch_size / samples * RESOLUTION) / RESOLUTION))


def scheme(kind: str, size: float, samples: int) -> Poisson | RandomAllocation:
    """Make the sampling scheme "poisson" or "allocation" of an expected batch size."""
    return RandomAllocation(max(1, round(samples / size))) if kind == "allocation" else poisson(size, samples)


class Draws:
    """Positions of every step's samples: a function of a secret and of the number of steps charged before.

    Privacy: samples enter steps independently of each other with the probabilities that ``sampling`` states, up to the
    generator that the secret seeds; the same number always gives the same batch.
    """

    def __init__(self, samples: int, sampling: Sampling, randomness: Randomness) -> None:
        assert isinstance(sampling, Poisson | CyclicPoisson | RandomAllocation)  # without a largest size
        assert getattr(sampling, "at_most", None) is None
        self._samples, self._sampling, self.randomness = samples, sampling, randomness
        self._epoch: tuple[int, list[list[int]]] | None = None
        self._secrets: dict[int, bytes] = {}  # of epochs that another start of the run began

    def epoch_under_way(self, charged: int) -> bytes | None:
        """Return the secret of the allocation that this many recorded steps have begun, where it may be kept."""
        per_epoch = self._sampling.steps_per_epoch
        if per_epoch is None or not charged % per_epoch or self.randomness.secure:
            return None
        return self._secret(charged // per_epoch)

    def go_on(self, charged: int, secret: bytes) -> None:
        """Finish the epoch that another start of the run began."""
        assert isinstance(self._sampling, RandomAllocation)
        self._secrets[charged // self._sampling.steps_per_epoch] = secret

    def _secret(self, epoch: int) -> bytes:
        return self._secrets.get(epoch) or self.randomness.derive(f"allocation of epoch {epoch}")

    def at(self, charged: int) -> list[int]:
        """Return the batch of the step that comes after so many charged ones."""
        if not isinstance(self._sampling, RandomAllocation):
            generator = self.randomness.generator(f"Poisson sampling after {charged} steps")
            group = range(charged % self._sampling.bands, self._samples, self._sampling.bands)
            rate = self._sampling.step_rate
            if isinstance(generator, SecureRandom):
                return [group[place] for place in generator.poisson_sample(len(group), rate)]
            exact = math.floor(rate * RESOLUTION) / RESOLUTION  # of what torch.rand can draw
            drawn = torch.rand(len(group), generator=generator) < exact
            return [group[place] for place in drawn.nonzero().ravel().tolist()]
        epoch, step = divmod(charged, self._sampling.steps_per_epoch)
        if self._epoch is None or self._epoch[0] != epoch:
            secret = self._secret(epoch)
            generator = SecureRandom(secret) if self.randomness.secure else secret_generator("cpu", secret)
            self._epoch = epoch, allocation(self._samples, self._sampling.steps_per_epoch, generator)
        return self._epoch[1][step]


@dataclass(eq=False, repr=False)
class MicroBatch:
    """Rows that are clipped together; from :meth:`PrivateRun.micro_batches`, for :meth:`PrivateRun.accumulate`.

    Attributes
    ----------
    rows : object
        What ``collate_fn`` made of them.
    """

    rows: Any
    _number: int
    _names: Sequence[SampleId]
    _owners: list[SampleId] | None = None
    _weights: list[float] | None = None
    _stands_in: bool = False
    _is_added: bool = False

    def _weighted(self, losses_of: Callable[[Any], torch.Tensor]) -> tuple[Any, Callable[[Any], torch.Tensor]]:
        """Return rows for the private step, and their losses, each times its row's weight where rows have some."""
        if self._weights is None:
            return self.rows, losses_of
        both = {"rows": self.rows, "weights": torch.tensor(self._weights)}

        def weighted(both: dict[str, Any]) -> torch.Tensor:
            found = losses_of(both["rows"])
            return found * both["weights"].to(found)

        return both, weighted

    def __getitem__(self, key: Any) -> NoReturn:
        raise TrainingStateError(
            "a micro-batch is not opened outside a loss function.\nFix: private.accumulate(lambda rows: ..., part)."
        )


class PrivateBatch:
    """A logical batch with the identities of its samples; it may be empty.

    Yielded by a :class:`PrivateRun`; give it to :meth:`PrivateRun.step` or :meth:`PrivateRun.micro_batches`. How many
    samples it holds is private.

    Attributes
    ----------
    step : int
        Steps taken before it.
    size : int
        Samples in it, over all processes. **Private.**
    """

    def __init__(  # no dataclass: Lightning would move its fields to a device one by one
        self,
        step: int,
        size: int,
        parts: Sequence[Part],
        load: Callable[[], Any],
        left: int,
        row: Callable[[], Any],
        seen: Counter[str] | None,
    ) -> None:
        self.step, self.size, self._load, self._row = step, size, load, row
        self._parts = list(parts)  # which the loader reads, too
        self._left = left  # micro-batches that are not added: more than parts if other processes have more
        self._seen = seen  # contents named so far, where rows are named by content
        self._current: MicroBatch | None = None
        self._is_finished = False

    def __getitem__(self, key: Any) -> NoReturn:
        raise TrainingStateError(
            "a private batch is not opened in the loop: losses are a function of its rows.\n"
            "Fix: private.step(lambda rows: ..., batch) with one loss for each row."
        )

    def _next(self) -> MicroBatch:
        """Return the present micro-batch until it is added, then load the next one."""
        if self._current is not None and not self._current._is_added:
            return self._current
        if self._parts:
            (positions, rows, contents), part = self._load(), self._parts[0]
            if positions != part.positions:
                raise TrainingStateError(
                    "the data loader gave other rows than were drawn: a row failed, or batches come in another order.\n"
                    "Fix: a data set that gives every row; then iterate over the run again."
                )
            names = positions if self._seen is None else [self._named(content) for content in contents]
            self._current = MicroBatch(rows, self._left, names, part.owners, part.weights)
            self._parts.pop(0)
        else:  # other processes have more micro-batches, and a sharded model needs all processes
            self._current = MicroBatch(self._row(), self._left, [0], _stands_in=True)
        return self._current

    def _named(self, content: str) -> str:
        # By content: unlike its position a row's name stays, and with it secret probes, when another row is removed.
        assert self._seen is not None
        self._seen[content] += 1
        return f"{content} {self._seen[content]}"


def _digest(row: Any) -> str:
    return hashlib.blake2b(content_of(row), digest_size=16).hexdigest()


def content_of(row: Any) -> bytes:
    """Serialize a row to bytes that equal rows share."""
    if isinstance(row, torch.Tensor):
        value = row.detach().cpu().contiguous()
        return f"{value.dtype} {tuple(value.shape)} ".encode() + value.reshape(-1).view(torch.uint8).numpy().tobytes()
    if isinstance(row, Mapping):
        pairs = sorted(row.items(), key=lambda pair: str(pair[0]))
        return b"".join(content_of(part) for pair in pairs for part in pair)
    if isinstance(row, (tuple, list)):
        return f"{len(row)} ".encode() + b"".join(map(content_of, row))
    if isinstance(row, (str, int, float, bool, bytes, type(None))):
        return f"{type(row).__name__} {row!r} ".encode()
    return pickle.dumps(row, protocol=4)


class Source:
    """Data set and loader of a run, and how its logical batches are cut.

    ``samples``: how many there are to draw, owners if rows have some. ``length``: of the row at a position; micro-
    batches then hold rows of similar length.
    """

    def __init__(
        self,
        data: Any,
        owners: Owners | None,
        micro_batch_size: int | None,
        length: Callable[[int], int] | None = None,
    ) -> None:
        self._loader = data if isinstance(data, DataLoader) else DataLoader(data)
        self.dataset = self._loader.dataset
        self._owners, self._micro, self._length = owners, micro_batch_size, length
        self.samples = len(self.dataset) if owners is None else len(owners.names)

    def parts(self, drawn: Sequence[int], number: int) -> list[Part]:
        """Split the samples drawn for a step into micro-batches."""
        if self._owners is not None:
            return list(self._owners.parts(drawn, self._micro, number, self._length))
        size = self._micro or max(1, len(drawn))
        drawn = drawn if self._length is None else sorted(drawn, key=self._length)
        return [Part(list(drawn[at : at + size])) for at in range(0, len(drawn), size)]

    def loaded(self, plans: Iterator[list[Part]], by_content: bool) -> Iterator[Any]:
        """Load positions, collated rows and their contents of all parts, in order."""
        positions = (part.positions for parts in plans for part in parts)
        options = {name: getattr(self._loader, name) for name in _KEPT if getattr(self._loader, name, None) is not None}
        collate = _Collation(self._loader.collate_fn, by_content)
        return iter(DataLoader(_Numbered(self.dataset), batch_sampler=positions, collate_fn=collate, **options))

    def seen_before(self, parts: list[Part], processes: int) -> Counter[str]:
        """Return contents of the rows of earlier processes: equal rows get names in their order."""
        if processes == 1:
            return Counter()
        own = Counter(_digest(self.dataset[place]) for part in parts for place in part.positions)
        shares: list[Counter[str]] = [Counter()] * processes
        torch.distributed.all_gather_object(shares, own)
        return sum(shares[: rank()], Counter())

    def first_row(self) -> Any:
        """Load any row, for a process that has none left."""
        return self._loader.collate_fn([self.dataset[0]])


def checked_data(data: Any) -> Any:
    """Check that rows can be drawn from the data."""
    dataset = data.dataset if isinstance(data, DataLoader) else data
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise ParameterError("dataset_or_loader", type(dataset).__name__, "a data set with a length and numbered rows")
    if len(dataset) == 0:
        raise ParameterError("dataset_or_loader", f"{type(dataset).__name__} without rows", "a data set with rows")
    if not isinstance(data, DataLoader):
        return data
    covered = getattr(data.sampler, "dataset", data.sampler)  # of one process' sampler, all rows
    if data.batch_size is None and type(data.batch_sampler).__name__ != "BatchSampler":
        raise ParameterError("dataset_or_loader.batch_sampler", type(data.batch_sampler).__name__, _SAMPLERS)
    replaced = type(data.sampler) in _REPLACED and not getattr(data.sampler, "replacement", False)
    if not replaced or len(covered) != len(dataset):
        raise ParameterError("dataset_or_loader.sampler", type(data.sampler).__name__, _SAMPLERS)
    return data


_SAMPLERS = (
    "torch's sequential, random or distributed one over all rows, which a private run replaces: give the data set, or "
    "torch.utils.data.Subset of it"
)


@dataclass
class _Numbered(torch.utils.data.Dataset[Any]):  # type: ignore[misc]
    """Rows with their positions."""

    _data: Any

    def __getitems__(self, positions: list[int]) -> list[tuple[int, Any]]:
        fetch = getattr(self._data, "__getitems__", None)
        rows = fetch(positions) if callable(fetch) else [self._data[position] for position in positions]
        return list(zip(positions, rows, strict=True))


class _Collation:
    """Collates rows, keeps their positions, and digests of their contents where those are asked for.

    The first rows are collated several times, to see whether a row depends on others.
    """

    def __init__(self, collate: Callable[[list[Any]], Any], by_content: bool) -> None:
        self._collate, self._by_content, self._is_checked = collate, by_content, False

    def __call__(self, numbered: list[tuple[int, Any]]) -> tuple[list[int], Any, list[str]]:
        positions, rows = [position for position, _ in numbered], [row for _, row in numbered]
        if len(rows) > 1 and not self._is_checked:
            check_collation(self._collate, rows[:_COMPARED])
            self._is_checked = True
        return positions, self._collate(rows), list(map(_digest, rows if self._by_content else ()))


def check_collation(collate: Callable[[list[Any]], Any], rows: Sequence[Any]) -> None:
    """Raise if the first or last row is collated otherwise next to copies of another one.

    Draws are the same, and shapes, so that padding is. A ``collate`` that gives other rows in each call is not judged.
    """
    secret, size = secrets.token_bytes(32), len(rows)

    def collated(order: Sequence[int]) -> tuple[BatchRows, list[Any]]:
        with draws_from(secret, ()):
            batch = BatchRows(collate([rows[place] for place in order]), size)
        return batch, batch.shapes

    try:
        (batch, shapes), (again, _) = collated(range(size)), collated(range(size))
    except ParameterError:
        return  # refused by name where the losses are computed
    for own in (0, size - 1):
        mine = content_of(batch.picked([own]))
        beside = (collated([own if place == own else other for place in range(size)]) for other in range(size))
        found = next((others for others, its in beside if its == shapes), batch)
        if content_of(again.picked([own])) == mine != content_of(found.picked([own])):
            raise TrainingStateError(
                "collate_fn makes a row from other rows, too, or changes their order: clipping bounds no sample then.\n"
                "Fix: a collate_fn that pads and stacks; compute all else from one row alone."
            )


# Owners of rows: where people with several rows are the samples, whose each row is.


@dataclass(frozen=True)
class Part:
    """Positions of a micro-batch's rows, whose they are, and by what their losses are multiplied."""

    positions: list[int]
    owners: list[SampleId] | None = None
    weights: list[float] | None = None


@dataclass(frozen=True)
class Owners:
    """The rows of every owner, and which of them a step uses.

    ``names``: names of the owners. ``items``: positions of each owner's rows. ``alone``: whether each owner runs
    alone. ``most``: rows of an owner that a step uses, drawn for it; None for all. ``averages``: whether an owner's
    gradient is the mean over the used rows instead of the sum. ``seed``: seed of the draws, which may be public: an
    owner's gradient is clipped whichever rows are used.
    """

    names: tuple[SampleId, ...]
    items: tuple[tuple[int, ...], ...]
    alone: bool = False
    most: int | None = None
    averages: bool = False
    seed: int = 0

    def count(self, owner: int) -> int:
        """Count the rows of an owner that a step uses."""
        return len(self.items[owner]) if self.most is None else min(self.most, len(self.items[owner]))

    def used(self, owner: int, step: int) -> list[int]:
        """Return the positions of the rows of an owner that a step uses, by owner and step alone."""
        items, many = self.items[owner], self.count(owner)
        if many == len(items):
            return list(items)
        text = f"{self.seed} {step} {self.names[owner]!r}"
        return sorted(random.Random(hashlib.blake2b(text.encode()).digest()).sample(items, many))

    def parts(
        self, drawn: Sequence[int], largest: int | None, step: int, length: Callable[[int], int] | None
    ) -> Iterator[Part]:
        """Group owners into micro-batches: as many as fit when padded to the longest, or one, cut if it is long."""
        held: list[int] = []
        for owner in drawn if self.alone else sorted(drawn, key=self.count):
            if held and (self.alone or (largest is not None and (len(held) + 1) * self.count(owner) > largest)):
                yield from self._cut(held, largest, step, length)
                held = []
            held.append(owner)
        if held:
            yield from self._cut(held, largest, step, length)

    def _cut(
        self, owners: list[int], largest: int | None, step: int, length: Callable[[int], int] | None
    ) -> Iterator[Part]:
        rows = [(item, owner) for owner in owners for item in self.used(owner, step)]
        if length is not None:
            rows.sort(key=lambda row: length(row[0]))
        size = largest if self.alone and largest is not None else len(rows)
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            weights = [1.0 / self.count(owner) for _, owner in part] if self.averages else None
            yield Part([item for item, _ in part], [self.names[owner] for _, owner in part], weights)


def owners_of(names: Sequence[SampleId], **options: Any) -> Owners:
    """Group rows into owners by the name at every row."""
    places: dict[SampleId, list[int]] = {}
    for place, name in enumerate(names):
        places.setdefault(name, []).append(place)
    return Owners(tuple(places), tuple(map(tuple, places.values())), **options)


def read_owners(data: Any, owners: Any, most: int | None) -> Owners:
    """Read them from a column's name, or from one name for each row; ``most``: rows that an owner may have."""
    values = owners
    if isinstance(owners, str):
        columns = list(getattr(data, "column_names", None) or [])
        if owners not in columns:
            known = f"one of the columns {', '.join(columns)}, or " if columns else ""
            raise ParameterError("owners", owners, f"{known}a list with the owner of each row")
        values = data[owners]
    found = owners_of(check_owners("owners", values, len(data)))
    longest = max(map(len, found.items), default=0)
    if most is not None and longest > most:
        fix = f"units=Units({longest}), or rows_per_owner={longest} of a PrivateTrainer, or fewer rows of each owner"
        raise ParameterError("rows of an owner", longest, f"at most {most}, as was given", fix)
    return found


def check_owners(name: str, owners: Sequence[Any] | torch.Tensor, rows: int) -> list[SampleId]:
    """Check the owner of every row, because a row without an owner could not be protected."""
    if isinstance(owners, Mapping) or getattr(owners, "ndim", 1) != 1:
        raise ParameterError(name, type(owners).__name__, f"a list with the owner of each of the {rows} rows")
    if isinstance(owners, str) or not hasattr(owners, "__iter__"):
        return checked_ids(name, owners, rows)
    found = owners.tolist() if isinstance(owners, torch.Tensor) else list(owners)
    if holes := sum(map(_is_missing, found)):
        allowed = f"0: one integer or string for each of the {rows} rows"
        raise ParameterError(f"missing values of {name}", holes, allowed)
    names = checked_ids(name, found, rows)
    if len({str(value) for value in names}) < len(set(names)):
        raise ParameterError(name, "both 1 and '1', or such", "all integers or all strings: these would be two owners")
    return names


def _is_missing(value: Any) -> bool:
    """Return whether a value is what tables have where nothing is known; -1 is the code of such values."""
    if isinstance(value, str):
        return value.strip().lower() in {"", "nan", "none", "null", "<na>"}
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return bool(value != value or value == -1)
