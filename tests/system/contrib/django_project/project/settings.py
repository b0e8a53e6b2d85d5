import os
from pathlib import Path
from typing import Any

import django

FOLDER = Path(os.environ["KIT_FOLDER"])
SECRET_KEY = "of tests"
DEBUG = False
ALLOWED_HOSTS = ["testserver", "localhost", "127.0.0.1"]
USE_TZ = True
ROOT_URLCONF = "project.urls"
STATIC_URL = "static/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "bide.contrib.django",
    *os.environ.get("KIT_APPS", "").split(),
    "kit",
]
MIDDLEWARE = [
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
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
DATABASES: dict[str, dict[str, Any]]
if "KIT_POSTGRES" in os.environ:
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": os.environ.get("KIT_DATABASE", "postgres"),
            "USER": "bide",
            "HOST": os.environ["KIT_POSTGRES"],
        }
    }
else:
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": FOLDER / "kit.db",
            "OPTIONS": {"transaction_mode": "IMMEDIATE"},
            "TEST": {"NAME": FOLDER / "test.db"},  # a file: other connections see it
        }
    }
if django.VERSION >= (6,):
    TASKS = {
        "default": {
            "BACKEND": "bide.contrib.django.tasks.BideBackend",
            "QUEUES": ["default", "mail"],
            "OPTIONS": {"LEASE": os.environ.get("KIT_LEASE", "1m")},
        }
    }
BIDE = {"HIDE": ["card"]}
