"""Commands on messages. A file's name lists its commands."""
