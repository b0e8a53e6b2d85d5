"""The dashboard in Chromium, on a Redis server of its own that can go away."""

from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

import bide
from bide.server.logs import Act, ActionLog
from tests.servers import RedisServer
from tests.system.dashboard.chromium import chromium, dashboard, look_like
from tests.system.dashboard.scene import set_past, set_scene
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("dashboard")]

BOUND = 60.0

AXE = files("axe_core_python").joinpath("axe.min.js").read_text("utf-8")

LONG = "x" * 512
"""The longest id and group, without a place to break the line; it begins with a queue's name."""

PAGES = {
    "": "Overview",
    "queue?queue=orders": "orders",
    "queue?queue=mail&state=dead": "mail",
    "message?queue=mail&id=mail-0": "mail-0",
    "message?queue=reminders&id=ann/weekly": "ann/weekly",
    "dead": "Dead letters",
    "workers": "Workers",
    "periodic": "Schedules and sources",
    "subscriptions": "Subscriptions",
    "audit": "Audit",
    "log": "Action log",
    "search?group=customer:7": "Search",
    "search?repeats=1": "Search",
    "nothing": "404",
    f"queue?queue={LONG[:128]}&state=dead": "x",
    f"message?queue={LONG[:128]}&id={LONG}": "x",
    f"search?q={LONG}": "Search",
}


SIDEWAYS = """
return [...document.querySelectorAll('.scroll')].filter(
  table => table.scrollWidth > table.clientWidth + 1).map(table => table.innerText.slice(0, 80))
"""
"""Return the tables that a desktop has to scroll sideways."""


class Tab:
    """A tab of the browser on the dashboard."""

    def __init__(self, browser: webdriver.Chrome, base: str) -> None:
        self.browser = browser
        self.base = base

    def open(self, path: str) -> None:
        self.browser.get(self.base + path)

    def until(self, text: str, *, without: str | None = None) -> None:
        """Wait until a text is on the page, and another is not."""

        def there(_: object) -> bool:
            found = self.text
            return text in found and (without is None or without not in found)

        wait = WebDriverWait(self.browser, BOUND, 0.05, [WebDriverException])
        wait.until(there, f"{text!r} is not on the page, or {without!r} is")

    @property
    def text(self) -> str:
        return self.browser.find_element(By.TAG_NAME, "body").text

    def press(self, name: str, within: str = "main") -> None:
        """Press a button by what is written on it."""
        self.on(f"//{within}//button[normalize-space()='{name}']", lambda one: one.click())

    def fill(self, label: str, text: str) -> None:
        """Write into a field by its label."""
        path = f"//label[starts-with(normalize-space(), '{label}')]/input"
        self.on(path, lambda one: one.send_keys(text))

    def on(self, path: str, do: Callable[[WebElement], object]) -> None:
        """Do something with an element; again, if the page has just replaced it."""

        def done(browser: webdriver.Chrome) -> bool:
            do(browser.find_element(By.XPATH, path))
            return True

        WebDriverWait(self.browser, BOUND, 0.05, [WebDriverException]).until(done, path)

    def complaints(self) -> list[str]:
        """Return what the browser complained of: what the policy forbids, errors of scripts."""
        log: list[dict[str, Any]] = self.browser.get_log("browser")  # type: ignore[no-untyped-call]
        signs = ("Content Security Policy", "Uncaught", "SyntaxError")
        said = [one["message"] for one in log]
        return [text for text in said if any(sign in text for sign in signs)]


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"), appendonly="yes", appendfsync="always")
    set_scene(server.url, orders=400)
    set_past(server.url)
    with bide.Queue(LONG[:128], server.url) as queue:
        queue.put({LONG: LONG}, id=LONG, group=LONG, headers={"note": LONG}, attempts=1)
        queue.claim()[0].bury(LONG)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def tab(redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    folder = tmp_path_factory.mktemp("browser")
    log = ActionLog(str(folder / "actions.log"))
    log.write([Act("cancel", "orders", 1)], who="ann", token="", client="", namespace=None)
    log.close()
    options = "--action-log", str(folder / "actions.log")
    with dashboard(f"{redis.url}?reconnect=1", *options) as base, chromium(folder) as browser:
        look_like(browser)
        yield Tab(browser, base)


HIDDEN = """
return [...document.querySelectorAll("td.buttons button")]
    .filter(one => one.getBoundingClientRect().right > innerWidth)
    .map(one => one.closest("tr").innerText)
"""
"""Returns the rows of tables whose buttons are out of sight until somebody scrolls sideways."""


def violations(tab: Tab, options: str) -> list[str]:
    """Return what axe finds wrong with the page."""
    found: list[str] = tab.browser.execute_async_script(
        f"const done = arguments[arguments.length - 1]; axe.run({options}).then(found => done("
        "found.violations.map(one => one.id + ': ' + one.nodes.map(node => node.html).join(' '))))"
    )
    return found


@pytest.mark.full
def test_every_page_is_accessible_and_fits_a_phone(tab: Tab) -> None:
    for path, heading in PAGES.items():
        tab.open(path)
        title = tab.browser.execute_script("return document.querySelector('h1').textContent")
        assert heading in title
        assert tab.browser.execute_script(SIDEWAYS) == [], path
        tab.browser.execute_script(AXE)
        assert violations(tab, "{}") == [], path
        look_like(tab.browser, scheme="dark")
        assert violations(tab, "{runOnly: ['color-contrast']}") == [], path
        look_like(tab.browser, width=768)
        assert tab.browser.execute_script(HIDDEN) == [], path
        look_like(tab.browser, width=320)
        # not compared with innerWidth: a phone zooms out until it shows what overflows
        needed = tab.browser.execute_script("return document.documentElement.scrollWidth")
        assert needed <= 320, path
        assert tab.browser.execute_script(HIDDEN) == [], path
        look_like(tab.browser)
    assert tab.complaints() == []


def test_numbers_change_while_a_page_is_open(tab: Tab, redis: RedisServer) -> None:
    tab.open("")
    with bide.Queue("arrivals", redis.url) as arrivals:
        arrivals.put_many(range(2))
        arrivals.claim(1)[0].bury("no")
        tab.until("arrivals 0 1 0 1")
    assert tab.complaints() == []


@pytest.mark.full
def test_one_axis_has_the_past_now_and_the_forecast(tab: Tab) -> None:
    """Each past of a part can be read; the times of the visitor are below those of UTC."""
    tab.browser.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "Asia/Tokyo"})
    for path, parts in (("", 24), ("queue?queue=orders", 24), ("?span=1h", 60), ("?span=7d", 5)):
        tab.open(path)
        tab.on("//*[name()='text'][@class='local']", lambda text: None)  # the next refresh has it
        axis: dict[str, Any] = tab.browser.execute_script(AXIS)
        assert parts - 1 <= len(axis["parts"]) <= parts + 1, path
        assert axis["parts"] == sorted(axis["parts"])
        assert axis["parts"][-1] <= axis["now"] + 1
        assert axis["bars"], path
        assert min(axis["bars"]) >= axis["now"] - 1
        assert all(length > 10 for length in axis["paths"])
        assert len(axis["utc"]) == len(axis["local"]) > 4
        if "7d" not in path:  # there the upper labels are dates
            for utc, local in zip(axis["utc"], axis["local"], strict=True):
                assert (int(utc[:2]) + 9) % 24 == int(local[:2])
                assert utc[2:] == local[2:]
    tab.open("")
    assert "Times are UTC; below them those of Asia/Tokyo." in tab.text
    tab.browser.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "UTC"})

    def zone_is_known() -> bool:
        tab.open("")  # a page says what the zone is, for those after it
        return "Times are UTC. " in tab.text

    until(zone_is_known)
    assert tab.browser.execute_script(AXIS)["local"] == []
    assert tab.complaints() == []


AXIS = """
const left = element => element.getBoundingClientRect().left;
const texts = selector => [...document.querySelectorAll(selector)].map(text => text.textContent);
return {
  parts: [...document.querySelectorAll(".plot .part")].map(left),
  bars: [...document.querySelectorAll(".plot .bar")].map(left),
  now: left(document.querySelector(".plot .now")),
  paths: [...document.querySelectorAll(".plot path, .late path")].map(
    path => path.getTotalLength()),
  utc: texts(".labels text:not(.local)"),
  local: texts(".labels .local"),
};
"""
"""Returns what is where on the axis of time."""


def test_a_store_that_goes_away_and_returns(tab: Tab, redis: RedisServer) -> None:
    tab.open("")
    redis.stop()
    tab.until("The store does not answer")
    redis.start()
    tab.until("What happened, and what falls due", without="The store does not answer")


def test_a_message_is_found_moved_copied_and_cancelled(tab: Tab, redis: RedisServer) -> None:
    tab.open("")
    tab.browser.find_element(By.TAG_NAME, "body").send_keys("/")  # goes to the search field
    tab.browser.switch_to.active_element.send_keys("order-40007" + Keys.ENTER)
    tab.until("Searched")
    tab.on("//a[normalize-space()='order-40007']", lambda one: one.click())
    tab.fill("due in", "3d")
    tab.press("Reschedule")
    tab.until("Rescheduled: 1.")
    tab.until("in 2d23h")
    tab.fill("new id", "copied")
    tab.press("Put a copy")
    tab.until("A copy was put.")
    tab.open("message?queue=orders&id=order-40007")
    tab.press("Cancel")
    tab.until("This can be undone for ten minutes")
    tab.press("Cancel")
    tab.until("Cancelled: 1.")
    with bide.Queue("orders", redis.url) as orders:
        assert orders.get("order-40007") is None
        assert (copy := orders.get("copied")) is not None
        assert copy.body["order"] == 40_007
    assert tab.complaints() == []


def test_dead_letters_are_revived_and_purged(tab: Tab, redis: RedisServer) -> None:
    tab.open("dead?queue=mail")
    tab.press("Revive", "tr[contains(., 'ValueError')]")
    tab.until("Messages of mail: ")
    tab.press("Revive")
    tab.until("Revived: ")
    tab.open("queue?queue=mail&state=dead")
    tab.on("//*[@id='choose-all']", lambda one: one.click())
    tab.press("Purge")
    tab.until("They are deleted.")
    tab.press("Purge")
    tab.until("Purged: ")
    tab.until("There are no such messages.")
    with bide.Queue("mail", redis.url) as mail:
        assert mail.counts().sizes.dead == 0
        tab.press("Undo")
        tab.until("Taken back: ")
        assert mail.counts().sizes.dead > 0
        assert mail.audit()


@pytest.mark.full
def test_a_lease_is_ended_and_a_queue_paused(tab: Tab, redis: RedisServer) -> None:
    with bide.Queue("orders", redis.url) as orders:
        held = next(orders.scan("leased")).id
        tab.open(f"message?queue=orders&id={held}")
        tab.press("End the lease")
        tab.until("counts as a failed attempt")
        tab.press("End the lease")
        tab.until("Leases ended: 1.")
        tab.open("queue?queue=orders")
        tab.press("Pause")
        tab.until("This queue is paused")
        assert orders.counts().paused
        tab.press("Resume")
        tab.until("Done.", without="This queue is paused")
        assert not orders.counts().paused


def test_work_is_watched_and_stopped(tab: Tab, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/bide.db"
    with bide.Queue("reports", store, holder="web1:7") as reports:
        reports.put_many([{"month": month} for month in range(4)])
        deliveries = reports.claim(4, lease=900)
        for number, delivery in enumerate(deliveries):
            delivery.report(40 * number, of=100, text="rows")
        id = deliveries[1].id
        with dashboard(store) as base:
            here = Tab(tab.browser, base)
            here.open("queue?queue=reports&state=leased")
            here.until("80 of 100 rows")
            here.browser.execute_script(AXE)
            assert violations(here, "{}") == []
            here.open(f"message?queue=reports&id={id}")
            here.until("40 of 100 rows")
            here.browser.execute_script(AXE)
            assert violations(here, "{}") == []
            deliveries[1].report(100, of=100, text="rows")
            here.until("100 of 100 rows", without="40 of 100")
            here.press("Stop")
            here.until("This cannot be undone.")
            here.press("Stop")
            here.until("Workers were asked to stop: 1.")
            here.until("ann has asked web1:7 to stop")
    tab.open("")


SEEN = """
const tab = document.querySelector("nav [aria-current]").getBoundingClientRect();
return tab.left >= 0 && tab.right <= innerWidth;
"""
"""Return whether the tab of the page is in sight."""


@pytest.mark.parametrize("page", ["", "periodic", "search"])
def test_a_phone_shows_the_tab_of_the_page(tab: Tab, page: str) -> None:
    look_like(tab.browser, width=320)
    tab.open(page)
    assert tab.browser.execute_script(SEEN)
    look_like(tab.browser)


TWICE = """
const [pause, done] = arguments;
const refused = [], form = document.querySelector("main form[method=post]");
document.addEventListener("submit", event => {
  refused.push(event.defaultPrevented);
  event.preventDefault();
});
form.requestSubmit();
setTimeout(() => {
  form.requestSubmit();
  done(refused);
}, pause);
"""
"""Submit a form twice, with a pause of so many milliseconds; return which of both is refused."""


@pytest.mark.parametrize("pause", [0, 1_500])  # a double click; an impatient user
def test_a_second_click_does_not_act_again(tab: Tab, pause: int) -> None:
    tab.open("queue?queue=reminders")
    assert tab.browser.execute_async_script(TWICE, pause) == [False, True]


def test_a_bar_of_the_forecast_is_a_link(tab: Tab) -> None:
    tab.open("queue?queue=reminders&span=7d")
    tab.on("//*[contains(@class, 'chart')]//*[name()='a']", lambda one: one.send_keys(Keys.ENTER))
    wait = WebDriverWait(tab.browser, BOUND, 0.05)
    wait.until(lambda browser: "after=" in browser.current_url)
    tab.until("meeting-")


def test_a_subscription_is_paused_and_everything_counted(tab: Tab) -> None:
    tab.open("subscriptions")
    assert "/***" in tab.text
    assert "key=" not in tab.text
    tab.press("Pause", "tr[contains(., 'shop')]")
    tab.until("Done.")
    tab.until("paused by")
    tab.open("audit")
    tab.press("Count all messages", "tr[contains(., 'orders')]")
    tab.until("counted one by one")
    tab.until("balances")


@pytest.mark.full
def test_pages_work_without_javascript_and_in_chinese(tab: Tab) -> None:
    tab.browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        tab.open("queue?queue=webhooks")
        tab.press("Resume")
        tab.until("Done.", without="This queue is paused")
        tab.open("queue?queue=orders&state=next&group=customer:7")
        count = len(tab.browser.find_elements(By.NAME, "id"))
        tab.press("Cancel all")
        tab.until(f"Messages of orders: {count}")
        tab.press("Cancel")
        tab.until("No message matches.")
        tab.press("Undo")
        tab.until(f"Taken back: {count}.")
        tab.open("queue?queue=webhooks")
        tab.press("简体中文", "header")
        tab.until("队列")
        tab.press("English", "header")
        tab.until("Queue")
    finally:
        tab.browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
