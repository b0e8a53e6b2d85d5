"""Which of these tests a version of Python can run."""

import sys

# `django.tasks` is in Django 6, which needs Python 3.12: `make test-full` runs them there.
collect_ignore = ["test_django_tasks.py"] if sys.version_info < (3, 12) else []
