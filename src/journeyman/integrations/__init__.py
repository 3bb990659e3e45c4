"""Journeyman inside of other frameworks, one module each; none is imported unless you do.

journeyman.integrations.airflow         tasks as steps of a DAG, jobs to wait for
journeyman.integrations.dagster         a resource that runs tasks for assets
journeyman.integrations.dbt             tables of a lake as sources of dbt-duckdb
journeyman.integrations.django          settings, the management command, on_commit, django.tasks
journeyman.integrations.fastapi         an app in the lifespan of FastAPI
journeyman.integrations.flask           an app of Flask's application factory
journeyman.integrations.opentelemetry   spans of sends and of attempts
"""
