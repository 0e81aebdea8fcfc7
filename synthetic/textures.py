"""Sample image or spectral exponent, and a generator → batches of Gaussian textures.

Random phase noise and asymptotic discrete spot noise are those of Galerne, Gousseau and Morel (2010); the
periodic component is Moisan's (2011); the power law is the usual model of breast parenchyma without a sample.
"""

from functools import cache

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from mammofed.errors import BadData, BadSetting

Image = NDArray[np.float32]  # (H, W)
Images = NDArray[np.float32]  # (B, H, W)
Shape = tuple[int, int] | None  # of the texture, at least the sample's; the sample's own when None
Spectra = NDArray[np.complex64]  # (B, H, W // 2 + 1), of real images


BYTE_POWER = np.float32(12 / (256**2 - 1))  # inverse variance of uniform bytes


def periodic_component(image: NDArray[np.floating]) -> Image:
    """Return u − s, where the smooth part s holds the jumps at the border (Moisan 2011, section 2)."""
    u = np.asarray(image, dtype=np.float64)
    if u.ndim != 2 or min(u.shape) < 2 or not np.isfinite(u).all():
        raise BadData(f"texture sample of shape {u.shape}: a finite 2D image of at least 2 × 2 pixels is needed")
    v = np.zeros_like(u)
    v[0] += u[0] - u[-1]
    v[-1] += u[-1] - u[0]
    v[:, 0] += u[:, 0] - u[:, -1]
    v[:, -1] += u[:, -1] - u[:, 0]
    M, N = u.shape
    q, r = scipy.fft.fftfreq(M)[:, None], scipy.fft.rfftfreq(N)[None, :]
    laplacian = 4 - 2 * np.cos(2 * np.pi * q) - 2 * np.cos(2 * np.pi * r)
    laplacian[0, 0] = 1
    s_hat = scipy.fft.rfft2(v) / laplacian
    s_hat[0, 0] = 0
    return np.asarray(u - scipy.fft.irfft2(s_hat, s=u.shape), dtype=np.float32)


def random_phase_noise(sample: Image, count: int, rng: np.random.Generator, shape: Shape = None) -> Images:
    """Draw textures with the modulus of the sample's spectrum, its mean, and random phases (section II.B)."""
    spot, mean = _spot(sample, shape)
    phases = scipy.fft.rfft2(_white(count, spot.shape, rng))
    phases /= np.maximum(np.abs(phases), np.finfo(np.float32).tiny)
    spectrum = np.abs(scipy.fft.rfft2(spot))
    return mean + _inverse(phases * spectrum, spot.shape)


def spot_noise(sample: Image, count: int, rng: np.random.Generator, shape: Shape = None) -> Images:
    """Draw asymptotic discrete spot noise, mean + (MN)^(-1/2) (f − mean) * W (section II.C)."""
    spot, mean = _spot(sample, shape)
    kernel = scipy.fft.rfft2(spot) / np.float32(np.sqrt(spot.size))
    return mean + _inverse(scipy.fft.rfft2(_white(count, spot.shape, rng)) * kernel, spot.shape)


def power_law_spectra(
    size: int,
    beta: NDArray[np.float32],  # (B,), exponent of the power spectrum 1 / f^β
    grain: NDArray[np.float32],  # (B, 2), orientation φ₀ of strength g as (g cos 2φ₀, g sin 2φ₀)
    noise: NDArray[np.float32],  # (B,), standard deviation of white noise beside the texture's of 1
    rng: np.random.Generator,
) -> Spectra:
    """Draw spectra of power-law textures of unit variance with white noise added.

    The power at a frequency f of direction φ is f^-β exp(g cos 2(φ − φ₀)): streaks at a right angle to φ₀.
    Independent Gaussian fields add by their power spectra, so that texture and noise are one drawing.
    """
    terms, multiplicity = _log_power_terms(size)
    power = (np.column_stack([beta, grain]) @ terms).reshape(len(beta), size, -1)
    np.exp(power, out=power)
    power[:, 0, 0] = 0
    variance = np.einsum("bij,j->b", power, multiplicity) / size**2
    power *= (BYTE_POWER / variance)[:, None, None]
    power += (BYTE_POWER * np.square(noise))[:, None, None]
    power[:, 0, 0] = 0
    # Each frequency sums size² samples, so that random bytes are as Gaussian as a normal noise; their mean
    # falls on the frequency 0, which is not used.
    noise_bytes = np.frombuffer(rng.bytes(len(beta) * size**2), np.uint8).reshape(-1, size, size)
    spectra = scipy.fft.rfft2(noise_bytes.astype(np.float32))
    spectra *= np.sqrt(power, out=power)
    return np.asarray(spectra, dtype=np.complex64)


def power_law_texture(
    count: int, size: int, rng: np.random.Generator, beta: tuple[float, float] = (2.6, 3.2)
) -> Images:
    """Draw textures of spectrum 1 / f^β, mean 0 and variance 1, β drawn per image."""
    if size < 4 or count < 1:
        raise BadSetting(f"{count} textures of {size} pixels: at least one of at least 4 pixels is needed")
    exponents = rng.uniform(*beta, count).astype(np.float32)
    isotropic, noiseless = np.zeros((count, 2), np.float32), np.zeros(count, np.float32)
    spectra = power_law_spectra(size, exponents, isotropic, noiseless, rng)
    return _inverse(spectra, (size, size))


def _spot(sample: Image, shape: Shape) -> tuple[Image, np.float32]:
    """Return the centred periodic component, with smooth edges in a larger frame when one is asked for."""
    periodic = periodic_component(sample)
    mean = periodic.mean(dtype=np.float64).astype(np.float32)
    centred = periodic - mean
    if shape is None or shape == periodic.shape:
        return centred, mean
    (M, N), (height, width) = periodic.shape, shape
    if height < M or width < N:
        raise BadSetting(
            f"texture of {height} × {width}: at least the sample's {M} × {N} is needed; crop the sample"
        )
    window = np.outer(_smooth_edge(M), _smooth_edge(N))
    spot = np.zeros(shape, np.float32)
    # Σ window² stands for MN of the formula: the edges take no variance away.
    spot[:M, :N] = centred * window * np.sqrt(height * width / np.square(window).sum())
    return spot, mean


def _smooth_edge(length: int) -> NDArray[np.float32]:
    """Return 1 in the middle, and cosine ramps over an eighth of the length at both ends."""
    distance = (np.minimum(np.arange(length), np.arange(length)[::-1]) + 0.5) / max(1, length // 8)
    return np.asarray(0.5 - 0.5 * np.cos(np.pi * np.minimum(distance, 1)), dtype=np.float32)


def _white(count: int, shape: tuple[int, ...], rng: np.random.Generator) -> Images:
    return rng.standard_normal((count, *shape), dtype=np.float32)


def _inverse(spectra: NDArray[np.complexfloating], shape: tuple[int, ...]) -> Images:
    return np.asarray(scipy.fft.irfft2(spectra, s=shape), dtype=np.float32)


@cache
def _log_power_terms(size: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return −log f, cos 2φ, sin 2φ (3, H (W // 2 + 1)), and how often a column counts in the whole."""
    y, x = np.meshgrid(scipy.fft.fftfreq(size), scipy.fft.rfftfreq(size), indexing="ij")
    square = (y**2 + x**2) * size**2
    square[0, 0] = 1
    terms = [-0.5 * np.log(square), (x**2 - y**2) * size**2 / square, 2 * x * y * size**2 / square]
    multiplicity = np.full(size // 2 + 1, 2, np.float32)
    multiplicity[0] = 1
    if size % 2 == 0:
        multiplicity[-1] = 1
    return np.stack(terms).reshape(3, -1).astype(np.float32), multiplicity
