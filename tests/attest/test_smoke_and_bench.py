"""The gates ``smoke`` and ``bench`` without a device: the CPU stands for it, made benches for the real ones."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from deepinfer.engine.attest import bench as benches

ROWS = """
import argparse, json
parser = argparse.ArgumentParser()
parser.add_argument("--library"), parser.add_argument("--json")
options = parser.parse_args()
# main(__doc__, rows) if __name__ == "__main__"
row = {"case": "64 rows", "form": "fp8", "us": 20.0, "bound_us": 15.0, "baseline": "peer", "baseline_us": 30.0,
       "goal": ">= 2x peer", "met": False, "floor": 0.7, "spread": 0.012}
rows = [row, {**row, "floor": 0.8, "baseline_us": None, "spread": None}, {**row, "floor": None, "goal": ""}]
json.dump({"device": "x", "read_bytes_per_s": 4.2e12, "rows": rows}, open(options.json, "w"))
"""


class Checks:
    """What a gate says, by id."""

    def __init__(self, root):
        self.root, self.found = root, {}

    def check(self, name, fine, measured="", unit="", bound="", note=""):
        self.found[name] = SimpleNamespace(fine=fine, measured=measured, unit=unit, bound=bound, note=note)


def test_rows_are_held_against_their_floor_and_goals_only_told(tmp_path):
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "gpu_made.py").write_text(ROWS)
    (tmp_path / "bench" / "gpu_timing.py").write_text("no bench")
    run = Checks(tmp_path)
    benches.bench(run, "lib.so")
    assert list(run.found) == ["made.read_ceiling", "made.0", "made.1", "made.2"]
    first = run.found["made.0"]
    assert (first.fine, first.measured, first.unit) == (True, "20.00", "us")
    assert first.bound == "15.0 us possible, at least 70 % of it"
    assert first.note == "64 rows; fp8; spread 1.2 %; peer: 30.0 us; goal >= 2x peer: missed"
    assert run.found["made.1"].fine is False
    assert run.found["made.2"].fine is None
    assert run.found["made.read_ceiling"].measured == "4200000000000"


def test_a_bench_without_rows_is_an_error_that_names_it(tmp_path):
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "gpu_bad.py").write_text("# main(__doc__, x) in __main__\nraise SystemExit('no such shape')")
    (tmp_path / "bench" / "gpu_made.py").write_text(ROWS)
    run = Checks(tmp_path)
    benches.bench(run, "lib.so")
    assert run.found["bad.ran"].fine is False
    assert run.found["bad.ran"].note == "DI431: gpu_bad.py ended with 1: no such shape"
    assert run.found["made.0"].fine is True, "the others go on"


def test_a_bench_that_measures_nothing_fails(tmp_path):
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "gpu_made.py").write_text(ROWS.replace("rows = [row,", "rows = [] and [row,"))
    run = Checks(tmp_path)
    benches.bench(run, "lib.so")
    assert run.found["made.ran"].note == "DI431: gpu_made.py measured nothing"


def test_smoke_compares_every_mode_and_prompt(tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="not run: torch is not installed")
    pytest.importorskip("safetensors", reason="not run: safetensors is not installed")
    from deepinfer.engine.attest import smoke as gate

    monkeypatch.setattr(gate, "LENGTHS", (1, 9))
    monkeypatch.setattr(gate, "MODES", gate.MODES[:2])
    run = Checks(tmp_path)
    gate.smoke(run, "cpu")
    assert sorted(run.found) == [
        "repeat.drafts",
        "repeat.plain",
        "tokens.drafts.1",
        "tokens.drafts.9",
        "tokens.plain.1",
        "tokens.plain.9",
    ]
    assert all(check.fine is True for check in run.found.values())
    assert run.found["tokens.plain.9"].measured == gate.TOKENS

    honest = gate._tokens
    monkeypatch.setattr(
        gate,
        "_tokens",
        lambda *words: [[0, *row[1:]] if words[1] == "odd" else row for row in honest(words[0], "cpu", *words[2:])],
    )
    wrong = Checks(tmp_path)
    gate.smoke(wrong, "odd")
    assert wrong.found["tokens.plain.9"].fine is False
    assert wrong.found["tokens.plain.9"].measured == gate.TOKENS - 1


def test_a_smoke_that_compares_nothing_fails(monkeypatch, tmp_path):
    pytest.importorskip("safetensors", reason="not run: safetensors is not installed")
    from deepinfer.engine.attest import smoke as gate

    monkeypatch.setattr(gate, "LENGTHS", (1,))
    monkeypatch.setattr(gate, "prompts", lambda seed, vocabulary, _: [[vocabulary]])
    with pytest.raises(gate.SmokeFailed, match="ended with 0 tokens: DI601"):
        gate.smoke(Checks(tmp_path), "cpu")


def test_prompts_have_every_token_but_the_placeholder_of_an_image():
    pytest.importorskip("torch", reason="not run: torch is not installed")
    from deepinfer.engine.attest import smoke as gate

    drawn = [gate.prompts(seed, 40, 21) for seed in range(20)]
    assert all([len(ids) for ids in one] == list(gate.LENGTHS) for one in drawn)
    assert {token for one in drawn for ids in one for token in ids} == set(range(3, 40)) - {21}
