"""Settings of the project. The environment names the database and the storage of the jobs."""

import json
import os

SECRET_KEY = "only for tests"
DEBUG = True
ALLOWED_HOSTS = ["*"]
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["shop"]
# LiveServerTestCase needs the setting.
STATIC_URL = "static/"
ROOT_URLCONF = "project.urls"
WSGI_APPLICATION = "project.wsgi.application"
ASGI_APPLICATION = "project.asgi.application"
#: One entry of DATABASES as JSON, such as {"ENGINE": "django.db.backends.postgresql", "NAME": "shop"}.
DATABASES = {"default": json.loads(os.environ["SHOP_DATABASE"])}
DIBS_URL = os.environ.get("SHOP_JOBS", "django:default")
if "SHOP_TASKS" in os.environ:
    #: settings.TASKS as JSON, for the tests of the backend.
    TASKS = json.loads(os.environ["SHOP_TASKS"])
    INSTALLED_APPS = ["shop", "dibs.django_tasks"]
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["console"], "level": "WARNING"},
}
