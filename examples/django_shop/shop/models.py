"""Articles and orders."""

from django.db import models

__all__ = ["Article", "Order"]


class Article(models.Model):
    """An article that customers can order."""

    name = models.CharField(max_length=50, unique=True)
    stock = models.PositiveIntegerField()

    def __str__(self) -> str:
        return str(self.name)


class Order(models.Model):
    """An order: unpaid, and then either paid or cancelled."""

    article = models.ForeignKey(Article, on_delete=models.PROTECT)
    state = models.CharField(max_length=20, default="unpaid")
    placed = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"order {self.pk}: {self.state}"
