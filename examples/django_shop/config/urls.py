"""The pages."""

from django.contrib import admin
from django.urls import path
from shop import views

urlpatterns = [
    path("orders", views.place),
    path("orders/<int:number>", views.show),
    path("orders/<int:number>/paid", views.pay),
    path("admin/", admin.site.urls),
]
