"""The static wall: checks a script's syntax tree against the policy and rewrites what needs a guard at run time.

Where a method below replaces one of RestrictedPython's, it says what is kept and why. RestrictedPython also guards
iteration, unpacking, item reading and star calls. Those guards exist for objects with access rules of their own; here
every reachable object's items are the script's own data and no script class can define `__iter__`, `__getitem__` or
`__call__`, so these constructs run as plain Python. Names of our guards start with an underscore, which no name of a
script does.
"""

import ast
from typing import Final

from . import facades
from .checker import Checker
from .classes import STAND_INS
from .grammar import REFUSED_NODES
from .names import REFUSED_BUILTINS, SPECIAL_METHODS, refused_attribute, refused_keyword
from .rewriting import assign, call, constant, load, noticing, place
from .survey import own_nodes

_BUILTIN_BASES: Final = frozenset(
    {"int", "float", "bool", "complex", "list", "tuple", "dict", "set", "frozenset", "range", "slice", "map", "filter",
     "zip", "enumerate", "reversed", "BaseException"}
    | {kind.__name__ for kind in STAND_INS}
)  # fmt: skip
_BUILTIN_DECORATORS: Final = frozenset({"staticmethod", "classmethod"})

_OPERATORS: Final[dict[type[ast.operator], str]] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
    ast.MatMult: "@", ast.LShift: "<<", ast.RShift: ">>", ast.BitOr: "|", ast.BitXor: "^", ast.BitAnd: "&",
}  # fmt: skip


class PolicyTransformer(Checker):
    """The policy, node by node."""

    _is_in_generator = False

    # Names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        name = node.id
        if isinstance(node.ctx, ast.Load) and name in REFUSED_BUILTINS and name not in self.bound_names:
            self.refuse(node, "builtin", f"{name} is not available to scripts", REFUSED_BUILTINS[name])
        else:
            self.check_name(node, name)
        return node

    def visit_Global(self, node: ast.Global) -> ast.AST:
        for name in node.names:
            self.check_name(node, name)
        return node

    def visit_Nonlocal(self, node: ast.Nonlocal) -> ast.AST:
        # RestrictedPython refuses nonlocal; it only rebinds the script's own variables, whose names are checked.
        for name in node.names:
            self.check_name(node, name)
        return node

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        if node.arg is not None and (refusal := refused_keyword(node.arg)) is not None:
            self.refuse(node, "name", *refusal)
        return self.node_contents_visit(node)

    # Attributes and items

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        refusal = refused_attribute(node.attr)
        if refusal is not None:
            self.refuse(node, "attribute", *refusal)
        node.value = self.visited(node.value)
        if isinstance(node.ctx, ast.Load):
            return call("_getattr_", [node.value, constant(node.attr, node)], node)
        node.value = call("_write_", [node.value], node)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.node_contents_visit(node)
        if not isinstance(node.ctx, ast.Load):
            node.value = call("_write_", [node.value], node)
        return node

    # Expressions

    def visit_Call(self, node: ast.Call) -> ast.AST:
        return self.node_contents_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.node_contents_visit(node)
        if isinstance(node.op, ast.Mod):
            return call("_mod_", [node.left, node.right], node)
        return node

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.AST:
        node.value = self.visited(node.value)
        spec = node.format_spec
        if spec is None and node.conversion == -1:
            text = call("_text_", [node.value], node)
        else:
            conversion = "" if node.conversion == -1 else chr(node.conversion)
            checked_spec = constant("", node) if spec is None else self.visited(spec)
            text = call("_formatted_", [node.value, constant(conversion, node), checked_spec], node)
        return ast.FormattedValue(value=text, conversion=-1, format_spec=None, **place(node))

    def visit_Set(self, node: ast.Set) -> ast.AST:
        self.node_contents_visit(node)
        return call("_set_", [ast.Tuple(elts=node.elts, ctx=ast.Load(), **place(node))], node)

    def visit_SetComp(self, node: ast.SetComp) -> ast.AST:
        elements = ast.ListComp(elt=node.elt, generators=node.generators, **place(node))
        return call("_set_", [self.visited(elements)], node)

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        if node.is_async:
            self.refuse(node.target, "AsyncFor", *REFUSED_NODES["AsyncFor"])
        return self.node_contents_visit(node)

    # Statements

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if isinstance(node.value, ast.Constant):
            # A docstring, which no script can read: Python 3.13 cannot compile one that holds a lone surrogate.
            return ast.Pass(**place(node))
        return self.node_contents_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        return self.node_contents_visit(node)

    def visit_For(self, node: ast.For) -> ast.AST:
        return self.node_contents_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.node_contents_visit(node)
        if node.value is not None:
            return ast.Assign(targets=[node.target], value=node.value, **place(node))
        if self.scopes[-1] is ast.FunctionDef and isinstance(node.target, ast.Name):
            # A bare `x: int` in a function makes x local; its annotation is never evaluated there.
            node.annotation = constant(None, node)
            return node
        return ast.Pass(**place(node))

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        target = node.target
        if isinstance(target, ast.Name):
            self.node_contents_visit(node)
            if not isinstance(node.op, ast.Mod):
                return node
            return assign(target.id, call("_inplace_mod_", [load(target.id, target), node.value], node), node)
        # `d[k] += v` becomes `_augment_item_(d, k, "+")(v)`: container and key are evaluated and the old value is read
        # before v, once each, as Python does it; the returned function computes and writes.
        if isinstance(target, ast.Attribute):
            refusal = refused_attribute(target.attr)
            if refusal is not None:
                self.refuse(target, "attribute", *refusal)
            guard, key = "_augment_attribute_", constant(target.attr, target)
        else:
            guard, key = "_augment_item_", self.visited(target.slice)
        operands = [self.visited(target.value), key, constant(_OPERATORS[type(node.op)], node)]
        store = call(guard, operands, target)
        stored = ast.Call(func=store, args=[self.visited(node.value)], keywords=[], **place(node))
        return ast.Expr(value=stored, **place(node))

    def visit_Try(self, node: ast.Try) -> ast.AST:
        self.node_contents_visit(node)
        if self.scopes[-1] is ast.FunctionDef and self._is_in_generator:
            # A handler's class is an expression, and a finally block statements, that run when the generator is
            # discarded.
            node.body = noticing(node.body, node)
            if node.handlers and node.finalbody:
                inner = ast.Try(body=node.body, handlers=node.handlers, orelse=node.orelse, finalbody=[], **place(node))
                return ast.Try(
                    body=noticing([inner], node), handlers=[], orelse=[], finalbody=node.finalbody, **place(node)
                )
        return node

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        self.check_name(node, node.name)
        self.node_contents_visit(node)
        if node.type is None:
            # A bare except would also catch what ends a branch or the worker.
            node.type = load("_Exception_", node)
        return node

    # Imports

    def visit_Import(self, node: ast.Import) -> ast.AST:
        assignments: list[ast.stmt] = []
        for alias in node.names:
            bound = alias.asname or alias.name
            if facades.importable_names(alias.name) is None:
                self._refuse_module(alias, alias.name)
                continue
            self.check_name(alias, bound)
            assignments.append(assign(bound, call("_import_", [constant(alias.name, alias)], alias), node))
        return assignments  # type: ignore[return-value]  # a visitor may give several statements for one

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        module = "." * node.level + (node.module or "")
        if module == "__future__" and all(alias.name == "annotations" for alias in node.names):
            return ast.Pass(**place(node))  # annotations are never evaluated anyway
        offered = facades.importable_names(module)
        if offered is None:
            self._refuse_module(node, module)
            return node
        assignments: list[ast.stmt] = []
        for alias in node.names:
            if alias.name not in offered:
                names = ", ".join(sorted(offered))
                self.refuse(alias, "import", f"{module} offers no {alias.name!r} to scripts", f"it offers {names}")
                continue
            bound = alias.asname or alias.name
            self.check_name(alias, bound)
            member = call("_import_", [constant(module, alias), constant(alias.name, alias)], alias)
            assignments.append(assign(bound, member, node))
        return assignments  # type: ignore[return-value]

    def _refuse_module(self, node: ast.AST, module: str) -> None:
        allowed = ", ".join([*facades.MODULES, facades.HOOK_MODULE])
        self.refuse(node, "import", f"a script cannot import {module!r}", f"it can import {allowed}")

    # Functions and classes

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if node.name in SPECIAL_METHODS:
            if self.scopes[-1] is not ast.ClassDef:
                self.refuse(node, "name", f"{node.name} is not allowed outside a class", "choose another name")
        elif node.name.startswith("__") and node.name.endswith("__") and self.scopes[-1] is ast.ClassDef:
            known = ", ".join(sorted(SPECIAL_METHODS))
            self.refuse(node, "special-method", f"the special method {node.name} is not allowed", f"allowed: {known}")
        else:
            self.check_name(node, node.name)
        self._check_decorators(node)
        around = self._is_in_generator
        self._is_in_generator = any(isinstance(inner, ast.Yield | ast.YieldFrom) for inner in own_nodes(node.body))
        self._inside(node)
        self._is_in_generator = around
        node.returns = None
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return self.node_contents_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        self.check_name(node, node.arg)
        self.node_contents_visit(node)
        node.annotation = None
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.check_name(node, node.name)
        self._check_decorators(node)
        for keyword in node.keywords:
            self.refuse(keyword.value, "class", "class keywords are not allowed", "remove what follows the base class")
        if len(node.bases) > 1 or any(isinstance(base, ast.Starred) for base in node.bases):
            self.refuse(node, "class", f"class {node.name} has more than one base", "inherit from one class")
        for base in node.bases:
            if isinstance(base, ast.Name) and base.id in _BUILTIN_BASES and base.id not in self.bound_names:
                hint = "inherit from Exception" if base.id == "BaseException" else "hold the value in an attribute"
                self.refuse(base, "class", f"a script class cannot inherit from {base.id}", hint)
        node.keywords = []
        self._inside(node)
        node.keywords = [ast.keyword(arg="metaclass", value=load("__metaclass__", node), **place(node))]
        return node

    def _check_decorators(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Name) and decorator.id in _BUILTIN_DECORATORS & self.bound_names:
                self.refuse(decorator, "builtin", f"{decorator.id} is not available", REFUSED_BUILTINS[decorator.id])

    def _inside(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        self.scopes.append(type(node))
        self.node_contents_visit(node)
        self.scopes.pop()

    # Patterns

    def visit_Match(self, node: ast.Match) -> ast.AST:
        return self.node_contents_visit(node)

    def visit_match_case(self, node: ast.match_case) -> ast.AST:
        return self.node_contents_visit(node)

    def visit_MatchValue(self, node: ast.MatchValue) -> ast.AST:
        self._check_pattern_literal(node.value)
        return node

    def visit_MatchSingleton(self, node: ast.MatchSingleton) -> ast.AST:
        return node

    def visit_MatchSequence(self, node: ast.MatchSequence) -> ast.AST:
        return self.node_contents_visit(node)

    def visit_MatchMapping(self, node: ast.MatchMapping) -> ast.AST:
        for key in node.keys:
            self._check_pattern_literal(key)
        self.check_name(node, node.rest)
        for pattern in node.patterns:
            self.visit(pattern)
        return node

    def visit_MatchStar(self, node: ast.MatchStar) -> ast.AST:
        self.check_name(node, node.name)
        return node

    def visit_MatchAs(self, node: ast.MatchAs) -> ast.AST:
        self.check_name(node, node.name)
        return self.node_contents_visit(node)

    def visit_MatchOr(self, node: ast.MatchOr) -> ast.AST:
        return self.node_contents_visit(node)

    def _check_pattern_literal(self, value: ast.expr) -> None:
        # Literals are constants, negative numbers and complex sums of them. A dotted name reads attributes.
        if not all(isinstance(node, ast.Constant | ast.UnaryOp | ast.BinOp | ast.operator | ast.unaryop)
                   for node in ast.walk(value)):  # fmt: skip
            self.refuse(
                value,
                "pattern",
                "a dotted name is not allowed in a pattern: it reads an attribute unseen",
                "use a guard: case x if x == settings.value",
            )
