"""What holds for all tests."""

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that runs the tests in the background ignores Ctrl-C for all that they start, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
