"""Place, pay and show orders."""

from django.db import transaction
from django.db.models import F
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST
from shop.handlers import Deadline, deadlines
from shop.models import Article, Order

__all__ = ["pay", "place", "show"]


@csrf_exempt  # an API: no browser sends a form
@require_POST
def place(request: HttpRequest) -> JsonResponse:
    """Place an order, which has to be paid in time."""
    article = get_object_or_404(Article, name=request.POST.get("article", ""))
    with transaction.atomic():
        if not Article.objects.filter(pk=article.pk, stock__gt=0).update(stock=F("stock") - 1):
            return JsonResponse({"error": "sold out"}, status=409)
        order = Order.objects.create(article=article)
        deadlines.put(Deadline.of(order))  # of this transaction
    return JsonResponse({"order": order.pk}, status=201)


@csrf_exempt
@require_POST
def pay(request: HttpRequest, number: int) -> JsonResponse:
    """Accept a payment, unless the order was cancelled."""
    with transaction.atomic():
        order = get_object_or_404(Order.objects.select_for_update(), pk=number)
        if order.state != "cancelled":
            order.state = "paid"
            order.save()
            deadlines.cancel(f"order-{number}")
    return JsonResponse({"state": order.state}, status=200 if order.state == "paid" else 409)


@require_GET
def show(request: HttpRequest, number: int) -> JsonResponse:
    """Return the state of an order."""
    return JsonResponse({"state": get_object_or_404(Order, pk=number).state})
