"""Run the example: three meetings. One is approved, one is not, one is withdrawn."""

from datetime import UTC, datetime, timedelta

from examples.meeting_room.mailbox import mailbox
from examples.stage import scene, wait_until, worker

SECOND = timedelta(seconds=1)


def main() -> None:
    """Run the example and print the results."""
    with mailbox() as box, scene(SMTP=box.address, REMIND_AHEAD="13", REFUSE_AHEAD="13") as folder:
        from examples.meeting_room.booking import (
            Meeting,
            Session,
            approve,
            database,
            request,
            withdraw,
        )

        def states() -> list[str]:
            with Session() as session:
                return [meeting.state for meeting in session.query(Meeting).order_by(Meeting.id)]

        with database():
            starts = datetime.now(UTC) + 14 * SECOND  # longer than a worker takes to start
            ends = starts + 2 * SECOND
            ada = request("the attic", "ada@example.org", starts, ends)
            request("the attic", "ben@example.org", starts, ends)
            cleo = request("the cellar", "cleo@example.org", starts, ends)
            approve(ada)
            withdraw(cleo)
            print("Ada, Ben and Cleo:", ", ".join(states()))
            with worker("examples.meeting_room.strategies:app", folder):
                wait_until(lambda: states()[0] in ("running", "over"))
                print("it starts:        ", ", ".join(states()))
                wait_until(lambda: states() == ["over", "refused", "withdrawn"])
                print("it ends:          ", ", ".join(states()))
                wait_until(lambda: len(box.mails) == 2)
            print(*sorted(box.subjects()), sep="\n")


if __name__ == "__main__":
    main()
