from django.urls import path

from shop import views

urlpatterns = [
    path("order", views.order),
    path("order_joined", views.order_joined),
    path("order_async", views.order_async),
    path("order_nested", views.order_nested),
    path("order_nested_async", views.order_nested_async),
    path("state/<int:pk>", views.state),
    path("state_async/<int:pk>", views.state_async),
    path("process", views.process),
]
