"""The app configuration that INSTALLED_APPS finds."""

from django.apps import AppConfig


class JourneymanConfig(AppConfig):  # type: ignore[misc]
    """See the package."""

    name = "journeyman.integrations.django"
    label = "journeyman"
    verbose_name = "Journeyman"
