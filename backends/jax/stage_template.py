"""The text around a written stage: everything in it but its names, functions and calls.

Left out: how the marked places are filled (``print_stage.py``).
"""

TEMPLATE = r'''"""Stage @@INDEX@@ of @@MODEL@@, written by heterps-compile.

``stage(params, *inputs)`` is a pure function of jax: it works under ``jax.jit``, ``jax.grad`` and ``jax.vmap``. It
takes ``params``, which ``load()`` reads, and the values named in ``INPUTS``, in order. Where jax has 64 bits not
enabled, int64 is int32 and float64 is float32. To train::

    weights = {name: params[name] for name in WEIGHTS}
    gradients = jax.grad(lambda weights: loss(stage({**params, **weights}, *inputs)))(weights)
"""

@@IMPORTS@@

INPUTS = @@INPUTS@@
OUTPUTS = @@OUTPUTS@@

# Inputs whose elements are shapes or axes: numpy arrays or tuples, static under jax.jit.
KNOWN_INPUTS = @@KNOWN@@

# Name in the model: dtype, shape.
PARAMS = @@PARAMS@@

# The parameters that are trained.
WEIGHTS = @@WEIGHTS@@

# The parameters that running the model changes: ``step`` gives their new values. Of a running average its momentum, the
# share of the way that it goes to every new value; None for others, such as counters.
UPDATED = @@UPDATED@@

# Whether the stage drops at random. It has the argument ``key`` then, of jax.random.key(seed) or split off from one;
# None drops nothing. Give all stages of a model the same key, and another one each step.
DRAWS = @@DRAWS@@

# Parameters that go by several names in the model, and the one among them by which the plan calls the array: what has
# the same name there in two stages is one array, and its gradients are to be added up.
TIED_AS = @@TIED_AS@@

# An array of jax, or of numpy where the value is known before the stage runs.
Array = Any
@@NUMBERS@@@@FUNCTIONS@@

@@STAGE@@


def load(path=None):
    """Give the parameters, read from the safetensors file beside this one or from another."""
    from safetensors import safe_open

    with safe_open(path or Path(__file__).with_name("stage_@@INDEX@@.safetensors"), framework="flax") as file:
        params = {name: file.get_tensor(name) for name in file.keys()}
    for name, (dtype, shape) in PARAMS.items():
        if name not in params:
            raise ValueError(f"parameter {name!r} is missing")
        found, wanted = params[name], jax.dtypes.canonicalize_dtype(dtype)
        if found.dtype != wanted or found.shape != shape:
            raise ValueError(f"parameter {name!r} is {found.dtype} {found.shape}, it must be {wanted} {shape}")
    return {name: params[name] for name in PARAMS}
'''
