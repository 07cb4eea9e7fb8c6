"""Accounting of randomized clipping as an Opacus accountant: ``PrivacyEngine(accountant="randomized_clipping")``.

Importing this module registers the name; :func:`register` states how norms are taken, without which the accountant
refuses to answer. Needs Opacus (extra ``train``), which imports torch.
"""

from dprmt._validation import needing

with needing("train"):
    from dprmt.accounting.opacus._accountant import ClippingConfiguration as ClippingConfiguration
    from dprmt.accounting.opacus._accountant import RandomizedClippingAccountant as RandomizedClippingAccountant
    from dprmt.accounting.opacus._accountant import register as register
    from dprmt.accounting.opacus._accountant import register_unconfigured as _register_unconfigured

__all__ = ["ClippingConfiguration", "RandomizedClippingAccountant", "register"]

_register_unconfigured()
