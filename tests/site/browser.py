"""What a test does to the page, in the words of a reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Page:
    """site/index.html in a browser."""

    def __init__(self, driver: Any, path: Path) -> None:
        self.driver = driver
        self.url = path.resolve().as_uri()

    def open(self) -> None:
        for kind in ("browser", "performance"):
            self.driver.get_log(kind)  # reading empties it: what was logged for another test is not ours
        self.driver.get("about:blank")
        self.driver.get(self.url)

    def look(self, width: int, *, dark: bool, scripts: bool = True) -> None:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not scripts})

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def read(self, said: object) -> str:
        """Puts text (or an object, as JSON) into the box, presses the button; returns the answer."""
        text = said if isinstance(said, str) else json.dumps(said)
        self.run(
            "document.getElementById('text').value = arguments[0]; document.getElementById('read').click()",
            text,
        )
        return self.answer()

    def drop(self, *files: str) -> None:
        """Drops files of these contents somewhere on the page."""
        self.run(
            """const data = new DataTransfer();
            for (const text of arguments[0]) data.items.add(new File([text], "probe.json"));
            const event = new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true});
            document.body.dispatchEvent(event)""",
            list(files),
        )

    def answer(self) -> str:
        return str(self.run("return document.getElementById('answer').innerText"))

    def sentence(self) -> str:
        return str(self.run("return (document.querySelector('#answer p') || {}).textContent || ''"))

    def details(self) -> str:
        return str(self.run("return document.getElementById('details').textContent"))

    def wait_for(self, start: str) -> None:
        """Waits until the answer begins so: files and pastes are read a moment later."""
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, 10).until(lambda _: self.sentence().startswith(start), "never said: %s" % start)

    def look_of_answer(self) -> str:
        return str(self.run("return document.getElementById('answer').className"))

    def requests(self) -> list[str]:
        """Every address that was asked for since the page was opened."""
        entries = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [
            entry["params"]["request"]["url"] for entry in entries if entry["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in sent if not url.startswith("about:")]

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]
