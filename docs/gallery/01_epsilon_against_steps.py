"""ε along a run, by how norms are taken. Bands reach from the certified upper down to the lower bound."""

from dprmt.accounting import DPSGD, Hutchinson
from dprmt.plots import plot_epsilon_against_steps

steps = range(10, 401, 10)
mechanisms = {
    "exact norms": DPSGD(1.0, 0.03),
    "32 probes": DPSGD(1.0, 0.03, Hutchinson(32, secret=False)),
    "32 secret probes": DPSGD(1.0, 0.03, Hutchinson(32, secret=True)),
}
curves = {name: mechanism.epsilon(steps=steps, delta=1e-5) for name, mechanism in mechanisms.items()}
plot_epsilon_against_steps(steps, curves, delta=1e-5)
