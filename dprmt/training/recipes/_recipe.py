"""A whole recipe: read, changed, written."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Self

from dprmt._files import parse_toml
from dprmt._validation import ParameterError, check_choice, needing
from dprmt.training.recipes._fields import FolderName, Section, read_section
from dprmt.training.recipes._sections import (
    DataRecipe,
    DenoisingRecipe,
    DistributedRecipe,
    EvaluationRecipe,
    ModelRecipe,
    OptimizerRecipe,
    PrivacyRecipe,
    TelemetryRecipe,
    TrainingRecipe,
)

_LIBRARY = "library"
_FIRST = ("name", "model", "data")  # in what is written


@dataclass(frozen=True)
class Settings(Section):
    """Settings of a training run for any model: the sections of a `Recipe` except model and data.

    Attributes
    ----------
    privacy, optimizer, training
        The required sections; tables become sections.
    denoising, evaluation, telemetry, distributed
        Optional sections; by default without a denoiser and with telemetry.

    Raises
    ------
    ParameterError
        If a key is unknown or missing, or a value is of the wrong type or outside its range; it names
        ``section.key``.

    Examples
    --------
    >>> settings = Settings(
    ...     privacy={"noise_multiplier": 1.0, "delta": 1e-5},
    ...     optimizer={"name": "adam", "learning_rate": 0.1},
    ...     training={"batch_size": 10, "steps": 2},
    ... )
    >>> settings == Settings(**settings.to_dict())
    True
    """

    privacy: PrivacyRecipe
    optimizer: OptimizerRecipe
    training: TrainingRecipe
    denoising: DenoisingRecipe = field(default_factory=DenoisingRecipe)
    evaluation: EvaluationRecipe = field(default_factory=EvaluationRecipe)
    telemetry: TelemetryRecipe = field(default_factory=TelemetryRecipe)
    distributed: DistributedRecipe = field(default_factory=DistributedRecipe)

    def check_together(self) -> None:
        """Refuse what needs noise that is not there, or a gradient that no process has."""
        if self.privacy.clip_only:
            self.evaluation.leave_out("private_noise", where="with privacy.clip_only")
            self.denoising.leave_out("method", where="with privacy.clip_only: there is no noise")
        if self.distributed.is_sharded:
            self.denoising.leave_out("method", where="with distributed.strategy = 'fsdp': no process has a gradient")

    def with_changes(self, changes: Mapping[str, Any]) -> Self:
        """Return a copy with some keys changed, for sweeps and command-line overrides.

        Parameters
        ----------
        changes : mapping
            New values by dotted name, such as ``{"optimizer.learning_rate": 1e-3, "model.lora.rank": 8}``.
            ``None`` takes a key away. All changes are made before anything is checked.

        Returns
        -------
        Recipe or Settings
            The changed one, checked as a whole.

        Raises
        ------
        ParameterError
            If a name is unknown or the result is not a valid recipe.
        """
        values = self.to_dict()
        for name, value in changes.items():
            *path, key = name.split(".")
            place = values
            for step in path:
                place = place.setdefault(step, {})
                if not isinstance(place, dict):
                    raise ParameterError(name, value, "left out: no such key")
            if value is None:
                place.pop(key, None)
            else:
                place[key] = value
        return read_section(type(self), values)

    def to_dict(self) -> dict[str, Any]:
        """Return the sections as nested tables of plain values, without the absent ones.

        Returns
        -------
        dict
            What `recipe_from_dict` takes.
        """
        values = dataclasses.asdict(self, dict_factory=lambda pairs: {k: v for k, v in pairs if v is not None})
        return {key: values[key] for key in sorted(values, key=lambda key: key not in _FIRST)}

    def to_toml(self) -> str:
        """Return the recipe as TOML, with every value written out; `load_recipe` reads it back to an equal one.

        Returns
        -------
        str
            The text of the file.

        Raises
        ------
        ModuleNotFoundError
            If tomli-w is not installed, with the extra that has it; reading a recipe does not need it.
        """
        with needing("train"):
            import tomli_w
        return tomli_w.dumps(self.to_dict())


@dataclass(frozen=True, kw_only=True)
class Recipe(Settings):
    """All that determines a training run, checked.

    Attributes
    ----------
    name : str
        Name of the run.
    model, data, privacy, optimizer, training
        The required sections.
    denoising, evaluation, telemetry, distributed
        The sections with defaults for everything.

    Raises
    ------
    ParameterError
        If the sections do not match, such as generation from two columns.

    Examples
    --------
    >>> recipe = load_recipe("roberta-base-sst2")
    >>> recipe.privacy.target_epsilon, recipe.training.batch_size, recipe.model.lora.rank
    (6.7, 2000, 16)
    >>> recipe.with_changes({"privacy.target_epsilon": 1.0}).privacy.target_epsilon
    1.0
    >>> recipe.with_changes({"privacy.delta": 2})
    Traceback (most recent call last):
    ...
    dprmt._validation.ParameterError: privacy.delta must be a finite number in (0, 1), got 2
    """

    name: FolderName
    model: ModelRecipe
    data: DataRecipe

    def check_together(self) -> None:
        """Check what concerns several sections."""
        columns = 0 if self.data.source == "docstrings" else 1
        generates, has_units = self.model.task == "generation", self.data.unit is not None
        if generates and len(self.data.inputs) != columns:
            self.data.refuse("inputs", "one column if model.task is 'generation'")
        if generates or has_units:
            where = "for generation" if generates else "with data.unit"
            self.evaluation.leave_out("private_noise", where=f"{where}: no bound on the effect of one text is known")
        if self.distributed.is_sharded:
            if self.model.finetune == "lora":
                allowed = "'full' or 'head' with distributed.strategy = 'fsdp': adapters hold little memory"
                self.model.refuse("finetune", allowed)
            self.data.leave_out("unit", where="with distributed.strategy = 'fsdp'")
        super().check_together()


def recipe_from_dict(values: Mapping[str, Any]) -> Recipe:
    """Return the recipe of a nested table.

    Parameters
    ----------
    values : mapping
        Sections by name, as TOML or JSON have them.

    Returns
    -------
    Recipe
        The checked recipe.

    Raises
    ------
    ParameterError
        If a key is unknown or missing, or a value is of the wrong type or outside its range; it names
        ``section.key``.

    Examples
    --------
    >>> values = {
    ...     "name": "films",
    ...     "model": {"task": "classification", "source": "minilm", "finetune": "head"},
    ...     "data": {"source": "docstrings"},
    ...     "privacy": {"target_epsilon": 3.0, "delta": 1e-5},
    ...     "optimizer": {"name": "adam", "learning_rate": 1e-3},
    ...     "training": {"batch_size": 256, "steps": 100},
    ... }
    >>> recipe_from_dict(values).privacy.clipping_norm  # the rest has defaults
    1.0
    >>> recipe_from_dict({**values, "training": {"batch_size": 256, "epochs": 3}})
    Traceback (most recent call last):
    ...
    dprmt._validation.ParameterError: training.epochs must be ...
    """
    return read_section(Recipe, values)


def builtin_recipes() -> tuple[str, ...]:
    """Return the names of the recipes that come with the package, sorted.

    Returns
    -------
    tuple of str
        What `load_recipe` takes.

    Examples
    --------
    >>> "minilm-docstrings" in builtin_recipes()
    True
    """
    files = resources.files(__package__).joinpath(_LIBRARY).iterdir()
    return tuple(sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml")))


def load_recipe(source: str | Path) -> Recipe:
    """Read a recipe from a TOML file, or one that comes with the package.

    Parameters
    ----------
    source : str or Path
        A file (its name ends in ``.toml``), or a name out of `builtin_recipes`. Relative paths in a file,
        of data files and model folders, are taken relative to the file; in the built-in ones, relative to the
        folder where the program runs.

    Returns
    -------
    Recipe
        The checked recipe.

    Raises
    ------
    ParameterError
        If there is no such recipe, the file is not TOML, or as in `recipe_from_dict`.

    Examples
    --------
    >>> recipe = load_recipe("minilm-docstrings")
    >>> recipe.optimizer.name, recipe.privacy.target_epsilon
    ('adamw', 6.7)

    Changed, written, and read again:

    >>> import tempfile
    >>> stricter = recipe.with_changes({"name": "mine", "privacy.target_epsilon": 1.0})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "mine.toml")
    ...     _ = file.write_text(stricter.to_toml(), encoding="utf-8")
    ...     load_recipe(file) == stricter
    True
    """
    if isinstance(source, str) and not source.endswith(".toml"):
        check_choice("recipe", source, builtin_recipes())
        return recipe_from_dict(
            parse_toml(resources.files(__package__).joinpath(_LIBRARY, f"{source}.toml").read_bytes())
        )
    path = Path(source)
    try:
        values = parse_toml(path.read_bytes())
    except OSError as error:
        raise ParameterError("recipe", str(path), f"a readable TOML file ({error.strerror})") from None
    except ValueError as error:
        raise ParameterError("recipe", str(path), f"a TOML file ({error})") from None
    recipe, folder = recipe_from_dict({"name": path.stem} | values), path.resolve().parent
    changes: dict[str, Any] = {}
    for split in ("train", "validation", "test") if recipe.data.source == "files" else ():
        changes[f"data.{split}"] = [str(folder / Path(name).expanduser()) for name in getattr(recipe.data, split)]
    for key in ("source", "tokenizer"):
        value = getattr(recipe.model, key)
        if value is not None and is_folder(value):
            changes[f"model.{key}"] = str((folder / Path(value).expanduser()).resolve())
    return recipe.with_changes(changes)


def is_folder(source: str) -> bool:
    """True if a model source names a folder and not a model on the hub.

    Returns
    -------
    bool
        True if it starts with ``.``, ``/`` or ``~``, or is an absolute path of this system.

    Examples
    --------
    >>> is_folder("./mine"), is_folder("Qwen/Qwen3-0.6B")
    (True, False)
    """
    return source.startswith((".", "/", "~")) or Path(source).is_absolute()
