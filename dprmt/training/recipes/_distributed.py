"""How several processes share a model."""

from __future__ import annotations

from dataclasses import dataclass

from dprmt.training.recipes._fields import Section, checked, choice


@dataclass(frozen=True)
class DistributedRecipe(Section):
    """The part of the model that every process of a ``torchrun`` holds.

    Attributes
    ----------
    strategy : {"replicated", "fsdp"}
        All of it, or a share of every parameter, which torch's ``fully_shard`` gathers block by block.

    Raises
    ------
    ParameterError
        If a value is of the wrong type or outside its range; it names ``distributed.key``.
    """

    section = "distributed"
    strategy: str = checked(choice("replicated", "fsdp"), "replicated")

    @property
    def is_sharded(self) -> bool:
        """True if no process holds the model."""
        return self.strategy == "fsdp"
