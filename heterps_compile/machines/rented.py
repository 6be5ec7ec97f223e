"""The machines that ``machines -o`` chose for a folder, as engines that start runs take them.

Left out: what was predicted of them (``chosen_file.py``).
"""

from collections.abc import Mapping
from pathlib import Path

from heterps_compile.runtime.engines.contract import RentedAs

from .chosen_file import CHOSEN_NAME, read_chosen


def rented_for(folder: str | Path) -> Mapping[str, RentedAs]:
    """Return the machine of every device type of a folder, by the type's name; none where no machines were chosen.

    Raises:
        InputError: where what was chosen is not what it must be.
    """
    if not (Path(folder) / CHOSEN_NAME).exists():
        return {}
    machines = read_chosen(folder).machines
    return {
        name: RentedAs(
            rental.offer.provider, rental.offer.region, rental.offer.instance, rental.spot, rental.offer.units
        )
        for name, (rental, _) in zip(machines.names, machines.parts, strict=True)
    }
