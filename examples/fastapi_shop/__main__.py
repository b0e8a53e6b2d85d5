"""Run the example: a shop behind uvicorn; two orders, one of which is paid."""

import json
import threading
import urllib.request
from typing import Any

import uvicorn

from examples.stage import scene, wait_until


def main() -> None:
    """Run the example and print the results."""
    with scene(PAY_WITHIN="3s") as folder:
        import os

        os.environ["SHOP_DATABASE"] = f"sqlite+aiosqlite:///{folder / 'shop.db'}"
        os.environ["BIDE_URL"] = f"sqlite:///{folder / 'shop.db'}"
        from examples.fastapi_shop.shop import app

        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", ws="none"))
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            wait_until(lambda: server.started or not thread.is_alive())
            port = server.servers[0].sockets[0].getsockname()[1]

            def ask(method: str, path: str, body: Any = None) -> Any:
                request = urllib.request.Request(
                    f"http://127.0.0.1:{port}{path}",
                    method=method,
                    data=json.dumps(body).encode(),
                    headers={"content-type": "application/json"},
                )
                with urllib.request.urlopen(request, timeout=30) as answer:
                    return json.load(answer)

            first, second = (
                ask("POST", "/orders", {"article": article})["order"]
                for article in ("teapot", "kettle")
            )
            print("the timeout is cancelled:", ask("POST", f"/orders/{first}/payment"))
            wait_until(lambda: ask("GET", f"/orders/{second}")["state"] == "cancelled")
            print(f"order {first} is {ask('GET', f'/orders/{first}')['state']}")
            print(f"order {second} is cancelled, and the shop is {ask('GET', '/health')['status']}")
        finally:
            server.should_exit = True
            thread.join()


if __name__ == "__main__":
    main()
