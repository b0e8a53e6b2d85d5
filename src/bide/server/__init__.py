"""The service: the delay queue over HTTP, for any language and for many teams (`bide[server]`).

It makes commands and nothing else; what it does with a store it does through the lane, as all do.
`bide.server.app.create_app` is where a program of your own begins.
"""
