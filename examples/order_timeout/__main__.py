"""Run the example: twenty orders, half of them paid, five of these at the last moment."""

from concurrent.futures import ThreadPoolExecutor
from time import monotonic, sleep

from examples.stage import scene, wait_until, worker

ORDERS, IN_TIME, AT_THE_LAST_MOMENT = 20, 5, 5
PAY_WITHIN = 3


def main() -> None:
    """Run the example and print the results."""
    with (
        scene(PAY_WITHIN=f"{PAY_WITHIN}s") as folder,
        worker("examples.order_timeout.shop:app", folder),
    ):
        from examples.order_timeout.shop import Article, Order, Session, database, pay, place

        with database():
            with Session.begin() as session:
                session.add(Article(name="teapot", stock=ORDERS))
            begun = monotonic()
            orders = [place("teapot") for _ in range(ORDERS)]
            print(f"{ORDERS} teapots are ordered, each to be paid within {PAY_WITHIN} s")
            late, in_time = orders[:AT_THE_LAST_MOMENT], orders[-IN_TIME:]
            for order in in_time:
                print(f"paid: {pay(order).note}")
            sleep(max(0, begun + PAY_WITHIN - monotonic()))
            with ThreadPoolExecutor(AT_THE_LAST_MOMENT) as customers:
                for receipt in customers.map(pay, late):
                    print(f"{'paid' if receipt.accepted else 'refused'}: {receipt.note}")

            def counted(state: str) -> int:
                with Session() as session:
                    return session.query(Order).filter_by(state=state).count()

            wait_until(lambda: not counted("unpaid"))
            paid, cancelled = counted("paid"), counted("cancelled")
            with Session() as session:
                stock = session.get_one(Article, "teapot").stock
            print(f"{paid} paid, {cancelled} cancelled, {stock} on the shelf")
            assert paid + cancelled == ORDERS
            assert stock == cancelled


if __name__ == "__main__":
    main()
