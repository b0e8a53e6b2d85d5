"""The settings. `POSTGRES_HOST` names a server; without it, the shop is on SQLite."""

import os
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ.get("SHOP_FOLDER", Path(__file__).parents[1]))

SECRET_KEY = os.environ.get("SECRET_KEY", "of the example")
DEBUG = "SECRET_KEY" not in os.environ
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
ROOT_URLCONF = "config.urls"
STATIC_URL = "static/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "bide.contrib.django",
    "shop",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DATABASES: dict[str, dict[str, Any]] = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": FOLDER / "shop.db",
        "OPTIONS": {"transaction_mode": "IMMEDIATE"},
    }
}
if "POSTGRES_HOST" in os.environ:
    DATABASES["default"] = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ.get("POSTGRES_DB", "shop"),
        "USER": os.environ.get("POSTGRES_USER", "shop"),
        "HOST": os.environ["POSTGRES_HOST"],
    }

# The queues are in this database, so a put is part of the transaction that places the order.
BIDE: dict[str, Any] = {}

PAY_SECONDS = float(os.environ.get("PAY_SECONDS", "1800"))
