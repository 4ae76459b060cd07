"""The vision tower, the aligner, and the rows that stand for an image among the text's embeddings."""

from __future__ import annotations

import torch
from torch.nn import functional

from deepinfer.engine.checkpoint.config import VisionConfig
from deepinfer.engine.model.parameters import Parameters
from deepinfer.engine.ops.norm import rms_norm
from deepinfer.engine.ops.precision import wide
from deepinfer.engine.ops.rope import frequencies

EPS = 1e-6  # the vision norms have their own, which config.json does not name


class VisionModel:
    """Stateless: one image at a time, all of its patches at once."""

    def __init__(self, config: VisionConfig, params: Parameters) -> None:
        self.config = config
        self.params = params

    def span(self, patches: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        """[S, D], the embedding rows of a span: start, every row of image tokens with its line end, end.

        ``patches`` [rows * columns, 3 * patch * patch] in raster order; S = h * (w + 1) + 2 for h x w image tokens.
        """
        merge = self.config.downsample_ratio
        tokens = self.align(self.encode(patches, rows, columns), rows, columns)
        lines = tokens.view(-(-rows // merge), -(-columns // merge), tokens.shape[-1])
        start, end, newline = (self.params["image_" + name].to(tokens.dtype) for name in ("start", "end", "newline"))
        ended = torch.cat([lines, newline.expand(lines.shape[0], 1, -1)], dim=1)
        return torch.cat([start[None], ended.flatten(0, 1), end[None]])

    def encode(self, patches: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        """[rows * columns, width] in the parameters' dtype; every patch sees every other."""
        x = self._linear(
            "vision.patch_embed.proj", patches.to(self.params["vision.norm.weight"].device, self.params.dtype)
        )
        angles = grid_angles(rows, columns, self.config.hidden_size // self.config.num_attention_heads, self._theta)
        for number in range(self.config.num_hidden_layers):
            prefix = "vision.blocks.%d." % number
            x = x + self._attention(prefix, self._norm(prefix + "norm1", x), angles)
            gate, up = self._linear(prefix + "mlp.w1", self._norm(prefix + "norm2", x)).chunk(2, dim=-1)
            x = x + self._linear(prefix + "mlp.w2", (functional.silu(wide(gate)) * wide(up)).to(x.dtype))
        return self._norm("vision.norm", x)

    def align(self, features: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        """[h * w, D]: each token sees a square of patches; ``features`` [rows * columns, width]."""
        gathered = gather(features, rows, columns, self.config.downsample_ratio)
        hidden = functional.gelu(wide(self._linear("aligner.w1", gathered))).to(features.dtype)
        return self._linear("aligner.w2", hidden)

    @property
    def _theta(self) -> float:
        return self.config.rope_theta

    def _attention(self, prefix: str, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        heads = self.config.num_attention_heads
        qkv = self._linear(prefix + "attn.wqkv", x).view(x.shape[0], 3, heads, -1)
        query, key, value = qkv.permute(1, 2, 0, 3)  # each [heads, patches, width of a head]
        query, key = rotate_halves(query, angles), rotate_halves(key, angles)
        seen = functional.scaled_dot_product_attention(query[None], key[None], value[None])[0]
        return self._linear(prefix + "attn.wo", seen.transpose(0, 1).flatten(1))

    def _norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.params[name + ".weight"], EPS)

    def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        bias = self.params[name + ".bias"].to(x.dtype) if name + ".bias" in self.params else None
        return functional.linear(x, self.params[name + ".weight"].to(x.dtype), bias)


def grid_angles(rows: int, columns: int, width: int, theta: float) -> torch.Tensor:
    """fp32 [rows * columns, width / 2]: half of the angles turn with the row, half with the column."""
    freqs = frequencies(width // 2, theta)
    down = torch.arange(rows, dtype=torch.float32)[:, None, None] * freqs
    right = torch.arange(columns, dtype=torch.float32)[None, :, None] * freqs
    shape = (rows, columns, freqs.numel())
    return torch.cat([down.expand(shape), right.expand(shape)], dim=-1).flatten(0, 1)


def rotate_halves(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Turn channel c of ``x`` [..., N, C] with channel c + C / 2 by ``angles`` [N, C / 2]; the dtype of ``x`` out."""
    first, second = wide(x).chunk(2, dim=-1)
    cos, sin = angles.cos().to(x.device), angles.sin().to(x.device)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


def gather(features: torch.Tensor, rows: int, columns: int, merge: int) -> torch.Tensor:
    """[h * w, width * merge * merge] of ``features`` [rows * columns, width]; places beyond the grid are zero.

    Inside a row the channel is outermost, then the place from top to bottom and left to right.
    """
    grid = features.view(rows, columns, -1).permute(2, 0, 1)
    grid = functional.pad(grid, (0, -columns % merge, 0, -rows % merge))
    width, down, right = grid.shape
    squares = grid.reshape(width, down // merge, merge, right // merge, merge)
    return squares.permute(1, 3, 0, 2, 4).reshape(-1, width * merge * merge)
