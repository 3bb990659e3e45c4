"""The web side of the shop: flask --app web run"""

from __future__ import annotations

from flask import Flask, jsonify
from flask.typing import ResponseReturnValue

from journeyman.integrations.flask import Journeyman
from tasks import app as jobs
from tasks import build_report, send_mail

web = Flask(__name__)
Journeyman(jobs, web)


@web.post("/signup/<email>")
def signup(email: str) -> ResponseReturnValue:
    job = send_mail.send(email, subject="Welcome!")
    return jsonify(job=job.id), 202


@web.post("/reports/<int:customer>")
def order_report(customer: int) -> ResponseReturnValue:
    job = build_report.send(customer, seconds=3.0)
    return jsonify(job=job.id, is_new=job.is_new), 202


@web.get("/jobs/<job_id>")
def show_job(job_id: str) -> ResponseReturnValue:
    return jsonify(result=jobs.job(job_id).result(timeout=30))
