"""A parsed Jinja template in which every place that repeats, joins or nests calls its environment, which counts.

Contract: what the template writes stays the same. The environment has ``paid(value)``, ``paid_length(items)``,
``joined(*parts)`` and ``spend(units)``; sandbox.py says what they count.
"""

from __future__ import annotations

from typing import Any

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

_BUFFERS = (nodes.AssignBlock, nodes.Block, nodes.CallBlock, nodes.FilterBlock, nodes.Macro)


def meter(tree: nodes.Template) -> None:
    """Have every place that repeats, joins or nests pay."""
    for loop in list(tree.find_all(nodes.For)):
        loop.iter = _call("paid_length", loop.iter)
    for item in list(tree.find_all(nodes.Getitem)):
        if isinstance(item.arg, nodes.Slice):
            item.node = _call("paid_length", item.node)
    for buffer in tree.find_all(_BUFFERS):
        for output in buffer.find_all(nodes.Output):
            _pay_for_output(output)
    _Literals().visit(tree)


def _pay_for_output(output: nodes.Output) -> None:
    """Text that is kept, not written. (One that is written pays as it comes.)"""
    if output.nodes and isinstance(output.nodes[0], nodes.Call) and _is_metering(output.nodes[0]):
        return  # a buffer within a buffer
    constant = sum(len(node.data) for node in output.nodes if isinstance(node, nodes.TemplateData))
    paid = [node if isinstance(node, nodes.TemplateData) else _call("paid", node) for node in output.nodes]
    output.nodes = [_call("spend", nodes.Const(1 + constant)), *paid]


class _Literals(NodeTransformer):
    """Lists, tuples and objects are paid with all that they nest; ``~`` is ours; ``in`` pays what it searches."""

    def visit_Concat(self, node: nodes.Concat, *args: Any, **kwargs: Any) -> nodes.Node:
        self.generic_visit(node)
        return _call("joined", *node.nodes)

    def visit_List(self, node: nodes.List, *args: Any, **kwargs: Any) -> nodes.Node:
        self.generic_visit(node)
        return _call("paid", node)

    visit_Dict = visit_List

    def visit_Tuple(self, node: nodes.Tuple, *args: Any, **kwargs: Any) -> nodes.Node:
        self.generic_visit(node)
        return _call("paid", node) if node.ctx == "load" else node

    def visit_Operand(self, node: nodes.Operand, *args: Any, **kwargs: Any) -> nodes.Node:
        self.generic_visit(node)
        if node.op in ("in", "notin"):
            node.expr = _call("paid", node.expr)
        return node


def _call(name: str, *args: nodes.Node) -> nodes.Call:
    call = nodes.Call(nodes.EnvironmentAttribute(name), list(args), [], None, None)
    call.set_lineno(args[0].lineno or 1)
    return call


def _is_metering(node: nodes.Call) -> bool:
    return isinstance(node.node, nodes.EnvironmentAttribute)
