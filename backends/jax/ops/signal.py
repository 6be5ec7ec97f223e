"""Fourier transforms and the windows that go with them; complex numbers are pairs in the last dimension.

Left out: lengths that depend on inputs.
"""

from typing import Any

import numpy as np
from jax import numpy as jnp

from .known import Array, ints


def as_complex(x: Array) -> Array:
    """Return pairs in the last dimension, or one real number there, as complex numbers."""
    return x[..., 0] if x.shape[-1] == 1 else x[..., 0] + 1j * x[..., 1]


def as_pairs(x: Array, dtype: Any) -> Array:
    """Return complex numbers as pairs in a new last dimension."""
    return jnp.stack([jnp.real(x), jnp.imag(x)], -1).astype(dtype)


def dft(
    x: Array, dft_length: Array | None = None, axis: Array = -2, *, inverse: int = 0, onesided: int = 0
) -> Array:  # fmt: skip
    """Return the discrete Fourier transform along an axis."""
    (along,) = ints(axis)
    along = along % x.ndim
    full = 2 * (x.shape[along] - 1) if onesided and inverse else x.shape[along]
    length = full if dft_length is None else ints(dft_length)[0]
    if onesided and inverse:
        return jnp.fft.irfft(as_complex(x), length, along)[..., None].astype(x.dtype)
    values = as_complex(x)
    y = jnp.fft.ifft(values, length, along) if inverse else jnp.fft.fft(values, length, along)
    if onesided:
        y = jnp.take(y, np.arange(length // 2 + 1), along)
    return as_pairs(y, x.dtype)


def stft(
    signal: Array, frame_step: Array, window: Array | None = None, frame_length: Array | None = None, *,
    onesided: int = 1,
) -> Array:  # fmt: skip
    """Return the Fourier transform of frames of a signal."""
    (step,) = ints(frame_step)
    length = np.shape(np.zeros(0) if window is None else window)[0] if frame_length is None else ints(frame_length)[0]
    starts = np.arange((signal.shape[1] - length) // step + 1) * step
    frames = as_complex(signal)[:, starts[:, None] + np.arange(length)]
    if window is not None:
        frames = frames * window
    y = jnp.fft.fft(frames, length, -1)
    return as_pairs(y[..., : length // 2 + 1] if onesided else y, signal.dtype)


def cosine_window(size: Array, weights: tuple[float, ...], output_datatype: Any, periodic: int) -> Array:
    """Return a sum of cosines over a window."""
    (length,) = ints(size)
    angle = 2 * np.pi * np.arange(length) / (length if periodic else length - 1)
    window = sum(w * np.cos(i * angle) for i, w in enumerate(weights))
    return np.asarray(window).astype(output_datatype or np.float32)


def hann_window(size: Array, *, output_datatype: Any = None, periodic: int = 1) -> Array:
    """Return a Hann window."""
    return cosine_window(size, (0.5, -0.5), output_datatype, periodic)


def hamming_window(size: Array, *, output_datatype: Any = None, periodic: int = 1) -> Array:
    """Return a Hamming window."""
    return cosine_window(size, (25 / 46, -21 / 46), output_datatype, periodic)


def blackman_window(size: Array, *, output_datatype: Any = None, periodic: int = 1) -> Array:
    """Return a Blackman window."""
    return cosine_window(size, (0.42, -0.5, 0.08), output_datatype, periodic)


def mel_weight_matrix(
    num_mel_bins: Array, dft_length: Array, sample_rate: Array, lower_edge_hertz: Array, upper_edge_hertz: Array, *,
    output_datatype: Any = None,
) -> Array:  # fmt: skip
    """Return the triangles that sum a spectrum into bins equally wide to the ear."""
    (bins,), (length,), (rate,) = ints(num_mel_bins), ints(dft_length), ints(sample_rate)
    low, high = (
        2595 * np.log10(1 + float(np.asarray(edge).reshape(())) / 700) for edge in (lower_edge_hertz, upper_edge_hertz)
    )
    mel = low + np.arange(bins + 2) * (high - low) / (bins + 2)
    point = np.floor((length + 1) * 700 * (10 ** (mel / 2595) - 1) / rate).astype(int)
    matrix = np.zeros((length // 2 + 1, bins))
    for i in range(bins):
        start, centre, end = point[i : i + 3]
        rising, falling = np.arange(start, centre + 1), np.arange(centre, end)
        matrix[rising, i] = (rising - start) / (centre - start) if centre > start else 1
        if end > centre:
            matrix[falling, i] = (end - falling) / (end - centre)
    return matrix.astype(output_datatype or np.float32)


def dft_by_attribute(
    x: Array, dft_length: Array | None = None, *, axis: int = 1, inverse: int = 0, onesided: int = 0
) -> Array:  # fmt: skip
    """Return the discrete Fourier transform along an axis, by default the first after the batch."""
    return dft(x, dft_length, axis, inverse=inverse, onesided=onesided)
