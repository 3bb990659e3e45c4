"""Journeyman inside of other frameworks, one module each; none is imported unless you do.

journeyman.integrations.django          settings, the management command, on_commit, django.tasks
journeyman.integrations.fastapi         an app in the lifespan of FastAPI
journeyman.integrations.flask           an app of Flask's application factory
journeyman.integrations.opentelemetry   spans of sends and of attempts
"""
