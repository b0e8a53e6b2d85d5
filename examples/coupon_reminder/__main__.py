"""Run the example: four coupons, one of them used; midway the queue's file is lost."""

from datetime import UTC, datetime, timedelta

from examples.stage import scene, wait_until, worker


def main() -> None:
    """Run the example and print the results."""
    with scene() as folder:
        from examples.coupon_reminder.coupons import (
            AHEAD,
            Reminder,
            Session,
            database,
            issue,
            use,
        )

        def told() -> list[str]:
            with Session() as session:
                return [row.text for row in session.query(Reminder).order_by(Reminder.coupon)]

        with database():
            soon = datetime.now(UTC) + AHEAD
            issue("A1", "Ada", soon)
            issue("B2", "Ben", soon)
            issue("C3", "Cleo", soon + timedelta(seconds=5))
            issue("D4", "Dan", soon + timedelta(days=30))
            use("B2")
            print("four coupons are issued; Ben has used his")
            with worker("examples.coupon_reminder.coupons:app", folder):
                wait_until(lambda: told() and told()[0].startswith("Ada"))
                print(told()[0])
            for file in folder.glob("bide.db*"):
                if file.is_file():
                    file.unlink()
            print("the queue's file is lost; a worker starts on an empty one")
            with worker("examples.coupon_reminder.coupons:app", folder):
                wait_until(lambda: len(told()) == 2)
                print(*told()[1:], sep="\n")


if __name__ == "__main__":
    main()
