"""The outbox: puts into a store elsewhere are committed with the transaction of Django.

Add `bide.contrib.django.outbox` to `INSTALLED_APPS`, and run `manage.py migrate`.
"""
