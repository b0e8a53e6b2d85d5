"""Run the example: four letters for the same time; one is edited, one moved, one withdrawn."""

from datetime import UTC, datetime, timedelta

from examples.stage import scene, wait_until, worker


def main() -> None:
    """Run the example and print the results."""
    with scene() as folder, worker("examples.scheduled_message.outbox:app", folder):
        from examples.scheduled_message import outbox as program

        with program.database():
            noon = datetime.now(UTC) + timedelta(seconds=4)
            names = ("Ada", "Ben", "Cleo", "Dan")
            ada, ben, cleo, dan = (program.write(name, "See you tonite", at=noon) for name in names)
            program.edit(ada, "See you tonight")
            program.move(ben, at=noon + timedelta(seconds=2), seen=noon)
            program.withdraw(cleo)
            print("four letters are scheduled; one is edited, one is moved, one is withdrawn")

            def arrived() -> list[str]:
                with program.Session() as session:
                    rows = session.query(program.Arrived).order_by(program.Arrived.address)
                    return [f"{row.address}: {row.text}" for row in rows]

            wait_until(lambda: len(arrived()) >= 2)
            print("on time:", ", ".join(arrived()))
            try:
                program.withdraw(dan)
            except program.TooLate as error:
                print("too late for Dan's:", error)
            wait_until(lambda: len(arrived()) == 3)
            print("later:", ", ".join(arrived()))


if __name__ == "__main__":
    main()
