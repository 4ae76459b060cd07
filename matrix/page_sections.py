"""The parts of site/index.html that show the matrix, as HTML. Every text of the matrix is escaped on its way in."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from html import escape
from typing import Any

from deepinfer.matrix.blocks import Index, in_order, needs
from deepinfer.matrix.load import Tree
from deepinfer.matrix.vocabulary import ACCELERATED, PROPOSED, REFUSED, SOURCE_KINDS, STATUSES


def sections(index: Index, tree: Tree) -> dict[str, str]:
    """Name of each place of the template that shows the matrix -> its HTML."""
    return {
        "counts": _counts(index),
        "matrix": _matrix(index),
        "baseline": _baseline(index),
        "reasons": _reasons(index),
        "rfcs": _rfcs(index),
        "configurations": _configurations(tree),
        "parts": _parts(index, tree),
        "gaps": _list("list", [(gap["title"], _prose(gap["text"])) for gap in index["gaps"]]),
        "skip": _skip(index),
    }


def open_blockers(rfc: dict[str, Any]) -> list[dict[str, str]]:
    """Id and text of what still stands in the way."""
    return [{"id": item["id"], "text": " ".join(item["text"].split())} for item in rfc["blockers"]]


def _prose(text: str) -> str:
    """Text in which only `code` is markup; a date stays on one line."""
    marked = re.sub("`([^`]+)`", r"<code>\1</code>", escape(" ".join(text.split())))
    return re.sub(r"\b\d{4}-\d\d-\d\d\b", r'<span class="whole">\g<0></span>', marked)


def _number(value: int) -> str:
    """Digits grouped by spacing alone, so that a copy holds the plain number."""
    groups = format(value, ",d").split(",")
    return "".join('<span class="group">%s</span>' % group for group in groups)


def _table(name: str, label: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    # On a narrow screen the rows become blocks, and a browser then forgets that they are a table: hence the roles.
    lines = ['<table class="%s" role="table" aria-label="%s">' % (name, escape(label)), '<thead role="rowgroup">']
    cells = ['<th role="columnheader" scope="col">%s</th>' % cell for cell in head]
    lines += ['<tr role="row">%s</tr>' % "".join(cells), "</thead>", '<tbody role="rowgroup">']
    for first, *rest in rows:
        cells = ['<th role="rowheader" scope="row">%s</th>' % first]
        cells += ['<td role="cell" data-label="%s">%s</td>' % pair for pair in zip(head[1:], rest, strict=True)]
        lines.append('<tr role="row">%s</tr>' % "".join(cells))
    return "\n".join([*lines, "</tbody>", "</table>"])


def _list(name: str, pairs: Sequence[tuple[str, str]]) -> str:
    rows = ["<dt>%s</dt><dd>%s</dd>" % (escape(term), text) for term, text in pairs]
    return '<dl class="%s">\n%s\n</dl>' % (name, "\n".join(rows))


def _status(status: str) -> str:
    groups = (("built", ACCELERATED), ("proposed", PROPOSED), ("refused", REFUSED))
    look = next((name for name, words in groups if status in words), "named")
    return '<span class="status %s">%s</span>' % (look, status)


def _counts(index: Index) -> str:
    counts = Counter(entry["status"] for entry in index["entries"])
    order = sorted(STATUSES, key=lambda status: status not in ACCELERATED)
    return " · ".join("%d %s" % (counts[status], status) for status in order if counts[status])


def _matrix(index: Index) -> str:
    rows = []
    for entry in in_order(index):
        status = _status(entry["status"])
        if entry["rfc"] is not None:
            status += ' <a href="#rfc-%d">RFC %d</a>' % (entry["rfc"], entry["rfc"])
        title = '%s<span class="sub"><code>%s</code></span>%s' % (
            escape(entry["title"]),
            entry["id"],
            _recognized(entry),
        )
        engine, who = escape(entry["engine"]), _prose(entry["provenance"])
        rows.append((title, status, who, engine, _prose(needs(entry))))
    return _table("wide", "Support matrix", ("Device", "Status", "Says who", "This engine", "Toolkit"), rows)


def _recognized(entry: dict[str, Any]) -> str:
    match = entry["match"]
    words = ["compute capability %s" % name for name in match["compute_capabilities"]]
    words += match["soc"] + ["%s %s" % pair for pair in sorted(match["pci"].items())]
    if not words:
        return ""
    text = escape(", ".join(words))
    return '<details class="match"><summary>recognized by</summary>%s</details>' % text


def _baseline(index: Index) -> str:
    baseline = index["baseline"]
    return "Every accelerator also needs %s (%s), GCC <code>%s</code> and Python <code>%s</code>." % (
        escape(baseline["os"]),
        escape(" or ".join(baseline["machines"])),
        escape(baseline["gcc"]["text"]),
        escape(baseline["python"]["text"]),
    )


def _reasons(index: Index) -> str:
    return _list("list", [(entry["title"], _prose(entry["reason"])) for entry in in_order(index) if entry["reason"]])


def _rfcs(index: Index) -> str:
    articles = []
    for number, rfc in sorted(index["rfcs"].items(), key=lambda pair: int(pair[0])):
        entries = [entry for entry in index["entries"] if entry["rfc"] == int(number)]
        named = ", ".join("%s (<code>%s</code>)" % (escape(entry["title"]), entry["id"]) for entry in entries)
        statuses = " ".join(_status(status) for status in sorted({entry["status"] for entry in entries}))
        blockers = ["<li><code>%s</code> %s</li>" % (one["id"], _prose(one["text"])) for one in open_blockers(rfc)]
        links = ['<a href="../%s">%s</a>' % (escape(rfc["file"]), escape(rfc["file"]))]
        if rfc["upstream"]:
            links.append('<a href="%s">upstream</a>' % escape(rfc["upstream"]))
        articles.append(
            '<article class="rfc" id="rfc-%s">\n<h3>RFC %s: %s</h3>\n<p>%s</p>\n%s<p>%s</p>\n</article>'
            % (
                number,
                number,
                escape(rfc["title"]),
                "%s %s" % (statuses, named) if entries else "About the process; no device belongs to it.",
                "<p>Open blockers: %d</p>\n<ul>\n%s\n</ul>\n" % (len(blockers), "\n".join(blockers))
                if blockers
                else "",
                " · ".join(links),
            )
        )
    return "\n".join(articles)


def _configurations(tree: Tree) -> str:
    rows = []
    for document in tree.of("entry"):
        sources = {source["id"]: source for source in document.data["source"]}
        for item in document.data.get("configuration", []):
            source = sources[item["source"]]
            said = _prose("%s, read %s" % (SOURCE_KINDS[source["kind"]], source["read"]))
            if "url" in source:
                said = '<a href="%s">%s</a>' % (escape(source["url"]), said)
            statement = '%s<span class="sub"><code>%s</code></span>' % (_prose(item["says"]), document.data["id"])
            memory = _number(item["memory_bytes"]) if "memory_bytes" in item else "not stated"
            rows.append((statement, item["role"], "%d" % item["count"], memory, escape(item["domain"]), said))
    head = ("Statement", "Role", "Devices", "Bytes each", "Domain", "Source")
    return _table("wide", "Machines that are spoken of", head, rows)


def _parts(index: Index, tree: Tree) -> str:
    model = index["model"]
    rows = [_part(part["name"], part["bytes"], model["payload_bytes"]) for part in model["parts"]]
    for name, count in (("all tensors", model["payload_bytes"]), ("files, headers included", model["file_bytes"])):
        rows.append(
            '<tr class="total"><th scope="row">%s</th><td class="number">%s</td><td class="bar-cell"></td></tr>'
            % (name, _number(count))
        )
    head = '<th scope="col">Part</th><th scope="col" class="number">Bytes</th><th scope="col">Share</th>'
    said = ["%s: %s" % (SOURCE_KINDS[item["kind"]], item["says"]) for item in tree.of("model")[0].data["source"]]
    sources = "".join("<li>%s</li>" % _prose(text[0].upper() + text[1:]) for text in said)
    table = '<table class="bars" aria-label="Parts in bytes"><thead><tr>%s</tr></thead>\n<tbody>\n%s\n</tbody></table>'
    return "%s\n<ul>%s</ul>" % (table % (head, "\n".join(rows)), sources)


def _part(name: str, count: int, total: int) -> str:
    # An attribute, since the page's policy forbids styles inside elements; tenths of a percent are enough for a bar.
    width = max(count * 1000 // total, 2)
    svg = '<svg class="bar" viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true">%s</svg>'
    bar = svg % ('<rect width="%d" height="10"/>' % width)
    cells = '<td class="number">%s</td><td class="bar-cell">%s</td>' % (_number(count), bar)
    return '<tr><th scope="row">%s</th>%s</tr>' % (escape(name), cells)


def _skip(index: Index) -> str:
    items = [
        "<li>%s <strong>%s</strong></li>" % (_prose(item["when"]), _prose(item["advice"])) for item in index["skip"]
    ]
    return '<ul class="check">\n%s\n</ul>' % "\n".join(items)
