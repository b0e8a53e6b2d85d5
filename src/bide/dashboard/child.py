"""A process of a server that also shows the dashboard; see `bide.server.child`."""

import os
import sys

from bide.dashboard.served import dashboard_of
from bide.server.child import SESSION_KEY, main

if __name__ == "__main__":
    key = bytes.fromhex(os.environ.pop(SESSION_KEY))
    sys.exit(main(sys.argv[1:], lambda service: dashboard_of(service, key)))
