"""What clouds rent: whole machines, each price with its date and source, and the device types they become."""

from .as_device import Rental, assumed, device_of, pool_of
from .catalogue import Catalogue, read_catalogue
from .offer import Offer

__all__ = ["Catalogue", "Offer", "Rental", "assumed", "device_of", "pool_of", "read_catalogue"]
