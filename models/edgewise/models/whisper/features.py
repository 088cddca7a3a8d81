"""Log-mel spectrogram as Whisper was trained on it (Radford et al. 2022, section 2.2; filters: Slaney's, as in librosa)."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from edgewise.models.media.rates import RATE
from edgewise.models.whisper.config import HOP

WINDOW = 400
"""Samples that one frame is made of: 25 ms."""
_MEL_BREAK, _HERTZ_PER_MEL, _LOG_STEP = 15.0, 200.0 / 3.0, math.log(6.4) / 27.0
"""Slaney's scale: linear up to 1,000 Hz, logarithmic above."""


def log_mel(samples: torch.Tensor, filters: torch.Tensor, frames: int) -> torch.Tensor:
    """The spectrogram of what is heard, silence after it.

    Args:
        samples: [n] float32 at 16 kHz; what lies beyond `frames` is not heard.
        filters: `mel_filters`.
        frames: Length of the result.

    Returns:
        [bands, frames] float32.
    """
    wanted = frames * HOP
    padded = torch.nn.functional.pad(samples[:wanted], (0, max(0, wanted - samples.shape[0])))
    window = torch.hann_window(WINDOW, device=samples.device)
    spectrum = torch.stft(padded, WINDOW, HOP, window=window, return_complex=True)
    power = spectrum[:, :-1].abs() ** 2
    logarithm = (filters @ power).clamp_min(1e-10).log10()
    return (torch.maximum(logarithm, logarithm.max() - 8.0) + 4.0) / 4.0


def mel_filters(bands: int) -> torch.Tensor:
    """[bands, WINDOW // 2 + 1] float32: triangles of equal area, peaks evenly spaced on Slaney's scale."""
    bins = np.linspace(0.0, RATE / 2, WINDOW // 2 + 1)
    peaks = _hertz(np.linspace(0.0, _mel(RATE / 2), bands + 2))
    widths = np.diff(peaks)
    slopes = peaks[:, None] - bins[None, :]
    triangles = np.maximum(0.0, np.minimum(-slopes[:-2] / widths[:-1, None], slopes[2:] / widths[1:, None]))
    triangles *= (2.0 / (peaks[2:] - peaks[:-2]))[:, None]
    return torch.from_numpy(triangles.astype(np.float32))


def _mel(hertz: float) -> float:
    linear = hertz / _HERTZ_PER_MEL
    return linear if linear < _MEL_BREAK else _MEL_BREAK + math.log(hertz / 1000.0) / _LOG_STEP


def _hertz(mels: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.where(mels < _MEL_BREAK, _HERTZ_PER_MEL * mels, 1000.0 * np.exp(_LOG_STEP * (mels - _MEL_BREAK)))
