"""Statements of a run's privacy: a paragraph for papers, a card, and a claim that a small program can prove."""

from dprmt._rounding import round_down, round_up
from dprmt.statements._card import PrivacyCard, privacy_card
from dprmt.statements._claim import mechanism_from_dict
from dprmt.statements._sentences import relation_label, statement

__all__ = [
    "PrivacyCard",
    "mechanism_from_dict",
    "privacy_card",
    "relation_label",
    "round_down",
    "round_up",
    "statement",
]
