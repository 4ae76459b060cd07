"""One headless Chromium for all tests of the page. Where there is none they are skipped and say so; CI has one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from browser import Page

ROOT = Path(__file__).resolve().parents[2]
SWITCHES = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def not_run(why: str) -> None:
    """Skips; fails where a browser was promised."""
    if os.environ.get("CI") == "true" or os.environ.get("SITE_TESTS_REQUIRE_BROWSER"):
        pytest.fail("not run: %s; install chromium, chromium-driver and selenium" % why)
    pytest.skip("not run: %s" % why)


@pytest.fixture(scope="session")
def driver() -> Iterator[Any]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    chromedriver = shutil.which("chromedriver")
    if not chromium or not chromedriver:
        not_run("no chromium")
    try:
        from selenium import webdriver
    except ImportError:
        not_run("no selenium")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with tempfile.TemporaryDirectory(prefix="chromium-profile-") as profile:
        for switch in (*SWITCHES, "--user-data-dir=%s" % profile):
            options.add_argument(switch)
        started = webdriver.Chrome(options=options, service=webdriver.ChromeService(chromedriver))
        try:
            yield started
        finally:
            started.quit()


@pytest.fixture
def page(driver: Any) -> Page:
    """The page, freshly opened from its file at 1280 pixels in light colors."""
    opened = Page(driver, ROOT / "site" / "index.html")
    opened.look(1280, dark=False)
    opened.open()
    return opened


@cache
def _probe(name: str, *words: str) -> str:
    record = ROOT / "tests" / "hosts" / ("%s.json" % name)
    command = [sys.executable, "-m", "deepinfer.probe", "--replay", str(record), *words]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("DEEPINFER_")}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False).stdout


@pytest.fixture(scope="session")
def printed() -> Callable[..., str]:
    """What the probe prints for a recorded host, with further words such as ``--json``."""
    return _probe


@pytest.fixture
def document() -> Callable[..., dict[str, Any]]:
    """The document of a recorded host as a dict that a test may change."""
    return lambda name, *words: json.loads(_probe(name, "--json", *words))
