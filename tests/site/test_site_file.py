"""The file itself, without a browser: small, alone, closed to the outside, and true to the matrix."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from deepinfer.matrix import page
from deepinfer.matrix.load import ROOT, load
from deepinfer.matrix.page import TEMPLATES, page_text
from deepinfer.probes.verdict import EXIT_CODES, SCHEMA

PAGE = (ROOT / "site/index.html").read_text(encoding="utf-8")
SCRIPT = (TEMPLATES / "page.js").read_text(encoding="utf-8")
LOADING = {"src", "srcset", "data", "poster", "action", "formaction", "background", "manifest", "style"}


class Elements(HTMLParser):
    """All start tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


ELEMENTS = Elements(PAGE).found


def test_it_is_under_300_kB() -> None:
    assert len(PAGE.encode("utf-8")) < 300_000


def test_it_loads_nothing() -> None:
    assert not [(tag, name) for tag, names in ELEMENTS for name in names if name in LOADING or name.startswith("on")]
    assert not {tag for tag, _ in ELEMENTS} & {"link", "img", "iframe", "object", "embed", "base", "form", "font"}
    assert "@import" not in PAGE and "url(" not in PAGE


def test_links_are_safe_and_lead_somewhere() -> None:
    ids = {names["id"] for _, names in ELEMENTS if "id" in names}
    links = [str(names["href"]) for tag, names in ELEMENTS if tag == "a"]
    assert len(links) > 10
    for link in links:
        if link.startswith("#"):
            assert link[1:] in ids, link
        elif not link.startswith("https://"):
            assert (ROOT / "site" / link).resolve().is_file(), link


def test_ids_are_unique() -> None:
    ids = [names["id"] for _, names in ELEMENTS if "id" in names]
    assert len(ids) == len(set(ids))


def test_the_policy_names_this_script_and_style_alone() -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', PAGE)
    assert policy and "default-src 'none'" in policy.group(1) and "unsafe" not in policy.group(1)
    for pattern in (r"<style>(.*?)</style>", r"<script>(.*?)</script>"):
        (text,) = re.findall(pattern, PAGE, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
        assert "'sha256-%s'" % digest in policy.group(1)


def test_the_script_makes_no_markup_of_text() -> None:
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
        "fetch(",
        "import(",
    ):
        assert word not in SCRIPT


def test_the_script_knows_the_probe_of_this_tree() -> None:
    assert "const SCHEMA = %d;" % SCHEMA in SCRIPT
    (listed,) = re.findall(r"const VERDICTS = (\[.*?\]);", SCRIPT)
    assert set(json.loads(listed)) == set(EXIT_CODES)


def rows() -> dict[str, str]:
    """Entry -> its row of the matrix."""
    (table,) = re.findall(r'aria-label="Support matrix">.*?</table>', PAGE, re.DOTALL)
    found = re.findall(r'<tr role="row">(<th role="rowheader".*?)</tr>', table, re.DOTALL)
    return {re.findall(r"<code>([a-z0-9-]+)</code>", row)[0]: row for row in found}


def index() -> dict[str, Any]:
    data: dict[str, Any] = json.loads((ROOT / "matrix/index.json").read_text(encoding="utf-8"))
    return data


def test_every_entry_shows_status_source_and_this_engine() -> None:
    shown = rows()
    assert set(shown) == {entry["id"] for entry in index()["entries"]}
    for entry in index()["entries"]:
        text = re.sub(r"<[^>]+>", "", shown[entry["id"]])
        assert entry["status"] in text and entry["provenance"] in text and entry["engine"] in text


@pytest.mark.parametrize("status", ["draft", "accepted", "unsupported"])
def test_what_is_not_built_for_looks_like_nothing_else(status: str) -> None:
    for entry in index()["entries"]:
        if entry["status"] != status:
            continue
        text = rows()[entry["id"]]
        assert 'class="status built"' not in text
        words = re.sub(r"<[^>]+>", " ", text).replace("unsupported", "").lower()
        assert not re.search(r"\b(supported|supports?|works?|ready|eligible|stable|✓|✔)\b", words), entry["id"]


def test_everything_else_of_the_matrix_is_there() -> None:
    data, text = index(), unescape(re.sub(r"<[^>]+>", "", PAGE))
    for said in [gap["text"] for gap in data["gaps"]] + [item["advice"] for item in data["skip"]]:
        assert said.split("`")[0] in text
    for number, rfc in data["rfcs"].items():
        assert "RFC %s: %s" % (number, rfc["title"]) in text
        assert all(blocker["id"] in text for blocker in rfc["blockers"])
        assert not rfc["upstream"] or 'href="%s"' % rfc["upstream"] in PAGE
    assert all(str(part["bytes"]) in text for part in data["model"]["parts"])


def test_text_of_the_matrix_stays_text() -> None:
    tree = load(ROOT)
    entry = next(document for document in tree.of("entry") if document.data["status"] == "unsupported")
    entry.data["reason"] = "</script><img src=x onerror=alert(1)> & {{data}}"
    entry.data["title"] = "<b>bold</b>"
    text = page_text(tree)
    assert "<img" not in text and "<b>" not in text
    assert "&lt;img src=x" in text and "{{data}}" in text


def test_a_lost_template_is_an_error_with_a_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "TEMPLATES", tmp_path)
    with pytest.raises(page.NoTemplate, match="page.css cannot be read") as caught:
        page_text(load(ROOT))
    assert "git checkout -- matrix/templates" in caught.value.fix
