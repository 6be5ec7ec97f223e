"""Matrix products.

Left out: the plain product (``jnp.matmul``), and products of quantised matrices (``quantize.py``).
"""

from jax import numpy as jnp

from .known import Array


def gemm(
    a: Array, b: Array, c: Array | None = None, *,
    alpha: float = 1.0, beta: float = 1.0, trans_a: int = 0, trans_b: int = 0,
) -> Array:  # fmt: skip
    """Return alpha a b + beta c, each of a and b transposed first where asked."""
    product = (a.T if trans_a else a) @ (b.T if trans_b else b)
    if alpha != 1:
        product = (alpha * product).astype(product.dtype)
    if c is None or beta == 0:  # where it may be NaN
        return product
    return product + (c if beta == 1 else (beta * c).astype(product.dtype))


def einsum(*operands: Array, equation: str) -> Array:
    """Sum products of elements as an equation in Einstein's notation says."""
    return jnp.einsum(equation.replace(" ", ""), *operands)


def determinant(x: Array) -> Array:
    """Return the determinants of matrices."""
    return jnp.linalg.det(x)
