"""ε along a run, by how norms are taken. Bands reach from the certified upper down to the lower bound."""

from dprmt.accounting import DPSGD, RandomizedClipping
from dprmt.plots import plot_epsilon_against_steps

steps = [50, 200, 400]
mechanisms = {
    "exact norms": DPSGD(1.0, 0.03),
    "32 probes": RandomizedClipping(1.0, 0.03, probes=32),
    "32 secret probes": RandomizedClipping(1.0, 0.03, probes=32, probe_sharing="sample"),
}
curves = {name: [mechanism.epsilon(count, delta=1e-5) for count in steps] for name, mechanism in mechanisms.items()}
plot_epsilon_against_steps(steps, curves, delta=1e-5)
