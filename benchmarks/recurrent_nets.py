"""Trained recurrent networks at their real size, and real speech to run them on.

    ./run python benchmarks/recurrent_nets.py             # what they make of it in float

The speaker encoder of Resemblyzer turns 1.6 s of speech into a vector that is the same for the same voice:
three LSTM layers and a linear one. Silero VAD returns the probability of speech for every 32 ms: five
convolutions and an LSTM cell. Both are rebuilt here as plain modules with their published weights. The
speech consists of recordings by four people for a telephone exchange, one per language.
"""

from __future__ import annotations

import io
import math
import wave
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from data import voices
from torch import Tensor, nn
from weights import resemblyzer, silero

RATE = 16000
WINDOW, CONTEXT = 512, 64  # samples that Silero VAD sees at a time, and those before them
FRAMES, MELS = 160, 40  # of one utterance for the speaker encoder


class SpeakerEncoder(nn.Module):
    """Mel spectrograms (examples, frames, 40) to vectors of length one that distinguish voices."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(MELS, 256, 3, batch_first=True)
        self.linear = nn.Linear(256, 256)
        self.relu = nn.ReLU()

    def forward(self, mels: Tensor) -> Tensor:
        _, (hidden, _) = self.lstm(mels)
        return F.normalize(self.relu(self.linear(hidden[-1])), dim=1)


class VoiceDetector(nn.Module):
    """Windows of sound (examples, windows, 576) to the probability of speech in each window."""

    def __init__(self) -> None:
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 258, 256, stride=128, bias=False)
        self.conv1 = nn.Conv1d(129, 128, 3, padding=1)
        self.conv2 = nn.Conv1d(128, 64, 3, stride=2, padding=1)
        self.conv3 = nn.Conv1d(64, 64, 3, stride=2, padding=1)
        self.conv4 = nn.Conv1d(64, 128, 3, padding=1)
        self.lstm_cell = nn.LSTMCell(128, 128)
        self.final_conv = nn.Conv1d(128, 1, 1)

    def forward(self, windows: Tensor) -> Tensor:
        x = F.pad(windows.flatten(0, 1).unsqueeze(1), (0, 64), "reflect")
        real, imaginary = self.stft_conv(x).chunk(2, 1)
        x = (real**2 + imaginary**2).sqrt()
        for conv in (self.conv1, self.conv2, self.conv3, self.conv4):
            x = conv(x).relu()
        state, found = None, []
        for step in x.squeeze(-1).unflatten(0, windows.shape[:2]).unbind(1):
            state = self.lstm_cell(step, state)
            found.append(state[0])
        hidden = torch.stack(found, -1).relu()
        return self.final_conv(hidden).sigmoid().squeeze(1)


def speaker_encoder() -> SpeakerEncoder:
    """Return Resemblyzer's network with its weights."""
    state, model = resemblyzer(), SpeakerEncoder()
    model.load_state_dict({name: state[name] for name in model.state_dict()})
    return model.eval()


def voice_detector() -> VoiceDetector:
    """Return Silero's network for 16 kHz with its weights."""
    from safetensors.torch import load_file

    model = VoiceDetector()
    model.load_state_dict(load_file(silero()))
    return model.eval()


@dataclass(frozen=True)
class Speech:
    """Recordings, and their speakers."""

    waves: list[Tensor]
    speakers: Tensor


@cache
def speech(per_voice: int = 40, shortest: float = 1.7) -> Speech:
    """Return the first recordings of each voice that are long enough, in alphabetical order."""
    waves, speakers = [], []
    for number, recordings in enumerate(voices().values()):
        long = (x for x in map(read_wave, recordings) if len(x) >= shortest * RATE)
        for sound, _ in zip(long, range(per_voice), strict=False):
            waves.append(sound)
            speakers.append(number)
    return Speech(waves, torch.tensor(speakers))


def halves(recordings: Speech) -> tuple[Speech, Speech]:
    """Return every other recording for calibration, and the others for testing."""
    one, two = (Speech(recordings.waves[i::2], recordings.speakers[i::2]) for i in range(2))
    return one, two


def read_wave(content: bytes) -> Tensor:
    """Return a recording of 8 kHz as samples at 16 kHz, with a loudness of at least -30 dB."""
    with wave.open(io.BytesIO(content)) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768
        rate = file.getframerate()
    spectrum = np.fft.rfft(samples)
    length = len(samples) * RATE // rate
    wide = np.zeros(length // 2 + 1, complex)
    wide[: len(spectrum)] = spectrum
    sound = np.fft.irfft(wide, length) * (length / len(samples))
    loudness = np.sqrt(np.mean(sound**2))
    return torch.from_numpy(sound * max(1.0, 10 ** (-30 / 20) / loudness)).float()


def mel_spectrogram(sound: Tensor) -> Tensor:
    """Return the energy in 40 frequency bands every 10 ms, (frames, 40), as Resemblyzer computes it."""
    window = torch.hann_window(400)
    spectrum = torch.stft(sound, 400, 160, window=window, pad_mode="constant", return_complex=True)
    return (mel_filters() @ spectrum.abs() ** 2).T


@cache
def mel_filters() -> Tensor:
    """Return Slaney's triangular filters of equal area, (40, 201)."""
    step, knee = 200 / 3, 1000.0
    log_step = math.log(6.4) / 27
    top = knee / step + math.log(RATE / 2 / knee) / log_step
    mels = torch.linspace(0, top, MELS + 2, dtype=torch.float64)
    above = knee * torch.exp(log_step * (mels - knee / step))
    edges = torch.where(mels * step < knee, mels * step, above)
    distance = edges[:, None] - torch.linspace(0, RATE / 2, 201, dtype=torch.float64)
    width = edges.diff()[:, None]
    rising, falling = -distance[:-2] / width[:-1], distance[2:] / width[1:]
    filters = torch.minimum(rising, falling).clamp(min=0)
    return (filters * (2 / (edges[2:] - edges[:-2]))[:, None]).float()


def utterances(recordings: Speech) -> Tensor:
    """Return the first 1.6 s of each recording in the form of the speaker encoder: (examples, 160, 40)."""
    return torch.stack([mel_spectrogram(x)[:FRAMES] for x in recordings.waves])


def windows(recordings: Speech, count: int = 50) -> Tensor:
    """Return windows of 32 ms with the samples before, (examples, windows, 576): a pause, then speech."""
    found = []
    for sound in recordings.waves:
        padded = F.pad(sound, (CONTEXT + 5 * WINDOW, 0))
        padded = F.pad(padded, (0, max(0, CONTEXT + count * WINDOW - len(padded))))
        found.append(padded.unfold(0, WINDOW + CONTEXT, WINDOW)[:count])
    return torch.stack(found)


def same_voice(vectors: Tensor, speakers: Tensor) -> float:
    """Return how often the nearest other recording is of the same voice, 0 to 1."""
    likeness = vectors @ vectors.T
    likeness.fill_diagonal_(-1)
    return (speakers[likeness.argmax(1)] == speakers).float().mean().item()


@torch.no_grad()
def main() -> None:
    recordings = speech()
    vectors = speaker_encoder()(utterances(recordings))
    found = voice_detector()(windows(recordings))
    print(f"{len(recordings.waves)} recordings of {len(recordings.speakers.unique())} voices")
    print(
        f"speaker encoder: the nearest is the same voice in {same_voice(vectors, recordings.speakers):.1%}"
    )
    print(
        f"voice detector: in the pause {found[:, :5].mean():.3f}, afterwards {found[:, 8:].mean():.3f}"
    )


if __name__ == "__main__":
    main()
