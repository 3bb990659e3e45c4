"""A DAG with a step that is a task of Journeyman, and one that waits for a job sent elsewhere."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import DAG

from journeyman.integrations.airflow import SendTask, WaitForJob

with DAG(
    "reports",
    schedule="@daily",
    start_date=datetime(2026, 11, 1, tzinfo=UTC),
    catchup=False,
    params={"customer": 5},
) as dag:
    report = SendTask(
        task_id="report", task="shop.build_report", task_args=["{{ params.customer }}"]
    )
    # The result of a task is in XCom, as that of any other step. Here it has the id of a job.
    mailed = WaitForJob(task_id="mailed", job_id="{{ ti.xcom_pull('report')['mail'] }}")
    report >> mailed
