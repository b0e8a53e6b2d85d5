SECRET_KEY = "of tests"
USE_TZ = True
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
INSTALLED_APPS = ["bide.contrib.django", "django.contrib.contenttypes", "django.contrib.auth"]
TASKS = {"default": {"BACKEND": "swapped.KeepingBackend"}}
