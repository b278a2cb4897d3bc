"""Recurrent and convolutional networks over time."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.convolutions import conv_bn
from zoo.registry import features, images, model, tokens


@model("lstm_classifier", tokens(12, 50))
class LSTMClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.lstm = nn.LSTM(32, 48, batch_first=True)
        self.head = nn.Linear(48, 5)

    def forward(self, ids: Tensor) -> Tensor:
        out, _ = self.lstm(self.embed(ids))
        return self.head(out[:, -1])


@model("bilstm", tokens(12, 50))
class BiLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.lstm = nn.LSTM(32, 40, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(80, 9)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.lstm(self.embed(ids))[0])


@model("gru", features(10, 24))
class GRU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(24, 32)
        self.gru = nn.GRU(32, 48, num_layers=2, batch_first=True)
        self.head = nn.Linear(48, 5)

    def forward(self, x: Tensor) -> Tensor:
        _, state = self.gru(F.relu(self.first(x)))
        return self.head(state[-1])


@model("lstm_cell_loop", features(6, 24))
class LSTMCellLoop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(24, 40)
        self.head = nn.Linear(40, 5)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(x.shape[0], 40)
        memory = x.new_zeros(x.shape[0], 40)
        outputs = []
        for step in x.unbind(1):
            state, memory = self.cell(step, (state, memory))
            outputs.append(self.head(state))
        return torch.stack(outputs, 1)


@model("gru_cell_loop", features(6, 24))
class GRUCellLoop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(24, 32)
        self.cell = nn.GRUCell(32, 40)
        self.head = nn.Linear(40, 5)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(x.shape[0], self.cell.hidden_size, dtype=x.dtype)
        for index in range(x.shape[1]):
            state = self.cell(self.embed(x[:, index]), state)
        return self.head(state)


@model("seq2seq_attention", lambda: (torch.randint(50, (2, 8)), torch.randint(50, (2, 6))))
class Seq2Seq(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 24)
        self.encoder = nn.GRU(24, 32, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(64, 40)
        self.decoder = nn.GRU(24, 40, batch_first=True)
        self.head = nn.Linear(80, 50)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory = self.bridge(self.encoder(self.embed(source))[0])
        queries, _ = self.decoder(self.embed(target), memory.mean(1).unsqueeze(0))
        attention = torch.bmm(queries, memory.transpose(1, 2)).softmax(-1)
        return self.head(torch.cat([queries, torch.bmm(attention, memory)], -1))


class TemporalBlock(nn.Module):
    def __init__(self, width_in: int, width: int, dilation: int) -> None:
        super().__init__()
        self.pad = 2 * dilation
        self.conv1 = nn.Conv1d(width_in, width, 3, padding=self.pad, dilation=dilation)
        self.conv2 = nn.Conv1d(width, width, 3, padding=self.pad, dilation=dilation)
        self.shortcut = nn.Conv1d(width_in, width, 1) if width_in != width else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.conv1(x)[:, :, : -self.pad])
        y = F.relu(self.conv2(y)[:, :, : -self.pad])
        return F.relu(y + self.shortcut(x))


@model("tcn", features(8, 32))
class TCN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            TemporalBlock(8, 24, 1), TemporalBlock(24, 32, 2), TemporalBlock(32, 32, 4)
        )
        self.head = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).transpose(1, 2))


class GatedLayer(nn.Module):
    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(width, 2 * width, 2, dilation=dilation)
        self.residual = nn.Conv1d(width, width, 1)
        self.skip = nn.Conv1d(width, 48, 1)
        self.dilation = dilation

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        value, gate = self.conv(F.pad(x, (self.dilation, 0))).chunk(2, 1)
        y = torch.tanh(value) * torch.sigmoid(gate)
        return x + self.residual(y), self.skip(y)


@model("wavenet", features(1, 64))
class WaveNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, 32, 1)
        self.layers = nn.ModuleList(GatedLayer(32, 2**index) for index in range(4))
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(48, 48, 1), nn.ReLU(), nn.Conv1d(48, 16, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x, total = self.layers[0](x)
        for layer in self.layers[1:]:
            x, skip = layer(x)
            total = total + skip
        return self.head(total)


@model("deep_speech", lambda: (torch.randn(2, 1, 32, 40),))
class DeepSpeech(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 16, (11, 5), (2, 2), (5, 2)),
            nn.BatchNorm2d(16),
            nn.Hardtanh(0, 20),
            nn.Conv2d(16, 24, (5, 5), (2, 1), (2, 2)),
            nn.BatchNorm2d(24),
            nn.Hardtanh(0, 20),
        )
        self.rnn = nn.GRU(24 * 8, 40, num_layers=2, bidirectional=True)
        self.head = nn.Sequential(nn.LayerNorm(80), nn.Linear(80, 29))

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        batch, channels, bands, steps = x.shape
        x = x.view(batch, channels * bands, steps).permute(2, 0, 1)
        return self.head(self.rnn(x)[0]).log_softmax(-1)


@model("crnn", images(48, 1, 16))
class CRNN(nn.Module):
    """Text in images: the convolutions end at height 1, the LSTM runs over the columns."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            conv_bn(1, 24), nn.MaxPool2d(2), conv_bn(24, 48), nn.MaxPool2d(2), conv_bn(48, 64),
            nn.MaxPool2d((4, 1)),
        )  # fmt: skip
        self.rnn = nn.LSTM(64, 40, bidirectional=True, batch_first=True)
        self.head = nn.Linear(80, 37)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x).squeeze(2).transpose(1, 2)
        return self.head(self.rnn(x)[0])


@model("highway_char_cnn", tokens(20, 40))
class CharCNN(nn.Module):
    """Convolutions of several widths over characters, then a highway layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 16)
        self.convs = nn.ModuleList(nn.Conv1d(16, 16, size) for size in (2, 3, 4))
        self.gate = nn.Linear(48, 48)
        self.change = nn.Linear(48, 48)
        self.head = nn.Linear(48, 6)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids).transpose(1, 2)
        x = torch.cat([F.relu(conv(x)).amax(-1) for conv in self.convs], -1)
        gate = torch.sigmoid(self.gate(x))
        return self.head(gate * F.relu(self.change(x)) + (1 - gate) * x)
