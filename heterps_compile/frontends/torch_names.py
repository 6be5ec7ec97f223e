"""Names of a torch program's tensors and values.

Left out: names in written source (the backend makes them harmless there).
"""

from .torch_call import Leaf
from .torch_program import Program


def name_ties(program: Program) -> None:
    """Let every reader of a tied tensor read it by the name that its own module has for it."""
    for node in list(program.graph.nodes):
        names = program.aliases.get(str(node.target), ()) if node.op == "get_attr" else ()
        own = {f"{alias.rpartition('.')[0]}": alias for alias in reversed(names)}
        for user in list(node.users):
            alias = own.get(user.meta.get("path", ""))
            if alias is None or alias == node.target or user.op == "output":
                continue
            program.tensors[alias] = program.tensors[str(node.target)]
            program.kinds[alias] = program.kinds[str(node.target)]
            with program.graph.inserting_before(node):
                named = program.graph.create_node("get_attr", alias)
            named.meta = dict(node.meta)
            user.replace_input_with(node, named)
        if names and not node.users:
            program.graph.erase_node(node)
    read = {str(n.target) for n in program.graph.nodes if n.op == "get_attr"}
    read.update(name for names in program.module_tensors.values() for name in names)
    for name in set(program.tensors) - read:
        del program.tensors[name]


def rename_values(program: Program) -> tuple[Leaf, ...]:
    """Rename the nodes that go by a parameter's name, since values and parameters share one namespace.

    Returns:
        The leaves of the program's inputs under their new names.
    """
    renamed = {}
    for node in program.graph.nodes:
        if node.op not in ("get_attr", "output") and node.name in program.tensors:
            old = node.name
            while node.name in program.tensors:
                node._rename(f"{node.name}_value")
            renamed[old] = node.name
    for old, new in renamed.items():
        if old in program.examples:
            program.examples[new] = program.examples.pop(old)
    return tuple(renamed.get(leaf, leaf) if isinstance(leaf, str) else leaf for leaf in program.in_leaves)
