"""The table of orders."""

from django.db import models


class Order(models.Model):
    invoice = models.CharField(max_length=80, default="")
    receipt = models.CharField(max_length=80, default="")

    def __str__(self) -> str:
        return f"order {self.pk}"
