"""Commands that run and configure services. A file's name lists its commands."""
