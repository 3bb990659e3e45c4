"""Make the table of the outbox."""

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):  # type: ignore[misc]
    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar = [
        migrations.CreateModel(
            name="OutboxRow",
            fields=[
                ("id", models.CharField(max_length=36, primary_key=True, serialize=False)),
                ("created_ms", models.BigIntegerField()),
                ("expires_ms", models.BigIntegerField()),
                ("job", models.TextField()),
                ("problem", models.CharField(blank=True, default="", max_length=500)),
            ],
            options={
                "db_table": "journeyman_outbox",
                "indexes": [
                    models.Index(fields=["created_ms"], name="journeyman_outbox_created"),
                ],
            },
        ),
    ]
