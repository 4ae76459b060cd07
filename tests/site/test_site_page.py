"""The page in a browser: alone, without JavaScript, by keyboard, on narrow screens, in both colors, readable."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browser import Page

Printed = Callable[..., str]
SIZES = [(width, dark) for width in (360, 768, 1280) for dark in (False, True)]
# Every text that can be seen, with the contrast between its color and the first background behind it.
CONTRAST = """
const parse = (color) => color.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
  .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const behind = (node) => {
  for (; node; node = node.parentElement) {
    const color = parse(getComputedStyle(node).backgroundColor);
    if (color.length === 3 || color[3] === 1) return color;
  }
  return [255, 255, 255];
};
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const low = [];
let seen = 0;
while (walker.nextNode()) {
  const node = walker.currentNode.parentElement;
  const text = walker.currentNode.data.trim();
  if (!text || !node.checkVisibility() || ["SCRIPT", "STYLE"].includes(node.tagName)) continue;
  seen += 1;
  const [one, other] = [light(parse(getComputedStyle(node).color)), light(behind(node))].sort((a, b) => b - a);
  const ratio = (one + 0.05) / (other + 0.05);
  if (ratio < 4.5) low.push(`${ratio.toFixed(2)} ${node.className} ${walker.currentNode.data.slice(0, 40)}`);
}
return [seen, low];
"""
WIDE = """
return [...document.querySelectorAll("body *")].filter((node) => node.checkVisibility()
  && !node.closest(".skip, thead, svg") && node.getBoundingClientRect().right > innerWidth + 1)
  .map((node) => node.outerHTML.slice(0, 120))
"""


def test_it_opens_from_a_file_quietly_and_asks_for_nothing(page: Page, printed: Printed) -> None:
    page.read(printed("b200_driver570_cuda13", "--json"))
    assert page.requests() == [page.url]
    assert page.complaints() == []


def test_its_policy_lets_nothing_out_and_no_foreign_script_in(page: Page) -> None:
    page.driver.set_script_timeout(10)
    refused = page.driver.execute_async_script(
        """const done = arguments[0];
        const script = document.createElement("script"); script.textContent = "window.hit = 1";
        document.body.append(script);
        const image = new Image(); image.onerror = () =>
          fetch("http://127.0.0.1:9/").then(() => done("went out"), () => done(window.hit === undefined));
        image.src = "http://127.0.0.1:9/x.png"; """
    )
    assert refused is True
    blocked = [line for line in page.complaints() if "Content Security Policy" in line]
    assert len(blocked) >= 3


def test_without_javascript_everything_but_the_box_is_there(page: Page) -> None:
    page.look(1280, dark=False, scripts=False)
    try:
        page.open()
        from selenium.webdriver.common.by import By

        text = page.driver.find_element(By.TAG_NAME, "body").text
        box = page.driver.find_element(By.ID, "box").is_displayed()
        field = page.driver.find_element(By.ID, "filter").is_displayed()
    finally:
        page.look(1280, dark=False, scripts=True)
    assert "needs JavaScript" in text and not box and not field
    for words in (
        "nvidia-sm100",
        "Open blockers",
        "KV cache system",
        "Use DeepSeek Harness",
        "all tensors",
        "one scale-up domain",
    ):
        assert words in text


@pytest.mark.parametrize(("width", "dark"), SIZES)
@pytest.mark.parametrize("host", ["", "b200_driver570_cuda13", "h20_3e_x4", "long"])
def test_fits_its_screen_and_can_be_read(
    page: Page, printed: Printed, document: Any, width: int, dark: bool, host: str
) -> None:
    page.look(width, dark=dark)
    if host == "long":
        long = document("b200_driver570_cuda13")
        long["devices"][0]["name"] = "N" * 300
        long["checks"][-1].update(found="/" + "very_long_path" * 40, fix="x" * 400)
        page.read(long)
    elif host:
        page.read(printed(host, "--json"))
    else:
        page.read("nothing that it reads")
    page.run("for (const one of document.querySelectorAll('details')) one.open = true")
    assert page.run("return document.documentElement.scrollWidth") <= width
    assert page.run(WIDE) == []
    seen, low = page.run(CONTRAST)
    assert seen > 200 and low == []


def test_the_contrast_test_can_fail(page: Page) -> None:
    page.run("document.querySelector('.lead').style.color = '#999'")
    assert len(page.run(CONTRAST)[1]) == 1


def test_dark_is_dark_and_light_is_light(page: Page) -> None:
    shades = []
    for dark in (False, True):
        page.look(1280, dark=dark)
        shades.append(page.run("return Number(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])"))
    assert shades[0] > 200 > 60 > shades[1]


def keys(page: Page, *pressed: str, holding: str = "") -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    actions = ActionChains(page.driver)
    if holding:
        actions.key_down(holding)
    actions.send_keys(*pressed)
    if holding:
        actions.key_up(holding)
    actions.perform()


def focused(page: Page) -> str:
    return str(
        page.run(
            "return document.activeElement.id || document.activeElement.className || document.activeElement.tagName"
        )
    )


def test_by_keyboard_alone(page: Page, printed: Printed) -> None:
    from selenium.webdriver.common.keys import Keys

    keys(page, Keys.TAB)
    assert focused(page) == "skip"
    assert page.run("return document.activeElement.getBoundingClientRect().left") >= 0
    keys(page, Keys.ENTER, Keys.TAB)
    assert focused(page) == "text"
    page.run("document.activeElement.value = arguments[0]", printed("h20_3e_x4", "--json"))
    keys(page, Keys.TAB)
    assert focused(page) == "read"
    keys(page, Keys.ENTER)
    assert focused(page) == "answer" and page.sentence().startswith("Draft RFC only")
    order = []
    for _ in range(3):
        keys(page, Keys.TAB, holding=Keys.SHIFT)
        order.append(focused(page))
    assert order == ["clear", "choose", "read"]
    keys(page, Keys.TAB, holding=Keys.SHIFT)
    page.run("document.activeElement.value = '[]'")
    keys(page, Keys.ENTER, holding=Keys.CONTROL)
    assert "a list" in page.sentence()


def test_a_real_paste_is_read_at_once(page: Page, printed: Printed) -> None:
    from selenium.webdriver.common.keys import Keys

    page.run(
        "const text = document.getElementById('text'); text.value = arguments[0]; text.focus(); text.select()",
        printed("b300x8_r610", "--json"),
    )
    keys(page, "x", holding=Keys.CONTROL)
    assert page.run("return document.getElementById('text').value") == "" and page.sentence() == ""
    keys(page, "v", holding=Keys.CONTROL)
    page.wait_for("Not supported: 8 x NVIDIA B300")
    assert focused(page) == "text"


def test_every_stop_of_the_keyboard_can_be_seen(page: Page) -> None:
    from selenium.webdriver.common.keys import Keys

    seen = set()
    for _ in range(80):
        keys(page, Keys.TAB)
        style, width, name = page.run(
            """const node = document.activeElement, style = getComputedStyle(node);
            return [style.outlineStyle, parseFloat(style.outlineWidth), node.tagName]"""
        )
        if name == "BODY":
            break
        assert style != "none" and width >= 2, name
        seen.add(name)
    assert {"A", "BUTTON", "TEXTAREA", "INPUT", "SUMMARY"} <= seen


def test_the_answer_is_announced_and_every_field_has_a_name(page: Page) -> None:
    assert page.run("const a = document.getElementById('answer'); return [a.getAttribute('role'), a.ariaLive]") == [
        "status",
        "polite",
    ]
    assert (
        page.run(
            """return [...document.querySelectorAll("input, textarea")]
            .filter((field) => !field.labels.length && !field.ariaLabel).length"""
        )
        == 0
    )
    assert page.run("return document.querySelectorAll('h1').length") == 1


@pytest.mark.parametrize(
    ("typed", "left"),
    [
        ("b300", ["nvidia-sm103"]),
        ("10.0", None),
        ("10de:2901", ["nvidia-sm100"]),
        ("draft ascend", ["ascend-910c"]),
        ("zzz", []),
    ],
)
def test_the_filter(page: Page, typed: str, left: list[str] | None) -> None:
    field = page.run("return document.getElementById('filter')")
    field.send_keys(typed)
    shown = page.run(
        """return [...document.querySelectorAll("#matrix tbody tr")].filter((row) => row.checkVisibility())
        .map((row) => row.querySelector("code").textContent)"""
    )
    assert "nvidia-sm100" in shown if left is None else shown == left
    assert page.run("return document.getElementById('filter-count').textContent") == "%d of 13 entries" % len(shown)


def test_it_prints_without_the_box(page: Page) -> None:
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert (
            page.run(
                """return ["text", "read", "filter", "reading"]
                .filter((id) => document.getElementById(id).checkVisibility())"""
            )
            == []
        )
    finally:
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_axe_finds_nothing(page: Page, printed: Printed) -> None:
    axe = Path(os.environ.get("SITE_TESTS_AXE", "/nonexistent"))
    if not axe.is_file():
        pytest.skip("not run: SITE_TESTS_AXE names no axe.min.js (npm package axe-core)")
    for width, dark in SIZES:
        page.look(width, dark=dark)
        page.read(printed("h20_3e_x4", "--json"))
        page.run(axe.read_text(encoding="utf-8"))
        found = page.driver.execute_async_script(
            "const done = arguments[0]; axe.run().then((all) => done(all.violations))"
        )
        assert [(item["id"], [node["html"][:120] for node in item["nodes"]]) for item in found] == []
