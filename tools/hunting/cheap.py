"""Make compiling small modules by the thousand cheap, with nothing left out of what is compared.

Left out: what helps every user, which is in the package.
"""

import functools
from collections.abc import MutableMapping

_QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"


def compile_cheaply(environment: MutableMapping[str, str], cache: str) -> None:
    """Have jax keep what it compiles in the folder ``cache`` and optimise little, here and in fresh processes.

    The same computation is compiled when it is verified, when the hunt calls it, and in the fresh process. To be called
    before jax is imported.

    Args:
        environment: That of this process; others inherit it.
        cache: An empty folder.
    """
    environment["JAX_COMPILATION_CACHE_DIR"] = cache
    environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    environment["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    environment["XLA_FLAGS"] = " ".join(filter(None, (environment.get("XLA_FLAGS", ""), _QUICK)))


def look_for_ops_once() -> None:
    """Have PyTorch ask once which composite ops there are: no drawn module declares ops of its own.

    PyTorch asks some sixty times for each stage that becomes ONNX.
    """
    from torch._export import utils  # noqa: PLC0415 - private: where it is not, nothing is gained

    utils._materialize_cpp_cia_ops = functools.cache(utils._materialize_cpp_cia_ops)
