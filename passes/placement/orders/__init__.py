"""The order of layers as a decision: one public function, ``search_orders`` (``order_search.py``)."""
