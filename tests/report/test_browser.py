"""The report as a browser shows it."""

import base64
import json
from pathlib import Path

import pytest

from dask_nrbfn.report import write_report

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
MISSING = [str(path) for path in (CHROMIUM, DRIVER) if not path.exists()]
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Not the page that a new tab shows, which has requests of its own.
    "about:blank",
)

pytestmark = [
    pytest.mark.ci,
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(MISSING), reason=f"{', '.join(MISSING)} missing; install chromium, chromium-driver"
    ),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    yield driver
    driver.quit()


@pytest.fixture(scope="module", params=[("tuned", None), ("regression", "evaluation")])
def address(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.html"
    run, evaluation = (name and request.getfixturevalue(name) for name in request.param)
    write_report(run, path, evaluation=evaluation)
    return path.as_uri()


def emulate(browser, *, media="screen", scheme="light"):
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})


def requests(browser):
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return [params["request"]["url"] for params in sent]


def test_browser__asks_for_the_page_alone(browser, address):
    # What was asked for before.
    requests(browser)
    browser.get(address)
    assert [url for url in requests(browser) if not url.startswith("data:")] == [address]
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.compatMode") == "CSS1Compat"


@pytest.mark.parametrize("width", [375, 1200])
def test_browser__fits_the_width_and_draws_the_charts(browser, address, width):
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False},
    )
    browser.get(address)
    emulate(browser)
    shown = browser.execute_script("return document.documentElement.scrollWidth")
    assert shown <= browser.execute_script("return window.innerWidth") == width
    # Only a scrolling region hides something.
    beyond = browser.execute_script(
        "return [...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll, svg')"
        " && e.getBoundingClientRect().right > window.innerWidth).map(e => e.outerHTML)"
    )
    assert beyond == []
    boxes = (
        "return [...document.querySelectorAll('{}')].map(e => e.getBoundingClientRect())"
        ".map(r => [r.width, r.height])"
    )
    charts = browser.execute_script(boxes.format("svg"))
    assert charts
    assert all(wide > 250 and high > 150 for wide, high in charts)
    assert min(high for _, high in browser.execute_script(boxes.format("svg text"))) > 9


@pytest.mark.parametrize(("media", "dark"), [("screen", True), ("print", False)])
def test_browser__dark_on_the_screen_and_light_on_paper(browser, address, media, dark):
    browser.get(address)
    emulate(browser, media=media, scheme="dark")
    colour = "return getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)"
    assert (max(browser.execute_script(colour)) < 64) == dark
    text = "return getComputedStyle(document.querySelector('svg text')).fill.match(/[0-9]+/g)"
    assert (min(map(int, browser.execute_script(text))) > 192) == dark
    emulate(browser)


def test_browser__prints(browser, address):
    browser.get(address)
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert base64.b64decode(printed["data"]).startswith(b"%PDF")
