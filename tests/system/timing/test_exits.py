"""Programs with timers end when they are done, and may fork: nothing hangs."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.process


def run(program: str) -> str:
    """Run a program; it must end by itself, well and silently."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_pending_timers_do_not_keep_the_process_alive() -> None:
    out = run("""
        import threading
        from bide.timing import DelayQueue, ScheduledExecutor, TimingWheel
        wheel = TimingWheel()
        wheel.schedule(print, 3600, args=("too late",))
        executor = ScheduledExecutor()
        late = executor.schedule(print, 3600, args=("too late",))
        often = executor.schedule_at_fixed_rate(int, 3600, initial_delay=3600)
        queue = DelayQueue()
        queue.put("x", 3600)
        for _ in range(2):
            threading.Thread(target=queue.take, daemon=True).start()
        late.add_done_callback(lambda future: print("cancelled", future.cancelled()))
        print("the end")
    """)
    assert out == "the end\ncancelled True\n"


def test_what_was_submitted_still_runs_at_exit() -> None:
    out = run("""
        import threading
        from bide.timing import ScheduledExecutor
        go = threading.Event()
        executor = ScheduledExecutor(1)
        executor.submit(go.wait)
        for number in range(3):
            executor.submit(print, number)
        go.set()
    """)
    assert out == "0\n1\n2\n"


def test_a_callback_that_runs_at_exit_is_let_finish() -> None:
    out = run("""
        import threading
        from bide.timing import TimingWheel
        started, ending = threading.Event(), threading.Event()
        def callback():
            started.set()
            ending.wait()
            print("finished")
        wheel = TimingWheel()
        wheel.schedule(callback)
        started.wait()
        import atexit
        atexit.register(ending.set)
    """)
    assert out == "finished\n"


def test_a_coroutine_whose_loop_is_gone_does_not_hang_the_exit() -> None:
    out = run("""
        import asyncio
        from concurrent.futures import wait
        from bide.timing import ScheduledExecutor
        async def main():
            loop = asyncio.get_running_loop()
            executor = ScheduledExecutor(1, loop=loop)
            started = asyncio.Event()
            async def task():
                started.set()
                await asyncio.sleep(3600)
            global future
            future = executor.submit(task)
            await started.wait()
        asyncio.run(main())
        wait([future], 10)  # a thread may yet have to hear of it
        print(future.cancelled())
    """)
    assert out == "True\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_is_told_and_the_parent_goes_on() -> None:
    out = run("""
        import asyncio, os, sys
        from bide.timing import (
            AsyncDelayQueue, DelayQueue, Forked, ScheduledExecutor, TimingWheel
        )
        queue, async_queue = DelayQueue(), AsyncDelayQueue()
        wheel, executor = TimingWheel(), ScheduledExecutor(1)
        entry, async_entry = queue.put("x", 3600), async_queue.put("x", 3600)
        timer = wheel.schedule(print, 3600)
        future = executor.schedule(print, 3600)
        calls = {
            "put": lambda: queue.put("y"), "take": queue.take, "poll": queue.poll,
            "peek": queue.peek, "remove": lambda: queue.remove(entry), "drain": queue.drain,
            "len": lambda: len(queue), "iter": lambda: list(queue), "shutdown": queue.shutdown,
            "async put": lambda: async_queue.put("y"),
            "async take": lambda: asyncio.run(async_queue.take()),
            "async poll": async_queue.poll, "async peek": async_queue.peek,
            "async remove": lambda: async_queue.remove(async_entry),
            "async drain": async_queue.drain, "async len": lambda: len(async_queue),
            "async shutdown": async_queue.shutdown,
            "schedule": lambda: wheel.schedule(print, 1), "cancel": timer.cancel,
            "pending": lambda: wheel.pending, "stop": wheel.stop,
            "execute": lambda: executor.schedule(print, 1), "submit": lambda: executor.submit(int),
            "cancel task": future.cancel, "end": executor.shutdown,
        }
        child = os.fork()
        if child == 0:
            for name, call in calls.items():
                try:
                    call()
                except Forked as error:
                    assert f"in process {os.getpid()}" in str(error), name
                else:
                    print(name, "answered in the child")
            with ScheduledExecutor(1) as fresh:
                assert fresh.submit(int).result(60) == 0
            own = TimingWheel()
            own.schedule(print, 3600)
            sys.exit(0)  # with its exit handlers: none may wait for a thread of the parent
        assert os.waitpid(child, 0)[1] == 0
        assert queue.remove(entry) and async_queue.remove(async_entry)
        assert timer.cancel() and future.cancel()
        assert executor.submit(pow, 2, 3).result(60) == 8
        print("parent")
    """)
    assert out == "parent\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_forking_while_other_threads_hold_the_locks() -> None:
    out = run("""
        import os, threading
        from bide.timing import DelayQueue, Forked, TimingWheel
        queue, wheel, over = DelayQueue(), TimingWheel(), threading.Event()
        def busy():
            while not over.is_set():
                queue.remove(queue.put("x", 60))
                wheel.schedule(int, 60).cancel()
        threads = [threading.Thread(target=busy) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(20):
            child = os.fork()
            if child == 0:
                try:
                    queue.put("y")
                except Forked:
                    DelayQueue().put("fresh")
                    os._exit(0)
                os._exit(1)
            assert os.waitpid(child, 0)[1] == 0
        over.set()
        for thread in threads:
            thread.join()
        print("parent")
    """)
    assert out == "parent\n"


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
def test_an_interrupted_take_hands_over() -> None:
    out = run(f"""
        import os, threading
        from bide.timing import DelayQueue
        queue, taken = DelayQueue(), []
        queue.put("x", 3600)
        timer = threading.Timer(0.2, os.kill, (os.getpid(), {int(signal.SIGINT)}))
        timer.start()
        try:
            queue.take()
        except KeyboardInterrupt:
            print("interrupted")
        thread = threading.Thread(target=lambda: taken.append(queue.take()))
        thread.start()
        queue.put("y")
        thread.join()
        print(taken)
    """)
    assert out == "interrupted\n['y']\n"
