"""Where a checkpoint is: the local copy that DEEPINFER_HF_MODEL_DIR names, or one fetched from Hugging Face."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from deepinfer.engine.checkpoint.errors import DownloadFailed
from deepinfer.engine.checkpoint.fields import FILE
from deepinfer.engine.checkpoint.released import REPOSITORY
from deepinfer.engine.checkpoint.shards import missing

VARIABLE = "DEEPINFER_HF_MODEL_DIR"
PATTERNS = ("*.json", "*.safetensors", "*.txt", "LICENSE*")  # no pickles, no code
HAND = "copy the files to a folder yourself and export %s=FOLDER" % VARIABLE


def local_copy(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The folder that DEEPINFER_HF_MODEL_DIR names, or None where it is not set."""
    named = environment.get(VARIABLE, "").strip()
    if not named:
        return None
    folder = Path(named).expanduser()
    if not (folder / FILE).is_file():
        what = "%s is %s, and there is no %s in it" % (VARIABLE, named, FILE)
        raise DownloadFailed(what, fix="export %s=FOLDER with the folder of the checkpoint, or unset it" % VARIABLE)
    return folder


def locate(repository: str = REPOSITORY, environment: Mapping[str, str] = os.environ) -> Path:
    """Folder of the checkpoint; fetched (510 GB for the release) if no local copy is named. A broken fetch goes on."""
    folder = local_copy(environment)
    if folder is not None:
        return folder
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    except ImportError as error:
        raise missing("huggingface-hub") from error
    try:
        return Path(snapshot_download(repository, allow_patterns=list(PATTERNS)))
    except HFValidationError as error:
        raise DownloadFailed(
            "%r is no name of a repository" % repository, fix="OWNER/NAME, such as %s" % REPOSITORY
        ) from error
    except LocalEntryNotFoundError as error:
        what = "%s is not in the local cache, and the hub cannot be reached" % repository
        raise DownloadFailed(
            what, why=_reason(error), fix="connect this host (HF_HUB_OFFLINE unset), or %s" % HAND
        ) from error
    except HfHubHTTPError as error:
        fix = "check the name, and for a gated repository: hf auth login; or %s" % HAND
        raise DownloadFailed("the hub refused %s" % repository, why=_reason(error), fix=fix) from error
    except OSError as error:
        fix = "see that the network is up and the disk has room (HF_HOME says where it goes), or %s" % HAND
        raise DownloadFailed("%s was not fetched" % repository, why=_reason(error), fix=fix) from error


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
