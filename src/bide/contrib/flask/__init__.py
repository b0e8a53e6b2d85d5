"""bide in Flask: an extension with queues, handlers that run in the application context, and a CLI.

Example::

    bide = Bide()
    orders = bide.queue("orders")

    @bide.handler("orders")
    def time_out(order: dict) -> None: ...  # current_app and db.session are there

    def create_app():
        app = Flask(__name__)
        bide.init_app(app)
        return app

`flask bide` is the command line, on the store of the application; `flask bide worker` runs the
handlers.
"""

from bide.contrib.flask.extension import Bide

__all__ = ["Bide"]
