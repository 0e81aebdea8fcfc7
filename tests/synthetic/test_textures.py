"""Gaussian textures keep what they promise of their sample."""

import numpy as np
import pytest
import scipy.fft
from hypothesis import given, settings
from hypothesis import strategies as st

from mammofed.errors import BadData, BadSetting
from synthetic.textures import (
    Image,
    periodic_component,
    power_law_spectra,
    power_law_texture,
    random_phase_noise,
    spot_noise,
)


def _sample(height: int = 32, width: int = 48) -> Image:
    rng = np.random.default_rng(5)
    ramp = np.linspace(0, 1, width) + np.linspace(0, 2, height)[:, None]
    stripes = np.sin(np.arange(width) / 2) * np.cos(np.arange(height) / 3)[:, None]
    return (0.4 + 0.1 * ramp + 0.1 * stripes + 0.02 * rng.standard_normal((height, width))).astype(np.float32)


def _autocovariance(image: Image) -> Image:
    """Return the circular autocovariance of a centred image over its pixels."""
    power = np.square(np.abs(scipy.fft.rfft2(image)))
    return np.asarray(scipy.fft.irfft2(power, s=image.shape) / image.size, dtype=np.float32)


def test_an_image_whose_borders_meet_is_its_own_periodic_component() -> None:
    y, x = np.mgrid[:33, :41]
    wave = np.cos(2 * np.pi * (3 * y / 32)) * np.cos(2 * np.pi * (2 * x / 40))
    assert np.allclose(periodic_component(wave), wave, atol=1e-6)


def test_the_periodic_component_has_no_cross() -> None:
    ramp = np.linspace(0, 1, 64)[None, :] * np.ones((64, 1))
    energy = [np.square(np.abs(scipy.fft.rfft2(u - u.mean()))).sum() for u in (ramp, periodic_component(ramp))]
    assert energy[1] < 0.01 * energy[0]


def test_the_smooth_part_keeps_the_mean_and_the_interior_laplacian() -> None:
    u = _sample().astype(np.float64)
    s = u - periodic_component(u)
    assert abs(s.mean()) < 1e-7
    laplacian = 4 * s - sum(np.roll(s, step, axis) for step in (-1, 1) for axis in (0, 1))
    assert np.abs(laplacian[1:-1, 1:-1]).max() < 1e-5


@given(height=st.integers(2, 33), width=st.integers(2, 33), seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=40)
def test_random_phases_keep_the_spectrum_modulus(height: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sample = rng.random((height, width), dtype=np.float32)
    want = np.abs(scipy.fft.rfft2(periodic_component(sample).astype(np.float64)))
    for texture in random_phase_noise(sample, 3, rng):
        got = np.abs(scipy.fft.rfft2(texture.astype(np.float64)))
        assert np.allclose(got, want, atol=1e-5 * want.max())


def test_random_phases_differ_from_the_sample() -> None:
    sample = _sample()
    first, second = random_phase_noise(sample, 2, np.random.default_rng(0))
    assert np.abs(first - second).mean() > 0.02
    assert np.abs(first - sample).mean() > 0.02


def test_spot_noise_has_the_mean_and_covariance_of_the_sample() -> None:
    periodic = periodic_component(_sample())
    textures = spot_noise(_sample(), 4000, np.random.default_rng(1))
    want = _autocovariance(periodic - periodic.mean())
    centred = textures - periodic.mean()
    got = np.mean([_autocovariance(texture) for texture in centred], axis=0)
    # the drawn mean of one pixel deviates by σ / √4000
    assert np.abs(textures.mean(axis=0) - periodic.mean()).max() < 5 * np.sqrt(want[0, 0] / 4000)
    assert np.abs(got - want).max() < 0.03 * want[0, 0]


def test_spot_noise_converges_as_the_number_grows() -> None:
    periodic = periodic_component(_sample())
    want = _autocovariance(periodic - periodic.mean())
    errors = []
    for count in (20, 2000):
        textures = spot_noise(_sample(), count, np.random.default_rng(2)) - periodic.mean()
        errors.append(np.abs(np.mean([_autocovariance(t) for t in textures], axis=0) - want).max())
    assert errors[1] < errors[0] / 3


def test_a_larger_texture_keeps_mean_and_variance() -> None:
    sample = _sample()
    variance = periodic_component(sample).var()
    for draw in (random_phase_noise, spot_noise):
        textures = draw(sample, 200, np.random.default_rng(3), shape=(80, 96))
        assert textures.shape == (200, 80, 96)
        assert abs(textures.mean() - sample.mean()) < 0.01
        assert 0.8 < textures.var() / variance < 1.2


def test_a_larger_texture_has_the_covariance_of_the_sample_at_small_lags() -> None:
    periodic = periodic_component(_sample())
    textures = spot_noise(_sample(), 300, np.random.default_rng(4), shape=(96, 96)) - periodic.mean()
    got = np.mean([_autocovariance(texture) for texture in textures], axis=0)
    want = _autocovariance(periodic - periodic.mean())
    assert np.abs(got[:3, :3] - want[:3, :3]).max() < 0.2 * want[0, 0]


@pytest.mark.parametrize("beta", [2.0, 2.6, 3.2])
def test_the_power_law_slope_is_recovered_by_a_fit(beta: float) -> None:
    textures = power_law_texture(200, 64, np.random.default_rng(0), (beta, beta))
    power = np.square(np.abs(scipy.fft.rfft2(textures))).mean(axis=0)
    f = np.hypot(scipy.fft.fftfreq(64)[:, None], scipy.fft.rfftfreq(64)[None, :])
    slope = np.polyfit(np.log(f[f > 0]), np.log(power[f > 0]), 1)[0]
    assert slope == pytest.approx(-beta, abs=0.05)


@pytest.mark.parametrize("size", [32, 33])
def test_the_power_law_has_unit_variance_and_noise_adds_its_own(size: int) -> None:
    beta, rng = np.full(3000, 2.5, np.float32), np.random.default_rng(0)
    for noise in (0.0, 0.7):
        grain = rng.uniform(-1, 1, (3000, 2)).astype(np.float32)
        spectra = power_law_spectra(size, beta, grain, np.full(3000, noise, np.float32), rng)
        variance = np.square(scipy.fft.irfft2(spectra, s=(size, size))).mean()
        assert variance == pytest.approx(1 + noise**2, rel=0.05)


@pytest.mark.parametrize("turn", [0.0, 0.7, 2.0])
def test_grain_turns_the_texture(turn: float) -> None:
    """The gradient is largest in the direction of the grain's frequencies, that is across its fibres."""
    beta, clean = np.full(400, 2.8, np.float32), np.zeros(400, np.float32)
    grain = np.tile(np.array([np.cos(2 * turn), np.sin(2 * turn)], np.float32), (400, 1))
    spectra = power_law_spectra(64, beta, grain, clean, np.random.default_rng(0))
    dy, dx = np.gradient(scipy.fft.irfft2(spectra, s=(64, 64)), axis=(1, 2))
    found = 0.5 * np.arctan2(2 * (dx * dy).mean(), (dx**2 - dy**2).mean())
    assert np.cos(2 * (found - turn)) > 0.95


def test_the_same_generator_state_gives_the_same_bits() -> None:
    draws = [power_law_texture(3, 32, np.random.default_rng(9)).tobytes() for _ in range(2)]
    assert draws[0] == draws[1]


def test_a_sample_larger_than_the_texture_raises() -> None:
    with pytest.raises(BadSetting, match="crop the sample"):
        spot_noise(_sample(), 1, np.random.default_rng(0), shape=(16, 96))


@pytest.mark.parametrize("sample", [np.zeros(5), np.full((4, 4), np.nan), np.zeros((1, 9))])
def test_a_sample_that_is_no_image_raises(sample: Image) -> None:
    with pytest.raises(BadData, match="texture sample"):
        periodic_component(sample)


def test_a_texture_of_no_pixels_raises() -> None:
    with pytest.raises(BadSetting, match="at least one"):
        power_law_texture(1, 2, np.random.default_rng(0))
