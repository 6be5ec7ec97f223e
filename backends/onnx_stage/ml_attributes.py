"""What nodes of the domain ``ai.onnx.ml`` hold in their attributes, as arrays and a few options.

An op of classic machine learning has its coefficients and trees in attributes. A stage takes them as constants beside
the op's input; the functions here make these, once for every backend. A ``ValueError`` is the reason why a node is
refused, before any search.

A forest is laid out as arrays over all nodes of all trees. A leaf leads to itself, so that after as many steps as the
deepest tree has levels every sample is at a leaf of every tree.

Left out: text (labels, categories and keys of strings), maps, and support vector classifiers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Prepared:
    """What an op is called with beside its inputs.

    Attributes:
        arrays: Constants, which come behind the inputs, in order.
        options: Keywords; numbers, texts and tuples of numbers.
    """

    arrays: tuple[Array, ...]
    options: Mapping[str, Any]


Attributes = Mapping[str, Any]
"""Attributes by ONNX's names: numbers, texts, and sequences or arrays of them."""

Prepare = Callable[[Attributes, Sequence[bool]], Prepared]
"""Takes the attributes, and of every output whether it is read.

Raises:
    ValueError: what the node has that the backends do not.
"""

_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
_LEAF = "LEAF"
_MEMBER = 6


def _floats(attributes: Attributes, name: str) -> Array:
    """Return numbers that stand as floats, or as a tensor of doubles under ``name_as_tensor``."""
    tensor = attributes.get(f"{name}_as_tensor")
    if tensor is not None and np.size(tensor):
        return np.asarray(tensor).reshape(-1)
    return np.asarray(attributes.get(name, ()), np.float32).reshape(-1)


def _whole(attributes: Attributes, name: str) -> Array:
    return np.asarray(attributes.get(name, ()), np.int64).reshape(-1)


def _transform(attributes: Attributes) -> str:
    how = str(attributes.get("post_transform", "NONE"))
    if how not in _TRANSFORMS:
        raise ValueError(f"its post_transform is {how!r}, none of {', '.join(_TRANSFORMS)}")
    return how


def _labels(attributes: Attributes, name: str, text: str, count: int, is_read: bool) -> Array:
    """Return the labels of classes; where nobody reads the label, text will do too."""
    labels = _whole(attributes, name)
    if attributes.get(text):
        if is_read:
            raise ValueError("its class labels are text, and the backend has no strings")
        labels = np.arange(len(attributes[text]))
    return labels if labels.size else np.arange(count)


def _matrix(numbers: Array, rows: int, what: str) -> Array:
    if rows < 1 or not numbers.size or numbers.size % rows:
        raise ValueError(f"its {numbers.size} {what} are no matrix of {rows} rows")
    return numbers.reshape(rows, -1)


def linear_regressor(attributes: Attributes, read: Sequence[bool]) -> Prepared:
    """Return coefficients (features, targets) and intercepts."""
    targets = int(attributes.get("targets", 1))
    coefficients = _matrix(_floats(attributes, "coefficients"), targets, "coefficients")
    intercepts = _floats(attributes, "intercepts")
    if intercepts.size not in (0, targets):
        raise ValueError(f"it has {intercepts.size} intercepts for {targets} targets")
    how = _transform(attributes)
    if targets == 1 and how != "PROBIT":
        how = "NONE"  # of a single score ONNX Runtime transforms nothing else
    intercepts = intercepts if intercepts.size else np.zeros(targets, np.float32)
    return Prepared((np.ascontiguousarray(coefficients.T), intercepts), {"post_transform": how})


def linear_classifier(attributes: Attributes, read: Sequence[bool]) -> Prepared:
    """Return coefficients (features, scores), intercepts and labels."""
    intercepts = _floats(attributes, "intercepts")
    every = _floats(attributes, "coefficients")
    given = len(attributes.get("classlabels_ints", ())) or len(attributes.get("classlabels_strings", ()))
    rows = intercepts.size or given
    coefficients = _matrix(every, rows, "coefficients")
    labels = _labels(attributes, "classlabels_ints", "classlabels_strings", max(rows, 2), read[0])
    if labels.size != max(rows, 2):
        raise ValueError(f"it has {labels.size} class labels for {rows} rows of coefficients")
    how = _transform(attributes)
    if rows == 1 and how == "PROBIT":
        raise ValueError("its post_transform PROBIT of two classes with one score is undefined in ONNX Runtime")
    if not intercepts.size:
        intercepts = np.zeros(rows, np.float32)
    return Prepared((np.ascontiguousarray(coefficients.T), intercepts, labels), {"post_transform": how})


def scaler(attributes: Attributes, read: Sequence[bool]) -> Prepared:
    """Return offset and scale."""
    offset, scale = _floats(attributes, "offset"), _floats(attributes, "scale")
    if not offset.size or not scale.size:
        raise ValueError("it has no offset or no scale")
    return Prepared((offset, scale), {})


def imputer(attributes: Attributes, read: Sequence[bool]) -> Prepared:
    """Return what is put in, a number for each feature or one for all, and what it replaces."""
    values = _floats(attributes, "imputed_value_floats")
    if values.size:
        return Prepared((values,), {"replaced": float(attributes.get("replaced_value_float", 0.0))})
    values = _whole(attributes, "imputed_value_int64s")
    if not values.size:
        raise ValueError("it has no values to put in")
    return Prepared((values,), {"replaced": int(attributes.get("replaced_value_int64", 0))})


def label_encoder(attributes: Attributes, read: Sequence[bool]) -> Prepared:
    """Return keys in ascending order, their values, and the value of what is no key."""
    if any(name.endswith(("_strings", "_string")) for name in attributes if "default" not in name):
        raise ValueError("its keys or values are text, and the backend has no strings")
    keys = _one_of(attributes, "keys", ("int64s", "floats", "tensor"))
    values = _one_of(attributes, "values", ("int64s", "floats", "tensor"))
    if keys.dtype.kind not in "if" or values.dtype.kind not in "if":
        raise ValueError("its keys or values are text, and the backend has no strings")
    if keys.size != values.size or len(np.unique(keys)) != keys.size:
        raise ValueError(f"it has {keys.size} keys, of them {len(np.unique(keys))} different, and {values.size} values")
    default: Any = -1 if values.dtype.kind == "i" else -0.0
    kind = "default_int64" if values.dtype.kind == "i" else "default_float"
    default = attributes.get(kind, default)
    if "default_tensor" in attributes:
        default = np.asarray(attributes["default_tensor"]).reshape(-1)[0]
    order = np.argsort(keys, kind="stable")  # a key that is no number comes last
    return Prepared((keys[order], values[order], np.asarray(default, values.dtype)), {})


def _one_of(attributes: Attributes, stem: str, kinds: Sequence[str]) -> Array:
    for kind in kinds:
        found = attributes.get(f"{stem}_{kind}")
        if found is not None and np.size(found):
            return np.asarray(found, {"int64s": np.int64, "floats": np.float32}.get(kind)).reshape(-1)
    raise ValueError(f"it has no {stem}")


def one_hot_encoder(attributes: Attributes, read: Sequence[bool]) -> Prepared:
    """Return the categories."""
    categories = _whole(attributes, "cats_int64s")
    if not categories.size:
        raise ValueError("its categories are text, and the backend has no strings")
    return Prepared((categories,), {})


def svm_regressor(attributes: Attributes, read: Sequence[bool]) -> Prepared:
    """Return support vectors (vectors, features), their coefficients and rho; without vectors the weights alone."""
    count = int(attributes.get("n_supports", 0))
    coefficients, rho = _floats(attributes, "coefficients"), _floats(attributes, "rho")
    if _transform(attributes) != "NONE":
        raise ValueError("its post_transform is none that a regression of support vectors has in ONNX Runtime")
    if rho.size != 1:
        raise ValueError(f"it has {rho.size} values of rho, it must have one")
    vectors = _matrix(_floats(attributes, "support_vectors"), count, "support vectors") if count else coefficients[None]
    kernel = str(attributes.get("kernel_type", "LINEAR")) if count else "LINEAR"
    if kernel not in ("LINEAR", "POLY", "RBF", "SIGMOID"):
        raise ValueError(f"its kernel_type is {kernel!r}")
    weights = coefficients if count else np.ones(1, np.float32)
    if weights.size != vectors.shape[0]:
        raise ValueError(f"it has {weights.size} coefficients for {vectors.shape[0]} support vectors")
    parameters = [*map(float, attributes.get("kernel_params", ())), 0.0, 0.0, 0.0][:3]
    options = {"kernel": kernel, "one_class": int(attributes.get("one_class", 0))}
    options |= dict(zip(("gamma", "shift", "degree"), parameters, strict=True))
    return Prepared((vectors, weights, rho), options)


@dataclass(frozen=True, slots=True)
class _Forest:
    """Nodes of all trees: what each tests, and where it leads to."""

    roots: Array
    features: Array
    thresholds: Array
    modes: Array
    on_true: Array
    on_false: Array
    missing_is_true: Array

    def arrays(self) -> tuple[Array, ...]:
        return (
            self.roots, self.features, self.thresholds, self.modes, self.on_true, self.on_false, self.missing_is_true,
        )  # fmt: skip

    def options(self) -> dict[str, Any]:
        """Return the number of levels, and how nodes compare where all do alike, else -1."""
        level, seen = self.roots, 0
        while True:
            level = level[(self.on_true[level] != level) | (self.on_false[level] != level)]
            if not level.size:
                break
            level = np.unique(np.concatenate([self.on_true[level], self.on_false[level]]))
            seen += 1
            if seen > self.features.size:
                raise ValueError("its trees lead back to themselves")
        inner = (self.on_true != np.arange(self.features.size)) | (self.on_false != np.arange(self.features.size))
        modes = np.unique(self.modes[inner])
        mode = int(modes[0]) if modes.size == 1 else 0 if not modes.size else -1
        return {"depth": seen, "mode": mode, "misses": bool(self.missing_is_true.any())}


def _trees(attributes: Attributes) -> tuple[_Forest, dict[tuple[int, int], int]]:
    """Return the forest of the two older ops, and the place of a node by its tree and number."""
    trees, numbers = _whole(attributes, "nodes_treeids"), _whole(attributes, "nodes_nodeids")
    names = [str(name) for name in attributes.get("nodes_modes", ())]
    count = len(names)
    true, false = _whole(attributes, "nodes_truenodeids"), _whole(attributes, "nodes_falsenodeids")
    features, values = _whole(attributes, "nodes_featureids"), _floats(attributes, "nodes_values")
    lengths = {a.size for a in (trees, numbers, true, false, features, values)} | {count}
    if lengths != {count} or not count:
        raise ValueError(f"its lists of nodes have different lengths ({', '.join(map(str, sorted(lengths)))})")
    place = {key: i for i, key in enumerate(zip(trees.tolist(), numbers.tolist(), strict=True))}
    itself = np.arange(count)
    on_true, on_false = itself.copy(), itself.copy()
    modes = np.zeros(count, np.int64)
    for i, name in enumerate(names):
        if name == _LEAF:
            continue
        if name not in _MODES:
            raise ValueError(f"a node of it branches by {name!r}")
        modes[i] = _MODES.index(name)
        for target, ids in ((on_true, true), (on_false, false)):
            child = place.get((int(trees[i]), int(ids[i])))
            if child is None:
                raise ValueError(f"node {int(numbers[i])} of tree {int(trees[i])} leads to a node that is missing")
            target[i] = child
    inner = [i for i, name in enumerate(names) if name != _LEAF]
    led_to = {int(t[i]) for i in inner for t in (on_true, on_false)}
    firsts: dict[int, int] = {}
    for i, tree in enumerate(trees.tolist()):
        if i not in led_to:
            firsts.setdefault(tree, i)
    if len(firsts) != len(set(trees.tolist())):
        raise ValueError("a tree of it has no root")
    misses = _whole(attributes, "nodes_missing_value_tracks_true").astype(bool)
    misses = misses if misses.size == count else np.zeros(count, bool)
    roots = np.asarray(list(firsts.values()))
    return _Forest(roots, features, values, modes, on_true, on_false, misses), place


@dataclass(frozen=True, slots=True)
class _LeafWeights:
    """The weights of leaves as a node has them: attributes called by what they are of, ``target`` or ``class``."""

    kind: str
    targets: int
    filler: float = 0.0

    def laid_out(self, attributes: Attributes, place: Mapping[tuple[int, int], int], nodes: int) -> Array:
        """Return the weights (nodes, targets)."""
        trees, numbers = (_whole(attributes, f"{self.kind}_{name}").tolist() for name in ("treeids", "nodeids"))
        ids, values = _whole(attributes, f"{self.kind}_ids"), _floats(attributes, f"{self.kind}_weights")
        rows = [place.get(key, -1) for key in zip(trees, numbers, strict=False)]
        if not len(trees) == len(numbers) == ids.size == values.size or min(rows, default=-1) < 0:
            raise ValueError("its weights do not fit its leaves")
        if ids.size and not 0 <= ids.min() <= ids.max() < self.targets:
            raise ValueError(f"a weight of it is of target {int(ids.max())}, and it has {self.targets}")
        return _laid_out(np.asarray(rows), ids, values, (nodes, self.targets), self.filler)


def _laid_out(rows: Array, ids: Array, values: Array, shape: tuple[int, int], filler: float) -> Array:
    made = np.full(shape, filler, values.dtype)
    if filler:
        made[rows, ids] = values
    else:
        np.add.at(made, (rows, ids), values)
    return made


def _aggregate(name: str) -> tuple[str, float]:
    """Return how trees are combined, and the weight of a leaf that has none for a target."""
    if name not in _AGGREGATES:
        raise ValueError(f"its aggregate_function is {name!r}, none of {', '.join(_AGGREGATES)}")
    return name, {"MIN": np.inf, "MAX": -np.inf}.get(name, 0.0)


def tree_regressor(attributes: Attributes, read: Sequence[bool]) -> Prepared:
    """Return the forest, the weights of its leaves (nodes, targets) and what is added."""
    forest, place = _trees(attributes)
    targets = int(attributes.get("n_targets", 1))
    aggregate, filler = _aggregate(str(attributes.get("aggregate_function", "SUM")))
    weights = _LeafWeights("target", targets, filler).laid_out(attributes, place, forest.features.size)
    base = _floats(attributes, "base_values")
    if base.size not in (0, targets):
        raise ValueError(f"it has {base.size} base values for {targets} targets")
    how = _transform(attributes)
    if targets == 1 and how != "PROBIT":
        how = "NONE"
    base = base if base.size else np.zeros(targets, weights.dtype)
    options = {**forest.options(), "aggregate": aggregate, "post_transform": how}
    return Prepared((*forest.arrays(), weights, base), options)


def tree_classifier(attributes: Attributes, read: Sequence[bool]) -> Prepared:
    """Return the forest, the weights of its leaves (nodes, scores), what is added, and labels.

    Two classes are told apart by the score of the second, which must be above ``threshold``. A forest with weights for
    the first alone has a single score; ``binary`` says how it becomes two: ``"share"`` where all weights are positive,
    else ``"margin"``; it is ``""`` for any other forest.
    """
    forest, place = _trees(attributes)
    strings = attributes.get("classlabels_strings", ())
    classes = len(strings) or len(attributes.get("classlabels_int64s", ()))
    labels = _labels(attributes, "classlabels_int64s", "classlabels_strings", classes, read[0])
    if classes < 2:
        raise ValueError(f"it has {classes} class labels")
    weights = _LeafWeights("class", classes).laid_out(attributes, place, forest.features.size)
    base = _floats(attributes, "base_values")
    how = _transform(attributes)
    binary, threshold = "", 0.0
    if classes == 2:
        used = np.unique(_whole(attributes, "class_ids"))
        if used.size == 1:
            is_mixed = bool((_floats(attributes, "class_weights") < 0).any())
            threshold = 0.0 if is_mixed else 0.5
            if used[0] == 0:
                binary, weights = "margin" if is_mixed else "share", weights[:, :1]
            if base.size > 1 or (base.size and used[0] == 1):
                raise ValueError(f"it has {base.size} base values, and weights for one of its two classes alone")
        else:
            labels = np.arange(2)  # ONNX Runtime looks at no labels where both classes have weights
        if how == "PROBIT":
            raise ValueError("its post_transform PROBIT of two classes is undefined in ONNX Runtime")
    if base.size not in (0, weights.shape[1]):
        raise ValueError(f"it has {base.size} base values for {weights.shape[1]} scores")
    base = base if base.size else np.zeros(weights.shape[1], weights.dtype)
    options = {**forest.options(), "binary": binary, "threshold": threshold, "post_transform": how}
    return Prepared((*forest.arrays(), weights, base, labels), options)


def tree_ensemble(attributes: Attributes, read: Sequence[bool]) -> Prepared:
    """Return the forest of the newer op, which has leaves apart from nodes, and the weights of its leaves."""
    splits, modes = np.asarray(attributes["nodes_splits"]).reshape(-1), _whole(attributes, "nodes_modes")
    features, count = _whole(attributes, "nodes_featureids"), splits.size
    misses = _whole(attributes, "nodes_missing_value_tracks_true").astype(bool)
    misses = misses if misses.size == count else np.zeros(count, bool)
    leaf_weights = np.asarray(attributes["leaf_weights"]).reshape(-1)
    children = []
    for side in ("true", "false"):
        ids, is_leaf = _whole(attributes, f"nodes_{side}nodeids"), _whole(attributes, f"nodes_{side}leafs")
        if {ids.size, is_leaf.size, modes.size, features.size} != {count}:
            raise ValueError("its lists of nodes have different lengths")
        limits = np.where(is_leaf, leaf_weights.size, count)
        if ((ids < 0) | (ids >= limits)).any():
            raise ValueError("a node of it leads to a node that is missing")
        children.append(np.where(is_leaf, count + ids, ids))
    if modes.size and not 0 <= modes.min() <= modes.max() <= _MEMBER:
        raise ValueError(f"a node of it branches by mode {int(modes.max())}")
    leaves = count + np.arange(leaf_weights.size)
    columns = [
        np.concatenate([features, np.zeros(leaf_weights.size, np.int64)]),
        np.concatenate([splits, np.zeros(leaf_weights.size, splits.dtype)]),
        np.concatenate([modes, np.zeros(leaf_weights.size, np.int64)]),
        np.concatenate([children[0], leaves]),
        np.concatenate([children[1], leaves]),
        np.concatenate([misses, np.zeros(leaf_weights.size, bool)]),
    ]
    columns = _without_members(columns, np.asarray(attributes.get("membership_values", ())).reshape(-1))
    forest = _Forest(_whole(attributes, "tree_roots"), *columns)
    targets = int(attributes.get("n_targets", 1))
    aggregate, filler = _aggregate(_AGGREGATES[int(attributes.get("aggregate_function", 1))])
    ids = _whole(attributes, "leaf_targetids")
    weights = _laid_out(leaves, ids, leaf_weights, (columns[0].size, targets), filler)
    how = _TRANSFORMS[int(attributes.get("post_transform", 0))]
    if targets == 1 and how != "PROBIT":
        how = "NONE"
    options = {**forest.options(), "aggregate": aggregate, "post_transform": how}
    return Prepared((*forest.arrays(), weights, np.zeros(targets, weights.dtype)), options)


def _without_members(columns: list[Array], members: Array) -> list[Array]:
    """Write a node that asks whether a feature is in a set as a chain of nodes that ask for one member each."""
    features, splits, modes, on_true, on_false, misses = (list(column) for column in columns)
    sets: list[list[Any]] = [[]]
    for value in members:
        if np.isnan(value):
            sets.append([])
        else:
            sets[-1].append(value)
    asking = [i for i, mode in enumerate(modes) if mode == _MEMBER]
    if len(asking) > len(sets):
        raise ValueError("it has fewer sets of members than nodes that ask for one")
    for i, wanted in zip(asking, sets, strict=False):
        otherwise, at = on_false[i], i
        modes[i] = _MODES.index("BRANCH_EQ")
        if not wanted:
            on_true[i] = otherwise
        for k, value in enumerate(wanted):
            splits[at] = value
            if k + 1 < len(wanted):
                on_false[at] = len(features)
                at = len(features)
                features.append(features[i])
                splits.append(value)
                modes.append(modes[i])
                on_true.append(on_true[i])
                on_false.append(otherwise)
                misses.append(misses[i])
    made = (features, splits, modes, on_true, on_false, misses)
    return [np.asarray(values, column.dtype) for values, column in zip(made, columns, strict=True)]


_PREPARED: Mapping[str, tuple[Prepare, str]] = MappingProxyType(
    {
        "Imputer": (
            imputer, "imputed_value_floats imputed_value_int64s replaced_value_float replaced_value_int64",
        ),
        "LabelEncoder": (
            label_encoder,
            "keys_int64s keys_floats keys_strings keys_tensor values_int64s values_floats values_strings "
            "values_tensor default_int64 default_float default_string default_tensor",
        ),
        "LinearClassifier": (
            linear_classifier,
            "coefficients intercepts classlabels_ints classlabels_strings multi_class post_transform",
        ),
        "LinearRegressor": (linear_regressor, "coefficients intercepts targets post_transform"),
        "OneHotEncoder": (one_hot_encoder, "cats_int64s cats_strings zeros"),
        "SVMRegressor": (
            svm_regressor,
            "coefficients kernel_params kernel_type n_supports one_class post_transform rho support_vectors",
        ),
        "Scaler": (scaler, "offset scale"),
        "TreeEnsemble": (
            tree_ensemble,
            "aggregate_function leaf_targetids leaf_weights membership_values n_targets nodes_falseleafs "
            "nodes_falsenodeids nodes_featureids nodes_hitrates nodes_missing_value_tracks_true nodes_modes "
            "nodes_splits nodes_trueleafs nodes_truenodeids post_transform tree_roots",
        ),
        "TreeEnsembleClassifier": (
            tree_classifier,
            "base_values base_values_as_tensor class_ids class_nodeids class_treeids class_weights "
            "class_weights_as_tensor classlabels_int64s classlabels_strings nodes_falsenodeids nodes_featureids "
            "nodes_hitrates nodes_hitrates_as_tensor nodes_missing_value_tracks_true nodes_modes nodes_nodeids "
            "nodes_treeids nodes_truenodeids nodes_values nodes_values_as_tensor post_transform",
        ),
        "TreeEnsembleRegressor": (
            tree_regressor,
            "aggregate_function base_values base_values_as_tensor n_targets nodes_falsenodeids nodes_featureids "
            "nodes_hitrates nodes_hitrates_as_tensor nodes_missing_value_tracks_true nodes_modes nodes_nodeids "
            "nodes_treeids nodes_truenodeids nodes_values nodes_values_as_tensor post_transform target_ids "
            "target_nodeids target_treeids target_weights target_weights_as_tensor",
        ),
    }
)  # fmt: skip


def find_prepare(domain: str, op: str) -> Prepare | None:
    """Return what lays out the attributes of an op, or None for an op that takes its attributes as they are."""
    return _PREPARED[op][0] if domain == "ai.onnx.ml" and op in _PREPARED else None


def known_attributes(op: str) -> frozenset[str]:
    """Return the attributes that are read of an op with :func:`find_prepare`."""
    return frozenset(_PREPARED[op][1].split())
