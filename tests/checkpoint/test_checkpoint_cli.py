"""The command line: documents, exit codes, streams, and what needs no package."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from damage import copy, shard_of

pytest.importorskip("torch", reason="not run: torch is not installed")

from deepinfer.engine.checkpoint import cli, download
from deepinfer.engine.checkpoint.errors import DownloadFailed, PackageMissing
from deepinfer.engine.checkpoint.shards import open_files
from deepinfer.engine.checkpoint.tiny import make
from deepinfer.engine.checkpoint.verify import verify

H200 = "150754820096"


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = cli.main(list(words))
    out, err = capsys.readouterr()
    return status, out, err


def test_inspect_released(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "inspect", "--released", "--json")
    document = json.loads(out)
    assert (status, err, document["schema"]) == (0, "", 1)
    assert (document["tensors"], document["payload_bytes"]) == (96085, 510286023000)
    assert document["parameters"] == 763205315794
    for field, total in (("bytes", 510286023000), ("parameters", 763205315794), ("tensors", 96085)):
        assert sum(part[field] for part in document["parts"].values()) == total
    status, out, _ = run(capsys, "inspect", "--released")
    assert status == 0 and "96,085" in out and "7,932,874,632" in out


def test_inspect_a_folder(capsys: pytest.CaptureFixture[str], tiny: Path) -> None:
    status, out, _ = run(capsys, "inspect", str(tiny), "--json")
    document = json.loads(out)
    assert status == 0
    assert (document["tensors"], document["stored_tensors"], document["shards"]) == (962, 962, 3)
    stored = open_files(tiny).stored
    assert sum(part["tensors"] for part in document["parts"].values()) == len(stored)
    assert sum(part["bytes"] for part in document["parts"].values()) == sum(
        one.end - one.begin for one in stored.values()
    )


def test_verify_right_and_wrong(capsys: pytest.CaptureFixture[str], tiny: Path, tmp_path: Path) -> None:
    status, out, err = run(capsys, "verify", str(tiny), "--json")
    document = json.loads(out)
    assert (status, err, document["ok"], document["problems"]) == (0, "", True, [])
    assert document["values_searched"] is True
    status, out, _ = run(capsys, "verify", str(tiny), "--headers")
    assert status == 0 and out.startswith("complete: 962 tensors, 4623026 bytes in 3 shards, values not searched")
    folder = copy(tiny, tmp_path / "copy")
    shard_of(folder, "norm.weight").unlink()
    status, out, _ = run(capsys, "verify", str(folder), "--json")
    document = json.loads(out)
    assert (status, document["ok"]) == (1, False)
    assert {"code", "file", "subject", "what", "fix"} == set(document["problems"][0])
    status, out, _ = run(capsys, "verify", str(folder))
    assert status == 1 and out.startswith("DI504: model-0000") and "more; --json lists them all" in out


def test_make_tiny(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = str(tmp_path / "new")
    assert run(capsys, "make-tiny", target, "--seed", "5")[:2] == (0, target + "\n")
    status, _, err = run(capsys, "make-tiny", target, "--seed", "5")
    assert status == 1 and err.startswith("DI511")


def test_plan(capsys: pytest.CaptureFixture[str], tiny: Path) -> None:
    words = ["plan", "--devices", "4", "--memory-bytes", H200]
    status, out, _ = run(capsys, *words, "--json")
    document = json.loads(out)
    assert status == 0
    assert (document["weight_bytes"], document["kv_budget_bytes"]) == (85530033480, 56634852024)
    assert (document["longest_context"], document["reserve_bytes"]) == (1048576, 8 << 30)
    status, out, _ = run(capsys, *words, "--engram", "device")
    assert status == 0 and "136,219,541,712" in out and "device memory" in out
    status, _, err = run(capsys, "plan", "--devices", "1", "--memory-bytes", H200)
    assert status == 1 and err.startswith("DI512")
    assert run(capsys, *words, "--model", str(tiny))[0] == 0


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["frobnicate"],
        ["inspect"],
        ["inspect", "DIR", "--released"],
        ["verify"],
        ["verify", "DIR", "--jsn"],
        ["verify", "DIR", "--js"],
        ["make-tiny", "DIR"],
        ["make-tiny", "DIR", "--seed", "one"],
        ["make-tiny", "DIR", "--seed", "-1"],
        ["plan", "--devices", "4"],
        ["plan", "--devices", "0", "--memory-bytes", H200],
        ["plan", "--devices", "4", "--memory-bytes", "141GB"],
        ["plan", "--devices", "4", "--memory-bytes", H200, "--engram", "disk"],
        ["download", "a", "b"],
    ],
)
def test_wrong_words_end_with_2(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    status, out, err = run(capsys, *words)
    assert (status, out) == (2, "")
    assert err.startswith("DI001") and "fix:" in err


def test_progress_only_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tiny: Path
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    status, _, err = run(capsys, "verify", str(tiny))
    assert status == 0 and "100 %" in err and err.endswith("\n")


def test_a_local_copy_is_named_and_nothing_fetched(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tiny: Path, tmp_path: Path
) -> None:
    monkeypatch.setenv(download.VARIABLE, str(tiny))
    assert run(capsys, "download")[:2] == (0, f"{tiny}\n")
    monkeypatch.setenv(download.VARIABLE, str(tmp_path))
    status, _, err = run(capsys, "download")
    assert status == 1 and err.startswith("DI513") and download.VARIABLE in err


def test_without_a_network_the_error_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub: Any = pytest.importorskip("huggingface_hub", reason="not run: huggingface-hub is not installed")
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    def fails(error: Exception) -> str:
        def snapshot(name: str, allow_patterns: list[str]) -> str:
            assert not [pattern for pattern in allow_patterns if "bin" in pattern or "py" in pattern or "pt" in pattern]
            raise error

        monkeypatch.setattr(hub, "snapshot_download", snapshot)
        with pytest.raises(DownloadFailed, match="DI513") as caught:
            download.locate(environment={})
        return str(caught.value)

    assert "hub cannot be reached" in fails(LocalEntryNotFoundError("offline"))
    assert "No space left" in fails(OSError(28, "No space left on device"))
    response: Any = type("Response", (), {"headers": {}, "status_code": 401, "request": None, "url": ""})()
    assert "the hub refused" in fails(HfHubHTTPError("401", response=response))
    with pytest.raises(DownloadFailed, match="no name of a repository"):
        monkeypatch.undo()
        download.locate("a b c", environment={})
    monkeypatch.setattr(hub, "snapshot_download", lambda name, allow_patterns: str(tmp_path))
    assert download.locate(environment={}) == tmp_path


@pytest.mark.parametrize("package", ["safetensors", "tokenizers", "huggingface_hub"])
def test_a_missing_package_is_named(package: str, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(PackageMissing, match=r"DI510.*not installed"):
        if package == "safetensors":
            make(tmp_path / "new", seed=1)
        elif package == "tokenizers":
            verify(tiny)
        else:
            download.locate(environment={})


def test_an_old_safetensors_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import safetensors

    monkeypatch.setattr(safetensors, "__version__", "0.5.3")
    with pytest.raises(PackageMissing, match=r"0\.5\.3 is too old"):
        make(tmp_path / "new", seed=1)
    assert list(tmp_path.iterdir()) == []


def test_the_released_figures_need_no_package() -> None:
    blocked = "import sys; sys.modules.update(dict.fromkeys(%r)); from deepinfer.checkpoint import main; " % (
        ["torch", "numpy", "safetensors", "tokenizers", "huggingface_hub"],
    )
    words = [sys.executable, "-c", blocked + "sys.exit(main(['inspect', '--released', '--json']))"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tensors"] == 96085


def test_the_module_is_a_command() -> None:
    words = [sys.executable, "-m", "deepinfer.checkpoint", "plan", "--devices", "4", "--memory-bytes", H200]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "56,634,852,024" in done.stdout
