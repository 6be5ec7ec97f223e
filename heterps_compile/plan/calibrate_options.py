"""The options of the command ``calibrate``: for a unit of this machine, and for the network between hosts.

Left out: the options of ``profile`` (``command_options.py``), some of which it shares.
"""

from dataclasses import replace

from heterps_compile.options import Command, Flag, Option, Whole

from .command_options import PROFILE

HERE = "this machine"
HOSTS = "--link"

_OF_PROFILE = {option.name: replace(option, subjects=(HERE,)) for option in PROFILE.options}

CALIBRATE = Command(
    "calibrate",
    (HERE, HOSTS),
    (
        Option(
            name="output", words="-o, --output", help="Pool to write.", metavar="FILE.toml", default="calibrated.toml"
        ),
        Option(
            name="name", words="--name", help="Of the device type in it.", metavar="NAME", default="core",
            subjects=(HERE,),
        ),
        Option(
            name="device", words="--device", help="cpu, cuda:0, …", metavar="NAME", default="cpu", subjects=(HERE,)
        ),
        replace(_OF_PROFILE["backend"], default_words="torch, which trains"),
        _OF_PROFILE["threads"],
        replace(_OF_PROFILE["repeats"], default=10),
        _OF_PROFILE["clock"],
        _OF_PROFILE["no_replicas"],
        _OF_PROFILE["no_link"],
        Option(
            name="link", words="--link", type=Flag(), default=False,
            help="Measure the network between hosts (bandwidth in bytes/s, latency in s) instead: one process on each, "
            "started by torchrun, srun or alike.",
        ),
        replace(
            _OF_PROFILE["cluster"], help="Pool that gets the links.", default="local", default_words="", needs=(),
            subjects=(HOSTS,),
        ),
        Option(
            name="device_type", words="--device-type", help="Of this host in the pool.", metavar="NAME",
            default_words="the only one; the one its GPU is named after", subjects=(HOSTS,),
        ),
        Option(
            name="wait", words="--wait", type=Whole(1, 86_400), help="Longest wait for other hosts, in s.",
            metavar="SECONDS", default=600, subjects=(HOSTS,),
        ),
    ),
)  # fmt: skip
