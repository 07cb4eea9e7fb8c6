"""Secure noise and coins: the cipher's known answer, a literal transform, the laws, and no state that could be kept."""

from __future__ import annotations

import copy
import io
import json
import math
import pickle
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cryptography")

import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from scipy import stats
from torch.utils._python_dispatch import TorchDispatchMode

from dprmt import ParameterError
from dprmt._files import read_lines
from dprmt.cli import main
from dprmt.training.harness import read_metrics, run_in_memory, train, train_task
from dprmt.training.harness._checkpoint import load_checkpoint
from dprmt.training.private_run._ledger import charged_steps
from dprmt.training.randomness import SecureRandom, _secure
from tests.training.test_planted_bugs import network, settings, task
from tests.training.tiny_recipe import StopAfter, recipe_in, write_data

KEY = bytes(range(32))
SIZE = 200_000


def key_stream(key: bytes, size: int, nonce: int = 0) -> bytes:
    """AES-256 in counter mode: blocks of 96 bits of a nonce and a counter of 32, from 2 on."""
    first = nonce.to_bytes(12, "big") + (2).to_bytes(4, "big")
    return Cipher(AES(key), CTR(first)).encryptor().update(bytes(size))


def test_the_stream_is_aes_256_in_counter_mode() -> None:
    """The reference has the known answer of GCM's test case 14 (all zeros); draws are its words in order."""
    assert key_stream(bytes(32), 16).hex() == "cea7403d4d606b6e074ec5d3baf39d18"
    words = np.frombuffer(key_stream(KEY, 8 * 1000), dtype="<u8").tolist()
    source, begin = SecureRandom(KEY), 0
    for size in (1, 2, 15, 0, 17, 965):
        expected = [i for i, word in enumerate(words[begin : begin + size]) if word < 2**63]
        assert source.poisson_sample(size, 0.5) == expected
        begin += size


def test_a_nonce_that_is_used_up_is_followed_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 64 GiB, here after 100 words; a draw is cut where it is longer, and else not."""
    assert _secure._PART == 2**36 - 32
    monkeypatch.setattr(_secure, "_PART", 800)
    parts = [np.frombuffer(key_stream(KEY, 800, nonce), dtype="<u8") for nonce in range(6)]
    longer = np.concatenate([*parts[3:5], parts[5][:50]])
    expected = [parts[0][:60], parts[0][60:], parts[1][:60], parts[2][:60], longer]
    source = SecureRandom(KEY)
    for words in expected:
        assert source.poisson_sample(len(words), 0.5) == np.flatnonzero(words < 2**63).tolist()


def test_noise_has_the_normal_law_and_the_test_would_see_another() -> None:
    noise = SecureRandom(KEY).normal((SIZE,)).numpy()
    assert stats.kstest(noise, "norm").pvalue > 1e-3
    for wrong in (stats.norm(scale=1.03), stats.norm(scale=0.97), stats.norm(loc=0.015), stats.t(12)):
        assert stats.kstest(noise, wrong.cdf).pvalue < 1e-3
    # Tails: the numbers beyond 3 and 4 deviations are binomial.
    for bound in (3.0, 4.0):
        beyond = int((np.abs(noise) > bound).sum())
        assert stats.binomtest(beyond, SIZE, 2 * stats.norm.sf(bound)).pvalue > 1e-3


def test_entries_are_independent_those_that_share_pairs_too() -> None:
    noise = SecureRandom(KEY).normal((2, SIZE // 2)).numpy()
    same_pairs, neighbours = (noise[0, :65536], noise.reshape(-1)[65536:131072]), (noise[0, 1:], noise[0, :-1])
    for name, (left, right) in {"same pairs": same_pairs, "neighbours": neighbours}.items():
        for f in (lambda x: x, np.square, np.abs):
            r = np.corrcoef(f(left), f(right))[0, 1]
            assert abs(r) < 4 / math.sqrt(len(left)), name
    # What a shared radius would look like: cos and sin of one pair alone, whose squares add up to a constant of it.
    assert abs(np.corrcoef(noise[0], noise[0] + 0.05 * noise[1])[0, 1]) > 4 / math.sqrt(SIZE // 2)


def test_coins_have_the_rate_and_never_more() -> None:
    rate, size, rounds = 0.01, 5000, 200
    random = SecureRandom(KEY)
    draws = [random.poisson_sample(size, rate) for _ in range(rounds)]
    total = sum(map(len, draws))
    assert stats.binomtest(total, size * rounds, rate).pvalue > 1e-3
    assert stats.binomtest(total, size * rounds, 1.05 * rate).pvalue < 1e-3
    counts = np.bincount(np.concatenate(draws), minlength=size)
    expected = stats.binom(rounds, rate).pmf(np.arange(8))
    expected[-1] += stats.binom(rounds, rate).sf(7)
    assert stats.chisquare(np.bincount(np.minimum(counts, 7), minlength=8), size * expected).pvalue > 1e-3
    assert all(draw == sorted(set(draw)) for draw in draws)


def test_coins_are_the_words_below_the_threshold() -> None:
    words = np.frombuffer(key_stream(KEY, 8 * 400), dtype="<u8")
    chosen = [i for i, word in enumerate(words) if int(word) < int(0.3 * 2**64)]
    assert SecureRandom(KEY).poisson_sample(400, 0.3) == chosen
    assert SecureRandom(KEY).poisson_sample(5, 1.0) == [0, 1, 2, 3, 4]
    assert SecureRandom(KEY).poisson_sample(0, 0.5) == SecureRandom(KEY).poisson_sample(9, 2.0**-70) == []


def test_the_secret_cannot_be_written_down() -> None:
    random = SecureRandom(KEY)
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled"):
            attempt(random)
    assert KEY.hex() not in repr(random)
    with pytest.raises(TypeError):
        torch.save(random, io.BytesIO())


def test_bad_arguments_are_refused_without_showing_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in (b"short", "x" * 32, 7):
        with pytest.raises(ParameterError, match="key must be 32 bytes, got '<hidden>'"):
            SecureRandom(key)  # type: ignore[arg-type]
    random = SecureRandom(KEY)
    for std in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ParameterError, match="std must be"):
            random.normal((2,), std=std)
    for size, rate in ((-1, 0.5), (2, -0.1), (2, 1.1), (2, float("nan"))):
        with pytest.raises(ParameterError):
            random.poisson_sample(size, rate)
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers", None)
    with pytest.raises(ParameterError, match=r"secure must be False, or install it: pip install '.*\[secure\]'"):
        SecureRandom()


@pytest.mark.parametrize("count", [0, 1, 2, 5, 16_383, 16_384, 3 * 16_384 + 7])
def test_noise_is_the_literal_transform_of_the_stream_on_any_number_of_threads(count: int) -> None:
    """Words of the cipher, eight for two entries that share their pairs; in pieces, each with a stream of its own."""
    stream, expected = key_stream(KEY, 64 * (count + 1)), []
    for first in range(0, count, 16_384):
        size = min(16_384, count - first)
        half = (size + 1) // 2
        words = np.frombuffer(stream, "<i8", 8 * half, offset=32 * first).reshape(2, 4, half)
        u, v = abs(words[0].astype(np.float64)) / 2.0**63, words[1] / 2.0**64
        radius = np.sqrt(-2.0 * np.log(u))
        both = np.concatenate([radius * np.cos(2 * np.pi * v), radius * np.sin(2 * np.pi * v)], 1)
        expected.append(both.sum(0)[:size] / 2.0 * 3.0)
    threads = torch.get_num_threads()
    found = []
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            found.append(SecureRandom(KEY).normal((count,), std=3.0))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*found)
    np.testing.assert_allclose(found[0].numpy(), np.concatenate([np.empty(0), *expected]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_that_is_added_in_place_is_the_same_and_rounded_once(dtype: torch.dtype) -> None:
    total = torch.linspace(-1.0, 1.0, 20_001, dtype=dtype)
    expected = (SecureRandom(KEY).normal((20_001,), std=3.0) + total.double()).to(dtype)
    assert SecureRandom(KEY).add_normal(total, std=3.0) is total
    assert torch.equal(total, expected)
    for wrong, said in (
        (torch.ones(4, 2).T, r"total\.stride\(\) must be the stride of a contiguous tensor, got \(1, 2\)"),
        (torch.ones(3, device="meta"), r"total\.device must be the CPU, got "),
    ):
        with pytest.raises(ParameterError, match=said):
            SecureRandom(KEY).add_normal(wrong)


def test_words_of_zeros_and_of_the_ends_give_finite_noise() -> None:
    """The stream's extreme words: the largest radius, half a turn, and no radius."""
    space, out = _secure._Workspace(2), torch.empty(2, dtype=torch.float64)
    largest = math.sqrt(-math.log(2.0**-128))
    for radius, angle, expected in (
        (0, 0, 4 * largest),
        (0, -(2**63), -4 * largest),
        (1, 0, 4 * math.sqrt(-math.log(2.0**-126 + 2.0**-128))),
        (2**63 - 1, 5, 0.0),
        (-(2**63), 0, 0.0),
    ):
        space._words[0], space._words[1] = radius, angle
        space.put_sums(out, 2.0)
        assert bool(torch.isfinite(out).all())
        np.testing.assert_allclose(out[0], expected, atol=1e-7)
    assert expected == 0.0 < 4 * largest / 2 < 18.84
    assert stats.norm.logsf(18.8) + math.log(2) < -77 * math.log(10)


class NoDraws(TorchDispatchMode):
    """Nothing is drawn from a generator of torch's, of whatever operation but these."""

    def __init__(self, *but: object) -> None:
        super().__init__()
        self._but = but

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert torch.Tag.nondeterministic_seeded not in func.tags or func in self._but, func
        return func(*args, **(kwargs or {}))


def test_a_secure_run_in_a_folder_says_so_and_continues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_data(tmp_path)
    (tmp_path / "recipe.toml").write_text(recipe_in(tmp_path).to_toml())
    words = ["train", str(tmp_path / "recipe.toml"), "--out", str(tmp_path / "run"), "--set", "privacy.secure=true"]
    assert main(words) == 0
    assert json.loads((tmp_path / "run" / "run.json").read_text())["secure"] is True
    assert len(read_metrics(tmp_path / "run")) == 6
    assert train(recipe_in(tmp_path, **{"privacy.secure": True}), tmp_path / "run", resume=True).finished
    capsys.readouterr()
    assert main([*words, "--noise-seed", "3", "--dry-run"]) == 2
    assert "--noise-seed must be None with privacy.secure" in capsys.readouterr().err


def test_secure_allocation_gives_an_epoch_up_rather_than_write_its_draws_down(tmp_path: Path) -> None:
    """Epochs of 3 steps; stopped after 2, step 3 is in a new epoch: its charge completes the first one."""
    wanted = settings(privacy={"secure": True, "sampling": "allocation"}, training={"steps": 5})
    run = tmp_path / "run"
    train_task(network(), task(), wanted, run, observers=[StopAfter(2)])
    assert not {"secret", "epoch"} & load_checkpoint(run).keys()
    assert charged_steps(run) == 2
    train_task(network(), task(), wanted, run, resume=True)
    sizes = [line["private"]["batch_size"] for line in read_metrics(run) if line["attempt"] == 2]
    assert sum(sizes) == 30  # the three steps after the stop are one whole epoch
    assert [line["charged"] for line in read_lines(run / "privacy.jsonl")] == [1, 2, 4, 5, 6]


@pytest.mark.parametrize("sampling", ["poisson", "allocation"])
def test_a_secure_run_does_not_touch_torchs_generators(sampling: str) -> None:
    """Another one does, which is noticed."""
    for secure in (True, False):
        wanted = settings(privacy={"secure": secure, "sampling": sampling}, training={"steps": 5})
        of_loaders = torch.ops.aten.random_.default  # for workers
        noticed = nullcontext() if secure else pytest.raises(AssertionError, match="aten")
        with noticed, run_in_memory(network(), task(), wanted) as run, NoDraws(of_loaders):
            assert len(list(run.steps())) == 5
