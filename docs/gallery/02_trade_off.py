"""Trade-off curves: what any membership test can do. The dotted approximation claims more privacy than there is."""

import numpy as np

from dprmt.accounting import DPSGD, Hutchinson, clt_mu
from dprmt.plots import plot_trade_off

alpha = np.linspace(0.0, 1.0, 101)
bands = {
    "exact norms": DPSGD(1.0, 0.03).trade_off(steps=400, alpha=alpha),
    "8 probes": DPSGD(1.0, 0.03, Hutchinson(8, secret=False)).trade_off(steps=400, alpha=alpha),
}
plot_trade_off(bands, gaussian_mu=clt_mu(1.0, 0.03, 400))
