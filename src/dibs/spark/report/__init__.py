"""What a history says: figures made from the warehouse alone, and the page drawn from them."""
