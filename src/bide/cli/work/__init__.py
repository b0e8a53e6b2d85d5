"""Commands that take, run and settle work. A file's name lists its commands."""
