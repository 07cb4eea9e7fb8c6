"""The trained model of a run, written and read."""

from __future__ import annotations

import os
from pathlib import Path

from peft import PeftModel
from safetensors.torch import load_model as load_weights
from safetensors.torch import save_model as save_weights

from dprmt._files import parse_json
from dprmt._validation import ParameterError
from dprmt.training.harness._run_folder import CONFIG, MODEL, RUN, SUMMARY
from dprmt.training.models import LoadedModel, load_adapter, load_model, save_adapter
from dprmt.training.recipes import load_recipe

_WEIGHTS = "model.safetensors"


def save_trained(loaded: LoadedModel, folder: Path, weights: Path | None = None) -> None:
    """Write a model: its adapters with PEFT, or all its weights, and the tokenizer.

    ``weights``: a file, which is moved, of a model that has only a part of each itself.
    """
    folder.mkdir(exist_ok=True)
    if isinstance(loaded.model, PeftModel):
        save_adapter(loaded.model, folder)
    else:
        if weights is None:
            save_weights(loaded.model, str(folder / _WEIGHTS))
        else:
            weights.replace(folder / _WEIGHTS)
        loaded.model.config.to_json_file(folder / "config.json")
    loaded.tokenizer.save_pretrained(str(folder))


def load_trained(run: str | os.PathLike[str]) -> LoadedModel:
    """Return the model that a finished run ended with.

    Parameters
    ----------
    run : path
        A run folder. The pretrained weights that its recipe names must still be there; the data need not.

    Returns
    -------
    LoadedModel
        In evaluation mode.

    Raises
    ------
    ParameterError
        If it is not the folder of a finished run.

    Formal guarantees
    -----------------
    The weights are what :func:`dprmt.training.harness.train` released: private to the ε and δ of the run's summary.
    Whatever is done with them costs no more.

    Examples
    --------
    >>> import tempfile
    >>> from dprmt.training.harness import train
    >>> few = {"data.limit": 30, "training.batch_size": 10, "training.steps": 2, "model.tokenizer": "bytes"}
    >>> recipe = load_recipe("qwen3-tiny-docstrings").with_changes(few)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = train(recipe, folder)
    ...     load_trained(folder).model.training
    False
    """
    path = Path(run)
    if not (path / SUMMARY).exists():  # written after the model
        raise ParameterError("run", str(run), "the folder of a finished run")
    recipe = load_recipe(path / CONFIG)
    labels = parse_json((path / RUN).read_bytes())["labels"]
    loaded = load_model(recipe.model, labels=None if labels is None else len(labels), seed=recipe.training.seed)
    if isinstance(loaded.model, PeftModel):
        load_adapter(loaded.model, path / MODEL)
    else:
        load_weights(loaded.model, str(path / MODEL / _WEIGHTS))
    loaded.model.eval()
    return loaded
