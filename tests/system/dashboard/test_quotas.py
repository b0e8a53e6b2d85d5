"""The quotas of a namespace hold for what its visitors do in the dashboard."""

from bide.server.settings import Quota
from tests.system.dashboard.served import Served


def test_quotas_hold_for_copies_and_moves(served: Served) -> None:
    orders = served.queue("shop/orders")
    orders.put(1, id="a", delay=60)
    quota = Quota(pending=1, longest_delay="1d")
    guest = served.server(auth="required", quotas={"shop": quota})
    guest.log_in(served.token("admin", namespace="shop"))
    fields = {"queue": "orders", "id": "a", "back": "/dashboard/"}
    assert guest.post("/do", {**fields, "action": "copy", "new": "b"}).status == 507
    assert orders.get("b") is None
    far = {**fields, "action": "reschedule", "delay": "2d"}
    assert guest.post("/do", far).status == 400
    assert guest.post("/do", {**far, "delay": "2h"}).status == 303


def test_quotas_hold_for_what_settings_make_and_changes_note(served: Served) -> None:
    orders = served.queue("shop/orders")
    orders.put_many(["x" * 2_000] * 4, delay=60, group="g")
    guest = served.server(auth="required", quotas={"shop": Quota(queues=1, stored=10_000)})
    guest.log_in(served.token("admin", namespace="shop"))
    back = {"back": "/dashboard/"}
    move = {
        "action": "reschedule",
        "queue": "orders",
        "by": "rule",
        "group": "g",
        "delay": "1h",
        "confirmed": "1",
        **back,
    }
    told = [guest.post("/do", move).status for _ in range(3)]  # the first count is not waited for
    assert (told[0], told[-1]) == (303, 507)
    pause = {"action": "pause", "on": "1", **back}
    assert guest.post("/do", {**pause, "queue": "more"}).status == 507
    assert guest.post("/do", {**pause, "queue": "orders"}).status == 303
    cancel = {**move, "action": "cancel"}
    assert guest.post("/do", cancel).status == 303


def test_quotas_hold_for_what_an_undo_puts_back(served: Served) -> None:
    orders = served.queue("shop/orders")
    orders.put_many([1, 2], delay="2d", group="g")
    guest = served.server(auth="required", quotas={"shop": Quota(longest_delay="1d")})
    guest.log_in(served.token("admin", namespace="shop"))
    fields = {"action": "undo", "queue": "orders", "back": "/dashboard/"}
    undo = orders.reschedule(group="g", delay=60, undo=True).undo
    assert guest.post("/do", {**fields, "undo": undo}).status == 400
    undo = orders.cancel(group="g", undo=True).undo
    assert guest.post("/do", {**fields, "undo": undo}).status == 303
