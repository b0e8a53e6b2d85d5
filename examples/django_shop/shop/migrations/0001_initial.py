"""Articles and orders."""

import django.db.models.deletion
from django.db import migrations, models

KEY = {"auto_created": True, "primary_key": True, "serialize": False, "verbose_name": "ID"}
ARTICLE = {"on_delete": django.db.models.deletion.PROTECT, "to": "shop.article"}


class Migration(migrations.Migration):
    """The first tables."""

    initial = True
    operations = (
        migrations.CreateModel(
            name="Article",
            fields=[
                ("id", models.BigAutoField(**KEY)),
                ("name", models.CharField(max_length=50, unique=True)),
                ("stock", models.PositiveIntegerField()),
            ],
        ),
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(**KEY)),
                ("state", models.CharField(default="unpaid", max_length=20)),
                ("placed", models.DateTimeField(auto_now_add=True)),
                ("article", models.ForeignKey(**ARTICLE)),
            ],
        ),
    )
