"""The page in a browser: Playwright drives Debian's Chromium, or the one that Playwright installed."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import switchgear as sg
from tests.libraries.tiny import batch, gpt2

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
CHROMIUM = shutil.which("chromium")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        if CHROMIUM is None and not os.path.exists(driver.chromium.executable_path):
            pytest.skip("no Chromium is installed")
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium: Any, tmp_path: Path) -> Iterator[Callable[[Any], Any]]:
    """Open the page of a jitted function; no error may have reached the console at the end."""
    page = chromium.new_page(viewport={"width": 1280, "height": 800})
    errors: list[str] = []
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: errors.append(request.url) if "://" in request.url[5:] else None)

    def open_page(f: Any) -> Any:
        page.goto(sg.explain(f).html(tmp_path / "trace.html").as_uri())
        page.wait_for_selector("html[data-ready]")
        return page

    yield open_page
    page.close()
    assert not errors


def trained(model: Any, **options: Any) -> Any:
    f = sg.jit(model, **options)
    f(**batch(0)).loss.backward()
    return f


def test_a_backward_line_lights_its_forward_line_and_the_forward_line_lights_it(opened: Any) -> None:
    page = opened(trained(gpt2(n_layer=12).train(), executors=["torch"]))
    page.locator("#backward .row", has_text="native_layer_norm_backward").first.click()
    lit = page.locator("#forward .row.partner")
    playwright.expect(lit.first).to_contain_text("layer_norm")
    lit.first.click()
    playwright.expect(page.locator("#backward .row.partner").first).to_be_visible()
    page.keyboard.press("Enter")
    playwright.expect(page.locator("#backward .row.selected")).to_have_count(1)
    playwright.expect(page.locator("#details")).to_contain_text("grad rule")
    results = page.locator("#details dd").first.inner_text().splitlines()
    assert len(results) == 3
    assert all(" f32[" in result for result in results)


@pytest.mark.discovery
@pytest.mark.slow
def test_regions_of_the_default_executors_unfold_and_light_through(opened: Any) -> None:
    page = opened(trained(gpt2(n_layer=12).train(), compile="now"))
    region = page.locator("#backward .row[aria-expanded]").first
    region.click()
    playwright.expect(page.locator("#forward .row.partner").first).to_be_attached()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    playwright.expect(page.locator("#backward .row.part.selected")).to_have_count(1)
    playwright.expect(page.locator("#forward .row.partner")).to_have_count(1)
    page.keyboard.press("ArrowLeft")
    playwright.expect(page.locator("#backward .row.part")).to_have_count(0)


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
def test_search_stages_and_plot_of_a_checkpointed_model(opened: Any) -> None:
    model = gpt2().train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    page = opened(trained(model, executors=["torch"]))
    page.keyboard.press("/")
    page.keyboard.type("tanh")
    playwright.expect(page.locator("#matches")).to_have_text(re.compile(r"^\d+ matches$"))
    page.keyboard.press("Enter")
    playwright.expect(page.locator(".row.selected").first).to_contain_text("tanh")
    page.keyboard.press("Escape")
    playwright.expect(page.locator("#matches")).to_have_text("")
    page.keyboard.press("2")
    slider = page.locator("#stage")
    slider.focus()
    page.keyboard.press("ArrowLeft")
    playwright.expect(page.locator("#stage-name")).to_contain_text("lines added")
    slider.fill("1")
    playwright.expect(page.locator("#stage-name")).to_contain_text("dead_code")
    playwright.expect(page.locator("#stage-lines .row.removed").first).to_be_visible()
    page.keyboard.press("3")
    said = page.locator("#at")
    peak = re.search(r"line \d+: (.*?) in .*peak (.*)", said.inner_text())
    assert peak
    assert peak[1] == peak[2]
    before = said.inner_text()
    page.locator("#plot").focus()
    page.keyboard.press("ArrowRight")
    playwright.expect(said).not_to_have_text(before)
    assert page.locator("#largest tbody tr").count() == 6


def test_the_keyboard_reaches_every_list(opened: Any) -> None:
    page = opened(trained(gpt2().train(), executors=["torch"]))
    reached = set()
    for _ in range(16):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id"))
    assert {"search", "help-button", "tree", "forward", "backward"} <= reached
    page.locator("#tree").focus()
    for _ in range(4):
        page.keyboard.press("ArrowDown")
    playwright.expect(page.locator("#forward .row.dim").first).to_be_attached()
    page.keyboard.press("?")
    playwright.expect(page.locator("#help")).to_be_visible()
    page.keyboard.press("Escape")
    playwright.expect(page.locator("#help")).to_be_hidden()


@pytest.mark.filterwarnings("ignore::switchgear.errors.FallbackWarning")
def test_a_fallback_is_told_first(opened: Any) -> None:
    f = sg.jit(lambda x: x.sin() * x.sum().item(), executors=["torch"])
    f(torch.ones(3))
    page = opened(f)
    playwright.expect(page.locator("#alerts")).to_contain_text("needs the data of a tensor")


def test_names_of_the_user_are_text(opened: Any) -> None:
    module = torch.nn.Sequential()
    module.add_module("<b id=injected>", torch.nn.Linear(2, 2))
    f = sg.jit(torch.nn.Sequential(module), executors=["torch"])
    result: Tensor = f(torch.ones(1, 2))
    result.sum().backward()
    page = opened(f)
    playwright.expect(page.locator("#tree")).to_contain_text("<b id=injected>")
    assert not page.locator("#injected").count()


@pytest.mark.parametrize("width", [390, 1280])
def test_no_view_is_wider_than_its_window(opened: Any, width: int) -> None:
    page = opened(trained(gpt2().train(), executors=["torch"]))
    page.set_viewport_size({"width": width, "height": 844})
    for view in "1234":
        page.keyboard.press(view)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
