"""The text model on a GPU against the CPU: the torch references run on any torch device."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

from tiny_text import model

from deepinfer.engine.model.parameters import Parameters
from deepinfer.engine.model.state import State
from deepinfer.engine.model.text import TextModel

if not torch.cuda.is_available():
    pytest.skip("not run: torch sees no CUDA device", allow_module_level=True)

ABSOLUTE = 1e-4  # fp32, key rounding off; measured on an H200: 1.1e-5
LENGTH = 150


def test_chunks_on_a_gpu_are_one_forward_on_the_cpu():
    torch.backends.cuda.matmul.allow_tf32 = False
    ids = torch.randint(3, 500, (LENGTH,), generator=torch.Generator().manual_seed(5))
    here = model(3)
    tensors = {name: tensor.cuda() for name, tensor in here.params.tensors.items()}
    there = TextModel(here.config, Parameters(tensors, torch.float32), here.token_map.cuda(), kv_quant=False)
    expected = here.logits(here.forward(ids, State(here.config, LENGTH)).hidden)
    state = State(there.config, LENGTH, device="cuda")
    found = [there.logits(there.forward(part.cuda(), state).hidden) for part in ids.split([7, 1, 30, 3, 62, 47])]
    assert (torch.cat(found).cpu() - expected).abs().max() < ABSOLUTE
