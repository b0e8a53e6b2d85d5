"""Let the search find pages by words that users of other systems type.

The words are keywords of the page, which Sphinx puts into its index. The build fails if the search
finds none of the pages by a word.
"""

import json
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging

KEYWORDS = {
    "cli": ("shell", "terminal"),
    "coming-from": ("alternatives", "comparison", "migrate", "celery", "rq", "dramatiq", "huey"),
    "faq": ("workflow", "kubernetes", "docker", "windows", "exactly-once", "chain", "chord"),
    "glossary": ("terms", "words", "vocabulary"),
    "guarantees": ("lost", "duplicate", "durability", "exactly-once"),
    "howto/cancel": ("abort", "kill", "revoke", "terminate", "progress"),
    "howto/celery": ("celery", "countdown", "eta", "revoke", "visibility_timeout"),
    "howto/deploy": ("helm", "autoscale", "podman", "k8s"),
    "howto/debounce": ("throttle", "coalesce", "unique"),
    "howto/history": ("result", "backend", "return"),
    "howto/idempotent-puts": ("unique", "deduplication", "dedup", "duplicate", "singleton"),
    "howto/limits": ("throttle", "ratelimit", "concurrency", "semaphore"),
    "howto/metrics": ("otel", "telemetry", "grafana", "tracing"),
    "howto/once": ("exactly-once", "deduplication", "inbox"),
    "howto/order-timeout": ("unpaid", "payment", "expire"),
    "howto/outbox": ("transactional",),
    "howto/push": ("webhook", "callback"),
    "howto/rabbitmq": ("amqp", "x-delay", "ttl", "plugin"),
    "howto/priorities": ("fifo",),
    "howto/reminders": ("notification", "recurring", "reminder"),
    "howto/repeating": ("dynamic", "recurring", "cron", "periodic"),
    "howto/retries": ("dlq", "backoff", "nack"),
    "howto/scheduled-messages": ("snooze", "postpone", "edit"),
    "howto/schedules": ("cron", "crontab", "periodic", "beat", "interval"),
    "howto/tasks": ("enqueue", "defer", "background", "job", "later"),
    "howto/worker": ("consumer", "kubernetes", "docker", "probe"),
    "install": ("pip", "venv", "virtualenv", "wheel"),
    "operations": ("kubernetes", "docker", "container", "production", "deploy"),
    "troubleshooting": ("late", "twice", "stuck", "never", "growing", "slow"),
}
"""The words by which the search finds a page, beside those that are on it."""

logger = logging.getLogger(__name__)


def add(app: Sphinx, doctree: nodes.document) -> None:
    """Add the keywords of a page to its tree."""
    words = KEYWORDS.get(app.env.current_document.docname)
    if words:
        doctree += nodes.meta(name="keywords", content=", ".join(words))


def pages_by_word(index: str) -> dict[str, set[str]]:
    """Return the pages of each word in the index of the search, which is JavaScript."""
    data = json.loads(index.removeprefix("Search.setIndex(").removesuffix(")"))
    names: list[str] = data["docnames"]
    pages: dict[str, set[str]] = {}
    for table in (data["terms"], data["titleterms"]):
        for word, numbers in table.items():
            numbers = [numbers] if isinstance(numbers, int) else numbers
            pages.setdefault(word, set()).update(names[number] for number in numbers)
    return pages


def check(app: Sphinx, error: Exception | None) -> None:
    """Warn of pages that the search does not find by one of their keywords."""
    if error is not None or app.builder.name != "html":
        return
    found = pages_by_word((Path(app.outdir) / "searchindex.js").read_text())
    stem = app.builder.indexer.lang.stem
    for name, words in KEYWORDS.items():
        for word in words:
            if name not in found.get(stem(word), set()) | found.get(word, set()):
                logger.warning("the search does not find %s by %r", name, word)


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to the reading of pages and the end of the build."""
    app.connect("doctree-read", add)
    app.connect("build-finished", check)
    return {"parallel_read_safe": True}
