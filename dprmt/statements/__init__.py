"""Statements of a run's privacy: a paragraph for papers, a card, and a claim that a small program can prove."""

from dprmt._lazy import public_names as _public_names
from dprmt.statements._card import PrivacyCard as PrivacyCard
from dprmt.statements._card import privacy_card as privacy_card
from dprmt.statements._claim import mechanism_from_dict as mechanism_from_dict
from dprmt.statements._sentences import statement as statement

__all__ = _public_names(vars())
