"""The kind of unit that a row of a user's measurements is of."""

from heterps_compile.errors import UnknownNameError
from heterps_compile.escape import short
from heterps_compile.offers.as_device import data_sheet, known_gpus
from heterps_compile.offers.catalogue import NO_GPU
from heterps_compile.offers.csv_rows import Row


def gpu_of_row(row: Row) -> str:
    """Return the kind of GPU in the column ``gpu``; "" for virtual CPUs.

    Raises:
        InputError: where it is no kind that has a data sheet.
    """
    name = row.name("gpu", f"the kind of GPU as offers spell it, or {NO_GPU} for virtual CPUs").lower()
    gpu = "" if name == NO_GPU else name
    try:
        data_sheet(gpu)
    except UnknownNameError as error:
        raise row.wrong(
            f"gpu {short(name)} is no kind with a data sheet; expected {NO_GPU} or one of {', '.join(known_gpus())}"
        ) from error
    return gpu
