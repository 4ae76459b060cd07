"""The plan: numbers worked out by hand, and what is nonsense."""

from __future__ import annotations

import dataclasses

import pytest

from deepinfer.engine.checkpoint import config as configuration
from deepinfer.engine.checkpoint.errors import DoesNotFit
from deepinfer.engine.checkpoint.inventory import TABLES, tensors
from deepinfer.engine.checkpoint.plan import RESERVE, plan, request_bytes
from deepinfer.engine.checkpoint.released import released_config
from deepinfer.engine.checkpoint.tiny import tiny_values
from deepinfer.errors import UsageError

H200, SM100 = 150754820096, 192265846784
EXPERT = 3 * (2304 * 2560 + 2304 * 160)
RELEASED = released_config()


def test_a_request_of_the_release() -> None:
    found = request_bytes(RELEASED.text)
    assert found.per_token == 890 == 3 * (288 + 68) // 2 + (288 + 68)
    assert found.block == 128 * 890
    assert found.state == 43 * 134 * 528 + 3 * 28672 == 3128352


def test_wider_entries_are_counted() -> None:
    text = dataclasses.replace(RELEASED.text, use_fp4_sparse_kv=False)
    assert request_bytes(text).per_token == 3 * (528 + 68) // 2 + (528 + 68)


@pytest.mark.parametrize(
    ("memory", "engram", "budget", "tokens", "requests"),
    [
        (H200, "host", 56634852024, 63631104, 60),
        (H200, "device", 5945343792, 6676608, 6),
        (SM100, "host", 98145878712, 110272640, 104),
        (SM100, "device", 47456370480, 53318144, 50),
    ],
)
def test_four_devices(memory: int, engram: str, budget: int, tokens: int, requests: int) -> None:
    found = plan(RELEASED, 4, memory, engram)
    experts = (40 * 96 + 3 * 32) * EXPERT
    replicated = 9531704768 + (7932874632 - 3 * 128 * EXPERT) + 970536960 + 315043840
    tables = 0 if engram == "host" else (96001542 + 96004171) * 264
    assert (found.experts, found.replicated, found.tables) == (experts, replicated, tables)
    assert found.host == (202758032400 if engram == "host" else 0)
    assert found.budget == memory - RESERVE - experts - replicated - tables == budget
    assert found.tokens == (budget - 3128352) // 113920 * 128 == tokens
    assert found.longest == 1048576
    assert found.full_requests == budget // (3128352 + 8192 * 113920) == requests


def test_all_devices_together_hold_every_byte() -> None:
    total = sum(tensor.bytes for tensor in tensors(RELEASED))
    for devices in (1, 2, 4, 8, 64, 128):
        found = plan(RELEASED, devices, 1 << 40, "device")
        rows_more = 264 * devices * 2  # a table that does not divide evenly
        stored = devices * (found.experts + found.tables) + found.replicated
        assert total <= stored <= total + rows_more


def test_a_part_of_an_expert_is_a_whole_one() -> None:
    assert plan(RELEASED, 5, SM100).experts == (40 * 77 + 3 * 26) * EXPERT
    assert plan(RELEASED, 384, SM100).experts == (40 + 3) * EXPERT


def test_a_context_is_never_longer_than_the_positions_and_can_be_shorter() -> None:
    config = configuration.parse(tiny_values())
    weights = sum(tensor.bytes for tensor in tensors(config) if tensor.part != TABLES)
    one = request_bytes(config.text)
    found = plan(config, 1, weights + one.state + 3 * one.block + one.block - 1, reserve=0)
    assert (found.weights, found.tokens, found.longest, found.full_requests) == (weights, 384, 384, 1)
    assert plan(config, 1, 1 << 30, reserve=0).longest == 4096
    with pytest.raises(DoesNotFit, match="DI512") as caught:
        plan(config, 1, weights + one.state + one.block - 1, reserve=0)
    assert str(weights + one.state + one.block) in caught.value.fix
    assert plan(config, 1, weights + one.state + one.block, reserve=0).tokens == 128


def test_what_does_not_fit_says_what_would() -> None:
    with pytest.raises(DoesNotFit, match="hold no request") as caught:
        plan(RELEASED, 2, H200, "device")
    assert "--engram host" in caught.value.fix


@pytest.mark.parametrize(
    ("devices", "memory", "engram", "reserve", "word"),
    [
        (0, H200, "host", 0, "--devices"),
        (-4, H200, "host", 0, "--devices"),
        (385, H200, "host", 0, "--devices"),
        (4, 0, "host", 0, "--memory-bytes"),
        (4, 1 << 51, "host", 0, "--memory-bytes"),
        (4, H200, "disk", 0, "--engram"),
        (4, H200, "host", -1, "--reserve-bytes"),
        (4, H200, "host", H200, "--reserve-bytes"),
    ],
)
def test_nonsense_is_refused(devices: int, memory: int, engram: str, reserve: int, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        plan(RELEASED, devices, memory, engram, reserve)
