"""The pieces of the harness, one by one: what must hold for a run that can be killed at any instant."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import signal
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from audits.steps import Parts
from dprmt import ParameterError
from dprmt.accounting import DPSGD, GaussianRelease, Hutchinson, compose
from dprmt.training.harness._checkpoint import load_checkpoint, save_checkpoint
from dprmt.training.harness._recipe import check_gradients_arrive
from dprmt.training.harness._run_folder import RunFolder
from dprmt.training.harness._train import interrupts
from dprmt.training.private_run._batches import Draws, Source, poisson
from dprmt.training.private_run._ledger import PrivacyLedger, SpentEpsilon, charged_steps
from dprmt.training.private_run._randomness import fresh_randomness
from dprmt.training.randomness import secret_generator
from dprmt.training.recipes import Settings


def test_generator_is_the_mersenne_twister_with_the_derived_state():
    """The layout of torch's state is undocumented: its stream must be numpy's for the same 624 words."""
    words = np.frombuffer(hashlib.shake_256(b"secret").digest(4 * 624), dtype="<u4")
    oracle = np.random.MT19937()
    oracle.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": 624}}
    expected = oracle.random_raw(2000)
    # Two words make one 64-bit number of torch, of which randint below 2³² takes the low one.
    generator = secret_generator("cpu", b"secret")
    found = torch.randint(0, 2**32, (1000,), generator=generator, dtype=torch.int64).numpy()
    assert set(found) <= set(expected)
    assert len(set(found)) == 1000


def test_streams_differ_by_purpose_attempt_and_secret():
    first = fresh_randomness(5, 1)
    streams = [
        first.generator("noise"),
        first.generator("sampling"),
        fresh_randomness(5, 2).generator("noise"),
        fresh_randomness(6, 1).generator("noise"),
        fresh_randomness(None, 1).generator("noise"),
        fresh_randomness(None, 1).generator("noise"),
    ]
    drawn = [tuple(torch.randn(8, generator=stream).tolist()) for stream in streams]
    assert len(set(drawn)) == len(drawn)
    again = tuple(torch.randn(8, generator=fresh_randomness(5, 1).generator("noise")).tolist())
    assert again == drawn[0]
    assert fresh_randomness(None, 1).is_secret
    assert not first.is_secret
    assert str(first.secret) not in repr(first)


@pytest.mark.parametrize("seed", [-1, 1.5, True, 2**63])
def test_noise_seed_is_checked(seed):
    with pytest.raises(ParameterError, match="noise_seed"):
        fresh_randomness(seed, 1)


def test_ledger_counts_over_starts_and_torn_lines(tmp_path):
    ledger = PrivacyLedger(tmp_path, "a1")
    ledger.charge(1, 1, 0.1)
    ledger.charge(1, 2, 0.2)
    path = tmp_path / "privacy.jsonl"
    path.write_bytes(path.read_bytes() + b'{"charged": 3, "att')  # cut short by a crash: it counts
    assert charged_steps(tmp_path) == 3
    ledger = PrivacyLedger(tmp_path, "a1")
    assert ledger.charged == 3
    ledger.charge(2, 2, 0.3)
    assert charged_steps(tmp_path) == 4
    assert json.loads(path.read_text().splitlines()[-1])["charged"] == 4


def test_charge_survives_a_kill_right_after_it(tmp_path):
    """Whatever a process does after ``charge`` returned, the step is on the disk."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside idle threads; the child needs none
        child = os.fork()
    if child == 0:
        try:
            PrivacyLedger(tmp_path, "a1").charge(1, 1, 0.5)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert charged_steps(tmp_path) == 1


def test_spent_epsilon_is_the_accountants_upper_bound_or_more():
    mechanism = DPSGD(1.0, 0.01)
    spent = SpentEpsilon(mechanism, 1e-5)
    assert spent.after(0) == 0.0
    assert spent.after(7) == mechanism.epsilon(steps=7, delta=1e-5).upper
    spent._slow = True  # as after an answer that took long
    for steps, charged in ((3, 3), (8, 8), (9, 10), (13, 14), (17, 20), (33, 40)):
        assert spent.after(steps) == mechanism.epsilon(steps=charged, delta=1e-5).upper
    planned = SpentEpsilon(mechanism, 1e-5, 30)
    planned._slow = True
    assert planned.after(29) == planned.after(30) == mechanism.epsilon(steps=30, delta=1e-5).upper
    assert planned.after(31) == mechanism.epsilon(steps=32, delta=1e-5).upper
    assert spent.after(17, exactly=True) == mechanism.epsilon(steps=17, delta=1e-5).upper < spent.after(18)
    release = GaussianRelease(3.0)
    planned = SpentEpsilon(mechanism, 1e-5, 64, (release,))
    assert planned.after(7) == compose([(mechanism, 7), release]).epsilon(1e-5).upper


def test_spent_epsilon_in_blocks_is_an_upper_bound_whatever_was_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100 steps with probes: two curves, where 100 equations were solved."""
    mechanism, asked = DPSGD(1.0, 0.01, Hutchinson(32, secret=False)), []
    answer = DPSGD.epsilon

    def counted(self: DPSGD, **named: Any) -> Any:
        asked.append(named["steps"])
        return answer(self, **named)

    monkeypatch.setattr(DPSGD, "epsilon", counted)
    monkeypatch.setattr("dprmt.training.private_run._ledger._EXACT_FOR", math.inf)  # however busy the machine
    spent, resumed = SpentEpsilon(mechanism, 1e-5, 100), SpentEpsilon(mechanism, 1e-5, 100)
    found = [spent.after(steps) for steps in range(1, 101)]
    assert [len(steps) for steps in asked] == [64, 35]
    assert [resumed.after(steps) for steps in range(70, 101)] == found[69:]
    assert found == sorted(found)
    for steps in (1, 2, 40, 64, 65, 99):
        one = answer(mechanism, steps=steps, delta=1e-5)
        assert one.lower <= found[steps - 1] <= one.upper * 1.002
        assert spent.after(steps, exactly=True) == one.upper
    assert found[99] == answer(mechanism, steps=100, delta=1e-5).upper


trees = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**60), 2**60), st.floats(allow_nan=False), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=4), st.integers(0, 9)), inner, max_size=3),
    ),
    max_leaves=8,
)


@given(tree=trees)
def test_checkpoint_returns_what_it_was_given(tmp_path_factory, tree):
    folder = tmp_path_factory.mktemp("run")
    save_checkpoint(folder, {"tree": tree, "tensor": torch.arange(3.0)})
    state = load_checkpoint(folder)
    assert state is not None
    assert state["tree"] == tree
    assert torch.equal(state["tensor"], torch.arange(3.0))


def test_checkpoint_keeps_bits_dtypes_and_shared_storage(tmp_path):
    base = torch.randn(4, 4)
    state = {"view": base[1:, ::2], "base": base, "half": base.bfloat16(), "nan": torch.tensor(math.nan), "n": [base]}
    save_checkpoint(tmp_path, state)
    found = load_checkpoint(tmp_path)
    assert found is not None
    assert torch.equal(found["view"], state["view"])
    assert found["half"].dtype == torch.bfloat16
    assert torch.equal(found["n"][0], base)
    assert found["nan"].isnan()


def test_checkpoint_refuses_what_it_cannot_keep(tmp_path):
    save_checkpoint(tmp_path, {"step": 1})
    with pytest.raises(ParameterError, match="state must be of tensors"):
        save_checkpoint(tmp_path, {"bad": object()})
    assert load_checkpoint(tmp_path) == {"step": 1}


@pytest.mark.parametrize("survivor", ["checkpoint", "checkpoint.previous"])
def test_checkpoint_is_whole_at_every_instant_of_a_replacement(tmp_path, survivor):
    """The states between the renames, made by hand: the newest whole checkpoint is found in each."""
    save_checkpoint(tmp_path, {"step": 1})
    if survivor == "checkpoint.previous":
        (tmp_path / "checkpoint").rename(tmp_path / survivor)
    (tmp_path / "checkpoint.new").mkdir()
    (tmp_path / "checkpoint.new" / "checksums.json").write_text('{"sta')
    assert load_checkpoint(tmp_path) == {"step": 1}
    save_checkpoint(tmp_path, {"step": 2})
    assert load_checkpoint(tmp_path) == {"step": 2}


FIRST, SECOND = (
    Settings(
        privacy={"noise_multiplier": sigma, "delta": 1e-5},
        optimizer={"name": "gd", "learning_rate": 1.0},
        training={"batch_size": 1, "steps": 1},
    )
    for sigma in (1.0, 2.0)
)


def test_run_folder_refuses_what_would_lose_something(tmp_path):
    folder = RunFolder(tmp_path / "run", resume=False, config=FIRST)
    folder.begin({})
    with pytest.raises(ParameterError, match="no other process"):
        RunFolder(tmp_path / "run", resume=True, config=FIRST)
    folder.close()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    for name, resume, config, message in (
        ("run", False, FIRST, "--resume"),
        ("run", True, SECOND, "recipe"),
        ("other", True, FIRST, "resume"),
        ("full", False, FIRST, "empty"),
    ):
        with pytest.raises(ParameterError, match=message):
            RunFolder(tmp_path / name, resume=resume, config=config)
    RunFolder(tmp_path / "run", resume=True, config=FIRST).close()
    RunFolder(tmp_path / "never" / "run", resume=False, config=FIRST).close()
    assert not (tmp_path / "never").exists()


def partly() -> torch.nn.Module:
    """One layer is used, one is not; LoRA's B = 0 stops the gradient of A at first."""
    parts = {"lora_a": torch.nn.Linear(3, 2, bias=False), "lora_b": torch.nn.Linear(2, 2, bias=False)}
    torch.nn.init.zeros_(parts["lora_b"].weight)
    parts |= {"used": torch.nn.Linear(3, 2), "unused": torch.nn.Linear(3, 2)}
    return Parts(lambda model, x: model.used(x) + model.lora_b(model.lora_a(x)), **parts)


def test_guard_finds_the_parameters_that_are_not_connected():
    model = partly()
    before = {name: value.clone() for name, value in model.named_parameters()}
    for unused in (lambda: 0.0, lambda: 0.0 * model.unused(torch.ones(4, 3))):  # zero that arrives tells no more
        with pytest.raises(ParameterError, match=r"all get a gradient, got 'unused\.weight, unused\.bias'"):
            check_gradients_arrive(model, lambda unused=unused: (model(torch.ones(4, 3)) + unused()).sum(1))
    assert all(torch.equal(value, before[name]) and value.grad is None for name, value in model.named_parameters())
    model.unused.requires_grad_(False)
    check_gradients_arrive(model, lambda: model(torch.ones(4, 3)).sum(1))
    model.requires_grad_(False)
    with pytest.raises(ParameterError, match="trainable"):
        check_gradients_arrive(model, lambda: model(torch.ones(4, 3)).sum(1))


@given(size=st.integers(1, 10**6), share=st.floats(1e-6, 1.0))
def test_charged_rate_is_what_the_sampler_does(size, share):
    batch = max(1, int(size * share))
    rate = poisson(batch, size).rate
    assert batch / size <= rate <= min(1.0, batch / size + 2.0**-24)
    assert torch.tensor(rate, dtype=torch.float32).item() == rate  # so that comparing float32 coins is exact
    assert (rate * 2**24).is_integer()


def test_poisson_batches_have_the_binomial_law():
    """Sizes are Binomial(n, q), every sample comes equally often; a wrong rate is noticed."""
    draws = Draws(200, poisson(20, 200), fresh_randomness(3, 1))
    batches = [draws.at(step) for step in range(2000)]
    sizes = [len(batch) for batch in batches]
    assert abs(np.mean(sizes) - 20) < 4 * math.sqrt(18 / 2000) < abs(np.mean(sizes) - 21)
    assert abs(np.var(sizes) / 18 - 1) < 4 * math.sqrt(2 / 2000)
    counts = np.bincount(np.concatenate(batches), minlength=200)
    assert stats.chisquare(counts).pvalue > 0.01


@given(batch=st.lists(st.integers(0, 999), unique=True, max_size=40), size=st.integers(1, 7), many=st.integers(1, 4))
def test_shares_and_micro_batches_are_a_partition(batch, size, many):
    source = Source(range(1000), None, size)
    pieces = [part.positions for rank in range(many) for part in source.parts(batch[rank::many], 0)]
    assert sorted(sample for piece in pieces for sample in piece) == sorted(batch)
    assert all(0 < len(piece) <= size for piece in pieces)


def test_first_interrupt_asks_second_interrupts(request):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job has it ignored
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    with interrupts() as asked:
        os.kill(os.getpid(), signal.SIGINT)
        assert asked
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_kill_while_the_first_file_is_written_leaves_a_folder_that_can_be_used(tmp_path):
    (tmp_path / ".config.0123456789abcdef.part.toml").write_text("a =")
    (tmp_path / "lock").touch()
    folder = RunFolder(tmp_path, resume=False, config=FIRST)
    folder.begin({})
    folder.close()
    assert not list(tmp_path.glob(".*"))
    RunFolder(tmp_path, resume=True, config=FIRST).close()
    assert (tmp_path / "config.toml").read_text() == FIRST.to_toml()


def test_a_folder_that_another_process_has_used_meanwhile_is_refused(tmp_path):
    """After the first look at the folder, a run was started and ended there."""
    with contextlib.closing(RunFolder(tmp_path / "run", resume=False, config=FIRST)) as slow:
        with contextlib.closing(RunFolder(tmp_path / "run", resume=False, config=SECOND)) as quick:
            quick.begin({})
        with pytest.raises(ParameterError, match="new or empty folder"):
            slow.begin({})


def test_samples_of_similar_length_go_together():
    items = ["aaaa", "b", "ccc", "dd", "e", "ffff"]
    source = Source(items, None, 2, lambda place: len(items[place]))
    assert [part.positions for part in source.parts([5, 4, 3, 2, 1, 0], 0)] == [[4, 1], [3, 2], [5, 0]]
